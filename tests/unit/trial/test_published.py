"""The paper's data sets: what is known of them, reading what publishers send, refusing anything else."""

import dataclasses
import hashlib
import io
import math
import struct
import zipfile

import pandas as pd
import pytest

from tests.support.published import CSV, SMALL, TABLE
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.trial import published
from trilateral.common.trial.catalogue import PUBLISHED, PublishedDataSet, PublishedName
from trilateral.common.trial.published import check_content, content_sha256, csv_text, read_published, split


def zipped(**members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


def refusal(content: bytes, data_set: PublishedDataSet = SMALL) -> str:
    with pytest.raises(DataError) as caught:
        check_content(read_published(content, data_set), data_set)
    return str(caught.value)


# --- what is known of the two


@pytest.mark.parametrize(
    ("name", "n_host", "n_guest"), [(PublishedName.CREDIT1, 12, 11), (PublishedName.CREDIT2, 5, 5)]
)
def test_every_feature_goes_to_one_party(name: PublishedName, n_host: int, n_guest: int) -> None:
    data_set = PUBLISHED[name]
    assert len(data_set.host_features) == n_host
    assert len(data_set.guest_features) == n_guest
    assert sorted(data_set.host_features + data_set.guest_features) == sorted(set(data_set.features))
    for header in data_set.headers:
        assert len(header) == len(set(header)) == n_host + n_guest + 2


def test_the_columns_that_credit1_calls_by_number() -> None:
    data_set = PUBLISHED[PublishedName.CREDIT1]
    numbered, named = (
        dict(zip(("id", *data_set.features, "label"), header, strict=True)) for header in data_set.headers
    )
    # As the publisher's table of variables has them.
    expected = {"X1": "LIMIT_BAL", "X5": "AGE", "X6": "PAY_0", "X7": "PAY_2", "X11": "PAY_6"}
    expected |= {"X12": "BILL_AMT1", "X17": "BILL_AMT6", "X18": "PAY_AMT1", "X23": "PAY_AMT6"}
    assert {numbered[name]: name for name in expected.values()} == expected
    assert (numbered["label"], named["label"]) == ("Y", "default payment next month")


@pytest.mark.parametrize("data_set", PUBLISHED.values(), ids=list(PUBLISHED))
def test_a_table_with_the_right_columns_and_other_values_is_refused(data_set: PublishedDataSet) -> None:
    for header in data_set.headers:
        rows = pd.DataFrame([[row, *[0] * len(data_set.features), row % 2] for row in range(1, 4)], columns=header)
        table = read_published(rows.to_csv(index=False).encode(), data_set)
        assert tuple(table.columns) == ("id", *data_set.features, "label")
        assert list(table["label"]) == [1, 0, 1]
        with pytest.raises(DataError, match=f"has 3 rows, but {data_set.n_rows:,} were published"):
            check_content(table, data_set)
        with pytest.raises(DataError, match=f"instead of {data_set.sha256}"):
            check_content(table, dataclasses.replace(data_set, n_rows=3))


# --- reading


@pytest.mark.parametrize(
    "content",
    [
        CSV,
        CSV.replace("\n", "\r\n"),
        "\N{BYTE ORDER MARK}" + CSV,
        CSV.replace("0.00008", "8.00E-05").replace("1500", '"1500.0"'),
        CSV.replace("NA", ""),
        "\n".join([*CSV.splitlines()[:1], *reversed(CSV.splitlines()[1:])]),
        CSV.replace("No,A1,A2,A3,B", "No,age,income,debt,default"),
        # As the Excel file is saved: another line of names above.
        "," + "A1,A2,A3,B\n" + CSV.replace("No,A1,A2,A3,B", "No,age,income,debt,default"),
        CSV.replace("No,A1", "note,No,A1").replace("\n1,", "\nx,1,").replace("\n2,", "\ny,2,").replace("\n3,", "\n,3,"),
    ],
    ids=["plain", "crlf", "mark", "notation", "empty", "order", "names", "two-lines", "more-columns"],
)
def test_the_same_table_however_it_is_written(content: str) -> None:
    table = read_published(content.encode(), SMALL)
    pd.testing.assert_frame_equal(table, TABLE)
    check_content(table, SMALL)


@pytest.mark.parametrize(
    "members",
    [
        {"table.csv": CSV},
        {"any.csv": CSV},
        {"folder/table.csv": CSV, "test.csv": "x", "Data Dictionary.xls": "y"},
    ],
)
def test_an_archive(members: dict[str, str]) -> None:
    check_content(read_published(zipped(**members), SMALL), SMALL)


def test_the_hash_is_that_of_its_description() -> None:
    nan = bytes.fromhex("7FF8000000000000")[::-1]
    rows = [(1.0, 30.0, 1500.0, 8e-05, 0.0), (2.0, 41.0, math.nan, -2.5, 1.0), (3.0, 57.0, 0.0, 1e6, 0.0)]
    numbers = b"".join(nan if math.isnan(value) else struct.pack("<d", value) for row in rows for value in row)
    assert hashlib.sha256(b"id,age,income,debt,label\n" + numbers).hexdigest() == SMALL.sha256


@pytest.mark.parametrize("value", [-math.nan, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]])
def test_a_missing_value_and_zero_have_one_form(value: float) -> None:
    other = TABLE.copy()
    other.loc[1, "income"] = value
    other.loc[2, "income"] = -0.0
    assert content_sha256(other) == SMALL.sha256


