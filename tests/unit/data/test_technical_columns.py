"""Row numbers and row names that a program has added to a table are not features, unless the party names them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.frames import frame_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.party_data import describe_left_out, make_party_data
from trilateral.common.data.tables.table import PartyTable, read_table, read_table_ids, stream_table
from trilateral.common.data.tables.technical_columns import technical_columns

ROWS = pd.DataFrame({"id": [f"P{row}" for row in range(40)], "age": [20 + row % 7 for row in range(40)]})


def read_csv(folder: Path, text: str | None, **settings: Any) -> PartyTable:
    path = folder / "table.csv"
    path.write_text(text or "")
    return read_table(DatasetConfig.model_validate({"path": path, **settings}))


def read_parquet(folder: Path, frame: pd.DataFrame, **settings: Any) -> PartyTable:
    path = folder / "table.parquet"
    frame.to_parquet(path)
    return read_table(DatasetConfig.model_validate({"path": path, **settings}))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Unnamed: 0",
        "Unnamed: 0.1",
        "Unnamed: 0_level_0",
        "__index_level_0__",
        "__null_dask_index__",
        "...1",
        "rownames",
        "row.names",
        "row_names",
        "rowid",
        "ROWNUM",
        "row_number",
        "row_nr",
        "file_row_number",
        "_N_",
        "_ERROR_",
        "_c0",
        "column0",
    ],
)
def test_a_row_number_is_left_out_by_its_name(tmp_path: Path, name: str) -> None:
    table = read_csv(tmp_path, f"{name},id,age\n1,a,20\n2,b,30\n")

    assert list(table.features.columns) == ["age"]
    assert list(table.left_out) == [name]
    (text,) = describe_left_out(table.left_out)
    assert text.startswith(f"left out column {name!r}: ")


@pytest.mark.parametrize("name", ["index", "x", "unnamed", "rows", "number", "n", "column1", "_c1", "error", "..."])
def test_a_name_that_a_person_may_have_given_stays(tmp_path: Path, name: str) -> None:
    table = read_csv(tmp_path, f"{name},id,age\n1,a,20\n2,b,30\n")

    assert list(table.features.columns) == [name, "age"]
    assert table.left_out == {}


@pytest.mark.parametrize("prefix", ["_c", "column"])
def test_numbered_names_stay_if_all_columns_have_them(tmp_path: Path, prefix: str) -> None:
    table = read_csv(tmp_path, f"{prefix}0,{prefix}1\n1,a\n2,b\n", id=f"{prefix}1")

    assert list(table.features.columns) == [f"{prefix}0"]


def test_empty_columns_of_a_spreadsheet_are_left_out(tmp_path: Path) -> None:
    table = read_csv(tmp_path, "id,age,,\na,20,,\nb,30,,\n")

    assert list(table.features.columns) == ["age"]
    assert list(table.left_out) == [""]


@pytest.mark.parametrize(
    ("frame", "left_out"),
    [
        (ROWS, []),
        (ROWS[ROWS.age > 21], ["__index_level_0__"]),
        (ROWS.assign(order=[row * row for row in range(40)]).set_index("order"), ["order"]),
        (ROWS.set_index("id"), []),
        (ROWS.assign(a=0, b=range(40)).set_index(["a", "b"]), ["a", "b"]),
    ],
    ids=["range", "filtered", "named", "the ID", "several"],
)
def test_the_index_of_a_data_frame_is_left_out(tmp_path: Path, frame: pd.DataFrame, left_out: list[str]) -> None:
    table = read_parquet(tmp_path, frame)

    assert list(table.features.columns) == ["age"]
    assert sorted(table.left_out) == left_out


def test_the_label_may_be_the_index(tmp_path: Path) -> None:
    frame = ROWS.assign(label=[row % 2 for row in range(40)]).set_index("label")

    assert list(read_parquet(tmp_path, frame, label={}).features.columns) == ["age"]


@pytest.mark.parametrize(
    "settings",
    [{"features": ["rowid"]}, {"categorical": ["rowid"]}, {"preprocessing": {"columns": {"rowid": {"clip": None}}}}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_column_that_the_settings_name_is_a_feature(tmp_path: Path, settings: dict[str, Any]) -> None:
    table = read_csv(tmp_path, "rowid,id\n1,a\n2,b\n", **settings)

    assert list(table.features.columns) == ["rowid"]
    assert table.left_out == {}


def test_an_excluded_column_is_not_reported(tmp_path: Path) -> None:
    assert read_csv(tmp_path, "rowid,id,age\n1,a,2\n2,b,3\n", exclude=["rowid"]).left_out == {}


def test_a_table_of_nothing_but_row_numbers_has_no_feature(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no feature is left"):
        read_csv(tmp_path, "Unnamed: 0,id\n1,a\n2,b\n")


@pytest.mark.parametrize(
    "pandas",
    [b"{", b"[]", b"{}", b'{"index_columns": 3}', b'{"index_columns": [{"kind": "range"}, 4, null, "gone"]}', b"\xff"],
)
def test_any_metadata_is_read(tmp_path: Path, pandas: bytes) -> None:
    path = tmp_path / "table.parquet"
    table = pa.table({"id": ["a", "b"], "age": [1, 2]}).replace_schema_metadata({b"pandas": pandas})
    parquet.write_table(table, path)

    assert list(read_table(DatasetConfig(path=path)).features.columns) == ["age"]


def test_ids_and_new_rows_are_read_in_spite_of_such_columns(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(",id,age,\n1,a,20,\n2,b,30,\n")
    dataset = DatasetConfig(path=path)

    assert read_table_ids(dataset).ids == ["a", "b"]
    (chunk,) = stream_table(dataset, ["age"], [])
    assert frame_of(chunk.features)["age"].tolist() == [20, 30]


def test_a_model_that_uses_such_a_column_still_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("Unnamed: 0,id,age\n1,a,20\n2,b,30\n")

    (chunk,) = stream_table(DatasetConfig(path=path), ["Unnamed: 0", "age"], [])
    assert frame_of(chunk.features)["Unnamed: 0"].tolist() == [1, 2]


def test_what_is_left_out_reaches_the_job(tmp_path: Path) -> None:
    table = read_parquet(tmp_path, ROWS[ROWS.age > 21])

    data = make_party_data(table, DatasetConfig(path=tmp_path).preprocessing, JobConfig(name="j", dataset="d"))
    assert describe_left_out(data.left_out) == [
        "left out column '__index_level_0__': an index of a data frame according to the metadata of the file"
    ]


def test_reasons_are_told_once() -> None:
    assert describe_left_out(technical_columns(["rowid", "_N_", "age"], [])) == [
        "left out columns 'rowid', '_N_': named like a row number or row name"
    ]


@given(st.lists(st.text()), st.lists(st.text()))
def test_only_columns_of_the_file_are_found(names: list[str], indexes: list[str]) -> None:
    assert set(technical_columns(names, indexes)) <= set(names)
    assert json.dumps(technical_columns(names, indexes))
