"""Supervised bins against those of optbinning, which solves the same problem by constraint programming.

`tests/oracles/optbinning/bins.py` makes the same rows, and `bins.json` is what optbinning says about them. `make
binning-oracle` compares the two.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, ndtri

from tests.support.frames import features_of
from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.bins import BinnedColumn, BinnedNumber

FOUND: dict[str, Any] = json.loads(Path(__file__).with_name("optbinning").joinpath("bins.json").read_text())
N_ROWS = 5000
COLUMNS = ("rising", "falling", "mixed")


def u(k: int) -> FloatVector:
    """See bins.py."""
    return np.asarray((np.arange(1, N_ROWS + 1) * np.sqrt(k)) % 1, np.float64)


@pytest.fixture(scope="module")
def binned() -> dict[str, BinnedColumn]:
    frame = pd.DataFrame({"rising": u(2) ** 2, "falling": np.exp(ndtri(u(3))), "mixed": ndtri(u(5))})
    score = (
        -1.5 + 2 * frame["rising"] - 0.4 * np.log(frame["falling"]) + 0.3 * frame["mixed"] - 0.1 * frame["mixed"] ** 2
    )
    bad = u(7) < expit(score)
    frame.loc[u(11) < 0.07, "falling"] = np.nan
    assert bad.sum() == FOUND["n_bad"]
    config = PreprocessingConfig.model_validate({"binning": {"method": "supervised", "max_bins": 5, "min_share": 0.05}})
    columns = Preprocessing.fit(features_of(frame), config, True, labels=np.where(bad, 1.0, -1.0)).columns
    return {column.name: column for column in columns if isinstance(column, BinnedColumn)}


@pytest.mark.parametrize("name", COLUMNS)
def test_edges_counts_woe_and_iv_are_those_of_optbinning(name: str, binned: dict[str, BinnedColumn]) -> None:
    column, wanted = binned[name], FOUND[name]
    assert isinstance(column, BinnedNumber)
    assert wanted["status"] == "OPTIMAL"
    assert column.bounds == pytest.approx(wanted["splits"], rel=1e-9)
    assert [each.n_rows for each in column.bins] == wanted["n_rows"]
    assert [each.n_positive for each in column.bins] == wanted["n_bad"]
    assert column.woe_values == pytest.approx(np.array(wanted["woe"]), rel=1e-8)
    assert column.iv_parts == pytest.approx(np.array(wanted["iv"]), rel=1e-8)
