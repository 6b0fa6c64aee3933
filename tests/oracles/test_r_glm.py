"""Standard errors, tests and the fit of a training on shares, against R's glm.

`tests/oracles/r/glm.R` makes the same rows, and `glm.json` is what R says about them. `make r-oracle` compares the two.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, ndtri

from tests.support.inferred import train_with_inference
from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import PrivateKey

JOB = JobConfig(name="job", dataset="data", protocol="shares", inference=True, holdout=0.0, tolerance=0.0)
FOUND: dict[str, Any] = json.loads(Path(__file__).with_name("r").joinpath("glm.json").read_text())
N_ROWS = 4000


def u(k: int) -> FloatVector:
    """See glm.R."""
    return np.asarray((np.arange(1, N_ROWS + 1) * np.sqrt(k)) % 1, np.float64)


@pytest.mark.parametrize("weighting", ["plain", "weighted"])
def test_the_table_of_a_training_is_that_of_r(weighting: str, private_key: PrivateKey) -> None:
    region = np.array(["east", "north", "south"])[(u(5) > 0.45).astype(int) + (u(5) > 0.8)]
    host = pd.DataFrame({"amount": np.exp(ndtri(u(2))), "late": np.floor(4 * u(3) ** 2), "region": region})
    guest = pd.DataFrame({"age": 20 + 50 * u(7), "employed": np.where(u(11) >= 0.7, "no", "yes")})
    score = -0.9 + 0.25 * host["amount"] + 0.5 * host["late"] + 0.4 * (region == "south") - 0.03 * guest["age"]
    positive = u(13) < expit(score - 0.3 * (guest["employed"] == "no"))
    weights = 1 + np.floor(3 * u(17))
    assert positive.sum() == FOUND["n_positive"]
    sums = [each.sum() for each in (host["amount"], host["late"], guest["age"], weights)]
    assert sums == pytest.approx(FOUND["sums"], rel=1e-9)

    case = train_with_inference(
        JOB,
        PreprocessingConfig(clip=None),
        (host, guest),
        np.where(positive, 1.0, -1.0),
        private_key,
        weights if weighting == "weighted" else None,
    )

    wanted = {name: np.asarray(value) for name, value in FOUND[weighting].items()}
    assert np.abs((case.coef - wanted["coef"]) / wanted["std_error"]).max() < 5e-4
    assert case.errors == pytest.approx(wanted["std_error"], rel=3e-4)
    assert case.z == pytest.approx(wanted["z"], abs=5e-4, rel=3e-4)
    in_doubt = wanted["p_value"] > 1e-4
    assert in_doubt.sum() >= 2
    assert case.p_values[in_doubt] == pytest.approx(wanted["p_value"][in_doubt], rel=5e-3)
    assert case.lower == pytest.approx(wanted["lower"], abs=1e-3)
    assert case.upper == pytest.approx(wanted["upper"], abs=1e-3)
    fit = case.fit
    assert fit.likelihood_ratio is not None
    assert fit.likelihood_ratio.p_value == pytest.approx(wanted["likelihood_ratio_p"], rel=0.05)
    found = fit.deviance, fit.null_deviance, fit.aic, fit.bic, fit.likelihood_ratio.statistic
    fields = ("deviance", "null_deviance", "aic", "bic", "likelihood_ratio")
    assert found == pytest.approx([float(wanted[name]) for name in fields], rel=1e-4)
