"""Reading a table in chunks, for scoring."""

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
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.table import TableChunk, read_table, stream_table

N_ROWS = 2500


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": [f"{row:05}" for row in rng.permutation(N_ROWS)],
            "b": np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.standard_normal(N_ROWS)),
            "kind": [("car", "house", None)[row % 3] for row in range(N_ROWS)],
            "a": rng.integers(0, 9, N_ROWS),
            "note": "x",
        }
    )


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path, row_group_size=700)
    else:
        frame.to_csv(path, index=False)
    return path


def kinds(*known: str, fractions: bool = False) -> CategoryColumn:
    """The column `kind`, of a model that knows these categories."""
    return CategoryColumn(
        name="kind", reference=None, categories=list(known), missing="other", other="reference", fractions=fractions
    )


KIND = kinds("car", "house")


def stream(path: Path, features: list[str], categorical: list[CategoryColumn], rows: int) -> list[TableChunk]:
    return list(stream_table(DatasetConfig(path=path), features, categorical, rows))


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.parquet"])
@pytest.mark.parametrize("rows", [1000, 2500, 10_000, 999])
def test_chunks_in_the_order_of_the_file_are_the_table(
    frame: pd.DataFrame, tmp_path: Path, name: str, rows: int
) -> None:
    chunks = stream(write(frame, tmp_path / name), ["a", "b", "kind"], [KIND], rows)

    assert [len(chunk.ids) for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)
    assert [one for chunk in chunks for one in chunk.ids] == frame["id"].tolist()
    whole = pd.concat([frame_of(chunk.features) for chunk in chunks], ignore_index=True)
    assert list(whole.columns) == ["a", "b", "kind"]
    assert (whole[["a", "b"]].dtypes == np.float64).all()
    np.testing.assert_array_equal(whole["a"], frame["a"])
    np.testing.assert_array_equal(whole["b"], frame["b"])
    assert whole["kind"].fillna("-").tolist() == frame["kind"].fillna("-").tolist()


