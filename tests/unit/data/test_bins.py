"""Columns in bins: what a bin has, what becomes of values that training did not have, and what the file keeps."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.features import Features
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.bins import BinnedCategory, BinnedColumn, BinnedNumber, fit_fine
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.data.preprocessing.reasons import ConstantError

N = 2_000


def table(n_rows: int = N, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, n_rows).astype(float)
    income = np.where(rng.random(n_rows) < 0.3, 0.0, rng.lognormal(3, 1, n_rows))
    branch = rng.choice(["north", "south", "east", "rare"], n_rows, p=[0.5, 0.3, 0.195, 0.005]).astype(object)
    score = 0.05 * (age - 45) + (branch == "south") - 0.01 * income
    labels = np.where(rng.random(n_rows) < 1 / (1 + np.exp(-score)), 1.0, -1.0)
    age[rng.random(n_rows) < 0.1] = np.nan
    return pd.DataFrame({"age": age, "income": income, "branch": branch}), labels


def fit(binning: Mapping[str, Any], frame: pd.DataFrame, labels: np.ndarray | None, **settings: Any) -> Preprocessing:
    config = PreprocessingConfig.model_validate({"binning": binning, **settings})
    return Preprocessing.fit(features_of(frame), config, True, labels=labels)


def binned(steps: Preprocessing) -> list[BinnedColumn]:
    columns = [column for column in steps.columns if isinstance(column, BinnedColumn)]
    assert len(columns) == len(steps.columns)
    return columns


@pytest.mark.parametrize("method", ["supervised", "quantile", "width"])
def test_a_woe_column_is_the_log_odds_of_its_bin(method: str) -> None:
    frame, labels = table()
    steps = fit({"method": method, "max_bins": 5}, frame, labels)

    terms = steps.expand(features_of(frame))

    assert steps.terms == ("age WOE", "income WOE", "branch WOE")
    assert not any(flag for column in steps.columns for flag in column.binary)
    P, M = (labels > 0).sum(), (labels < 0).sum()
    for column, values in zip(binned(steps), terms.T, strict=True):
        assert len(column.bins) <= 6
        seen = []
        for value in np.unique(values):
            rows = values == value
            p, n = (labels[rows] > 0).sum(), (labels[rows] < 0).sum()
            assert value == pytest.approx(np.log((p / P) / (n / M)))
            seen.append((int(rows.sum()), int(p)))
        assert sorted((each.n_rows, each.n_positive) for each in column.bins) == sorted(seen)
        # At least 5% of the rows, by default.
        assert min(seen)[0] >= 0.05 * len(labels)


def test_supervised_bins_of_numbers_rise_or_fall() -> None:
    frame, labels = table()
    age = binned(fit({}, frame, labels))[0]
    assert isinstance(age, BinnedNumber)
    assert age.missing == len(age.bounds) + 1
    woe = age.woe_values
    assert woe is not None
    steps = np.diff(woe[: len(age.bounds) + 1])
    assert (steps > 0).all()
    assert age.labels[0] == f"age < {age.bounds[0]:.6g}"
    assert age.labels[-1] == "age is missing"


def test_a_bin_takes_its_lower_bound_and_leaves_its_upper_one() -> None:
    frame, labels = table()
    steps = fit({"method": "quantile"}, frame[["age"]], labels)
    (age,) = binned(steps)
    assert isinstance(age, BinnedNumber)
    assert age.woe_values is not None
    at = pd.DataFrame({"age": [age.bounds[0], np.nextafter(age.bounds[0], 0), -1e9, 1e9, np.nan]})
    expected = age.woe_values[[1, 0, 0, len(age.bounds), len(age.bounds) + 1]]
    assert steps.expand(features_of(at))[:, 0] == pytest.approx(expected)


def test_what_training_did_not_have_counts_nothing() -> None:
    frame, labels = table()
    steps = fit({}, frame[["income", "branch"]], labels)
    at = pd.DataFrame({"income": [np.nan], "branch": pd.Series([None], dtype=object)})
    assert steps.expand(features_of(at)) == pytest.approx(np.zeros((1, 2)))


def test_rare_categories_join_others_and_unseen_ones_do_as_well() -> None:
    frame, labels = table()
    frame.loc[:40, "branch"] = [f"tiny{number % 9}" for number in range(41)]
    steps = fit({"min_share": 0.01}, frame[["branch"]], labels)
    (branch,) = binned(steps)
    assert isinstance(branch, BinnedCategory)
    assert branch.other is not None
    assert "tiny0" not in branch.groups
    at = pd.DataFrame({"branch": ["tiny0", "never seen"]})
    terms = steps.expand(features_of(at))
    assert branch.woe_values is not None
    assert terms[:, 0] == pytest.approx([branch.woe_values[branch.other]] * 2)


def test_without_woe_each_bin_but_the_largest_has_a_term() -> None:
    frame, _ = table()
    steps = fit({"method": "quantile", "woe": False, "max_bins": 4}, frame, None)
    terms = steps.expand(features_of(frame))
    assert set(np.unique(terms)) == {0.0, 1.0}
    for column in binned(steps):
        assert len(column.terms) == len(column.bins) - 1
        assert all(column.binary)
    assert (terms.sum(axis=0) >= MIN_ROWS).all()


@given(data=st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=120), max_bins=st.integers(2, 20))
def test_every_fine_bin_has_rows_enough(data: list[int | None], max_bins: int) -> None:
    values = np.array([np.nan if each is None else float(each) for each in data])
    try:
        fine = fit_fine("x", values, "quantile", max_bins)
    except ConstantError:
        return
    assert min(fine.bins.n_rows) >= MIN_ROWS
    assert sum(fine.bins.n_rows) == len(data)
    assert np.bincount(fine.codes).tolist() == list(fine.bins.n_rows)
    assert len(fine.bins.n_rows) <= max_bins + 1


def test_a_model_file_keeps_the_bins_exactly() -> None:
    frame, labels = table()
    for binning in ({}, {"method": "quantile", "woe": False}):
        steps = fit(binning, frame, labels)
        again = Preprocessing.from_dict(json.loads(json.dumps(steps.to_dict())))
        assert again.columns == steps.columns
        features: Features = features_of(frame)
        assert np.array_equal(again.transform(features), steps.transform(features))


def test_a_party_without_labels_needs_a_bins_job() -> None:
    frame, labels = table()
    with pytest.raises(DataError, match=r"preprocessing\.binning\.job"):
        fit({}, frame, None)
    counted = {column.name: column for column in binned(fit({}, frame, labels))[:2]}
    config = PreprocessingConfig.model_validate({"binning": {"job": "bins-1"}})
    steps = Preprocessing.fit(features_of(frame), config, False, counted=counted)
    assert steps.columns == tuple(counted.values())
    assert steps.left_out == {"branch": "no bins in the bins job of `preprocessing.binning.job`"}


def test_bins_of_other_bounds_than_those_in_the_settings_are_refused() -> None:
    frame, labels = table()
    (age,) = binned(fit({"columns": {"age": {"method": [30, 50]}}}, frame[["age"]], labels))
    config = {"job": "bins-1", "columns": {"age": {"method": [30, 50, 70]}}}

    def as_host(binning: Mapping[str, Any]) -> Preprocessing:
        settings = PreprocessingConfig.model_validate({"binning": binning})
        return Preprocessing.fit(features_of(frame[["age"]]), settings, False, counted={"age": age})

    # A bin of the job may have been merged with its neighbour.
    assert as_host(config).columns == (age,)
    with pytest.raises(DataError, match=r"'age' has other bins in .* run a bins job again"):
        as_host(config | {"columns": {"age": {"method": [30, 60]}}})


def test_groups_of_categories_are_the_bins_and_the_rest_is_one() -> None:
    frame, labels = table()
    rng = np.random.default_rng(4)
    frame["branch"] = rng.choice(["a", "b", "c", "d", "e"], N, p=[0.4, 0.3, 0.2, 0.097, 0.003])
    frame.loc[rng.random(N) < 0.05, "branch"] = np.nan
    groups = [["a", "c"], ["b", "not there"], ["e"]]
    (branch,) = binned(fit({"columns": {"branch": {"method": groups}}}, frame[["branch"]], labels))
    assert isinstance(branch, BinnedCategory)
    # Too few rows have the category e, so it belongs to the rest.
    assert branch.groups.keys() == {"a", "b", "c", "not there"}
    assert branch.groups["a"] == branch.groups["c"] != branch.groups["b"] == branch.groups["not there"]
    assert branch.other not in branch.groups.values()
    by_hand = frame["branch"].map({"a": "ac", "c": "ac", "b": "b", "d": "rest", "e": "rest"}).fillna("missing")
    counts = pd.DataFrame({"bin": by_hand, "positive": labels > 0}).groupby("bin")["positive"].agg(["size", "sum"])
    assert branch.other is not None
    assert branch.missing is not None
    places = {"ac": branch.groups["a"], "b": branch.groups["b"], "rest": branch.other, "missing": branch.missing}
    assert sorted(places.values()) == [0, 1, 2, 3]
    for name, place in places.items():
        found = branch.bins[place]
        assert (found.n_rows, found.n_positive) == tuple(counts.loc[name])
    assert any("a|c" in label for label in branch.labels)

    # The host's bins of a job must be those of its settings.
    def as_host(method: list[list[str]]) -> Preprocessing:
        settings = PreprocessingConfig.model_validate(
            {"binning": {"job": "bins-1", "columns": {"branch": {"method": method}}}}
        )
        return Preprocessing.fit(features_of(frame[["branch"]]), settings, False, counted={"branch": branch})

    assert as_host(groups).columns == (branch,)
    with pytest.raises(DataError, match="'branch' has other bins in"):
        as_host([["a", "b"], ["c"]])


def test_a_bound_that_leaves_few_rows_is_dropped() -> None:
    frame, labels = table()
    frame["age"] = np.arange(N, dtype=float)
    (age,) = binned(fit({"woe": False, "columns": {"age": {"method": [9, 20, 500]}}}, frame[["age"]], labels))
    assert isinstance(age, BinnedNumber)
    assert age.bounds == [20, 500]


def test_a_column_may_stay_without_bins() -> None:
    frame, labels = table()
    steps = fit({"columns": {"income": {"method": "none"}, "age": {"max_bins": 2}}}, frame, labels)
    assert [column.kind for column in steps.columns] == ["bins", "number", "groups"]
    assert len(steps.columns[0].bins) <= 3  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="'wage', which is not a feature"):
        fit({"columns": {"wage": {}}}, frame, labels)


def test_a_column_in_bins_counts_for_the_bits_of_a_bin() -> None:
    # A score has 17 bits, and three columns of at most 9 bins have 10.
    frame, labels = table()
    assert fit({}, frame, labels).n_row_values == 1
    assert fit({"columns": {name: {"method": "none"} for name in ("age", "income")}}, frame, labels).n_row_values == 3


def test_a_column_in_bins_has_no_interaction() -> None:
    frame, labels = table()
    with pytest.raises(DataError, match="names 'age', which has bins: set `method: none`"):
        fit({}, frame, labels, interactions=[["age", "income"]])
    steps = fit(
        {"columns": {name: {"method": "none"} for name in ("age", "income")}},
        frame,
        labels,
        interactions=[["age", "income"]],
    )
    assert "age:income" in steps.terms
