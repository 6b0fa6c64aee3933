"""Reading a published data set, verifying its content and dividing it between two parties.

The hash of the file cannot verify it, because publishers pack the same table in several ways. `content_sha256` hashes
the content in one defined form instead.
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
from trilateral.common.trial.catalogue import PublishedDataSet

MAX_BYTES = 64 * 2**20
"""The maximum size of a file, compressed or not. All published files are smaller."""
ID = "id"
"""Name of the ID column in the tables of the parties."""
LABEL = "label"
"""Name of the label column in the guest's table."""
MISSING = ["", "NA"]
"""The texts that mean a missing value."""

_ZIP = b"PK\x03\x04"
_EXCEL = b"\xd0\xcf\x11\xe0"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_published(content: bytes, data_set: PublishedDataSet) -> pd.DataFrame:
    """Read a data set from a CSV file or a zip archive with that file.

    Args:
        content: the bytes of the file.
        data_set: the data set that is expected.

    Returns:
        The columns `id`, the features in published order and `label`; float64, NaN where a value is missing; rows in
        ascending order of ID.

    Raises:
        DataError: the file is not the expected one. The text continues the name of the file.
    """
    if content.startswith(_ZIP):
        content = _unpack(content, data_set)
    if content.startswith(_EXCEL):
        raise DataError("is an Excel file, which is not supported: save it as CSV")
    if content.removeprefix(_BYTE_ORDER_MARK)[:1024].lstrip().startswith(b"<"):
        raise DataError("is a web page, not a CSV file: possibly a login page or an error page")
    table = _read_columns(content, data_set)
    if table[[ID, LABEL]].isna().to_numpy().any() or not table[ID].is_unique:
        raise DataError("has rows without an ID or a label, or repeats an ID: it is not as published")
    return table.sort_values(ID, ignore_index=True)


def content_sha256(table: pd.DataFrame) -> str:
    """Hash the content of a table, independently of its file format.

    The hash covers the column names in UTF-8, joined by commas and ended by a line feed, and then all numbers row by
    row, each as a little-endian IEEE 754 double. A missing value is the NaN 0x7FF8000000000000. Zero is positive.

    Args:
        table: numbers only, as from `read_published`.

    Returns:
        The SHA-256 in hexadecimal.
    """
    numbers = table.to_numpy(np.float64)
    numbers = np.where(np.isnan(numbers), np.nan, numbers) + 0.0
    digest = hashlib.sha256((",".join(table.columns) + "\n").encode())
    digest.update(numbers.astype("<f8").tobytes())
    return digest.hexdigest()


def check_content(table: pd.DataFrame, data_set: PublishedDataSet) -> None:
    """Check that a table has the published content.

    Args:
        table: the table, as from `read_published`.
        data_set: the data set that is expected.

    Raises:
        DataError: the content differs. The text continues the name of the file.
    """
    if len(table) != data_set.n_rows:
        raise DataError(f"has {len(table):,} rows, but {data_set.n_rows:,} were published: it may be truncated")
    found = content_sha256(table)
    if found != data_set.sha256:
        raise DataError(
            f"is not as published: the SHA-256 of its content is {found} instead of {data_set.sha256}; some values "
            "have been changed"
        )


def split(table: pd.DataFrame, data_set: PublishedDataSet) -> dict[Role, pd.DataFrame]:
    """Divide a table between the parties.

    Args:
        table: the table, as from `read_published`.
        data_set: the data set.

    Returns:
        For each party a table with the ID first and its features after it. The guest's table ends with the label.
    """
    return {
        Role.HOST: table[[ID, *data_set.host_features]],
        Role.GUEST: table[[ID, *data_set.guest_features, LABEL]],
    }


def csv_text(table: pd.DataFrame) -> str:
    """Format a party's table as CSV, with integers without a decimal point and empty missing values."""
    whole = [name for name in table.columns if (table[name].dropna() % 1 == 0).all()]
    return table.astype(dict.fromkeys(whole, "Int64")).to_csv(index=False, lineterminator="\n")


# --- files


def _unpack(content: bytes, data_set: PublishedDataSet) -> bytes:
    """Return the CSV file in an archive, which may contain other files too."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if one.filename.lower().endswith(".csv")]
            named = [one for one in members if one.filename.rsplit("/", 1)[-1] == data_set.file_name]
            chosen = named or members
            if len(chosen) != 1:
                raise DataError(f"is a zip archive with {len(chosen)} CSV files but without {data_set.file_name}")
            with archive.open(chosen[0]) as file:
                # The sizes that an archive declares cannot be trusted.
                unpacked = file.read(MAX_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise DataError("is a zip archive that cannot be unpacked: it is damaged, truncated or encrypted") from None
    if len(unpacked) > MAX_BYTES:
        raise DataError(f"unpacks to more than {MAX_BYTES // 2**20} MB, so it is not the published file")
    return unpacked


def _read_columns(content: bytes, data_set: PublishedDataSet) -> pd.DataFrame:
    # The Excel file of credit1 has an extra line above the header with the ID, and so has a CSV file made from it.
    for skipped in (0, 1):
        names = _names(content, skipped)
        for header in data_set.headers:
            if set(header) <= set(names):
                if any(names.count(name) > 1 for name in header):
                    raise DataError("has several columns with the same name: it is not as published")
                numbers = _numbers(content, skipped, header)
                return pd.DataFrame(numbers, columns=[ID, *data_set.features, LABEL])
    names = _names(content, 0)
    missing = min(([name for name in header if name not in names] for header in data_set.headers), key=len)
    raise DataError(
        f"lacks columns that were published: {', '.join(map(repr, missing[:5]))}"
        f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}"
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
        # Arrow's own error would quote the row.
        raise DataError(
            "has values that are not numbers, or lines with different numbers of values: it is not as published"
        ) from None
    return np.column_stack([table[name].to_numpy() for name in header])
