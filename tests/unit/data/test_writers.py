"""Files as spreadsheets, statistics programs and data frames write them: read as meant, or refused with a way out."""

import gzip
from dataclasses import dataclass, field
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
from trilateral.common.data.tables import table_file
from trilateral.common.data.tables.table import read_table, read_table_ids

NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """A file, and what comes of it: features by name, or what the refusal and its note say."""

    title: str
    content: str | bytes | pa.Table
    features: dict[str, list[Any]] = field(default_factory=dict)
    refusal: str = ""
    note: str = ""
    name: str = "t.csv"
    settings: dict[str, Any] = field(default_factory=dict)


TWO = {"a": [2.0, 3.5]}
TEXT = "id,a\n1,2\n2,3.5\n"
CATEGORY: dict[str, Any] = {"categorical": ["c"]}
NOT_NUMBER = "column 'a' has 1 value that is not a number"


def columns(**values: Any) -> pa.Table:
    return pa.table({"id": ["1", "2"], **values})


CASES = [
    # Endings
    Case("tabs", TEXT.replace(",", "\t"), refusal="t.tsv has an unknown format: .* CSV in UTF-8", name="t.tsv"),
    Case("text", TEXT, refusal="t.txt has an unknown format: .* rename it", name="t.txt"),
    Case("no ending", TEXT, refusal="t has an unknown format", name="t"),
    Case("short for Parquet", columns(), refusal="t.parq has an unknown format: .* rename it", name="t.parq"),
    Case("a workbook", b"PK\3\4", refusal="t.xlsx has an unknown format", name="t.xlsx"),
    Case("capitals", TEXT, TWO, name="T.CSV"),
    Case("packed in two parts", gzip.compress(b"id,a\n1,2\n") + gzip.compress(b"2,3.5\n"), TWO, name="t.csv.gz"),
    Case("packed, cut", gzip.compress(TEXT.encode() * 99)[:-9], refusal="t.csv.gz .* damaged", name="t.csv.gz"),
    # Spreadsheets
    Case("mark of UTF-8", b"\xef\xbb\xbf" + b'"id","a"\r\n1,2\r\n2,3.5\r\n', TWO),
    Case("semicolons", "id;a\n1;2\n", refusal="seem to be separated by semicolons", note="'id;a'"),
    Case("tabs in CSV", "id\ta\n1\t2\n", refusal="seem to be separated by tabs"),
    Case("a line for a spreadsheet", "sep=,\n" + TEXT, refusal="tells a spreadsheet the separator; remove that line"),
    Case("decimal comma", 'id,a\n1,"2,5"\n', refusal=f"{NOT_NUMBER}: use a decimal point", note="line 2, column 'a'"),
    Case("thousands", 'id,a\n1,"2,500"\n', refusal=NOT_NUMBER),
    Case("percent", "id,a\n1,5%\n", refusal=NOT_NUMBER),
    Case("minus sign of print", "id,a\n1,\N{MINUS SIGN}5\n", refusal=NOT_NUMBER),
    Case("hard blank", "id,a\n1,\N{NO-BREAK SPACE}2\n2,3.5 \n", TWO),
    Case("no UTF-8", "id,a,c\n1,2,Jos\xe9\n".encode("latin-1"), refusal="'c' has another encoding", settings=CATEGORY),
    Case("a name that is not UTF-8", "id,a\xf1o\n1,2\n".encode("latin-1"), refusal="the name of a column has another"),
    Case("UTF-16", TEXT.encode("utf-16"), refusal="encoded in UTF-16: save it in UTF-8"),
    Case("UTF-16 without a mark", TEXT.encode("utf-16-le"), refusal="seems to be encoded in UTF-16"),
    Case("a title", "Report\n" + TEXT, refusal="the first line of the file, which must hold the column names"),
    Case("empty columns", "id,a,,\n1,2,,\n2,3.5,,\n", TWO),
    Case("rounded IDs", "id,a\n1.23457E+15,2\n", refusal="column 'id' has 1 ID in scientific", note="line 2"),
    Case("codes like numbers", "id,a\n1E5,2\n2E5,3.5\n", TWO),
    # Statistics programs
    Case("R, row names", '"id","a"\n"1","x",2\n', refusal="has 1 line with .* row names", note="line 2"),
    Case("R, named row names", '"","id","a"\n"1","1",2\n"2","2",NA\n', {"a": [2, NAN]}),
    Case("SAS, missing", "id,a\n1  ,.\n2  ,3 \n", refusal=f"{NOT_NUMBER}: .* list their spelling in `missing`"),
    Case("SAS, missing in the settings", "id,a\n1  ,.\n2  ,3 \n", {"a": [NAN, 3]}, settings={"missing": ["."]}),
    Case("exponents", "id,a\n1,2E+00\n2,.35e1\n", TWO),
    Case("Fortran's exponents", "id,a\n1,1D5\n", refusal=NOT_NUMBER),
    Case("true and false", "id,a\n1,TRUE\n2,2\n", refusal=NOT_NUMBER),
    Case("too large", "id,a\n1,1e400\n", refusal="column 'a' has 1 infinite value"),
    # Lines and quotes
    Case("CR", TEXT.replace("\n", "\r"), TWO),
    Case("CR and LF", "id,a\r\n1,2\n2,3.5\r", TWO),
    Case("blank lines first", "\n\n" + TEXT, TWO),
    Case("line in a value", 'id,a,c\n1,2,"x\ny"\n2,3.5,z\n', TWO | {"c": ["x\ny", "z"]}, settings=CATEGORY),
    Case("open quote", 'id,a\n1,"2\n2,3\n', refusal="a quotation mark that is never closed", note="line 2"),
    Case("ragged", "id,a\n1,2,3\n", refusal="has 1 line with more or fewer values", note="line 2"),
    Case("NUL", "id,a\n1,\0\n", refusal="has NUL characters", note="line 2"),
    Case("NUL in a name", "id,a\0\n1,2\n", refusal="has NUL characters"),
    Case("long value", f"id,a,c\n1,2,{'x' * 200_000}\n2,3.5,y\n", TWO, settings={"exclude": ["c"]}),
    Case("nothing", "", refusal="it is empty"),
    Case("blank lines alone", "\n\n", refusal="it is empty"),
    Case("a mark alone", b"\xef\xbb\xbf", refusal="it is empty"),
    Case("names alone", "id,a\n", refusal="has no rows"),
    Case("names alone, without an end", "id,a", refusal="it has no rows"),
    # Names
    Case("a name twice", "id,a,a\n1,2,3\n", refusal="several columns with the same name: 'a'"),
    Case("blanks around a name", "id, a\n1,2\n2,3.5\n", {" a": [2, 3.5]}),
    Case("blanks around the ID", " id,a\n1,2\n", refusal="names a column 'id' that", note="' id'"),
    Case("capitals in a name", "ID,a\n1,2\n", refusal="names a column 'id' that", note="'ID'"),
    # Parquet
    Case(
        "NaN beside nulls",
        columns(a=[1.0, NAN], c=pa.array([2.0, NAN])),
        {"a": [1, NAN], "c": ["2", NAN]},
        name="t.parquet",
        settings=CATEGORY,
    ),
    Case("half precision", columns(a=pa.array(np.array([2, 3.5], np.float16))), TWO, name="t.parquet"),
    Case("decimal", columns(a=[Decimal("2.00"), Decimal("3.50")]), TWO, name="t.parquet"),
    Case("bool", columns(a=[True, None]), {"a": [1, NAN]}, name="t.parquet"),
    Case("a date", columns(a=pa.array([0, None], pa.date32())), refusal=NOT_NUMBER, name="t.parquet"),
    Case("a list", columns(a=[[1], [2]]), refusal="column 'a' is of type list.* or exclude it", name="t.parquet"),
    Case("a struct", columns(a=[{"b": 1}] * 2), refusal="column 'a' is of type struct", name="t.parquet"),
    Case("excluded struct", columns(s=[{"a": 1}] * 2, a=[2, 3.5]), TWO, name="t.parquet", settings={"exclude": ["s"]}),
    Case("a dot in a name", columns(**{"a.b": [2, 3.5], "a": [2, 3.5]}), TWO | {"a.b": TWO["a"]}, name="t.parquet"),
    Case("all missing", columns(a=pa.nulls(2)), {"a": [NAN, NAN]}, name="t.parquet"),
    Case(
        "a label of NaN",
        columns(y=[1.0, NAN], a=[1, 2]),
        refusal="column 'y' has no label in 1 of 2",
        name="t.parquet",
        settings={"label": {"column": "y"}},
    ),
    Case("no columns", pa.table({}), refusal="names a column 'id' that t.parquet does not have", name="t.parquet"),
    Case("no rows", columns(a=[1, 2]).slice(0, 0), refusal="has no rows", name="t.parquet"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_file_is_read_as_meant_or_refused_with_a_way_out(case: Case, tmp_path: Path) -> None:
    path = tmp_path / case.name
    if isinstance(case.content, pa.Table):
        parquet.write_table(case.content, path)
    else:
        path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    dataset = DatasetConfig.model_validate({"path": path, **case.settings})
    if case.refusal:
        with pytest.raises(DataError, match=case.refusal) as error:
            read_table(dataset)
        assert error.value.__suppress_context__ or error.value.__context__ is None
        assert case.note in "".join(notes(error.value))
        return
    features = frame_of(read_table(dataset).features)
    expected = pd.DataFrame(case.features).convert_dtypes()
    pd.testing.assert_frame_equal(features.convert_dtypes(), expected, check_dtype=False, check_like=True)


def test_a_row_that_is_too_long_is_no_open_quote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_CSV_BLOCK", 1 << 20)
    path = tmp_path / "t.csv"
    path.write_text(f"id,a,c\n1,2,y\n2,3,{'x' * (3 << 20)}\n4,5,y\n")
    with pytest.raises(DataError, match=r"t\.csv has a row of more than 1 MB: .* as Parquet") as error:
        read_table(DatasetConfig(path=path, exclude=["c"]))
    assert notes(error.value) == ["the first is in line 3"]


def test_an_error_of_ours_does_not_look_like_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TEXT)

    def fail(*_: object) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr(table_file._CsvFile, "_read_names", fail)
    with pytest.raises(TypeError, match="a mistake"):
        read_table(DatasetConfig(path=path))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "x"), "no permission to read t.csv: change the owner"),
        (OSError(5, "x"), "t.csv cannot be read: Input"),
    ],
)
def test_a_file_that_cannot_be_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TEXT)
    for method in ("open", "is_dir"):

        def fail(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fail)
            with pytest.raises(DataError, match=said):
                read_table(DatasetConfig(path=path))


