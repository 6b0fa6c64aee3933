"""A column that says which rows train and which evaluate: what is read, what is refused, and what a training gets."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trilateral.common.base.errors import ConfigError, DataError, notes
from trilateral.common.config.dataset import DatasetConfig, SplitConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import parse_settings
from trilateral.common.data.party_data import load_party_data, make_party_data, read_party_table
from trilateral.common.data.tables.table import PartyTable, read_table, read_table_ids, stream_table
from trilateral.common.jobs.party_record import table_digest
from trilateral.common.protocol.row_roles import RowRole, rows_of
from trilateral.common.scratch.files import FileArray
from trilateral.common.scratch.space import ScratchSpace

ROWS = "id,x,s\nb,1,dev\na,2,VAL\nd,3,oot\nc,4,\ne,5,other\nf,6,dev\n"
BY_VALUE = {"column": "s", "train": ["dev"], "valid": ["val"], "out_of_time": ["oot"]}
BY_DATE = {"column": "s", "train_until": "2023-06-30", "valid_until": "2023-09-30"}
TRAIN, VALID, TEST, LATER, UNUSED = (int(role) for role in RowRole)
JOB = JobConfig(name="j", dataset="d", holdout="column", intercept=False)


def dataset(folder: Path, text: str = ROWS, **settings: Any) -> DatasetConfig:
    path = folder / "t.csv"
    path.write_text(text)
    return DatasetConfig.model_validate({"path": path, "split": BY_VALUE, **settings})


def roles_of(table: PartyTable) -> list[int]:
    assert table.split is not None
    return list(map(int, table.split))


def test_values_name_the_rows_of_each_set_and_all_others_are_unused(tmp_path: Path) -> None:
    table = read_table(dataset(tmp_path))
    assert table.ids == ["a", "b", "c", "d", "e", "f"]
    assert roles_of(table) == [VALID, TRAIN, UNUSED, LATER, UNUSED, TRAIN]
    assert roles_of(table.select(np.array([0, 3]))) == [VALID, LATER]
    assert list(table.features.columns) == ["x"]


@pytest.mark.parametrize("train", [["1"], [1], ["1.0"]])
def test_a_number_is_the_same_value_however_it_is_written(tmp_path: Path, train: list[Any]) -> None:
    split = {"column": "s", "train": train, "test": [2]}
    assert roles_of(read_table(dataset(tmp_path, "id,x,s\na,1,1\nb,1,1.0\nc,2,02\n", split=split))) == [0, 0, TEST]


def test_dates_divide_the_rows_and_both_bounds_are_included(tmp_path: Path) -> None:
    days = ["2023-06-30", "2023-07-01", "2023-09-30T23:59:59", "2023-10-01 00:00:00", "", "1999-01-01"]
    text = "id,x,s\n" + "".join(f"{number},{number},{day}\n" for number, day in enumerate(days))
    expected = [TRAIN, VALID, VALID, LATER, UNUSED, TRAIN]
    assert roles_of(read_table(dataset(tmp_path, text, split=BY_DATE))) == expected
    split = {"column": "s", "train_until": date(2023, 6, 30)}
    expected = [TRAIN, LATER, LATER, LATER, UNUSED, TRAIN]
    assert roles_of(read_table(dataset(tmp_path, text, split=split))) == expected


@pytest.mark.parametrize("unit", ["date32", "us", "ns"])
def test_dates_of_a_parquet_file_are_read_as_those_of_a_text(tmp_path: Path, unit: str) -> None:
    days = pd.Series(pd.to_datetime(["2023-06-30 12:00", "2023-07-01 00:00", "NaT", "2023-12-31 00:00"]))
    column = pa.Array.from_pandas(days)
    column = column.cast(pa.date32(), safe=False) if unit == "date32" else column.cast(pa.timestamp(unit))
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "x": [1, 2, 3, 4], "s": column}), tmp_path / "t.parquet")
    config = DatasetConfig.model_validate({"path": tmp_path / "t.parquet", "split": BY_DATE})
    assert roles_of(read_table(config)) == [TRAIN, VALID, UNUSED, LATER]


@pytest.mark.parametrize("day", ["30.06.2023", "2023-02-30", "2023", "2023-06-300", "soon", "20230630"])
def test_what_is_not_a_date_is_refused_with_its_line_and_without_its_value(tmp_path: Path, day: str) -> None:
    with pytest.raises(DataError) as error:
        read_table(dataset(tmp_path, f"id,x,s\na,1,2023-06-30\nb,2,{day}\n", split=BY_DATE))
    assert str(error.value).startswith("column 's' has 1 value that is not a date: write them as 2023-12-31")
    assert notes(error.value) == ["the first is in line 3, column 's'"]


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`split.column` names a column 's' that t.csv does not have"):
        read_table(dataset(tmp_path, ROWS.replace("x,s\n", "x,t\n", 1)))


def test_rows_of_one_id_have_one_role(tmp_path: Path) -> None:
    text = "id,x,s\na,1,dev\na,2,val\nb,1,dev\nb,3,dev\n"
    assert roles_of(read_table(dataset(tmp_path, text, repeated_ids="first"))) == [TRAIN, TRAIN]
    with pytest.raises(DataError, match="'s' has different roles in rows of the same ID, for 1 ID"):
        read_table(dataset(tmp_path, text, repeated_ids="aggregate"))


def test_ids_and_new_rows_are_read_without_the_column(tmp_path: Path) -> None:
    text = "id,x\na,1\n"
    assert len(read_table_ids(dataset(tmp_path, text)).ids) == 1
    (chunk,) = stream_table(dataset(tmp_path, text), ["x"], [])
    assert chunk.ids == ["a"]


def test_a_changed_role_changes_the_digest_of_the_table(tmp_path: Path) -> None:
    digest = table_digest(read_table(dataset(tmp_path)))
    assert table_digest(read_table(dataset(tmp_path, ROWS.replace("f,6,dev", "f,6,val")))) != digest
    assert table_digest(read_table(dataset(tmp_path))) == digest


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        ({"column": "s"}, "a split needs the values of `train` and of at least one of"),
        ({"column": "s", "train": [1]}, "a split needs the values of `train` and of at least one of"),
        ({"column": "s", "test": [1]}, "a split needs the values of `train` and of at least one of"),
        ({"column": "s", "train": [1], "test": ["1.0"]}, "a value stands twice"),
        ({"column": "s", "train": ["a"], "train_until": "2023-01-01"}, "remove `train` or `train_until`"),
        ({"column": "s", "valid_until": "2023-01-01"}, "`valid_until` needs `train_until`"),
        ({**BY_DATE, "valid_until": "2023-06-30"}, "`valid_until` must be later"),
        ({**BY_DATE, "train_until": "30.06.2023"}, "expected a date such as 2023-12-31"),
        ({**BY_DATE, "train_until": 20230630}, "expected a date such as 2023-12-31"),
        ({**BY_VALUE, "column": "id"}, "`split` and `id` name the same column"),
        ({**BY_VALUE, "column": "label"}, "`split` names the column of the label or of its weight"),
        ({**BY_VALUE, "column": "x"}, "`features` names the split column"),
    ],
)
def test_settings_that_do_not_divide_the_rows_are_refused(split: dict[str, Any], problem: str) -> None:
    values = {"path": "t.csv", "label": {}, "features": ["x"], "split": split}
    with pytest.raises(ConfigError, match=problem):
        parse_settings(DatasetConfig, values, "guest.yaml")


def test_a_split_column_is_no_category_either(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`categorical` names 's', which the other settings exclude"):
        parse_settings(DatasetConfig, {"path": "t.csv", "split": BY_VALUE, "categorical": ["s"]}, "host.yaml")


def made(folder: Path, n_rows: int = 300) -> tuple[DatasetConfig, pd.DataFrame]:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"id": [f"{row:04}" for row in range(n_rows)], "x": rng.normal(size=n_rows)})
    frame["z"] = rng.normal(size=n_rows)
    frame["y"] = rng.integers(0, 2, n_rows)
    frame["s"] = rng.choice(["dev", "val", "oot", "no"], n_rows, p=[0.6, 0.2, 0.1, 0.1])
    return dataset(folder, frame.sample(frac=1, random_state=0).to_csv(index=False), label={"column": "y"}), frame


def test_only_training_rows_train_and_the_sets_follow_each_other(tmp_path: Path) -> None:
    config, frame = made(tmp_path)
    data = load_party_data(config, JOB, labelled=True)
    by_role = dict(iter(frame.groupby("s")))
    assert data.sets == {"valid": len(by_role["val"]), "out_of_time": len(by_role["oot"])}
    assert data.n_rows == len(frame)
    block = data.block
    assert block.labels is not None
    assert block.test_labels is not None
    assert np.array_equal(block.labels, 2 * by_role["dev"]["y"] - 1)
    assert block.holdout_labels is not None
    assert np.array_equal(block.holdout_labels, 2 * by_role["val"]["y"] - 1)
    assert np.array_equal(block.test_labels, 2 * by_role["oot"]["y"] - 1)
    steps = data.preprocessing
    dev = by_role["dev"]["x"].clip(*by_role["dev"]["x"].quantile([0.01, 0.99]))
    assert steps.mean[0] == pytest.approx(dev.mean())
    assert block.test_columns is not None
    assert block.test_columns.shape == (len(by_role["oot"]), 2)


def test_the_other_party_trains_on_the_rows_that_it_is_told(tmp_path: Path) -> None:
    config, _ = made(tmp_path)
    owner = load_party_data(config, JOB, labelled=True).block
    roles = read_table(config).split
    other = config.model_copy(update={"split": None, "exclude": ["s"]})
    told = load_party_data(other, JOB, labelled=True, roles=roles).block
    assert np.array_equal(told.columns[:], owner.columns[:])
    assert told.holdout_labels is not None
    assert owner.holdout_labels is not None
    assert np.array_equal(told.holdout_labels, owner.holdout_labels)
    with pytest.raises(ValueError, match="the job needs the roles of the rows"):
        load_party_data(other, JOB, labelled=True)


@pytest.mark.parametrize(
    ("split", "lacking"),
    [
        ({"column": "s", "train": ["none"], "test": ["oot"]}, "no row for the training"),
        ({"column": "s", "train": ["dev"], "test": ["none"]}, "no row for an evaluation"),
    ],
)
def test_a_split_that_leaves_nothing_is_refused(tmp_path: Path, split: dict[str, Any], lacking: str) -> None:
    config, _ = made(tmp_path)
    config = config.model_copy(update={"split": SplitConfig.model_validate(split)})
    with pytest.raises(DataError, match=lacking):
        load_party_data(config, JOB, labelled=True)


def test_a_table_on_disk_gives_the_same_bits(tmp_path: Path) -> None:
    config, _ = made(tmp_path)
    own = load_party_data(config, JOB, labelled=True)
    with ScratchSpace(tmp_path, max_bytes=None, memory_bytes=0, encrypt=True).open() as space:
        table = read_party_table(config, JOB, labelled=True, scratch=space)
        theirs = make_party_data(table, config.preprocessing, JOB, scratch=space, roles=table.split)
        assert isinstance(theirs.block.test_columns, FileArray)
        for name in ("columns", "holdout_columns", "test_columns"):
            assert np.array_equal(getattr(theirs.block, name)[:], getattr(own.block, name)[:])
        assert theirs.sets == own.sets
        assert table.split is not None
        assert len(rows_of(table.split, RowRole.VALID)) == own.sets["valid"]