# --- refusing


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "lacks columns that were published"),
        (b"\xff\xfe\0\0", "lacks columns that were published"),
        (b"No,A1,A2\n1,2,3\n", "lacks columns that were published: 'A3', 'B'"),
        (b"\n <!DOCTYPE html><title>Log in</title>", "is a web page, not a CSV file"),
        (b"\xd0\xcf\x11\xe0" + bytes(512), "is an Excel file, which is not supported: save it as CSV"),
        (CSV.replace("1500", "many").encode(), "has values that are not numbers"),
        (CSV.replace("30,", "").encode(), "lines with different numbers of values"),
        (CSV.replace("A2,A3", "A2,A3,A3").encode(), "several columns with the same name"),
        (CSV.replace("\n2,", "\n1,").encode(), "without an ID or a label, or repeats an ID"),
        (CSV.replace("\n2,", "\n,").encode(), "without an ID or a label"),
        (CSV[: CSV.rindex("\n3,") + 1].encode(), "has 2 rows, but 3 were published: it may be truncated"),
        (CSV.replace("57", "58").encode(), "is not as published: the SHA-256 of its content is"),
        (zipped(**{"data.xls": "x"}), "with 0 CSV files but without table.csv"),
        (zipped(**{"a.csv": CSV, "b.csv": CSV}), "with 2 CSV files but without table.csv"),
        (zipped(**{"table.csv": CSV})[:-30], "cannot be unpacked"),
    ],
)
def test_what_is_refused(content: bytes, told: str) -> None:
    assert told in refusal(content)


def test_a_cut_line_at_the_end_is_no_row() -> None:
    assert "lines with different numbers of values" in refusal(CSV[: CSV.rindex(",")].encode())


def test_no_value_is_told() -> None:
    text = refusal(CSV.replace("1500", "secret").encode())
    assert "secret" not in text


def test_an_archive_that_unpacks_to_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_BYTES", len(CSV) - 1)
    assert "unpacks to more than" in refusal(zipped(**{"table.csv": CSV}))


# --- splitting


def test_each_party_gets_its_columns() -> None:
    tables = split(TABLE, SMALL)
    assert csv_text(tables[Role.HOST]) == "id,income,debt\n1,1500,8e-05\n2,,-2.5\n3,0,1000000.0\n"
    assert csv_text(tables[Role.GUEST]) == "id,age,label\n1,30,0\n2,41,1\n3,57,0\n"
