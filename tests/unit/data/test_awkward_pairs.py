"""Pairs of files as two organisations may bring them: read right, or refused with the line and column.

What is right is written out beside each file. A refusal says the place to its own organisation, in a note, and neither
there nor in its public words the value that stands in it.
"""

import gzip
from collections.abc import Callable
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
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.table import read_table, stream_table

nan = np.nan
Columns = dict[str, list[Any]]


@dataclass
class Side:
    """A party's file, what its configuration says of it, and what must come of it."""

    content: bytes
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = "table.csv"
    reads: Columns | None = None
    """IDs, labels and features in canonical order of the IDs."""
    refused: tuple[str, ...] = ()
    """Parts of the public words."""
    place: str | None = None
    """The note for the own organisation."""
    hidden: tuple[str, ...] = ()
    """What no word of a refusal may show."""


def parquet_bytes(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


PAIRS: dict[str, tuple[Side, Side]] = {
    "a spreadsheet's export: mark of order, CRLF, quoted commas, quotation marks and line breaks": (
        Side(
            b'\xef\xbb\xbfid,"income, yearly","city ""now"""\r\n'
            b'002,"1200.5","Bern, old town"\r\n001,"900","a ""quoted"" name"\r\n003,,"two\r\nlines"\r\n',
            {"categorical": ['city "now"']},
            reads={
                "id": ["001", "002", "003"],
                "income, yearly": [900, 1200.5, nan],
                'city "now"': ['a "quoted" name', "Bern, old town", "two\r\nlines"],
            },
        ),
        Side(
            b'\xef\xbb\xbf"id","label","age"\r\n"003","1","30"\r\n"001","0","41"\r\n"002","1","52"',
            reads={"id": ["001", "002", "003"], "label": [-1, 1, 1], "age": [41, 52, 30]},
        ),
    ),
    "UTF-16, with a mark and without": (
        Side(
            "id,income\nanna,1\n".encode("utf-16"),
            refused=("table.csv cannot be read as a CSV file", "it is encoded in UTF-16: save it in UTF-8"),
            hidden=("anna",),
        ),
        Side(
            "id,label,age\nanna,1,2\n".encode("utf-16-le"),
            refused=("`id` names a column 'id' that table.csv does not have", "seems to be encoded in UTF-16"),
            place="the first line of table.csv holds these names: "
            r"['i\x00d\x00', '\x00l\x00a\x00b\x00e\x00l\x00', '\x00a\x00g\x00e\x00']",
            hidden=("anna",),
        ),
    ),
    "Latin-1, in a column that is read and in one that is not": (
        Side(
            "id,income,city\n1,5,Bern\n2,6,Z\u00fcrich\n3,7,Gen\u00e8ve\n".encode("latin-1"),
            {"categorical": ["city"]},
            refused=("a value of column 'city' has another encoding; save the file in UTF-8",),
            place="the first is in line 3, column 'city'",
            hidden=("rich",),
        ),
        Side(
            "id,label,age,city\n1,1,5,Bern\n2,0,6,Z\u00fcrich\n".encode("latin-1"),
            {"exclude": ["city"]},
            reads={"id": ["1", "2"], "label": [1, -1], "age": [5, 6]},
        ),
    ),
    "dates": (
        Side(
            b"id,income,since\n1,5,\n2,6,2021-03-04\n3,7,2020-12-31\n",
            refused=("column 'since' has 2 values that are not numbers", "or exclude the column"),
            place="the first is in line 3, column 'since'",
            hidden=("2021", "2020"),
        ),
        Side(
            parquet_bytes({"id": ["a", "b"], "label": [0, 1], "age": [1, 2], "since": pa.array([0, 1], pa.date32())}),
            name="table.parquet",
            refused=("column 'since' has 2 values that are not numbers",),
            place="the first is in row 1, column 'since'",
            hidden=("1970",),
        ),
    ),
    "booleans, as text and as such": (
        Side(
            b"id,income,owner\n1,5,7\n2,6,True\n3,7,false\n",
            refused=("column 'owner' has 2 values that are not numbers", "`categorical`"),
            place="the first is in line 3, column 'owner'",
            hidden=("True", "false"),
        ),
        Side(
            parquet_bytes({"id": ["a", "b", "c"], "label": [True, False, True], "owner": [True, None, False]}),
            {"label": {"positive": "true", "negative": "false"}},
            name="table.parquet",
            reads={"id": ["a", "b", "c"], "label": [1, -1, 1], "owner": [1, nan, 0]},
        ),
    ),
    "whole numbers beyond what a float holds exactly": (
        Side(
            b"id,account\n9007199254740993,9007199254740993\n9007199254740992,123456789012345678901234567890\n",
            reads={
                "id": ["9007199254740992", "9007199254740993"],
                "account": [float(123456789012345678901234567890), float(9007199254740993)],
            },
        ),
        Side(
            parquet_bytes(
                {
                    "id": pa.array([2**63 + 1, 2**53 + 1], pa.uint64()),
                    "label": [1, 0],
                    "account": [Decimal(10**25 + 1), Decimal(-3)],
                }
            ),
            name="table.parquet",
            reads={"id": ["9007199254740993", "9223372036854775809"], "label": [-1, 1], "account": [-3, 1e25]},
        ),
    ),
    "scientific notation, bare points and signs": (
        Side(
            b"id,x\na,1e5\nb,1E-3\nc,-2.5e+07\nd,.5\ne,5.\nf,+3\ng,+.5e1\nh,0x1F\n",
            refused=("column 'x' has 1 value that is not a number",),
            place="the first is in line 9, column 'x'",
            hidden=("0x1F",),
        ),
        Side(
            b"id,label,x\na,1,1e5\nb,0e0,1E-3\nc,1.0,-2.5e+07\nd,+1,.5\ne,0,5.\nf,1,+3\ng,1,+.5e1\nh,1,1e-400\ni,0,4.9e-324\n",
            reads={
                "id": list("abcdefghi"),
                "label": [1, -1, 1, 1, -1, 1, 1, 1, -1],
                "x": [100000, 0.001, -25000000, 0.5, 5, 3, 5, 0, 5e-324],
            },
        ),
    ),
    "blanks at the ends of values, and blank lines": (
        Side(
            b'\nid,x,kind\n\na, 5 ,car  \n\n\nb,\t6,  car\nc," 7 ", \nd, NA ,"house "\n\n',
            {"categorical": ["kind"]},
            reads={
                "id": ["a", "b", "c", "d"],
                "x": [5, 6, 7, nan],
                "kind": ["car", "car", None, "house"],
            },
        ),
        Side(
            b"id,label,x\n\na, 1 ,1\n\nb,0\t,2\n\n\nc,,3\n",
            refused=("column 'label' has no label in 1 of 3 rows",),
            place="the first is in line 8, column 'label'",
        ),
    ),
    "numbers and words in one column": (
        Side(
            b'id,x,note\n1,5,"a\nb\n\nc"\n2,"6",\n3,n/a,\n4,secret,\n5,-,\n6,none,\n',
            {"exclude": ["note"]},
            refused=("column 'x' has 2 values that are not numbers",),
            place="the first is in line 8, column 'x'",
            hidden=("secret",),
        ),
        Side(
            parquet_bytes({"id": ["1", "2", "3"], "label": ["1", "0", "1"], "x": ["5", "secret", None]}),
            name="table.parquet",
            refused=("column 'x' has 1 value that is not a number",),
            place="the first is in row 2, column 'x'",
            hidden=("secret",),
        ),
    ),
    "decimal commas, and commas between thousands": (
        Side(
            b"id;x\n1;2,5\n2;3,5\n",
            refused=("its values seem to be separated by semicolons",),
            place="the first line of table.csv holds these names: ['id;x']",
        ),
        Side(
            b'id,label,x\n1,1,"900"\n2,0,"1,234.50"\n3,1,"2,5"\n',
            refused=("column 'x' has 2 values that are not numbers", "use a decimal point"),
            place="the first is in line 3, column 'x'",
            hidden=("1,234", "234.50"),
        ),
    ),
    "names that come twice, and values without one": (
        Side(b"id,x,x\n1,2,3\n", refused=("table.csv has several columns with the same name: 'x'",)),
        Side(
            b"id,label,x\n1,1,2\n2,0,3,4\n3,1\n4,0,1\n",
            refused=("table.csv has 2 lines with more or fewer values than there are column names",),
            place="the first is line 3",
        ),
    ),
    "a quotation mark that is never closed, and a file that is cut off": (
        Side(
            b'id,x,note\n1,2,"fine, so far"\n2,3,"open\n3,4,anna\n4,5,\n',
            {"exclude": ["note"]},
            refused=("table.csv has a quotation mark that is never closed",),
            place="it is in the row that begins in line 3",
            hidden=("anna",),
        ),
        Side(
            gzip.compress(b"id,label,x\n" + b"".join(b"%d,1,%d\n" % (row, row**3) for row in range(9999)))[:20_000],
            name="table.csv.gz",
            refused=("table.csv.gz cannot be read as a CSV file in UTF-8: it may be damaged or in another format",),
        ),
    ),
    "values that end a line by themselves, and a zero byte": (
        Side(b"id,x\ra,1\rb,2\r", reads={"id": ["a", "b"], "x": [1, 2]}),
        Side(
            b"id,label,x\na,1,1\nb,0,\x00\n",
            refused=("it has NUL characters", "write it again in UTF-8"),
            place="the first is in line 3",
        ),
    ),
    "IDs that repeat or are missing, and labels of a third kind": (
        Side(
            b"id,x\nanna,1\nbert,2\n\nanna,3\nanna,4\n",
            refused=("column 'id' repeats an earlier ID in 2 of 4 rows",),
            place="the first is in line 5, column 'id'",
            hidden=("anna", "bert"),
        ),
        Side(
            b'id,label,x\n"anna\nlou",1,1\nbert,maybe,2\n,0,3\n',
            refused=("column 'label' has a value other than the two labels in 1 of 3 rows",),
            place="the first is in line 4, column 'label'",
            hidden=("anna", "maybe"),
        ),
    ),
}
SIDES = [
    pytest.param(side, role == "guest", id=f"{what}: {role}")
    for what, pair in PAIRS.items()
    for role, side in zip(("host", "guest"), pair, strict=True)
]


def dataset(side: Side, labelled: bool, folder: Path) -> DatasetConfig:
    path = folder / side.name
    path.write_bytes(side.content)
    return DatasetConfig.model_validate({"path": path, **({"label": {}} if labelled else {}), **side.settings})


def check_refusal(side: Side, read: Callable[[], object]) -> None:
    with pytest.raises(DataError) as refusal:
        read()
    assert all(part in str(refusal.value) for part in side.refused)
    assert notes(refusal.value) == ([] if side.place is None else [side.place])
    told = "\n".join([str(refusal.value), *notes(refusal.value)])
    assert not any(value in told for value in side.hidden)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize(("side", "labelled"), SIDES)
def test_a_file_is_read_right_or_refused_with_its_place(side: Side, labelled: bool, tmp_path: Path) -> None:
    settings = dataset(side, labelled, tmp_path)
    if side.reads is None:
        assert side.refused
        return check_refusal(side, lambda: read_table(settings))

    table = read_table(settings)

    expected = dict(side.reads)
    assert table.ids == expected.pop("id")
    if labelled:
        np.testing.assert_array_equal(table.labels, expected.pop("label"))
    assert list(table.features.columns) == list(expected)
    for name, values in expected.items():
        if name in settings.categorical:
            assert [None if pd.isna(value) else value for value in frame_of(table.features)[name]] == values
        else:
            assert frame_of(table.features)[name].dtype == np.float64
            np.testing.assert_array_equal(table.features[name], values)


@pytest.mark.parametrize(("side", "labelled"), [case for case in SIDES if case.values[0].reads is not None])  # type: ignore[union-attr]
def test_what_is_read_whole_is_read_alike_in_chunks(side: Side, labelled: bool, tmp_path: Path) -> None:
    settings = dataset(side, labelled, tmp_path)
    whole = read_table(settings)

    categorical = [
        CategoryColumn(name=name, reference=None, categories=[], missing="other", other="reference")
        for name in settings.categorical
    ]
    chunks = list(stream_table(settings, list(whole.features.columns), categorical, rows=2))

    rows = pd.concat([frame_of(chunk.features).set_axis([*chunk.ids]) for chunk in chunks])
    pd.testing.assert_frame_equal(rows.loc[[*whole.ids]].reset_index(drop=True), frame_of(whole.features))


def test_a_line_is_found_in_a_long_file(tmp_path: Path) -> None:
    """Beyond the first block that is read, whose rows are counted from its own start."""
    lines = [f"{row:07},{row},{'x' * 40}" for row in range(200_000)]
    lines[170_000] = "0170000,secret,"
    side = Side(
        "\n".join(["id,x,note", *lines]).encode(),
        {"exclude": ["note"]},
        refused=("column 'x' has 1 value that is not a number",),
        place="the first is in line 170002, column 'x'",
        hidden=("secret",),
    )
    settings = dataset(side, False, tmp_path)
    assert settings.path.stat().st_size > 2 * 4 << 20

    check_refusal(side, lambda: read_table(settings))