# --- one key for one ID, whoever wrote it

SAME_IDS = {
    "text": ["1", "20", "300"],
    "text with decimals": ["1.0", "20.0", "300.00"],
    "text with blanks": [" 1", "20 ", "\t300"],
    "int": pa.array([1, 20, 300], pa.int16()),
    "unsigned": pa.array([1, 20, 300], pa.uint64()),
    "float": [1.0, 20.0, 300.0],
    "short float": pa.array([1, 20, 300], pa.float32()),
    "decimal": [Decimal("1.00"), Decimal("20.00"), Decimal("300.00")],
    "dictionary": pa.array(["1", "20", "300"]).dictionary_encode(),
    "dictionary of floats": pa.array([1.0, 20.0, 300.0]).dictionary_encode(),
    "bytes": [b"1", b"20", b"300"],
    "view": pa.array(["1", "20", "300"], pa.string_view()),
}


@pytest.mark.parametrize("column", SAME_IDS.values(), ids=[*SAME_IDS])
def test_an_id_that_is_a_number_is_the_same_key_in_every_type(tmp_path: Path, column: Any) -> None:
    parquet.write_table(pa.table({"id": column}), tmp_path / "t.parquet")
    assert read_table_ids(DatasetConfig(path=tmp_path / "t.parquet")).ids == ["1", "20", "300"]


