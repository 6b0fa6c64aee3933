"""A folder of Parquet parts is one table, in the order of the parts' names."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.frames import frame_of
from trilateral.common.base.errors import DataError, notes
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.tables.table import read_table, read_table_ids, stream_table
from trilateral.common.jobs.party_record import table_digest

N_ROWS = 120
FIRST_ROWS = [0, 50, 50, 51, 119]
"""The first row of each part. The second part is empty."""


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"{row:03}" for row in rng.permutation(N_ROWS)],
            "a": np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.standard_normal(N_ROWS)),
            "kind": pd.Series([("car", "house", None)[row % 3] for row in range(N_ROWS)], dtype="str"),
        }
    )


def write_parts(folder: Path, frame: pd.DataFrame, names: str = "part.{}.parquet") -> Path:
    """Write the parts as Dask does; with other names, as Spark."""
    folder.mkdir()
    for number, (start, end) in enumerate(zip(FIRST_ROWS, [*FIRST_ROWS[1:], N_ROWS], strict=True)):
        frame.iloc[start:end].to_parquet(folder / names.format(7 + number), index=False)
    (folder / "_SUCCESS").touch()
    (folder / "_metadata").write_bytes(b"PAR1")
    (folder / ".part.7.parquet.crc").write_bytes(b"crc")
    return folder


def dataset(path: Path, **settings: Any) -> DatasetConfig:
    return DatasetConfig.model_validate({"path": path, "categorical": ["kind"], **settings})


@pytest.mark.parametrize("names", ["part.{}.parquet", "part-{:05}-2c1b5f0e-c000.snappy.parquet"])
def test_the_parts_are_the_table_in_one_file(frame: pd.DataFrame, tmp_path: Path, names: str) -> None:
    parts = dataset(write_parts(tmp_path / "customers", frame, names))
    frame.to_parquet(tmp_path / "whole.parquet", index=False)
    whole = dataset(tmp_path / "whole.parquet")

    assert table_digest(read_table(parts)) == table_digest(read_table(whole))
    assert read_table_ids(parts).ids == sorted(frame["id"])
    chunks = list(stream_table(parts, ["a"], [], rows=33))
    assert [one for chunk in chunks for one in chunk.ids] == frame["id"].tolist()
    assert [len(chunk.ids) for chunk in chunks] == [33, 33, 33, 21]


def test_parts_may_differ_in_the_order_of_columns_and_in_how_their_writers_noted_the_same_values(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = write_parts(tmp_path / "t", frame)
    frame.loc[50, ["a", "kind"]] = 3, None
    ids = pa.array(frame["id"][50:51].tolist(), pa.string_view())
    fields = [("kind", pa.null()), ("a", pa.int16()), pa.field("id", ids.type, nullable=False)]
    other = pa.table([pa.nulls(1), pa.array([3], pa.int16()), ids], schema=pa.schema(fields))
    parquet.write_table(other, path / "part.9.parquet")
    read = read_table(dataset(path))
    expected = frame.set_index("id").sort_index()
    pd.testing.assert_frame_equal(frame_of(read.features), expected.reset_index(drop=True), check_dtype=False)


def test_a_fault_is_found_in_its_part(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[53, "a"] = np.inf
    with pytest.raises(DataError, match="infinite value") as error:
        read_table(dataset(write_parts(tmp_path / "t", frame)))
    assert notes(error.value) == ["the first is in row 3 of part.10.parquet, column 'a'"]


def test_the_first_row_of_an_id_is_the_one_in_the_first_part(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[[2, 119], "id"] = "again"
    path = write_parts(tmp_path / "t", frame)
    with pytest.raises(DataError, match="repeats an earlier ID in 1 of 120 rows") as error:
        read_table(dataset(path))
    assert notes(error.value) == ["the first is in row 1 of part.11.parquet, column 'id'"]
    table = read_table(dataset(path, repeated_ids="first"))
    np.testing.assert_array_equal(table.features["a"][[*table.ids].index("again") :][:1], frame["a"].to_numpy()[2:3])


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.rename(columns={"a": "b"}),
        lambda part: part.assign(b=1),
        lambda part: part.drop(columns="a"),
        lambda part: part.assign(a="text"),
    ],
)
def test_parts_with_other_columns_are_refused_without_naming_them(
    frame: pd.DataFrame, tmp_path: Path, change: Any
) -> None:
    path = write_parts(tmp_path / "customers", frame)
    change(frame.iloc[50:51]).to_parquet(path / "part.9.parquet", index=False)
    with pytest.raises(DataError) as error:
        read_table(dataset(path))
    assert str(error.value) == (
        "the parts of customers do not have the same columns: part.9.parquet differs from those before it: write all "
        "parts with the same names and types of columns"
    )
    assert notes(error.value)[0].startswith("types of columns before that part and in it: ")


@pytest.mark.parametrize(
    "values",
    [
        [pa.nulls(1), pa.array(["007"]), pa.array([7])],  # The first part says nothing about the type.
        [pa.array(["007"]), pa.nulls(1), pa.array([7])],
        [pa.array([Decimal("7.50")]), pa.array([7.5])],
        [pa.array([Decimal("7.50")]), pa.array([Decimal("7.500")])],
    ],
)
def test_parts_in_which_equal_values_are_different_texts_are_refused(tmp_path: Path, values: list[pa.Array]) -> None:
    for number, part in enumerate(values):
        ids = pa.array([f"id-{number}"])
        parquet.write_table(pa.table({"id": ids, "a": ids, "kind": part}), tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=f"{len(values) - 1}.parquet differs from those before it"):
        read_table(dataset(tmp_path))


def test_a_damaged_part_is_named(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = write_parts(tmp_path / "t", frame)
    content = (path / "part.10.parquet").read_bytes()
    (path / "part.10.parquet").write_bytes(content[:-9])
    with pytest.raises(DataError, match=r"^part\.10\.parquet cannot be read as a Parquet file: it was cut short"):
        read_table(dataset(path))
    start = content.index(b"PAR1") + 4
    (path / "part.10.parquet").write_bytes(content[:start] + bytes(400) + content[start + 400 :])
    with pytest.raises(DataError, match=r"^part\.10\.parquet cannot be read"):
        read_table(dataset(path))


def test_what_is_not_a_folder_of_parts_is_refused_with_the_way_out(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = write_parts(tmp_path / "t", frame)

    def refusal() -> DataError:
        with pytest.raises(DataError) as error:
            read_table(dataset(path))
        return error.value

    (path / "secret.txt").touch()
    assert "has 1 file whose names do not end in .parquet: name one file" in str(refusal())
    assert "secret" not in str(refusal())
    assert notes(refusal()) == ["the first is secret.txt"]
    (path / "secret.txt").unlink()
    (path / "country=DE").mkdir()
    assert "partitioned by the values of a column" in str(refusal())
    assert "DE" not in str(refusal())
    (path / "_temporary").mkdir()
    assert "has not finished" in str(refusal())
    path = tmp_path / "empty"
    path.mkdir()
    assert "the folder empty at the dataset's `path` is empty" in str(refusal())
