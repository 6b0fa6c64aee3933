"""A small data set in place of the published ones."""

import numpy as np
import pandas as pd

from trilateral.common.trial.catalogue import PublishedDataSet

CSV = "No,A1,A2,A3,B\n1,30,1500,0.00008,0\n2,41,NA,-2.5,1\n3,57,0,1e6,0\n"
TABLE = pd.DataFrame(
    {
        "id": [1.0, 2.0, 3.0],
        "age": [30.0, 41.0, 57.0],
        "income": [1500.0, np.nan, 0.0],
        "debt": [8e-05, -2.5, 1e6],
        "label": [0.0, 1.0, 0.0],
    }
)
SMALL = PublishedDataSet(
    title="three people",
    url="https://publisher.example.org/table.csv",
    by_hand="ask the author for table.csv",
    file_name="table.csv",
    headers=(("No", "A1", "A2", "A3", "B"), ("No", "age", "income", "debt", "default")),
    features=("age", "income", "debt"),
    guest_features=("age",),
    n_rows=3,
    sha256="0c6c426d4f4171db8d2ff4959e03e25604301bb46d6444e7fef32d2536f403ae",
)