def test_chunks_read_like_the_whole_table(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = write(frame, tmp_path / "table.csv")
    whole = read_table(DatasetConfig(path=path, exclude=["note"], categorical=["kind"]))

    chunks = stream(path, list(whole.features.columns), [KIND], 600)

    rows = pd.concat([frame_of(chunk.features).set_axis([*chunk.ids]) for chunk in chunks]).loc[[*whole.ids]]
    pd.testing.assert_frame_equal(rows.reset_index(drop=True), frame_of(whole.features))


def test_what_is_not_asked_for_is_not_looked_at(tmp_path: Path) -> None:
    """Tomorrow's rows have no label, and whatever other columns."""
    path = tmp_path / "new.csv"
    path.write_bytes(b"note,a,id\n\xff,1,x\n,2,y\n")

    (chunk,) = stream_table(DatasetConfig.model_validate({"path": path, "label": {}}), ["a"], [])

    assert chunk.ids == ["x", "y"]


def test_only_as_much_of_a_file_as_is_asked_for_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("id,a\n" + "".join(f"{row},{row}\n" for row in range(1_000_000)))

    first = next(iter(stream_table(DatasetConfig(path=path), ["a"], [], 100)))
    before = pa.total_allocated_bytes()
    for chunk in stream_table(DatasetConfig(path=path), ["a"], [], 10_000):
        assert pa.total_allocated_bytes() - before < 60 << 20
        assert len(chunk.ids) == 10_000

    assert first.ids == [str(row) for row in range(100)]


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_columns_that_are_gone_are_named(frame: pd.DataFrame, tmp_path: Path, name: str) -> None:
    path = write(frame.drop(columns=["a", "kind"]), tmp_path / name)
    with pytest.raises(DataError, match="preprocessing mismatch: table.* lacks columns .* fitted on: 'a', 'kind'$"):
        stream(path, ["a", "b", "kind"], [KIND], 100)


@pytest.mark.parametrize(
    ("name", "place"), [("table.csv", "line 2102"), ("table.csv.gz", "line 2102"), ("table.parquet", "row 2101")]
)
def test_a_column_that_has_become_text_is_named_with_its_place(
    frame: pd.DataFrame, tmp_path: Path, name: str, place: str
) -> None:
    frame["b"] = [f"{row}" for row in range(N_ROWS)]
    frame.loc[2100, "b"] = "secret"
    with pytest.raises(DataError) as refusal:
        stream(write(frame, tmp_path / name), ["a", "b"], [], 1000)
    assert "column 'b' was numeric at training, now holds 1 value that is not a number" in str(refusal.value)
    assert "preprocessing mismatch" in str(refusal.value)
    assert refusal.value.__notes__ == [f"the first is in {place}, column 'b'"]
    assert "secret" not in str(refusal.value)


def test_a_parquet_column_of_another_type_is_named(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame["a"] = pd.to_datetime(frame["a"], unit="D")
    with pytest.raises(DataError, match="column 'a' was numeric at training, .*preprocessing mismatch"):
        stream(write(frame, tmp_path / "table.parquet"), ["a"], [], 1000)


@pytest.mark.parametrize(
    ("text", "said", "note"),
    [
        ("id,a\nx,1\n ,2\n", "no ID in 1 of 2 rows", "line 3, column 'id'"),
        ("id,a\nx,1\ny,inf\n", "column 'a' has 1 infinite", "line 3, column 'a'"),
        ("id,a\nx,1\ny\n", "1 line with more or fewer values", "line 3"),
        ("id,a,a\nx,1,2\n", "several columns with the same name", None),
        ("a\n1\n", "`id` names a column 'id'", "line of table.csv holds these names: ['a']"),
        ("id,a\n", "has no rows", None),
    ],
)
def test_faults_are_those_of_the_whole_table(tmp_path: Path, text: str, said: str, note: str | None) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said) as refusal:
        stream(path, ["a"], [], 100)
    told = notes(refusal.value)
    assert told == [] if note is None else told in ([f"the first {verb}{note}"] for verb in ("is in ", "is ", ""))


def test_numbers_that_are_categories_read_alike_from_every_kind_of_file(tmp_path: Path) -> None:
    """pandas writes a column of whole numbers with a decimal point as soon as one is missing."""
    path, binary = tmp_path / "table.csv", tmp_path / "table.parquet"
    path.write_text("id,kind\na,2\nb, 2.0 \nc,10.00\nd,\ne,1.5\nf,02\n")
    columns: dict[str, Any] = {"id": list("abcd"), "kind": [2.0, 10.0, None, 1.5]}
    parquet.write_table(pa.table(columns), binary)

    known = [kinds("2", "10", fractions=True)]
    (text,) = stream(path, ["kind"], known, 100)
    (numbers,) = stream(binary, ["kind"], known, 100)

    assert frame_of(text.features)["kind"].fillna("-").tolist() == ["2", "2", "10", "-", "1.5", "02"]
    assert frame_of(numbers.features)["kind"].fillna("-").tolist() == ["2", "10", "-", "1.5"]


@pytest.mark.parametrize(
    ("values", "known", "count"),
    [
        (pa.array([2.0, 0.25, None, 1.5]), kinds("2", "10"), 2),
        (pa.array(["0.50", "2.00"]).cast(pa.decimal128(9, 2)), kinds("2", "10"), 1),
        (pa.array([2, 10, None]), kinds("car", "house"), 2),
        (pa.array([2.0, 10.0, float("nan")]), kinds("car", "house"), 2),
        (pa.array([2.0, 0.25]).dictionary_encode(), kinds("2"), 1),
    ],
)
def test_numbers_in_the_place_of_categories_are_refused(
    tmp_path: Path, values: pa.Array, known: CategoryColumn, count: int
) -> None:
    """Else every row would silently be of no known category."""
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"id": list("abcd")[: len(values)], "kind": values}), path)

    with pytest.raises(
        DataError, match=rf"column 'kind' was categorical at training, .* {count} numbers? .*preprocessing mismatch"
    ):
        stream(path, ["kind"], [known], 100)


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (pa.array([2, 10, 11, None]), kinds("2", "10")),
        (pa.array([2.0, 10.0, None]), kinds("2", "10")),
        (pa.array([2.0, 0.25]), kinds("2", "10", fractions=True)),
        (pa.array([True, False]), kinds("true", "false")),
        (pa.array([None, None], pa.float64()), kinds("car", "house")),
        (pa.array([0.5, 1.0]), kinds(fractions=True)),
    ],
)
def test_numbers_that_may_be_categories_are_read(tmp_path: Path, values: pa.Array, known: CategoryColumn) -> None:
    path = tmp_path / "table.parquet"
    parquet.write_table(pa.table({"id": list("abcd")[: len(values)], "kind": values}), path)

    (chunk,) = stream(path, ["kind"], [known], 100)

    assert frame_of(chunk.features)["kind"].notna().sum() == len(values) - values.null_count


def test_what_was_read_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    table = pa.table({"id": [str(row) for row in range(200_000)], "a": np.random.default_rng(0).normal(size=200_000)})
    parquet.write_table(table, path, row_group_size=10_000)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in stream_table(DatasetConfig(path=path), ["a"], [], 10_000)]
    assert max(held) < path.stat().st_size / 2
