"""Conversion of a column that Arrow has read into IDs, labels, numbers or categories.

Columns come in batches, so faults of single rows are collected: `Faults` counts them and keeps the first of each kind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import LabelConfig, label_key
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.table_file import TableFile

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None", "none", "<NA>"]
"""Texts that mean a missing feature; surrounding blanks are ignored. An ID or label is missing only if it is empty."""

NOT_NUMBERS = (
    "has {count} values that are not numbers: use a decimal point and leave missing values empty; list a column of "
    "categories in `categorical`, or exclude the column"
)
INFINITE = "has {count} infinite values: leave them empty, or exclude the column"
NO_ID = "has no ID in {count} of {n_rows} rows"

_NUMBER = r"(?i)^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$|^[+-]?(?:inf(?:inity)?|nan)$"
"""The texts that Arrow reads as numbers."""

_WHOLE_NUMBER = r"^([+-]?\d+)\.0*$"

_NUMBER_TYPES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_null,
)


@dataclass
class _Fault:
    count: int
    first_row: int


class Faults:
    """The faults of single rows of a table: for each column and kind, how many there are and which is the first.

    Args:
        file: the table's file, which knows in which line a row is; None for a table in memory.
    """

    def __init__(self, file: TableFile | None) -> None:
        self._file = file
        self._found: dict[tuple[str, str], _Fault] = {}

    def note(self, column: str, kind: str, bad: NDArray[np.bool_], first_row: int) -> None:
        """Count the faulty rows of a batch.

        Args:
            column: name of the column.
            kind: what is wrong, as a format string with `{count}` and `{n_rows}`.
            bad: whether each row of the batch is faulty, shape (n_batch_rows,).
            first_row: row number of the first row of the batch, from 0.
        """
        count = int(np.count_nonzero(bad))
        if count:
            fault = self._found.setdefault((column, kind), _Fault(0, first_row + int(bad.argmax())))
            fault.count += count

    def check(self, n_rows: int) -> None:
        """Raise an error for the fault that was noted first, if there is any.

        Args:
            n_rows: rows read so far.

        Raises:
            DataError: there is a fault. The text has its column and count, a note the location of the first one.
        """
        for (column, kind), fault in self._found.items():
            error = DataError(f"column {column!r} {kind.format(count=fault.count, n_rows=n_rows)}")
            place = f"row {fault.first_row}" if self._file is None else self._file.place(fault.first_row)
            error.add_note(f"the first is in {place}, column {column!r}")
            raise error


def read_ids(column: pa.ChunkedArray, name: str, faults: Faults, first_row: int) -> list[str]:
    """Read IDs as they are written.

    Args:
        column: one batch of the column.
        name: name of the column.
        faults: receives the rows without an ID.
        first_row: row number of the first row of the batch.

    Returns:
        The IDs, in the order of the rows.

    Raises:
        DataError: the type of the column does not suit IDs.
    """
    if pa.types.is_floating(column.type):
        raise DataError(f"column {name!r} has a floating-point type: write IDs as text or integers")
    with _errors_of(column, name):
        ids = read_text(column, name)
    faults.note(name, NO_ID, np.array([not one.strip() for one in ids], dtype=bool), first_row)
    return ids


def read_labels(column: pa.ChunkedArray, label: LabelConfig, faults: Faults, first_row: int) -> FloatVector:
    """Read labels.

    Args:
        column: one batch of the column.
        label: name of the column and the two values.
        faults: receives the rows whose label is missing or a third value.
        first_row: row number of the first row of the batch.

    Returns:
        -1 or +1, or NaN for a faulty row; shape (n_rows,).

    Raises:
        DataError: the type of the column does not suit labels.
    """
    with _errors_of(column, label.column):
        values = read_text(column, label.column)
    y = {label_key(label.positive): 1.0, label_key(label.negative): -1.0}
    # Labels have few distinct values, so compute the key once for each value.
    y_of = {value: y.get(label_key(value), np.nan) for value in set(values)}
    labels = np.array([y_of[value] for value in values], dtype=np.float64)
    missing = np.array([not value.strip() for value in values], dtype=bool)
    faults.note(label.column, "has no label in {count} of {n_rows} rows: remove those rows", missing, first_row)
    faults.note(
        label.column,
        "has a value other than the two labels in {count} of {n_rows} rows: " + _braced(expected_labels(label)),
        np.isnan(labels) & ~missing,
        first_row,
    )
    return labels


def expected_labels(label: LabelConfig) -> str:
    """Name the two values of the label, for an error."""
    return f"`label` expects {label.positive!r} and {label.negative!r}"


def read_numbers(
    column: pa.ChunkedArray, name: str, faults: Faults, first_row: int, not_numbers: str = NOT_NUMBERS
) -> FloatVector:
    """Read a numeric feature.

    Args:
        column: one batch of the column.
        name: name of the column.
        faults: receives the rows with text that is not a number, or an infinite value.
        first_row: row number of the first row of the batch.
        not_numbers: the fault to note for text that is not a number; a format string.

    Returns:
        float64, NaN where the value is missing or faulty; shape (n_rows,).
    """
    with _errors_of(column, name):
        column = _plain(column)
        if any(is_type(column.type) for is_type in _NUMBER_TYPES):
            # safe=False permits rounding of integers beyond 2^53.
            numbers: FloatVector = column.cast(pa.float64(), safe=False).to_numpy()
        elif pa.types.is_string(column.type):
            numbers, wrong = _parse_numbers(column)
            faults.note(name, not_numbers, wrong, first_row)
        else:
            numbers = np.full(len(column), np.nan)
            faults.note(name, not_numbers, column.is_valid().to_numpy(), first_row)
    faults.note(name, INFINITE, np.isinf(numbers), first_row)
    return numbers


def read_categories(column: pa.ChunkedArray, name: str) -> "pd.Series[str]":
    """Read a categorical feature.

    Surrounding blanks are removed, and `2.0` becomes `2`, because pandas writes whole numbers with a decimal point
    once a value of the column is missing.

    Args:
        column: one batch of the column.
        name: name of the column.

    Returns:
        The categories as text, missing where the value is missing; shape (n_rows,).

    Raises:
        DataError: the column has a type that cannot be read as text.
    """
    with _errors_of(column, name):
        texts = pc.replace_substring_regex(_trimmed(_cast_to_text(column, name)), _WHOLE_NUMBER, r"\1")
        series: pd.Series[str] = texts.to_pandas()
    return series


def note_numbers(column: pa.ChunkedArray, category: CategoryColumn, faults: Faults, first_row: int, kind: str) -> None:
    """Note the numbers in a numeric column that cannot be categories that the model was fitted on.

    A column of text is not checked: a number in it may be a new category.

    Args:
        column: one batch of the column.
        category: the column as it was fitted.
        faults: receives the rows with such numbers.
        first_row: row number of the first row of the batch.
        kind: the fault to note; a format string.
    """
    with _errors_of(column, category.name):
        column = _plain(column)
        if not any(
            is_type(column.type) for is_type in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        ):
            return
        numbers: FloatVector = column.cast(pa.float64(), safe=False).to_numpy()
        faults.note(category.name, kind, ~category.may_be_categories(numbers), first_row)


def read_text(column: pa.ChunkedArray, name: str) -> list[str]:
    """Read a column as text, empty where a value is missing.

    Raises:
        DataError: the column has a type that cannot be read as text.
    """
    return [value or "" for value in _cast_to_text(column, name).to_pylist()]


def _cast_to_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return _plain(column).cast(pa.string())
    except pa.ArrowException:
        raise DataError(f"column {name!r} is of type {column.type}, which cannot be read as text") from None


def _parse_numbers(column: pa.ChunkedArray) -> tuple[FloatVector, NDArray[np.bool_]]:
    """Parse numbers from text; also return which values are not numbers."""
    texts = _trimmed(column)
    wrong = np.zeros(len(texts), dtype=bool)
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        matches = pc.match_substring_regex(texts, _NUMBER)
        wrong = pc.fill_null(pc.invert(matches), False).to_numpy()
        numbers = pc.if_else(matches, texts, None).cast(pa.float64())
    values: FloatVector = numbers.to_numpy()
    return values, wrong


def _trimmed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Remove blanks at both ends, and replace the texts in `MISSING` with null."""
    texts = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(texts, pa.array(MISSING, texts.type)), None, texts)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert the types of different writers to one type for each kind of value, which all functions of Arrow accept.

    Dictionaries and extensions become their values, UUIDs their usual text, and all types of text `string`.
    """
    while pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if isinstance(column.type, pa.UuidType):
        return pa.chunked_array([[None if each is None else str(each) for each in column.to_pylist()]], pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    is_other_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_other_text else column


@contextmanager
def _errors_of(column: pa.ChunkedArray, name: str) -> Iterator[None]:
    """Replace errors of the library, which may quote a value, with one that is safe for the public."""
    try:
        yield
    except UnicodeDecodeError:
        raise _not_utf8(name) from None
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _not_utf8(name) from None
        raise _unreadable(column, name) from None
    except pa.ArrowException:
        raise _unreadable(column, name) from None


def _not_utf8(name: str) -> DataError:
    return DataError(
        f"column {name!r} has text that is not UTF-8: write the file again in UTF-8, or exclude the column"
    )


def _unreadable(column: pa.ChunkedArray, name: str) -> DataError:
    return DataError(
        f"column {name!r} is of type {column.type}, which cannot be read: convert it to numbers or text, or exclude it"
    )


def _braced(text: str) -> str:
    """Escape the braces of a text that later goes through `str.format`."""
    return text.replace("{", "{{").replace("}", "}}")
