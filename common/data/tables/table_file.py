"""The file or files of a table: its column names, and its rows in batches of bounded size.

Arrow reads both formats. It keeps IDs as they are written and lists all column names, even duplicates. All columns of
a CSV file are read as text, so that no row determines the type of a column.

Errors of Arrow quote the row at fault, so they are never shown or chained. The errors raised here are safe for the
public. They give the name of the file but not its folder, which does not concern other organisations. The line and
column of a fault are for this organisation only: they are a note of the error, see `trilateral.common.base.errors`.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import csv, parquet

from trilateral.common.base.errors import Counted, DataError, TrilateralError
from trilateral.common.base.files import file_stamp
from trilateral.common.base.permissions import explain
from trilateral.common.data.tables.csv_lines import (
    DAMAGED,
    first_long_line,
    first_nul,
    first_undecodable,
    line_of_row,
    odd_lines,
    open_plain,
    read_records,
    unclosed_quote,
)

_READER_ERRORS = (pa.ArrowException, UnicodeError, *DAMAGED)
"""What the readers of Arrow and Python raise for a file that they cannot read. Any other exception is an error of
ours, which must not look like a damaged file."""

_CSV_BLOCK = 4 << 20
"""Bytes that Arrow parses at a time. No row may be longer."""
_PARQUET_BUFFER = 256 << 10
"""Bytes of each column that Arrow reads at a time."""


class TableFile(ABC):
    """An existing file of a supported format.

    Args:
        path: the file.

    Attributes:
        path: the file.
        names: the names of all columns, in the order of the file.
        indexes: the names of the columns that the file's metadata declares as indexes of a data frame.
        marks_missing: whether the format marks missing values itself, so that every text is a value.
        n_rows: the number of rows; None if that is known only after the whole file was read.
        share_read: the part of the file that has been read, from 0 to 1.

    Raises:
        DataError: the column names cannot be read.
    """

    marks_missing: bool
    n_rows: int | None = None
    share_read: float = 0.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []
        self.indexes: list[str] = []
        with self._public_errors([]):
            self.names = self._read_names()

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Yield columns of the whole file in batches, in the order of the file.

        Args:
            columns: the names of the columns to read.
            rows: rows in each batch; the last batch may have fewer, and so may one before a part with other types.

        Raises:
            DataError: the file cannot be read any further.
        """
        waiting: list[pa.RecordBatch] = []
        n_waiting = 0
        self.share_read = 0.0
        with self._public_errors(columns):
            for batch in self._read(columns, rows):
                if self.n_rows:
                    self.share_read += batch.num_rows / self.n_rows
                if waiting and not batch.schema.equals(waiting[0].schema):  # from another part of the table
                    yield pa.Table.from_batches(waiting)
                    waiting, n_waiting = [], 0
                waiting.append(batch)
                n_waiting += batch.num_rows
                if n_waiting < rows:
                    continue
                table = pa.Table.from_batches(waiting)
                whole = n_waiting - n_waiting % rows
                for start in range(0, whole, rows):
                    yield table.slice(start, rows)
                waiting, n_waiting = table.slice(whole).to_batches(), n_waiting - whole
        if n_waiting:
            yield pa.Table.from_batches(waiting)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The format of the file, for errors."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Describe the location of a row, for a note of an error.

        Args:
            row: number of the row, from 0.
        """

    @abstractmethod
    def _read_names(self) -> list[str]: ...

    @abstractmethod
    def _read(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]: ...

    def _why_unreadable(self, columns: list[str], error: Exception) -> DataError | None:
        """Return a more specific error for a file that Arrow has refused with `error`, or None."""
        return None

    def _unreadable(self, reason: str) -> DataError:
        return DataError(f"{self.path.name} cannot be read as a {self.kind}: {reason}")

    @contextmanager
    def _public_errors(self, columns: list[str]) -> Iterator[None]:
        """Replace errors that quote the file with errors that are safe for the public."""
        try:
            yield
        except TrilateralError as error:
            raise error from None
        except MemoryError:
            raise  # also one of Arrow
        except _READER_ERRORS as error:
            if isinstance(error, OSError) and error.errno:
                raise _inaccessible(self.path, error) from None
            try:
                found = self._why_unreadable(columns, error) or self._unreadable(
                    "it may be damaged or in another format"
                )
            except DataError as more:
                found = more
            except OSError as gone:  # the file has changed meanwhile
                found = _inaccessible(self.path, gone)
            raise found from None


def open_table(path: Path) -> TableFile:
    """Open a table, detect its format by its file name and read its column names.

    Args:
        path: a `.csv`, `.csv.gz` or `.parquet` file, or a folder of Parquet parts.

    Raises:
        DataError: the file does not exist or cannot be read.
    """
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise _inaccessible(path, error) from None
    if is_folder:
        return _ParquetParts(path)
    if not is_file:
        raise DataError(
            f"there is no file {path.name} at the dataset's `path`: correct the path; a relative path starts at the "
            "folder of the configuration file"
        )
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return _CsvFile(path)
    if name.endswith(".parquet"):
        return _ParquetFile(path)
    raise DataError(
        f"{path.name} has an unknown format: its name must end in .csv, .csv.gz or .parquet; rename it if it is of "
        "such a format, or else export the table as Parquet, or as CSV in UTF-8 with commas"
    )


def table_sha256(path: Path) -> str:
    """Return the SHA-256 of a table's file, or of the parts of a folder one after the other, in hexadecimal digits.

    Raises:
        DataError: the folder has anything but the Parquet parts of one table.
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for each in _find_parts(path) if path.is_dir() else [path]:
        with each.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def table_stamp(path: Path) -> object:
    """Return a value that changes when a table is written or replaced: a file, or a folder of parts."""
    try:
        parts = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        return error.errno
    return tuple((part.name, file_stamp(part)) for part in parts)


