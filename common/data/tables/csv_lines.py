"""Where in a CSV file something is: for errors, once Arrow has found that there is one.

Arrow reads blocks and knows no lines, and its own errors quote them. So a file at fault is read once more, line by
line, and never otherwise. Lines count from 1, the names and blank lines included, as an editor shows them.
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
"""What reading a file that is damaged may raise."""

UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Record:
    """One row of a file as it is written: the line it begins on, and its values."""

    line: int
    values: list[str]


def open_plain(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked if its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def read_records(path: Path) -> Iterator[Record]:
    """The names, then the rows, as far as the file can be read; bytes that are not UTF-8 become lone surrogates."""
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
    """The line of the row whose quotation mark is open at the end of the file, if one is."""
    with _open_text(path) as text:
        # A row of its own, unless a quotation mark is open.
        end = ["\0 end of the file"]
        reader = csv.reader(chain(text, end))
        start = next_start = 1
        try:
            for values in reader:
                if values == end:
                    return None
                start, next_start = next_start, reader.line_num + 1
        except csv.Error:  # A value is longer than any.
            return next_start
        except DAMAGED:
            return None
    return start


def _open_text(path: Path) -> TextIOWrapper:
    return TextIOWrapper(open_plain(path), "utf-8-sig", errors="surrogateescape", newline="")


def line_of_row(path: Path, row: int) -> int | None:
    """The line that a row begins on; `row` counts from 0, after the names."""
    for number, record in enumerate(read_records(path)):
        if number == row + 1:
            return record.line
    return None


def odd_lines(path: Path, n_names: int) -> tuple[int, int] | None:
    """How many rows have another number of values than there are names, and the line of the first."""
    lines = [record.line for record in read_records(path) if len(record.values) != n_names]
    return (len(lines), lines[0]) if lines else None


def first_undecodable(path: Path, names: Sequence[str]) -> tuple[int, str] | None:
    """The line and column of the first of these columns' values that is not UTF-8; '' for the names themselves."""
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
