"""Files that are not what their names say, and types that other programs write, get an answer and no library error."""

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.frames import frame_of
from trilateral.common.base.errors import DataError, notes
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.tables.table import read_table

TEXT = "id,a\n" + "".join(f"P{row},{row}\n" for row in range(20))


def packed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", TEXT)
    return file.getvalue()


def columns() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"id": ["a", "b"], "a": [1, 2]}), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "way_out"),
    [
        ("t.csv", gzip.compress(TEXT.encode()), "compressed by gzip: name it .csv.gz"),
        ("t.csv", packed(), "zip archive or an Excel workbook"),
        ("t.csv.gz", packed(), "zip archive or an Excel workbook"),
        ("t.csv", columns(), "name it .parquet"),
        ("t.csv", TEXT.encode("utf-16"), "encoded in UTF-16: save it in UTF-8"),
        ("t.csv", TEXT.encode("utf-32"), "encoded in UTF-32"),
        ("t.csv.gz", gzip.compress(TEXT.encode("utf-16")), "encoded in UTF-16"),
        ("t.csv", TEXT.replace("P3", "P\0").encode(), "has NUL characters"),
        ("t.csv", b"", "it is empty"),
        ("t.csv.gz", gzip.compress(b""), "it is empty"),
        ("t.csv.gz", TEXT.encode(), "it is not compressed: name it .csv"),
        ("t.csv", b"<!DOCTYPE html><p>", "a web page"),
        ("t.parquet", columns()[:-9], "cut short"),
        ("t.parquet", b"", "it is empty"),
        ("t.parquet", TEXT.encode(), "if it is text, name it .csv"),
        ("t.parquet", gzip.compress(columns()), "compressed by gzip"),
    ],
    ids=map(str, range(16)),
)
def test_a_file_of_another_format_is_recognised(tmp_path: Path, name: str, content: bytes, way_out: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} cannot be read as a ") as error:
        read_table(DatasetConfig(path=tmp_path / name))
    assert way_out in str(error.value)
    assert error.value.__suppress_context__


def test_a_ragged_line_in_another_encoding_is_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,a,name\n1,2,Jos\u00e9\n2,3,M\u00fcller, Jos\u00e9\n".encode("latin-1"))
    with pytest.raises(DataError, match="has 1 line with more or fewer values .* not encoded in UTF-8") as error:
        read_table(DatasetConfig(path=path, exclude=["name"]))
    assert notes(error.value) == ["the first is line 3"]
    assert error.value.__suppress_context__
    assert capfd.readouterr() == ("", "")


def test_endings_may_be_in_capitals(tmp_path: Path) -> None:
    for name, content in {
        "A.CSV": TEXT.encode(),
        "B.CSV.GZ": gzip.compress(TEXT.encode()),
        "C.PARQUET": columns(),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert list(frame_of(read_table(DatasetConfig(path=tmp_path / name)).features)) == ["a"]


TYPES = [
    pa.array(["1", "2"], pa.string_view()),
    pa.array(["1", "2"], pa.large_string()),
    pa.array(["1", "2"]).dictionary_encode(),
    pa.array([1, 2]).dictionary_encode(),
    pa.array(["1", "2"], pa.json_()),
]


@pytest.mark.parametrize("column", TYPES, ids=lambda column: str(column.type))
def test_every_type_of_text_is_an_id_a_label_a_number_and_a_category(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"x": column, "a": [1, 2]}), path)

    def read(**settings: Any) -> Any:
        return read_table(DatasetConfig.model_validate({"path": path, "id": "a", **settings}))

    assert read(id="x").ids == ["1", "2"]
    assert read().features["x"].tolist() == [1, 2]
    assert read(categorical=["x"]).features["x"].to_list() == ["1", "2"]
    parquet.write_table(pa.table({"x": column, "a": [1, 2], "b": [1, 2]}), path)
    assert read(label={"column": "x", "positive": "2", "negative": "1"}).labels.tolist() == [-1, 1]


def test_a_uuid_reads_as_its_usual_text(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"id": pa.array([b"1" * 16, b"2" * 16], pa.uuid()), "a": [1, 2]}), path)
    assert read_table(DatasetConfig(path=path)).ids[0] == "31313131-3131-3131-3131-313131313131"


@pytest.mark.parametrize("settings", [{}, {"categorical": ["x"]}, {"id": "x"}], ids=["number", "category", "ID"])
def test_text_that_is_not_utf8_in_parquet_is_refused_without_a_value(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = tmp_path / "t.parquet"
    buffers = pa.array([b"secret\xff", b"2"]).buffers()
    column = pa.StringArray.from_buffers(2, buffers[1], buffers[2])
    parquet.write_table(pa.table({"id": ["a", "b"], "x": column, "a": [1, 2]}), path)
    with pytest.raises(DataError, match="column 'x' has text that is not UTF-8") as error:
        read_table(
            DatasetConfig.model_validate({"path": path, "exclude": ["id"] if "id" in settings else [], **settings})
        )
    assert "secret" not in str(error.value)
    assert error.value.__suppress_context__