def _inaccessible(path: Path, error: OSError) -> DataError:
    if isinstance(error, PermissionError):
        closed = DataError(
            f"this process has no permission to read {path.name}: change the owner or mode of the file and of its "
            "folders"
        )
        closed.add_note(f"{path}: {explain(error, path)}")
        return closed
    return DataError(f"{path.name} cannot be read: {os.strerror(error.errno or 0)}")


_FORMATS = (
    (b"\x1f\x8b", "it is compressed by gzip: name it .csv.gz, or decompress it"),
    (b"PK\x03\x04", "it is a zip archive or an Excel workbook: unpack it, or save it as CSV in UTF-8"),
    (b"\xd0\xcf\x11\xe0", "it is an Excel workbook: save it as CSV in UTF-8"),
    (b"PAR1", "it is a Parquet file: name it .parquet"),
    (b"PARE", "it is an encrypted Parquet file: decrypt it"),
    (b"ARROW1", "it is a Feather file: save it as Parquet or CSV"),
    (b"ORC", "it is an ORC file: save it as Parquet or CSV"),
    (b"Obj\x01", "it is an Avro file: save it as Parquet or CSV"),
    (b"SQLite format 3", "it is an SQLite database: export the table as CSV"),
    (b"BZh", "it is compressed by bzip2: decompress it"),
    (b"\xfd7zXZ", "it is compressed by xz: decompress it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd: decompress it"),
    (b"7z\xbc\xaf\x27\x1c", "it is a 7z archive: unpack it"),
    (b"%PDF", "it is a PDF document: export the table as CSV"),
    (b"\xff\xfe\x00\x00", "it is encoded in UTF-32: save it in UTF-8"),
    (b"\x00\x00\xfe\xff", "it is encoded in UTF-32: save it in UTF-8"),
    (b"\xff\xfe", "it is encoded in UTF-16: save it in UTF-8"),
    (b"\xfe\xff", "it is encoded in UTF-16: save it in UTF-8"),
    (b"<!doctype", "it is a web page: download the table itself"),
    (b"<html", "it is a web page: download the table itself"),
    (b"<?xml", "it is an XML file: save it as CSV in UTF-8"),
    (b"[{", "it is a JSON file: save it as CSV in UTF-8"),
    (b'{"', "it is a JSON file: save it as CSV in UTF-8"),
)
"""How files of other formats begin, and what to do with them."""


def _other_format(start: bytes) -> str | None:
    """Return the reason why a file that begins in this way cannot be read, or None."""
    if not start:
        return "it is empty"
    return next((reason for mark, reason in _FORMATS if start.startswith(mark) or start.lower().startswith(mark)), None)


