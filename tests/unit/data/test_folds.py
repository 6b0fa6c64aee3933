"""Folds that a party decides: by a column of groups or times, or at the guest by labels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, StratifiedKFold

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.config.dataset import DatasetConfig, FoldConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.folds import (
    MIN_FOLD_OF_LABEL,
    cut_by_time,
    deal_by_label,
    deal_groups,
    decides_folds,
    make_folds,
)
from trilateral.common.data.tables.table import PartyTable, read_table
from trilateral.common.protocol.row_roles import RoleVector

RANDOM = np.random.default_rng(3)
GROUPS = RANDOM.integers(0, 200, 3000).astype(np.float64)
LABELS = np.where(RANDOM.random(3001) < 0.13, 1.0, -1.0)


def counts(folds: RoleVector, n_folds: int) -> Rows:
    return np.bincount(folds, minlength=n_folds)


@pytest.mark.parametrize("n_folds", [2, 5, 20])
def test_no_group_is_in_two_folds_and_folds_are_as_even_as_those_of_scikit_learn(n_folds: int) -> None:
    folds = deal_groups(GROUPS, n_folds)
    assert pd.Series(folds).groupby(GROUPS).nunique().max() == 1
    sizes = counts(folds, n_folds)
    assert sizes.max() - sizes.min() <= pd.Series(GROUPS).value_counts().max()
    theirs = [len(test) for _, test in GroupKFold(n_folds).split(GROUPS, groups=GROUPS)]
    assert sizes.sum() == sum(theirs)
    assert abs(sizes.min() - min(theirs)) <= pd.Series(GROUPS).value_counts().max()


@pytest.mark.parametrize("n_folds", [2, 5, 20])
def test_all_folds_have_the_labels_of_scikit_learns_stratified_folds(n_folds: int) -> None:
    folds = deal_by_label(LABELS, n_folds)
    theirs = [LABELS[test] for _, test in StratifiedKFold(n_folds).split(LABELS, LABELS)]
    for label in (-1.0, 1.0):
        ours = counts(folds[label == LABELS], n_folds)
        assert ours.max() - ours.min() <= 1
        assert sorted(ours) == sorted(int((each == label).sum()) for each in theirs)


@pytest.mark.parametrize("rate", [0.03, 0.13, 0.5])
def test_the_sizes_of_folds_by_label_do_not_depend_on_the_labels(rate: float) -> None:
    labels = np.where(np.random.default_rng(1).random(1003) < rate, 1.0, -1.0)
    assert sorted(counts(deal_by_label(labels, 5), 5)) == [200, 200, 201, 201, 201]


def test_each_job_deals_afresh() -> None:
    for one, other in (
        (deal_groups(GROUPS, 5), deal_groups(GROUPS, 5)),
        (deal_by_label(LABELS, 5), deal_by_label(LABELS, 5)),
    ):
        assert 0.1 < (one == other).mean() < 0.4


def test_folds_by_time_are_periods_of_nearly_equal_size() -> None:
    times = RANDOM.integers(0, 365, 5000).astype(np.float64)
    folds = cut_by_time(times, 5)
    spans = pd.Series(times).groupby(folds).agg(["min", "max"])
    assert (spans["max"].to_numpy()[:-1] < spans["min"].to_numpy()[1:]).all()
    assert abs(counts(folds, 5) - 1000).max() < 2 * pd.Series(times).value_counts().max()
    assert cut_by_time(np.arange(10.0), 5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert cut_by_time(np.array([3.0, 1.0, 2.0]), 3).tolist() == [2, 0, 1]


def test_too_few_groups_or_times_are_refused() -> None:
    with pytest.raises(DataError, match="have 2 groups, too few for 3 folds"):
        deal_groups(np.array([1.0, 2.0, 2.0, 1.0]), 3)
    for times in ([1.0, 1.0, 2.0, 2.0], [1.0] * 90 + [2.0, 3.0]):
        with pytest.raises(DataError, match="too many training rows have the same time for 3 folds"):
            cut_by_time(np.array(times), 3)


# --- the column


def read(folder: Path, values: Sequence[object], by: str, suffix: str = "csv", **settings: object) -> PartyTable:
    path = folder / f"table.{suffix}"
    frame = pd.DataFrame({"id": [f"{row:04d}" for row in range(len(values))], "x": 1.0, "key": values})
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    return read_table(DatasetConfig(path=path, folds=FoldConfig.model_validate({by: "key"}), **settings))


def test_equal_values_are_one_group_and_the_column_is_no_feature(tmp_path: Path) -> None:
    table = read(tmp_path, ["North", "south ", "north", "2.0", "2", "", "south"], "group")
    assert table.fold_values is not None
    _, numbers = np.unique(table.fold_values[[0, 1, 2, 3, 4, 6]], return_inverse=True)
    first = {value: place for place, value in reversed(list(enumerate(numbers)))}
    assert [first[value] for value in numbers] == [0, 1, 0, 3, 3, 1]
    assert np.isnan(table.fold_values[5])
    assert list(table.features.columns) == ["x"]
    assert table.select(np.array([2, 5])).fold_values is not None


def test_groups_are_the_same_in_every_batch_of_a_file(tmp_path: Path) -> None:
    table = read(tmp_path, [f"g{row % 7}" for row in range(40_000)], "group")
    assert table.fold_values is not None
    assert len(np.unique(table.fold_values)) == 7


@pytest.mark.parametrize(
    "values",
    [
        ["2023-01-31", "2022-12-31", "2023-02-01"],
        ["2023-01-31 08:00", "2023-01-31 07:59:59", "2023-01-31T09:00+00:00"],
        ["10", "9.5", "1e2"],
    ],
)
def test_times_are_in_order(values: list[object], tmp_path: Path) -> None:
    table = read(tmp_path, values, "time")
    assert table.fold_values is not None
    assert np.argsort(table.fold_values).tolist() == [1, 0, 2]


def test_times_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    times = list(pd.to_datetime(["2023-01-31 08:00", "2023-01-30 00:00", "2023-02-01 00:00"]))
    table = read(tmp_path, times, "time", "parquet")
    assert table.fold_values is not None
    assert np.argsort(table.fold_values).tolist() == [1, 0, 2]


def test_what_is_no_time_has_none(tmp_path: Path) -> None:
    table = read(tmp_path, ["2023-02-30", "20230101", "", "soon", "2023-02-01"], "time")
    assert table.fold_values is not None
    assert np.isnan(table.fold_values).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"folds": {}}, "set the name of one column"),
        ({"folds": {"group": "a", "time": "b"}}, "set the name of one column"),
        ({"folds": {"group": "id"}}, "`folds` and `id` name the same column"),
        ({"folds": {"group": "y"}, "label": {"column": "y", "positive": "1"}}, "`folds` names the column of the label"),
        ({"folds": {"time": "t"}, "features": ["t", "x"]}, "`features` names the folds column"),
    ],
)
def test_a_column_has_one_purpose(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DatasetConfig.model_validate({"path": "t.csv", **settings})


# --- who decides, and what is refused


def job_by(fold_by: str, folds: int = 3) -> JobConfig:
    return JobConfig.model_validate(
        {"name": "j", "dataset": "d", "protocol": "shares", "folds": folds, "fold_by": fold_by}
    )


def test_the_party_with_the_column_decides(tmp_path: Path) -> None:
    table = read(tmp_path, list(range(90)), "time")
    assert [decides_folds(job_by(by), table) for by in ("random", "label", "group", "time")] == [False] * 3 + [True]
    folds = make_folds(job_by("time"), table, np.arange(30, 90))
    assert folds.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_a_training_row_without_a_group_is_refused_and_another_row_is_not(tmp_path: Path) -> None:
    table = read(tmp_path, ["", *range(9)], "group")
    make_folds(job_by("group"), table, np.arange(1, 10))
    with pytest.raises(DataError, match="has no group in 1 of 10 training rows"):
        make_folds(job_by("group"), table, np.arange(10))


@pytest.mark.parametrize("by", ["label", "group"])
def test_the_guest_makes_no_fold_with_few_rows_of_a_label(by: str, tmp_path: Path) -> None:
    path = tmp_path / "guest.csv"
    for n_positive, is_allowed in ((3 * MIN_FOLD_OF_LABEL, by == "label"), (3 * MIN_FOLD_OF_LABEL - 1, False)):
        labels = [1] * n_positive + [0] * 300
        # A group of negative rows fills a fold.
        groups = [row % 50 for row in range(n_positive)] + [100] * 300
        frame = pd.DataFrame({"id": range(len(labels)), "x": 1.0, "y": labels, "key": groups})
        frame.to_csv(path, index=False)
        label = LabelConfig(column="y", positive="1")
        table = read_table(DatasetConfig(path=path, label=label, folds=FoldConfig(group="key")))
        if is_allowed:
            make_folds(job_by(by), table, np.arange(len(labels)))
            continue
        with pytest.raises(DataError, match=f"fewer than {MIN_FOLD_OF_LABEL} training rows of a label") as error:
            make_folds(job_by(by), table, np.arange(len(labels)))
        assert not any(character.isdigit() for character in str(error.value).replace(str(MIN_FOLD_OF_LABEL), ""))


@pytest.mark.parametrize(
    "settings",
    [
        {"fold_by": "group"},
        {"folds": 3, "fold_by": "group", "task": "bins"},
        {"folds": 3, "fold_by": "group", "protocol": "paillier"},
    ],
)
def test_a_job_without_folds_has_no_fold_by(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        JobConfig(**{"name": "j", "dataset": "d", "protocol": "shares", **settings})
