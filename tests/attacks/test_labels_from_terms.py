"""A party knows its own terms, and the sums of residuals over them that it may see.

With `sgd` and `whiten: false`, a party's step is a multiple of Z'r, where r holds the residuals, at first a half of the
labels. It follows the protocol and computes from Z'r the best estimate of one row's residual. That is right almost
always if a combination of the terms that its own settings make is large in that row alone, although each column by
itself has the rows that it needs.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing, categories, few_rows, fit, interactions

N_ROWS = 1000
ROW = 617
"""The row whose label the party is after."""
rng = np.random.default_rng(0)
AT_BOTH_ENDS = np.where(np.arange(N_ROWS) % 2 == 0, 0.0, 9.0) + rng.random(N_ROWS)
FEW = np.isin(np.arange(N_ROWS), [ROW, *range(30)])

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "B-splines between whose knots one row lies": (
        {"x": np.where(np.arange(N_ROWS) == ROW, 5.0, AT_BOTH_ENDS)},
        {"spline": {"kind": "bspline", "knots": [1.5, 2, 3, 4, 6, 7, 8, 8.5]}},
    ),
    "a natural spline with a knot at one row": (
        {"x": np.where(np.arange(N_ROWS) == ROW, 5.0, AT_BOTH_ENDS)},
        {"spline": {"kind": "natural", "knots": [1, 4.9, 5, 5.1, 9]}},
    ),
    "a logarithm that is far from all others in one row": (
        {"x": np.where(np.arange(N_ROWS) == ROW, 1e-90, 1 + AT_BOTH_ENDS)},
        {"transform": "log"},
    ),
    "a category of 31 rows in which one has another number": (
        {
            "x": np.where(FEW, np.where(np.arange(N_ROWS) == ROW, 3.5, 3.0), AT_BOTH_ENDS),
            "branch": pd.Series(np.where(FEW, "few", np.where(AT_BOTH_ENDS < 5, "a", "b")), dtype="str"),
        },
        {"interactions": [["x", "branch"]]},
    ),
    "two numbers that are both large in one row": (
        {
            "x": np.where(np.isin(np.arange(N_ROWS), [ROW, *range(15)]), 1.0, 0.0) + rng.normal(0, 1e-3, N_ROWS),
            "z": np.where(np.isin(np.arange(N_ROWS), [ROW, *range(20, 35)]), 1.0, 0.0) + rng.normal(0, 1e-3, N_ROWS),
        },
        {"interactions": [["x", "z"]]},
    ),
    "a category of one row whose share is far from all others": (
        {
            "x": AT_BOTH_ENDS,
            "branch": pd.Series(np.where(np.arange(N_ROWS) == ROW, "one", np.where(np.arange(N_ROWS) < 501, "a", "b"))),
        },
        {"encoding": "frequency"},
    ),
}


def share_of_right_guesses(columns: dict[str, Any], settings: dict[str, Any]) -> float:
    """Return how often the best linear estimate from Z'r has the sign of the label, over random labels."""
    frame = features_of(pd.DataFrame(columns))
    config = PreprocessingConfig.model_validate({"clip": None, "whiten": False, "rare": 0, **settings})
    steps = Preprocessing.fit(frame, config, intercept=True)
    Z = steps.transform(frame)
    labels = np.random.default_rng(1).choice([-1.0, 1.0], (2000, N_ROWS))
    sums = labels / 2 @ Z
    estimates = sums @ np.linalg.pinv(Z)[:, ROW]
    return float(np.mean(np.sign(estimates) == labels[:, ROW]))


@pytest.mark.parametrize("case", CASES)
def test_the_label_of_a_row_stays_secret(case: str) -> None:
    assert share_of_right_guesses(*CASES[case]) < 0.7


@pytest.mark.parametrize("case", CASES)
def test_without_the_least_rows_the_party_reads_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (categories, few_rows, fit, interactions):
        monkeypatch.setattr(module, "MIN_ROWS", 1)
    assert share_of_right_guesses(*CASES[case]) > 0.9