class _QuoteCounter:
    """A stream of bytes for Arrow that counts quotation marks and NUL characters, and knows its place in the file.

    If the count is odd, a quotation mark may be unclosed. Arrow would read everything after it as one value.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._raw: BinaryIO = getattr(file, "fileobj", None) or file  # of a compressed file
        self.place = 0
        self.count = 0
        self.n_nuls = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.place = self._raw.tell()
        self.count += data.count(b'"')
        self.n_nuls += data.count(0)
        return data

    def close(self) -> None:
        self.closed = True


class _CsvFile(TableFile):
    kind = "CSV file in UTF-8"
    marks_missing = False

    @property
    def _is_packed(self) -> bool:
        return self.path.name.lower().endswith(".gz")

    def place(self, row: int) -> str:
        line = line_of_row(self.path, row)
        return f"row {row + 1}" if line is None else f"line {line}"

    def _read_names(self) -> list[str]:
        self._check_start()
        try:
            with (
                open_plain(self.path) as file,
                csv.open_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True)) as reader,
            ):
                return list(reader.schema.names)
        except pa.ArrowInvalid:
            # A line has another length. `_read` counts and reports such lines after the names were checked.
            header = next(read_records(self.path), None)
            if header is None or first_undecodable(self.path, []) is not None:
                raise
            return header.values

    def _check_start(self) -> None:
        with self.path.open("rb") as file:
            start = file.read(16)
        if self._is_packed and start and not start.startswith(b"\x1f\x8b"):
            raise self._unreadable(_other_format(start) or "it is not compressed: name it .csv")
        if self._is_packed and start:
            with open_plain(self.path) as file:
                start = file.read(16)
        reason = _other_format(start)
        if reason is not None:
            raise self._unreadable(reason)

    def _read(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        n_bytes = self.path.stat().st_size
        with open_plain(self.path) as file:
            quotes = _QuoteCounter(file)
            with csv.open_csv(
                quotes,
                read_options=csv.ReadOptions(block_size=_CSV_BLOCK),
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
                ),
            ) as reader:
                for batch in reader:
                    self.share_read = quotes.place / n_bytes
                    yield batch
        if quotes.n_nuls:
            self._check_nuls()
        if quotes.count % 2:
            self._check_quotes()

    def _check_nuls(self) -> None:
        line = first_nul(self.path)
        if line is not None:
            error = self._unreadable(
                "it has NUL characters: it is encoded in UTF-16 or damaged; write it again in UTF-8"
            )
            error.add_note(f"the first is in line {line}")
            raise error

    def _check_quotes(self) -> None:
        line = unclosed_quote(self.path)
        if line is not None:
            error = DataError(f"{self.path.name} has a quotation mark that is never closed")
            error.add_note(f"it is in the row that begins in line {line}")
            raise error

    def _long_row(self) -> DataError:
        error = DataError(
            f"{self.path.name} has a row of more than {_CSV_BLOCK >> 20} MB: a quotation mark may be misplaced;"
            " correct the row, or save the table as Parquet"
        )
        line = first_long_line(self.path, _CSV_BLOCK)
        if line is not None:
            error.add_note(f"the first is in line {line}")
        return error

    def _odd_lines(self) -> DataError | None:
        found = odd_lines(self.path, len(self.names))
        if found is None:
            return None
        count, line = found
        text = f"{self.path.name} has {Counted(count):line|lines} with more or fewer values than there are column names"
        if first_undecodable(self.path, self.names) is not None:
            text += (
                ", and is not encoded in UTF-8: write it again in UTF-8, with quotation marks around values with commas"
            )
        else:
            text += ": put quotation marks around values with commas, and write no row names that have no column name"
        error = DataError(text)
        error.add_note(f"the first is line {line}")
        return error

    def _why_unreadable(self, columns: list[str], error: Exception) -> DataError | None:
        self._check_nuls()
        if "straddl" in str(error):
            return self._long_row()
        self._check_quotes()
        if self.names and (odd := self._odd_lines()) is not None:
            return odd
        found = first_undecodable(self.path, columns)
        if found is None:
            n_records = 2 if self._is_packed else len(list(islice(read_records(self.path), 2)))
            return None if n_records == 2 else self._unreadable("it has no rows" if n_records else "it is empty")
        line, column = found
        where = f"a value of column {column!r}" if column else "the name of a column"
        error = DataError(
            f"{self.path.name} cannot be read as a {self.kind}: {where} has another encoding; save the file in UTF-8"
        )
        error.add_note(f"the first is in line {line}" + (f", column {column!r}" if column else ""))
        return error


class _ParquetFile(TableFile):
    types: dict[str, pa.DataType]
    """The type of each column, by its name."""
    kind = "Parquet file"
    marks_missing = True

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def _read_names(self) -> list[str]:
        with self.path.open("rb") as file:
            start = file.read(16)
            file.seek(-min(4, file.seek(0, 2)), 2)
            end = file.read()
        if end == b"PARE":
            start = end
        if not start.startswith(b"PAR1"):
            raise self._unreadable(_other_format(start) or "it does not begin like one: if it is text, name it .csv")
        if end != b"PAR1":
            raise self._unreadable("it was cut short: write or copy it again")
        with parquet.ParquetFile(self.path, pre_buffer=False) as file:
            self.n_rows = file.metadata.num_rows
            schema = file.schema_arrow
        self.indexes = _pandas_indexes(schema)
        self.types = dict(zip(schema.names, schema.types, strict=True))
        return list(schema.names)

    def _read(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        # With pre_buffer, Arrow would keep everything that it has read until the file is closed. Without a buffer, it
        # would read a column of a whole row group at once, and a group often has all rows of the file.
        with parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=_PARQUET_BUFFER) as file:
            yield from file.iter_batches(rows, columns=columns)


class _ParquetParts(TableFile):
    """A folder of Parquet files with the same columns, as Spark and Dask write a table.

    Files and folders whose names begin with a dot or an underscore, such as `_SUCCESS`, are not parts.
    """

    kind = "folder of Parquet parts"
    marks_missing = True

    def place(self, row: int) -> str:
        number = bisect_right(self._starts, row) - 1
        part = self._parts[number]
        return f"{part.place(row - self._starts[number])} of {part.path.name}"

    def _read_names(self) -> list[str]:
        self._parts = [_ParquetFile(path) for path in _find_parts(self.path)]
        first = self._parts[0]
        types = {**first.types}
        for part in self._parts[1:]:
            other_names = {*Counter(first.names).items()} ^ {*Counter(part.names).items()}
            names = {name for name, _ in other_names} or {
                name for name, kind in types.items() if not _are_alike(kind, part.types[name])
            }
            before = types
            # In a part without a value of a column, the type says nothing about the column.
            types = {name: part.types.get(name) if _group(kind) == "null" else kind for name, kind in types.items()}
            if names:
                error = DataError(
                    f"the parts of {self.path.name} do not have the same columns: {part.path.name} differs from those"
                    " before it: write all parts with the same names and types of columns"
                )
                listed = [f"{name!r}: {before.get(name)} and {part.types.get(name)}" for name in sorted(names)]
                error.add_note(f"types of columns before that part and in it: {', '.join(listed)}")
                raise error
        *self._starts, self.n_rows = accumulate([0, *(part.n_rows or 0 for part in self._parts)])
        self.indexes = first.indexes
        return first.names

    def _read(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for part in self._parts:
            for table in part.batches(columns, rows):
                # The parts may differ in the order of their columns and in what their metadata says about them.
                for batch in table.select(columns).to_batches():
                    yield pa.RecordBatch.from_arrays(batch.columns, names=columns)


def _find_parts(folder: Path) -> list[Path]:
    """Return the parts in the order of their names, in which numbers count by their value."""
    name = folder.name
    if (folder / "_temporary").exists():
        raise DataError(
            f"the folder {name} has a folder _temporary: the program that writes the table has not finished; wait, "
            "or write the table again"
        )
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "_"))]
    if any(entry.is_dir() for entry in entries):
        raise DataError(
            f"the folder {name} has folders in it, as if the table was partitioned by the values of a column: write"
            " all parts into one folder"
        )
    if not entries:
        raise DataError(f"the folder {name} at the dataset's `path` is empty: name a table, or write it again")
    others = [entry.name for entry in entries if not entry.name.lower().endswith(".parquet")]
    if others:
        error = DataError(
            f"the folder {name} at the dataset's `path` has {Counted(len(others)):file|files} whose names do not"
            " end in .parquet: name one file, or a folder that has only the Parquet parts of one table"
        )
        error.add_note(f"the first is {min(others)}")
        raise error
    return sorted(entries, key=lambda entry: (_in_numbers(entry.name), entry.name))


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether the values of two types can be in one column.

    A program that writes a part may choose the type by the values in it: integers become floating-point numbers if one
    is missing. A column of numbers in one part and of text in another has IDs such as 7 and 007, so it is refused.
    """
    groups = {_group(kind) for kind in (one, other)} - {"null"}
    return len(groups) <= 1


def _group(kind: pa.DataType) -> str:
    while pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind) and kind.scale > 0:
        return f"decimal of scale {kind.scale}"  # As text, 7.50 is neither 7.5 nor 7.500.
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    return str(kind)


def _in_numbers(name: str) -> list[str | int]:
    """Split a name, so that names are compared by the values of the numbers in them."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _pandas_indexes(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that pandas has declared as indexes. Any program may have written the schema."""
    try:
        declared = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, TypeError, ValueError):
        return []
    # A range of row numbers is described by a dictionary and has no column.
    return [name for name in declared if isinstance(name, str)] if isinstance(declared, list) else []
