"""Reading a published data set, checking that it is the one that was published, splitting it between two parties.

The file's own hash is of no use for that: publishers pack the same table in several ways. So the content is hashed,
in the one form that `content_sha256` describes.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.trial.published import PublishedDataSet

MAX_BYTES = 64 * 2**20
"""More than any of the files has, packed or not."""
ID = "id"
LABEL = "label"
MISSING = ["", "NA"]

_ZIP = b"PK\x03\x04"
_EXCEL = b"\xd0\xcf\x11\xe0"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_published(content: bytes, data_set: PublishedDataSet) -> pd.DataFrame:
    """Read a CSV file, or a zip archive of it.

    Returns:
        Columns `id`, the features in published order and `label`; float64, NaN where a value is missing; rows
        ascending by ID.

    Raises:
        DataError: it is something else.
    """
    if content.startswith(_ZIP):
        content = _unpack(content, data_set)
    if content.startswith(_EXCEL):
        raise DataError("is an Excel file, which is not read here: save it as CSV")
    if content.removeprefix(_BYTE_ORDER_MARK)[:1024].lstrip().startswith(b"<"):
        raise DataError("is a web page and not a CSV file: maybe one to log in at, or one that reports an error")
    table = _read_columns(content, data_set)
    if table[[ID, LABEL]].isna().to_numpy().any() or not table[ID].is_unique:
        raise DataError("has rows without an ID or a label, or an ID twice: it is not as published")
    return table.sort_values(ID, ignore_index=True)


def content_sha256(table: pd.DataFrame) -> str:
    """Hash names and numbers, however they were written.

    SHA-256 of the column names, joined by commas and ended by a line feed, in UTF-8; then of all numbers row by row,
    each as an IEEE 754 double, little-endian. A missing value is the NaN 0x7FF8000000000000, and zero has no sign.
    """
    numbers = table.to_numpy(np.float64)
    numbers = np.where(np.isnan(numbers), np.nan, numbers) + 0.0
    digest = hashlib.sha256((",".join(table.columns) + "\n").encode())
    digest.update(numbers.astype("<f8").tobytes())
    return digest.hexdigest()


def check_content(table: pd.DataFrame, data_set: PublishedDataSet) -> None:
    """Compare with what was published.

    Raises:
        DataError: it differs.
    """
    if len(table) != data_set.n_rows:
        raise DataError(f"has {len(table):,} rows, and {data_set.n_rows:,} were published: it may be cut off")
    found = content_sha256(table)
    if found != data_set.sha256:
        raise DataError(
            f"is not as published: the SHA-256 of its content is {found}, and must be {data_set.sha256}; "
            "somebody has changed values"
        )


def split(table: pd.DataFrame, data_set: PublishedDataSet) -> dict[Role, pd.DataFrame]:
    """Give each party its columns, with the ID first; the label comes last at the guest."""
    return {
        Role.HOST: table[[ID, *data_set.host_features]],
        Role.GUEST: table[[ID, *data_set.guest_features, LABEL]],
    }


def csv_text(table: pd.DataFrame) -> str:
    """Write a party's table as CSV, whole numbers without a decimal point and missing values empty."""
    whole = [name for name in table.columns if (table[name].dropna() % 1 == 0).all()]
    return table.astype(dict.fromkeys(whole, "Int64")).to_csv(index=False, lineterminator="\n")


# --- files


def _unpack(content: bytes, data_set: PublishedDataSet) -> bytes:
    """The CSV file in an archive, of which its publisher may have made one with other files."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if one.filename.lower().endswith(".csv")]
            named = [one for one in members if one.filename.rsplit("/", 1)[-1] == data_set.file_name]
            chosen = named or members
            if len(chosen) != 1:
                raise DataError(f"is a zip archive with {len(chosen)} CSV files, and should have {data_set.file_name}")
            with archive.open(chosen[0]) as file:
                # What an archive says about its sizes is not to be relied on.
                unpacked = file.read(MAX_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise DataError("is a zip archive that cannot be unpacked: damaged, cut off or encrypted") from None
    if len(unpacked) > MAX_BYTES:
        raise DataError(f"is a zip archive of more than {MAX_BYTES // 2**20} MB, which the published file has not")
    return unpacked


def _read_columns(content: bytes, data_set: PublishedDataSet) -> pd.DataFrame:
    # The Excel file of credit1 has another line of names above that with the ID, and so has a CSV file made of it.
    for skipped in (0, 1):
        names = _names(content, skipped)
        for header in data_set.headers:
            if set(header) <= set(names):
                if any(names.count(name) > 1 for name in header):
                    raise DataError("has several columns of the same name: it is not as published")
                numbers = _numbers(content, skipped, header)
                return pd.DataFrame(numbers, columns=[ID, *data_set.features, LABEL])
    names = _names(content, 0)
    missing = min(([name for name in header if name not in names] for header in data_set.headers), key=len)
    raise DataError(
        f"has not the columns that were published: {', '.join(map(repr, missing[:5]))}"
        f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''} missing"
    )


def _names(content: bytes, skipped: int) -> list[str]:
    try:
        read = csv.ReadOptions(skip_rows=skipped)
        parse = csv.ParseOptions(invalid_row_handler=lambda _: "skip")
        with csv.open_csv(io.BytesIO(content), read_options=read, parse_options=parse) as reader:
            return list(reader.schema.names)
    except (pa.ArrowException, UnicodeDecodeError):
        return []


def _numbers(content: bytes, skipped: int, header: Sequence[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    try:
        table = csv.read_csv(
            io.BytesIO(content),
            read_options=csv.ReadOptions(skip_rows=skipped),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.float64()), include_columns=list(header), null_values=MISSING
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        # Arrow quotes the row, and the reader's table is nobody's but its own: it is told what to do instead.
        raise DataError(
            "has values that are not numbers, or lines of different lengths: it is not as published"
        ) from None
    return np.column_stack([table[name].to_numpy() for name in header])