OTHER_IDS = {
    "fraction": ([1.5, 2.0], "column 'id' has a floating-point type and 1 number that"),
    "infinite": ([np.inf, 2.0], "has a floating-point type and 1 number that"),
    "beyond what is exact": ([2.0**53, 2.0], "has a floating-point type and 1 number that"),
    "beyond a short float": (pa.array([2**24, 1], pa.float32()), "has a floating-point type and 1 number that"),
    "missing": ([1.0, None], "column 'id' has no ID in 1 of 2 rows"),
    "NaN": (pa.array([1.0, NAN]), "column 'id' has no ID in 1 of 2 rows"),
    "scientific": (["1e+16", "2"], "column 'id' has 1 ID in scientific notation"),
    "date": (pa.array([1, 2], pa.date32()), r"is of type date32\[day\]: write IDs as text"),
    "time": (pa.array([1, 2], pa.timestamp("ns")), r"is of type timestamp\[ns\]: write IDs as text"),
    "list": ([[1], [2]], "which cannot be read as text"),
}


@pytest.mark.parametrize(("column", "said"), OTHER_IDS.values(), ids=[*OTHER_IDS])
def test_an_id_that_may_not_be_the_same_at_both_parties_is_refused(tmp_path: Path, column: Any, said: str) -> None:
    parquet.write_table(pa.table({"id": column}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=said):
        read_table_ids(DatasetConfig(path=tmp_path / "t.parquet"))


def test_integers_beyond_a_float_are_exact(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": pa.array([2**64 - 1, 2**64 - 2], pa.uint64())}), tmp_path / "t.parquet")
    assert read_table_ids(DatasetConfig(path=tmp_path / "t.parquet")).ids == [f"{2**64 - 2}", f"{2**64 - 1}"]
