"""A column of a table, as Arrow reads it, made into IDs, labels, numbers or categories; and what is wrong with it.

Columns come in batches, so faults of single rows are collected: `Faults` counts them and knows the first of each kind.
"""

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
"""How a missing feature is written in text, blanks around it aside. An ID or a label is missing only where its field
is empty."""

NOT_NUMBERS = (
    "has {count} values that are not numbers: write numbers with a decimal point and leave missing values empty; "
    "name a column of categories in `categorical`, or exclude the column"
)
INFINITE = "has {count} infinite values: make them missing, or exclude the column"
NO_ID = "has no ID in {count} of {n_rows} rows"

_NUMBER = r"(?i)^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$|^[+-]?(?:inf(?:inity)?|nan)$"
"""What Arrow takes for a number."""

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
    """What single rows of a table have wrong: how many for each column and kind, and which is the first.

    Args:
        file: the table's file, which knows in which line a row is; None for a table in memory.
    """

    def __init__(self, file: TableFile | None) -> None:
        self._file = file
        self._found: dict[tuple[str, str], _Fault] = {}

    def note(self, column: str, kind: str, bad: NDArray[np.bool_], first_row: int) -> None:
        """Count the rows that are bad, of a batch that begins at `first_row`."""
        count = int(np.count_nonzero(bad))
        if count:
            fault = self._found.setdefault((column, kind), _Fault(0, first_row + int(bad.argmax())))
            fault.count += count

    def check(self, n_rows: int) -> None:
        """Refuse the fault that was found first, if any, after `n_rows` rows.

        Raises:
            DataError: by column and count; where the first of them is, is a note.
        """
        for (column, kind), fault in self._found.items():
            error = DataError(f"column {column!r} {kind.format(count=fault.count, n_rows=n_rows)}")
            place = f"row {fault.first_row}" if self._file is None else self._file.place(fault.first_row)
            error.add_note(f"the first is in {place}, column {column!r}")
            raise error


def read_ids(column: pa.ChunkedArray, name: str, faults: Faults, first_row: int) -> list[str]:
    """IDs as they are written."""
    if pa.types.is_floating(column.type):
        raise DataError(f"column {name!r} is of a floating-point type: write IDs as text or as integers")
    ids = read_text(column, name)
    faults.note(name, NO_ID, np.array([not one.strip() for one in ids], dtype=bool), first_row)
    return ids


def read_labels(column: pa.ChunkedArray, label: LabelConfig, faults: Faults, first_row: int) -> FloatVector:
    """Labels as -1 and +1, shape (n_rows,); NaN where it is neither, which is noted."""
    values = read_text(column, label.column)
    y = {label_key(label.positive): 1.0, label_key(label.negative): -1.0}
    # Labels have few distinct values, so the keys are made once for each.
    y_of = {value: y.get(label_key(value), np.nan) for value in set(values)}
    labels = np.array([y_of[value] for value in values], dtype=np.float64)
    missing = np.array([not value.strip() for value in values], dtype=bool)
    faults.note(label.column, "has no label in {count} of {n_rows} rows: leave those rows out", missing, first_row)
    faults.note(
        label.column,
        "has another value than the two in {count} of {n_rows} rows: " + _braced(expected_labels(label)),
        np.isnan(labels) & ~missing,
        first_row,
    )
    return labels


def expected_labels(label: LabelConfig) -> str:
    """Name the two values."""
    return f"`label` expects {label.positive!r} and {label.negative!r}"


def read_numbers(
    column: pa.ChunkedArray, name: str, faults: Faults, first_row: int, not_numbers: str = NOT_NUMBERS
) -> FloatVector:
    """A feature as float64, NaN where a value is missing; shape (n_rows,)."""
    column = _decoded(column)
    if any(is_type(column.type) for is_type in _NUMBER_TYPES):
        # Not safe: integers beyond 2^53 may be rounded.
        numbers: FloatVector = column.cast(pa.float64(), safe=False).to_numpy()
    elif _is_text(column.type):
        numbers, wrong = _parse_numbers(column)
        faults.note(name, not_numbers, wrong, first_row)
    else:
        numbers = np.full(len(column), np.nan)
        faults.note(name, not_numbers, column.is_valid().to_numpy(), first_row)
    faults.note(name, INFINITE, np.isinf(numbers), first_row)
    return numbers


def read_categories(column: pa.ChunkedArray, name: str) -> "pd.Series[str]":
    """A feature as text, missing where a value is missing.

    Blanks around a value do not count, and `2.0` is `2`: that is how pandas writes whole numbers once one is missing.
    """
    texts = pc.replace_substring_regex(_trimmed(_cast_to_text(_decoded(column), name)), _WHOLE_NUMBER, r"\1")
    series: pd.Series[str] = texts.to_pandas()
    return series


def note_numbers(column: pa.ChunkedArray, category: CategoryColumn, faults: Faults, first_row: int, kind: str) -> None:
    """Note as faults of this kind the numbers in a column of a numeric type that can be no categories of the training.

    In text a number may be a category that is new, so nothing of it is noted.
    """
    column = _decoded(column)
    if any(is_type(column.type) for is_type in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)):
        numbers: FloatVector = column.cast(pa.float64(), safe=False).to_numpy()
        faults.note(category.name, kind, ~category.may_be_categories(numbers), first_row)


def read_text(column: pa.ChunkedArray, name: str) -> list[str]:
    """A column as text, empty where a value is missing."""
    return [value or "" for value in _cast_to_text(column, name).to_pylist()]


def _cast_to_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowException:
        raise DataError(f"column {name!r} is of type {column.type}, which cannot be read as text") from None


def _parse_numbers(column: pa.ChunkedArray) -> tuple[FloatVector, NDArray[np.bool_]]:
    """Numbers that are written as text, and which values are no numbers at all."""
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
    """Without blanks at the ends, and null where that is one of `MISSING`."""
    texts = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(texts, pa.array(MISSING, texts.type)), None, texts)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _braced(text: str) -> str:
    """For a text that goes through `str.format`."""
    return text.replace("{", "{{").replace("}", "}}")
