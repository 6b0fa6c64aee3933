"""The data of the demo: a table that ships with scikit-learn, with its columns split between the two parties."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from trilateral.common.base.roles import Role

DATASET = "breast-cancer"
N_HOST_FEATURES = 15


def demo_tables() -> dict[Role, pd.DataFrame]:
    """Return both parties' tables of 569 patients, in different orders. The guest's table has the diagnosis."""
    data = load_breast_cancer(as_frame=True)
    features = data.data.rename(columns=lambda name: name.replace(" ", "_"))
    features.insert(0, "patient", [f"P{number:05}" for number in range(len(features))])
    names = list(features.columns[1:])
    guest = features[["patient", *names[:-N_HOST_FEATURES]]].assign(
        diagnosis=np.where(data.target == 0, "malignant", "benign")
    )
    host = features[["patient", *names[-N_HOST_FEATURES:]]]
    return {Role.HOST: host.sample(frac=1, random_state=2), Role.GUEST: guest.sample(frac=1, random_state=1)}
