"""The file of a table: its column names, and its rows in batches of bounded size.

Arrow reads both formats. It keeps IDs as they are written and lists all column names, even duplicates. All columns of
a CSV file are read as text, so that no row determines the type of a column.

Errors of Arrow quote the row at fault, so they are never shown or chained. The errors raised here are safe for the
public. They give the name of the file but not its folder, which does not concern other organisations. The line and
column of a fault are for this organisation only: they are a note of the error, see `trilateral.common.base.errors`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import csv, parquet

from trilateral.common.base.errors import DataError
from trilateral.common.data.tables.csv_lines import (
    DAMAGED,
    UTF_16_MARKS,
    first_undecodable,
    line_of_row,
    odd_lines,
    open_plain,
    unclosed_quote,
)

_CSV_BLOCK = 4 << 20
"""Bytes that Arrow parses at a time. No row may be longer."""


class TableFile(ABC):
    """An existing file of a supported format.

    Args:
        path: the file.

    Attributes:
        path: the file.
        names: the names of all columns, in the order of the file.
        indexes: the names of the columns that the file's metadata declares as indexes of a data frame.

    Raises:
        DataError: the column names cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.indexes: list[str] = []
        with self._public_errors([]):
            self.names = self._read_names()

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        """Yield columns of the whole file in batches, in the order of the file.

        Args:
            columns: the names of the columns to read.
            rows: rows in each batch; the last batch may have fewer.

        Raises:
            DataError: the file cannot be read any further.
        """
        waiting: list[pa.RecordBatch] = []
        n_waiting = 0
        with self._public_errors(columns):
            for batch in self._read(columns, rows):
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

    def _why_unreadable(self, columns: list[str]) -> DataError | None:
        """Return a more specific error for a file that Arrow has refused, or None."""
        return None

    @contextmanager
    def _public_errors(self, columns: list[str]) -> Iterator[None]:
        """Replace errors that quote the file with errors that are safe for the public."""
        try:
            yield
        except PermissionError:
            raise DataError(
                f"this process has no permission to read {self.path.name}: change its owner or mode"
            ) from None
        except (*DAMAGED, pa.ArrowException, UnicodeDecodeError):
            raise self._why_unreadable(columns) or DataError(
                f"{self.path.name} cannot be read as a {self.kind}: it may be empty, damaged or in another format"
            ) from None


def open_table(path: Path) -> TableFile:
    """Open a table, detect its format by its file name and read its column names.

    Args:
        path: a `.csv`, `.csv.gz` or `.parquet` file.

    Raises:
        DataError: the file does not exist or cannot be read.
    """
    if not path.is_file():
        raise DataError(
            f"there is no file {path.name} at the dataset's `path`: correct the path; a relative path starts at the "
            "folder of the configuration file"
        )
    if path.name.endswith((".csv", ".csv.gz")):
        return _CsvFile(path)
    if path.suffix == ".parquet":
        return _ParquetFile(path)
    raise DataError(f"{path.name} has an unknown format: its name must end in .csv, .csv.gz or .parquet")


class _QuoteCounter:
    """A stream of bytes for Arrow that counts quotation marks.

    If the count is odd, a quotation mark may be unclosed. Arrow would read everything after it as one value.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += data.count(b'"')
        return data

    def close(self) -> None:
        self.closed = True


class _CsvFile(TableFile):
    kind = "CSV file in UTF-8"

    def place(self, row: int) -> str:
        line = line_of_row(self.path, row)
        return f"row {row + 1}" if line is None else f"line {line}"

    def _read_names(self) -> list[str]:
        # Skip lines of another length here: `_read` counts and reports them.
        options = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
        with csv.open_csv(self.path, parse_options=options) as reader:
            return list(reader.schema.names)

    def _read(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        odd: list[int] = []

        def note_line(line: csv.InvalidRow) -> str:
            odd.append(line.actual_columns)
            return "skip"

        with open_plain(self.path) as file:
            quotes = _QuoteCounter(file)
            with csv.open_csv(
                quotes,
                read_options=csv.ReadOptions(block_size=_CSV_BLOCK),
                parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note_line),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
                ),
            ) as reader:
                for batch in reader:
                    if odd:
                        break
                    yield batch
        if quotes.count % 2:
            self._check_quotes()
        if odd:
            raise self._odd_lines()

    def _check_quotes(self) -> None:
        line = unclosed_quote(self.path)
        if line is not None:
            error = DataError(f"{self.path.name} has a quotation mark that is never closed")
            error.add_note(f"it is in the row that begins in line {line}")
            raise error

    def _odd_lines(self) -> DataError:
        count, line = odd_lines(self.path, len(self.names)) or (1, None)
        error = DataError(f"{self.path.name} has {count} lines with more or fewer values than there are column names")
        if line is not None:
            error.add_note(f"the first is line {line}")
        return error

    def _why_unreadable(self, columns: list[str]) -> DataError | None:
        with open_plain(self.path) as file:
            try:
                start = file.read(2)
            except DAMAGED:
                return None
        if start in UTF_16_MARKS:
            return DataError(f"{self.path.name} is encoded in UTF-16: save it in UTF-8")
        self._check_quotes()
        found = first_undecodable(self.path, columns)
        if found is None:
            return None
        line, column = found
        where = f"a value of column {column!r}" if column else "the name of a column"
        error = DataError(
            f"{self.path.name} cannot be read as a {self.kind}: {where} has another encoding; save the file in UTF-8"
        )
        error.add_note(f"the first is in line {line}" + (f", column {column!r}" if column else ""))
        return error


class _ParquetFile(TableFile):
    kind = "Parquet file"

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def _read_names(self) -> list[str]:
        schema = parquet.read_schema(self.path)
        self.indexes = _pandas_indexes(schema)
        return list(schema.names)

    def _read(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        # With pre_buffer, Arrow would keep everything that it has read until the file is closed.
        with parquet.ParquetFile(self.path, pre_buffer=False) as file:
            yield from file.iter_batches(rows, columns=columns)


def _pandas_indexes(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that pandas has declared as indexes. Any program may have written the schema."""
    try:
        declared = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, TypeError, ValueError):
        return []
    # A range of row numbers is described by a dictionary and has no column.
    return [name for name in declared if isinstance(name, str)] if isinstance(declared, list) else []
