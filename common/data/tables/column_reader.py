"""Conversion of a column that Arrow has read into IDs, labels, numbers or categories.

Columns come in batches, so faults of single rows are collected: `Faults` counts them and keeps the first of each kind.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import Counted, DataError
from trilateral.common.config.dataset import FoldConfig, LabelConfig, SplitConfig, label_key
from trilateral.common.data.features import Categories
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.arrow_arrays import (
    EMPTY,
    bytes_of,
    from_texts,
    null,
    to_booleans,
    to_codes,
    to_floats,
)
from trilateral.common.data.tables.id_form import SEPARATOR, SEPARATOR_TEXT, are_blank
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table_file import TableFile
from trilateral.common.protocol.row_roles import RoleVector, RowRole

Columns: TypeAlias = pa.Table | Mapping[str, pa.ChunkedArray]
"""A batch of a table: its columns by name."""

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None", "none", "<NA>"]
"""Texts that mean a missing feature unless the settings name others; surrounding blanks are ignored. An ID or label is
missing only if it is empty."""

NOT_NUMBERS = (
    "has {count:value that is not a number|values that are not numbers}: use a decimal point; leave missing values "
    "empty, or list their spelling in `missing`; list a column of categories in `categorical`, or exclude the column"
)
NO_WEIGHT = "has no finite number in {count} of {n_rows} rows: correct their weights, or remove those rows"
NEGATIVE_WEIGHT = (
    "has {count:negative weight|negative weights}: correct them, or set them to 0 to leave the rows out of training"
)
NO_DATE = (
    "has {count:value that is not a date|values that are not dates}: write them as 2023-12-31, or leave them empty in"
    " rows that are not used"
)
INFINITE = "has {count:infinite value|infinite values}: leave them empty, or exclude the column"
NO_ID = "has no ID in {count} of {n_rows} rows"
ROUNDED_ID = (
    "has {count:ID|IDs} in scientific notation, in which a program has written long numbers and may have rounded them: "
    "write IDs as text or integers"
)
NOT_WHOLE_ID = (
    "has a floating-point type and {count:number that is|numbers that are} not whole or too large to be exact: write "
    "IDs as text or integers"
)
SEPARATOR_IN_ID = "has the control character U+001F, which separates the parts of an ID, in {count} of {n_rows} rows"

_NUMBER = r"(?i)^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$|^[+-]?(?:inf(?:inity)?|nan)$"
"""The texts that Arrow reads as numbers."""

_WHOLE_NUMBER = r"^([+-]?\d+)\.0*$"

_DATE = r"\d{4}-\d\d-\d\d(?:[ T]|$)"
"""A date, or a time that begins with one."""

_SCIENTIFIC = r"^\s*[+-]?\d+(?:\.\d+)?[eE]\+\d+\s*$"
"""A number that a spreadsheet or a data frame has shortened. The plus sign tells it from codes such as 12E4."""

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
            kind: what is wrong, as a format string with `{count}`, a `Counted`, and `{n_rows}`.
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
            error = DataError(f"column {column!r} {kind.format(count=Counted(fault.count), n_rows=n_rows)}")
            place = f"row {fault.first_row}" if self._file is None else self._file.place(fault.first_row)
            error.add_note(f"the first is in {place}, column {column!r}")
            raise error


def read_ids(batch: Columns, names: Sequence[str], faults: Faults, first_row: int) -> Ids:
    """Read IDs as they are written.

    Args:
        batch: one batch of the table.
        names: names of the columns that together are the ID.
        faults: receives the rows without an ID, and those whose ID a program has rounded.
        first_row: row number of the first row of the batch.

    Returns:
        The IDs, in the order of the rows. The parts of an ID of several columns are joined by `SEPARATOR`.

    Raises:
        DataError: the type of a column does not suit IDs.
    """
    parts = [_read_id_part(batch[name], name, faults, first_row) for name in names]
    if len(parts) == 1:
        return Ids(parts[0])
    for name, part in zip(names, parts, strict=True):
        faults.note(name, SEPARATOR_IN_ID, to_booleans(pc.match_substring(part, SEPARATOR)), first_row)
    return Ids(pc.binary_join_element_wise(*parts, SEPARATOR_TEXT))


def _read_id_part(column: pa.ChunkedArray, name: str, faults: Faults, first_row: int) -> pa.LargeStringArray:
    if pa.types.is_temporal(column.type):
        # Its text depends on the unit, which is not the same for every program.
        raise DataError(f"column {name!r} is of type {column.type}: write IDs as text or integers")
    with _errors_of(column, name):
        column = _plain(column)
        if pa.types.is_floating(column.type):
            column = _whole_numbers(column, name, faults, first_row)
        texts = pc.fill_null(_cast_to_text(column, name), EMPTY)
        texts.validate(full=True)  # Parquet files may hold text that is not UTF-8.
        ids = Ids(texts).texts
    faults.note(name, NO_ID, are_blank(ids), first_row)
    if (bytes_of(ids)[1] == ord("+")).any():
        faults.note(name, ROUNDED_ID, to_booleans(pc.match_substring_regex(ids, _SCIENTIFIC)), first_row)
    return ids


def _whole_numbers(column: pa.ChunkedArray, name: str, faults: Faults, first_row: int) -> pa.ChunkedArray:
    """Convert floating-point numbers to integers: pandas makes them of integers once a value is missing."""
    numbers = column.to_numpy()
    missing = np.isnan(numbers)
    exact = (numbers == np.floor(numbers)) & (np.abs(numbers) < 2 ** (np.finfo(numbers.dtype).nmant + 1))
    faults.note(name, NOT_WHOLE_ID, ~(exact | missing), first_row)
    return pa.chunked_array([pa.array(np.where(exact, numbers, 0).astype(np.int64), mask=~exact)])


def read_labels(column: pa.ChunkedArray, label: LabelConfig, faults: Faults, first_row: int) -> FloatVector:
    """Read labels.

    Args:
        column: one batch of the column.
        label: name of the column and its values.
        faults: receives the rows whose label is missing or another value.
        first_row: row number of the first row of the batch.

    Returns:
        -1 or +1, with `classes` the number of the class from 0 up, or NaN for a faulty row; shape (n_rows,).

    Raises:
        DataError: the type of the column does not suit labels.
    """
    with _errors_of(column, label.column):
        codes, values = to_codes(_cast_to_text(column, label.column))
    if label.classes is None:
        y = {label_key(label.positive): 1.0, label_key(label.negative): -1.0}
    else:
        y = {label_key(value): float(number) for number, value in enumerate(label.classes)}
    named = "two labels" if label.classes is None else "classes"
    # The last entry of both is for the code -1.
    labels = np.array([*(y.get(label_key(value), np.nan) for value in values), np.nan])[codes]
    missing = np.array([*(not value.strip() for value in values), True])[codes]
    faults.note(label.column, "has no label in {count} of {n_rows} rows: remove those rows", missing, first_row)
    faults.note(
        label.column,
        f"has a value other than the {named} in {{count}} of {{n_rows}} rows: " + _braced(expected_labels(label)),
        np.isnan(labels) & ~missing,
        first_row,
    )
    return labels


def expected_labels(label: LabelConfig) -> str:
    """Name the values of the label, for an error."""
    if label.classes is not None:
        return "`label.classes` has those that it may have"
    return f"`label` expects {label.positive!r} and {label.negative!r}"


def read_numbers(
    column: pa.ChunkedArray,
    name: str,
    faults: Faults,
    first_row: int,
    *,
    missing: Sequence[str] = (),
    not_numbers: str = NOT_NUMBERS,
) -> FloatVector:
    """Read a numeric feature.

    Args:
        column: one batch of the column.
        name: name of the column.
        faults: receives the rows with text that is not a number, or an infinite value.
        first_row: row number of the first row of the batch.
        missing: texts that mean a missing value, besides those in `MISSING`, none of which is a number.
        not_numbers: the fault to note for text that is not a number; a format string.

    Returns:
        float64, NaN where the value is missing or faulty; shape (n_rows,).
    """
    with _errors_of(column, name):
        column = _plain(column)
        if any(is_type(column.type) for is_type in _NUMBER_TYPES):
            # safe=False permits rounding of integers beyond 2^53.
            numbers = to_floats(column.cast(pa.float64(), safe=False))
        elif pa.types.is_string(column.type):
            numbers, wrong = _parse_numbers(column, [*MISSING, *missing])
            faults.note(name, not_numbers, wrong, first_row)
        elif pa.types.is_nested(column.type):
            raise _unreadable(column, name)
        else:
            numbers = np.full(len(column), np.nan)
            faults.note(name, not_numbers, to_booleans(column.is_valid()), first_row)
    codes = missing_numbers(missing)
    if codes:
        numbers = np.where(np.isin(numbers, codes), np.nan, numbers)
    faults.note(name, INFINITE, np.isinf(numbers), first_row)
    return numbers


def missing_numbers(missing: Iterable[str]) -> list[float]:
    """Return the numbers among the texts that mean a missing value."""
    return [float(text) for text in missing if re.fullmatch(_NUMBER, text)]


def read_weights(
    column: pa.ChunkedArray, name: str, faults: Faults, first_row: int, *, missing: Sequence[str] = ()
) -> FloatVector:
    """Read the weights of the rows.

    Args:
        column: one batch of the column.
        name: name of the column.
        faults: receives the rows whose weight is missing, not a finite number or negative.
        first_row: row number of the first row of the batch.
        missing: texts that mean a missing value, as in `read_numbers`.

    Returns:
        At least 0 in a row without a fault; shape (n_rows,).
    """
    # The faults of a feature, whose remedies do not suit a weight, are not reported.
    weights = read_numbers(column, name, Faults(None), first_row, missing=missing)
    faults.note(name, NO_WEIGHT, ~np.isfinite(weights), first_row)
    faults.note(name, NEGATIVE_WEIGHT, weights < 0, first_row)
    return weights


def read_split(column: pa.ChunkedArray, split: SplitConfig, faults: Faults, first_row: int) -> RoleVector:
    """Read what the rows are for.

    Args:
        column: one batch of the column.
        split: name of the column, and the values or dates of each set.
        faults: receives the rows with text that is not a date, if the split is by dates.
        first_row: row number of the first row of the batch.

    Returns:
        A `RowRole` for each row, shape (n_rows,). Rows without a value, and with one that is in no list, are unused.

    Raises:
        DataError: the column has a type that cannot be read as text.
    """
    with _errors_of(column, split.column):
        codes, values = to_codes(_cast_to_text(column, split.column))
    if split.train_until is not None:
        roles = [_role_of_date(value.strip(), split) for value in values]
    else:
        lists = {RowRole.TRAIN: split.train, RowRole.VALID: split.valid, RowRole.TEST: split.test}
        lists[RowRole.OUT_OF_TIME] = split.out_of_time
        of_key = {label_key(value): role for role, named in lists.items() for value in named}
        roles = [of_key.get(label_key(value), RowRole.UNUSED) for value in values]
    wrong = np.array([*(role is None for role in roles), False])[codes]
    faults.note(split.column, NO_DATE, wrong, first_row)
    known = [RowRole.UNUSED if role is None else role for role in roles]
    return np.array([*known, RowRole.UNUSED], dtype=np.uint8)[codes]


def _role_of_date(text: str, split: SplitConfig) -> RowRole | None:
    """Return the role of a row by its date, None if the text is no date. A time of day does not matter."""
    if not text:
        return RowRole.UNUSED
    if not re.match(_DATE, text):
        return None
    try:
        day = date.fromisoformat(text[: len("2023-12-31")])
    except ValueError:
        return None
    if split.train_until is None or day <= split.train_until:
        return RowRole.TRAIN
    return RowRole.VALID if split.valid_until is not None and day <= split.valid_until else RowRole.OUT_OF_TIME


def read_fold_values(column: pa.ChunkedArray, folds: FoldConfig) -> FloatVector:
    """Read the groups or the times of rows.

    Args:
        column: one batch of the column.
        folds: name of the column, and what it holds.

    Returns:
        For groups, numbers that are equal for equal values: 53 bits of a hash, so the same in every batch. For times,
        seconds since 1970, or the numbers of the column. NaN in rows without a value, and without a time where times
        are needed; shape (n_rows,). If a batch has dates, its numbers are no times.

    Raises:
        DataError: the column has a type that cannot be read as text.
    """
    with _errors_of(column, folds.column):
        codes, texts = to_codes(_cast_to_text(column, folds.column))
    texts = [text.strip() for text in texts]
    if folds.by == "group":
        values = [_hash(label_key(text)) if text else math.nan for text in texts]
    else:
        are_dates = [re.match(_DATE, text) is not None for text in texts]
        numbers = [math.nan] * len(texts) if any(are_dates) else [_number(text) for text in texts]
        values = [
            _seconds(text) if is_date else numbers[i]
            for i, (text, is_date) in enumerate(zip(texts, are_dates, strict=True))
        ]
    # Rows without a value have the code -1.
    return np.array([*values, math.nan], dtype=np.float64)[codes]


def _hash(text: str) -> float:
    return float(int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 11)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _seconds(text: str) -> float:
    try:
        time = datetime.fromisoformat(text if re.match(_DATE, text) else "")
    except ValueError:
        return math.nan
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def read_categories(column: pa.ChunkedArray, name: str, missing: Sequence[str] = MISSING) -> Categories:
    """Read a categorical feature.

    Surrounding blanks are removed, and `2.0` becomes `2`, because pandas writes whole numbers with a decimal point
    once a value of the column is missing.

    Args:
        column: one batch of the column.
        name: name of the column.
        missing: texts that mean a missing value; an empty text always does.

    Returns:
        The categories, shape (n_rows,).

    Raises:
        DataError: the column has a type that cannot be read as text.
    """
    with _errors_of(column, name):
        texts = pc.utf8_trim_whitespace(_cast_to_text(column, name))
        texts = pc.replace_substring_regex(texts, _WHOLE_NUMBER, r"\1")
        texts = _without(texts, [re.sub(_WHOLE_NUMBER, r"\1", text) for text in missing])
        return Categories.of(*to_codes(texts))


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
        numbers = to_floats(column.cast(pa.float64(), safe=False))
        faults.note(category.name, kind, ~category.may_be_categories(numbers), first_row)


def _cast_to_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    try:
        column = _plain(column)
        if pa.types.is_floating(column.type):
            column = pc.if_else(
                pc.is_nan(column), null(column.type), column
            )  # Polars, DuckDB and Spark write NaN beside nulls.
        return column.cast(pa.string())
    except pa.ArrowException:
        raise DataError(f"column {name!r} is of type {column.type}, which cannot be read as text") from None


def _parse_numbers(column: pa.ChunkedArray, missing: Sequence[str]) -> tuple[FloatVector, NDArray[np.bool_]]:
    """Parse numbers from text; also return which values are not numbers."""
    # Most columns hold nothing else, and then this takes a third of the time.
    with suppress(pa.ArrowInvalid):
        return to_floats(column.cast(pa.float64())), np.zeros(len(column), dtype=bool)
    texts = _without(pc.utf8_trim_whitespace(column), missing)
    wrong = np.zeros(len(texts), dtype=bool)
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        matches = pc.match_substring_regex(texts, _NUMBER)
        parsed = pc.if_else(matches, texts, null(texts.type))
        wrong = to_booleans(texts.is_valid()) & to_booleans(parsed.is_null())
        numbers = parsed.cast(pa.float64())
    return to_floats(numbers), wrong


def _without(texts: pa.ChunkedArray, missing: Sequence[str]) -> pa.ChunkedArray:
    """Replace the texts that mean a missing value, and empty texts, with null."""
    return pc.if_else(pc.is_in(texts, from_texts(["", *missing])), null(texts.type), texts)


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
