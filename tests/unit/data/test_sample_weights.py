"""Weights of rows in the guest's table: what is read, what is refused, and what reaches the training."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import ConfigError, DataError, notes
from trilateral.common.config.dataset import ClassWeight, DatasetConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import parse_settings
from trilateral.common.data.party_data import check_labels, describe_few_labels, make_block
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable, read_table, read_table_ids
from trilateral.common.jobs.party_record import table_digest
from trilateral.common.protocol.block import TrainingBlock

ROWS = "id,label,x,c\nb,1,1,2\na,0,2,0\nd,1,3,1.5\nc,0,4,1\n"
WEIGHTED = {"column": "label", "weight": "c"}


def dataset(folder: Path, text: str = ROWS, **settings: Any) -> DatasetConfig:
    path = folder / "t.csv"
    path.write_text(text)
    return DatasetConfig.model_validate({"path": path, "label": WEIGHTED, **settings})


def read(folder: Path, text: str = ROWS, **settings: Any) -> PartyTable:
    return read_table(dataset(folder, text, **settings))


def test_the_weight_is_read_in_the_order_of_the_rows_and_is_no_feature(tmp_path: Path) -> None:
    table = read(tmp_path)
    assert table.ids == ["a", "b", "c", "d"]
    assert list(table.features.columns) == ["x"]
    assert table.weights is not None
    assert table.weights.tolist() == [0, 2, 1, 1.5]
    selected = table.select(np.array([1, 3])).weights
    assert selected is not None
    assert selected.tolist() == [2, 1.5]


def test_a_weight_may_have_a_name_that_a_program_would_give(tmp_path: Path) -> None:
    text = ROWS.replace("c\n", "row_number\n", 1)
    table = read(tmp_path, text, label={"column": "label", "weight": "row_number"})
    assert table.weights is not None
    assert table.left_out == {}


def test_without_the_setting_the_column_is_a_feature(tmp_path: Path) -> None:
    table = read(tmp_path, label={"column": "label"})
    assert table.weights is None
    assert list(table.features.columns) == ["x", "c"]


@pytest.mark.parametrize("value", ["", "NA", "nan", "much", "inf", "1,5", "-999"])
def test_a_row_without_a_number_is_refused_with_its_line(tmp_path: Path, value: str) -> None:
    text = ROWS.replace("d,1,3,1.5", f'd,1,3,"{value}"')
    with pytest.raises(DataError) as error:
        read(tmp_path, text, missing=["-999"])
    assert str(error.value) == (
        "column 'c' has no finite number in 1 of 4 rows: correct their weights, or remove those rows"
    )
    assert notes(error.value) == ["the first is in line 4, column 'c'"]


def test_a_negative_weight_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'c' has 1 negative weight: .* set them to 0") as error:
        read(tmp_path, ROWS.replace(",4,1\n", ",4,-1\n"))
    assert notes(error.value) == ["the first is in line 5, column 'c'"]


def test_weights_that_are_all_zero_are_refused(tmp_path: Path) -> None:
    text = "id,label,x,c\na,0,1,0\nb,1,2,0.0\n"
    with pytest.raises(DataError, match="'c' has the weight 0 in every row"):
        read(tmp_path, text)


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`label.weight` names a column 'c' that t.csv does not have"):
        read(tmp_path, ROWS.replace("x,c\n", "x,d\n", 1))


@pytest.mark.parametrize(("how", "expected"), [("first", [2.0, 1, 1.5]), ("aggregate", [1.5, 1, 1.5])])
def test_rows_of_one_id_become_one_weight(tmp_path: Path, how: str, expected: list[float]) -> None:
    text = "id,label,x,c\nb,1,1,2\nb,1,2,1\nd,1,3,1.5\nc,0,4,1\n"
    table = read(tmp_path, text, repeated_ids=how)
    assert table.weights is not None
    assert table.weights.tolist() == expected


def test_ids_are_read_without_the_weight(tmp_path: Path) -> None:
    settings = dataset(tmp_path, ROWS.replace("x,c\n", "x,d\n", 1))
    assert read_table_ids(settings).ids == ["a", "b", "c", "d"]


def test_a_change_of_the_weights_changes_the_digest_of_the_table(tmp_path: Path) -> None:
    before = table_digest(read(tmp_path))
    assert table_digest(read(tmp_path, ROWS.replace("1.5", "1.6"))) != before
    assert table_digest(read(tmp_path)) == before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"label": {"column": "y", "weight": "y"}}, "the label and the weight are the same column"),
        ({"label": {"weight": "id"}}, "the weight and the ID are the same column"),
        ({"label": {"weight": "c"}, "features": ["x", "c"]}, "`features` names the weight column"),
        ({"label": {"weight": "c"}, "categorical": ["c"]}, "`categorical` names 'c'"),
        ({"label": {"class_weight": {"positive": 0, "negative": 1}}}, "expected more than 0, not 0"),
        ({"label": {"class_weight": {"positive": 2}}}, "negative"),
        ({"label": {"class_weight": "even"}}, "balanced"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_settings(DatasetConfig, {"path": "t.csv", **settings}, "guest.yaml")


# --- in the training rows

LABELS = np.where(np.arange(400) % 5 == 0, 1.0, -1.0)
JOB = JobConfig(name="job", dataset="t", protocol="shares", holdout=0.25)


def block_of(**weights: Any) -> TrainingBlock:
    ids = [f"{row:03}" for row in range(400)]
    features = pd.DataFrame({"x": np.arange(400) % 7.0})
    return make_block(PartyTable(Ids.of(ids), features_of(features), LABELS, **weights), PreprocessingConfig(), JOB)


def test_only_training_rows_have_weights_and_they_are_those_of_the_same_rows() -> None:
    weights = np.where(np.arange(400) % 7 == 3, 2.0, 1.0)
    block = block_of(weights=weights)
    assert block.sample_weights is not None
    assert block.sample_weights.shape == (300,)
    feature = np.asarray(block.columns)[:, 0]
    heavy = block.sample_weights == 6  # Three times the whole numbers of the table use the range.
    assert np.unique(feature[heavy]).size == 1
    assert block.weight_bits == 0
    assert block.total_weight == 3 * (300 + np.count_nonzero(heavy))


def test_balanced_weights_balance_the_training_rows() -> None:
    block = block_of(class_weight="balanced")
    assert block.sample_weights is not None
    assert block.labels is not None
    totals = [block.sample_weights[block.labels == label].sum() for label in (-1, 1)]
    assert totals == pytest.approx([300, 300], abs=1 / 64)
    assert block.total_weight == 600


def test_without_weights_all_rows_count_alike() -> None:
    block = block_of()
    assert block.sample_weights is None
    assert block.weight_bits is None
    assert block.total_weight == 0


def test_equal_weights_do_not_look_like_none() -> None:
    """Otherwise the other organisations would learn that the weights are equal."""
    block = block_of(weights=np.full(400, 3.0), class_weight=ClassWeight(positive=2, negative=2))
    assert block.sample_weights is not None
    assert (block.sample_weights == 4).all()


def test_rows_of_weight_zero_do_not_count_as_rows_of_their_label() -> None:
    check_labels(block_of(weights=np.ones(400)))
    few = block_of(weights=np.where((LABELS < 0) | (np.arange(400) < 40), 1.0, 0.0))
    check_labels(few)
    assert describe_few_labels(block_of(weights=np.ones(400))) is None
    assert re.match(r"only \d training rows have the rarer label", describe_few_labels(few) or "")
    with pytest.raises(DataError, match="training rows and 1 hold-out row of each label") as error:
        check_labels(block_of(weights=np.where(LABELS > 0, 0.0, 1.0)))
    assert notes(error.value)[0].startswith("0 of ")
    assert "training rows of a weight above 0 are positive" in notes(error.value)[0]
