"""A party's share of a job."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import frame_of
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, DataError, PolicyError, notes
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.party_data import (
    CheckSizes,
    PreparedData,
    check_labels,
    describe_few_labels,
    describe_left_out,
    describe_scores_beyond,
    load_party_data,
)
from trilateral.common.data.preprocessing.bins import BinnedColumn
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import stream_table
from trilateral.common.protocol.batches import holdout_split
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.messages import Result

N_ROWS = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Rows out of order, three features and a label that is feature `a`'s sign."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((N_ROWS, 3)), columns=["a", "b", "c"])
    frame.insert(0, "id", rng.permutation([f"{row:04}" for row in range(N_ROWS)]))
    frame["label"] = (frame["a"] > 0).astype(int)
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def load(
    path: Path,
    *,
    labelled: bool,
    dataset: dict[str, Any] | None = None,
    check_sizes: CheckSizes = lambda *_: None,
    **job: Any,
) -> PreparedData:
    role: dict[str, Any] = {"label": {}} if labelled else {"exclude": ["label"]}
    settings = DatasetConfig.model_validate({"path": path, **role, **(dataset or {})})
    job_config = JobConfig.model_validate({"name": "j", "dataset": "d", **job})
    return load_party_data(settings, job_config, labelled=labelled, check_sizes=check_sizes)


def test_rows_are_split_as_the_seed_says_and_labels_stay_with_their_rows(path: Path) -> None:
    data = load(path, labelled=True, dataset={"preprocessing": {"clip": None, "whiten": False}}, seed=5, holdout=0.3)
    block = data.block
    frame = pd.read_csv(path, dtype={"id": str}).sort_values("id")
    train, holdout = holdout_split(N_ROWS, 0.3, 5)

    assert data.list_digest == Ids.of(frame["id"]).digest()
    a = frame["a"].to_numpy()
    expected = (a - a[train].mean()) / a[train].std()
    np.testing.assert_allclose(np.asarray(block.columns)[:, 0], expected[train])
    np.testing.assert_allclose(np.asarray(block.holdout_columns)[:, 0], expected[holdout])
    np.testing.assert_array_equal(block.labels, np.sign(a)[train])
    np.testing.assert_array_equal(block.holdout_labels, np.sign(a)[holdout])


def test_hold_out_rows_do_not_touch_what_is_fitted(path: Path) -> None:
    before = load(path, labelled=True)
    frame = pd.read_csv(path, dtype={"id": str}).sort_values("id", ignore_index=True)
    frame.loc[holdout_split(N_ROWS, 0.2, 0)[1], ["a", "b", "c"]] = 1e6
    frame.to_csv(path, index=False)

    after = load(path, labelled=True)

    assert after.preprocessing.to_dict() == before.preprocessing.to_dict()
    np.testing.assert_array_equal(after.block.columns, before.block.columns)


def test_bins_know_the_rows_of_a_label_of_two_values_alone(path: Path) -> None:
    of_two = {"preprocessing": {"binning": {"method": "quantile", "woe": False, "max_bins": 3}}}
    table = pd.read_csv(path, dtype={"id": str})
    table.assign(kind=["x", "y", "z", "y"] * (N_ROWS // 4)).to_csv(path, index=False)
    of_three = of_two | {"label": {"column": "kind", "classes": ["x", "y", "z"]}, "exclude": ["label"]}
    for dataset, classes in ((of_two | {"exclude": ["kind"]}, None), (of_three, 3)):
        columns = load(path, labelled=True, dataset=dataset, protocol="shares", classes=classes).preprocessing.columns
        assert len(columns) == 3
        for column in columns:
            assert isinstance(column, BinnedColumn)
            assert (column.n_positive is None) is (classes == 3)


def test_both_parties_hold_the_same_rows(path: Path) -> None:
    guest, host = load(path, labelled=True), load(path, labelled=False)

    assert guest.list_digest == host.list_digest
    assert len(guest.block.columns) == len(host.block.columns) == 80
    assert len(guest.block.holdout_columns) == len(host.block.holdout_columns) == 20


@pytest.mark.parametrize(
    ("labelled", "intercept", "n_columns"), [(True, True, 4), (True, False, 3), (False, True, 3), (False, False, 3)]
)
def test_only_the_guest_adds_the_intercept_and_only_if_asked(
    path: Path, labelled: bool, intercept: bool, n_columns: int
) -> None:
    data = load(path, labelled=labelled, intercept=intercept)
    block = data.block

    assert block.columns.shape == (80, n_columns)
    assert block.holdout_columns.shape == (20, n_columns)
    assert block.penalty.shape == (n_columns, n_columns)
    assert data.preprocessing.n_columns == n_columns


def test_a_host_has_no_labels(path: Path) -> None:
    block = load(path, labelled=False).block

    assert block.labels is None
    assert block.holdout_labels is None


def test_a_job_may_hold_nothing_out(path: Path) -> None:
    block = load(path, labelled=True, holdout=0).block

    assert block.columns.shape == (100, 4)
    assert block.holdout_columns.shape == (0, 4)


def test_the_label_must_be_where_the_role_says(path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset 'd': the guest needs the labels"):
        load(path, labelled=True, dataset={"label": None})
    with pytest.raises(ConfigError, match="dataset 'd': the host has no labels"):
        load(path, labelled=False, dataset={"label": {}, "exclude": []})


@pytest.mark.parametrize("labelled", [True, False])
def test_a_batch_larger_than_the_training_rows_is_refused(path: Path, labelled: bool) -> None:
    with pytest.raises(DataError, match="batch of 81 needs.*there are 80: lower `batch`"):
        load(path, labelled=labelled, algorithm={"name": "sgd"}, batch=81)

    assert len(load(path, labelled=labelled, algorithm={"name": "sgd"}, batch=80).block.columns) == 80


def test_a_curvature_batch_larger_than_the_training_rows_is_refused(path: Path) -> None:
    with pytest.raises(DataError, match="curvature batch of 90 needs at least as many training rows, and there are 80"):
        load(path, labelled=True, algorithm={"name": "sqn", "curvature_batch": 90}, batch=10)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"holdout": 0.95}, "a batch of 5 rows is too small for 3 features, which need at least 6"),
        ({"algorithm": {"name": "sgd"}, "batch": 5}, "a batch of 5 rows.*raise `batch`"),
        (
            {"algorithm": {"name": "sqn", "curvature_batch": 5}, "batch": 6},
            "a curvature batch of 5 rows.*raise `curvature_batch`",
        ),
    ],
)
def test_a_batch_of_too_few_rows_for_a_fit_is_refused(path: Path, job: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        load(path, labelled=True, **job)
    assert load(path, labelled=True, algorithm={"name": "sgd"}, batch=6)


def test_whoever_loads_may_mind_the_sizes(path: Path) -> None:
    seen = []

    def mind(n_train: int) -> None:
        seen.append(n_train)
        raise PolicyError("too many")

    with pytest.raises(PolicyError, match="too many"):
        load(path, labelled=True, check_sizes=mind)
    assert seen == [80]


def test_a_holdout_row_that_cannot_be_scaled_is_refused(path: Path) -> None:
    """It would make the score, and with it the end of the training, not finite."""
    table = pd.read_csv(path, dtype={"id": str})
    held = holdout_split(N_ROWS, 0.2, 0)[1][0]
    table["b"] *= 1e-150
    table.loc[table["id"] == f"{held:04}", "b"] = 1e200
    table.to_csv(path, index=False)
    with pytest.raises(DataError, match="hold-out row"):
        load(path, labelled=True, dataset={"preprocessing": {"clip": None}})


# --- columns that say nothing


def constant_columns(path: Path) -> None:
    """Add columns that are constant, the last one in the training rows only."""
    frame = pd.read_csv(path, dtype={"id": str}).sort_values("id")
    _, holdout = holdout_split(N_ROWS, 0.2, 0)
    frame["empty"], frame["same"], frame["category"] = None, 7, "x"
    frame["holdout"] = np.where(np.isin(np.arange(N_ROWS), holdout), 1.0, 0.0)
    frame.to_csv(path, index=False)


def test_columns_that_say_nothing_in_the_training_rows_are_left_out_with_a_note(path: Path) -> None:
    before = load(path, labelled=True)
    constant_columns(path)
    after = load(path, labelled=True, dataset={"categorical": ["category"]})

    np.testing.assert_array_equal(after.block.columns, before.block.columns)
    assert describe_left_out(after.left_out) == [
        "left out column 'empty': no value in any training row",
        "left out columns 'same', 'holdout': the same value in all training rows",
        "left out column 'category': fewer than two categories with at least 10 training rows (see "
        "`preprocessing.rare`)",
    ]


def test_they_do_not_count_when_a_batch_must_have_enough_rows(path: Path) -> None:
    constant_columns(path)
    dataset = {"categorical": ["category"]}
    assert load(path, labelled=False, batch=6, algorithm={"name": "sgd"}, dataset=dataset).block.columns.shape[1] == 3


def test_the_settings_may_refuse_them_all_at_once(path: Path) -> None:
    constant_columns(path)
    with pytest.raises(DataError) as error:
        load(path, labelled=True, dataset={"categorical": ["category"], "preprocessing": {"constant": "refuse"}})
    assert str(error.value) == (
        "column 'empty' has no value in any training row; each of the columns 'same', 'holdout' has the same value in "
        "all training rows; column 'category' has fewer than two categories with at least 10 training rows (see "
        "`preprocessing.rare`): exclude these columns, or set `preprocessing.constant: exclude`"
    )


def test_a_prediction_neither_needs_them_nor_is_disturbed_by_them(path: Path) -> None:
    constant_columns(path)
    settings = DatasetConfig(path=path, exclude=["label"], categorical=["category"])
    job = JobConfig(name="j", dataset="d")
    data = load_party_data(settings, job, labelled=False)
    result = Result(np.ones(data.block.columns.shape[1]), 0.5, 7, 3, "converged")
    model = PartyModel.of(Role.HOST, job, data, settings, result, run_id="0" * 32)
    assert list(model.left_out) == ["empty", "same", "holdout", "category"]

    frame = pd.read_csv(path, dtype={"id": str})
    for rows in (frame.drop(columns=list(model.left_out)), frame.assign(same="text", empty=1)):
        rows.to_csv(path, index=False)
        (chunk,) = stream_table(DatasetConfig(path=path), model.steps.features, [], missing=model.missing)
        assert list(frame_of(chunk.features)) == ["a", "b", "c"]


# --- labels on both sides of the split


def block_with(n_train_positive: int, n_holdout_positive: int, n_train: int = 80, n_holdout: int = 20) -> TrainingBlock:
    def labels(n: int, n_positive: int) -> FloatVector:
        return np.repeat([1.0, -1.0], [n_positive, n - n_positive])

    return TrainingBlock(
        columns=np.zeros((n_train, 1)),
        holdout_columns=np.zeros((n_holdout, 1)),
        labels=labels(n_train, n_train_positive),
        holdout_labels=labels(n_holdout, n_holdout_positive),
        penalty=np.zeros((1, 1)),
    )


@pytest.mark.parametrize(
    ("n_train_positive", "n_holdout_positive"), [(0, 3), (1, 3), (79, 3), (80, 3), (3, 0), (3, 20), (1, 0), (0, 1)]
)
def test_a_side_without_both_labels_is_refused_in_the_same_words_whichever_it_is(
    n_train_positive: int, n_holdout_positive: int
) -> None:
    with pytest.raises(DataError, match="set another `seed`, another `holdout`, or `holdout: 0`") as caught:
        check_labels(block_with(n_train_positive, n_holdout_positive))
    with pytest.raises(DataError) as other:
        check_labels(block_with(0, 10))
    assert str(caught.value) == str(other.value)
    assert f"{n_train_positive} of 80 training rows are positive" in notes(caught.value)
    assert f"{n_holdout_positive} of 20 hold-out rows are positive" in notes(caught.value)


def test_hold_out_rows_that_the_other_party_has_chosen_may_have_one_label() -> None:
    check_labels(block_with(10, 0), is_chosen=True)
    with pytest.raises(DataError, match="training needs 2 rows of each label"):
        check_labels(block_with(1, 3), is_chosen=True)


@pytest.mark.parametrize(("n_positive", "is_enough"), [(0, False), (1, False), (2, True), (78, True), (79, False)])
def test_without_a_hold_out_two_training_rows_of_each_label_are_enough(n_positive: int, is_enough: bool) -> None:
    block = block_with(n_positive, 0, n_holdout=0)
    if is_enough:
        check_labels(block)
        return
    with pytest.raises(DataError, match="training needs 2 rows of each label") as caught:
        check_labels(block)
    assert "`seed`" not in str(caught.value)


def test_the_guest_is_told_if_no_other_split_can_help() -> None:
    for n_train_positive, way_out in [(1, "no other job helps"), (2, "only `holdout: 0` helps")]:
        with pytest.raises(DataError) as caught:
            check_labels(block_with(n_train_positive, 0))
        assert any(way_out in note for note in notes(caught.value))
    with pytest.raises(DataError) as caught:
        check_labels(block_with(3, 0))
    assert not any("helps" in note for note in notes(caught.value))


def test_few_rows_of_a_label_are_trained_on_with_a_warning() -> None:
    check_labels(block_with(9, 1))
    assert describe_few_labels(block_with(9, 1)) is not None
    assert describe_few_labels(block_with(71, 1)) is not None
    assert describe_few_labels(block_with(10, 1)) is None


def test_a_host_has_no_labels_to_check(path: Path) -> None:
    block = load(path, labelled=False).block
    check_labels(block)
    assert describe_few_labels(block) is None


def test_scores_beyond_the_range_of_the_job_are_counted() -> None:
    job = JobConfig(name="j", dataset="d", protocol="shares")
    scores = np.array([-13.0, 11.9, 12.1, 0.0])
    text = describe_scores_beyond(job, scores)
    assert text is not None
    assert text.startswith("2 of 4 hold-out rows have a score of more than 12")
    assert describe_scores_beyond(job, scores[[1, 3]]) is None
    assert describe_scores_beyond(job, None) is None
    assert describe_scores_beyond(job.model_copy(update={"max_score": 24}), scores) is None
    assert describe_scores_beyond(JobConfig(name="j", dataset="d"), scores) is None
