"""The location of a fault in a CSV file.

Arrow reads blocks and does not count lines, and its own errors quote the content of lines. So these functions read the
file a second time, line by line, but only after Arrow has found a fault. Lines count from 1, including the header and
blank lines, as an editor shows them.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

DAMAGED = (OSError, EOFError, zlib.error)
"""The exceptions that reading a damaged file may raise."""


@dataclass(frozen=True)
class Record:
    """One row of a file.

    Attributes:
        line: the line on which the row begins.
        values: the values as they are written.
    """

    line: int
    values: list[str]


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed if its name ends in .gz.

    Raises:
        OSError: the file cannot be opened.
    """
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def read_records(path: Path) -> Iterator[Record]:
    """Yield the header and then the rows, up to the first damage.

    Bytes that are not UTF-8 become lone surrogates.

    Raises:
        OSError: the file cannot be opened.
    """
    with _open_text(path) as text:
        reader = csv.reader(text)
        line = 1
        try:
            for values in reader:
                if values:
                    yield Record(line, values)
                line = reader.line_num + 1
        except (csv.Error, *DAMAGED):
            return


def unclosed_quote(path: Path) -> int | None:
    """Return the line of the row whose quotation mark is still open at the end of the file, or None.

    Raises:
        OSError: the file cannot be opened.
    """
    with _open_text(path) as text:
        # This line reads as a row of its own unless a quotation mark is open.
        end = ["\0 end of the file"]
        reader = csv.reader(chain(text, end))
        start = next_start = 1
        try:
            for values in reader:
                if values == end:
                    return None
                start, next_start = next_start, reader.line_num + 1
        except csv.Error:  # a value exceeds the limit of the csv module, as an unclosed quotation makes it
            return next_start
        except DAMAGED:
            return None
    return start


def _open_text(path: Path) -> TextIOWrapper:
    return TextIOWrapper(open_plain(path), "utf-8-sig", errors="surrogateescape", newline="")


def first_nul(path: Path) -> int | None:
    """Return the line of the first NUL character, or None if there is none.

    Raises:
        OSError: the file cannot be opened.
    """
    line = 1
    with open_plain(path) as file:
        try:
            while block := file.read(1 << 20):
                before, nul, _ = block.partition(b"\0")
                line += before.count(b"\n")
                if nul:
                    return line
        except DAMAGED:
            pass
    return None


def first_long_line(path: Path, n_bytes: int) -> int | None:
    """Return the first line that is longer than `n_bytes`, or None if there is none.

    Raises:
        OSError: the file cannot be opened.
    """
    with open_plain(path) as file:
        try:
            return next((number for number, line in enumerate(file, 1) if len(line) > n_bytes), None)
        except DAMAGED:
            return None


def line_of_row(path: Path, row: int) -> int | None:
    """Return the line on which a row begins, or None if the file has no such row.

    Args:
        path: the file.
        row: number of the row, from 0, not counting the header.

    Raises:
        OSError: the file cannot be opened.
    """
    for number, record in enumerate(read_records(path)):
        if number == row + 1:
            return record.line
    return None


def odd_lines(path: Path, n_names: int) -> tuple[int, int] | None:
    """Find the rows whose number of values differs from the number of columns.

    Args:
        path: the file.
        n_names: the number of columns.

    Returns:
        How many such rows there are and the line of the first, or None if there are none.

    Raises:
        OSError: the file cannot be opened.
    """
    lines = [record.line for record in read_records(path) if len(record.values) != n_names]
    return (len(lines), lines[0]) if lines else None


def first_undecodable(path: Path, names: Sequence[str]) -> tuple[int, str] | None:
    """Find the first value that is not UTF-8.

    Args:
        path: the file.
        names: the columns to look at.

    Returns:
        Its line and the name of its column, which is '' for the header; or None if all values are UTF-8.

    Raises:
        OSError: the file cannot be opened.
    """
    wanted: list[tuple[int, str]] = []
    for number, record in enumerate(read_records(path)):
        if number == 0:
            if not all(map(_is_utf8, record.values)):
                return record.line, ""
            wanted = [(place, name) for place, name in enumerate(record.values) if name in names]
            continue
        for place, name in wanted:
            if place < len(record.values) and not _is_utf8(record.values[place]):
                return record.line, name
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
