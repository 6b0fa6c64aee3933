"""Reading a party's table.

Both formats are read by Arrow, which keeps IDs as they are written, does not guess what a
column of numbers is, and names the columns of a file even where a name comes twice. Arrow's
own errors quote the row that they are about, so they are never shown or chained: every error
here is in public words, and calls the file by its name alone, since its folder is no one else's affair.
A file without a line of names would have its first row taken for names, an ID and a label among
them. So no name is told unless the ID column and, at the guest, the label column were found;
before that they go to this process's own log alone.
"""

import difflib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv, parquet

from common.arrays import FloatVector
from common.config.dataset import DatasetConfig, LabelConfig, label_key
from common.data.ids import canonical_order
from common.errors import DataError

log = logging.getLogger(__name__)

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "Null", "null", "None", "none", "<NA>"]
"""How a missing feature is written in a CSV file. An ID or a label is missing only where its field is empty."""

_LISTED_NAMES = 40
"""A list of names in an error stops here."""

_NUMBER_TYPES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_null,
)


@dataclass(frozen=True, eq=False)
class PartyTable:
    """A party's rows in canonical order of their IDs."""

    ids: list[str]
    features: pd.DataFrame
    """float64, shape (n_rows, n_features); NaN where a value is missing."""
    labels: FloatVector | None
    """-1 or +1, shape (n_rows,); None at the host."""


def read_table(dataset: DatasetConfig) -> PartyTable:
    """Read and check the whole table.

    Raises:
        DataError: what is wrong with it, by column and count.
    """
    path = dataset.path
    texts = [dataset.id] if dataset.label is None else [dataset.id, dataset.label.column]
    kind = _kind_of(path)
    with _public_errors(path, kind):
        names = kind.read_names(path)
        _check_names(names, dataset)
        features = _choose_features(names, dataset)
        table = kind.read_columns(path, texts, features)
    if table.num_rows == 0:
        raise DataError(f"{path.name} has no rows, only column names")

    ids = _read_ids(table[dataset.id], dataset.id)
    order = np.array(canonical_order(ids))
    labels = None if dataset.label is None else _read_labels(table[dataset.label.column], dataset.label)[order]
    frame = pd.DataFrame({name: _read_numbers(table[name], name)[order] for name in features})
    return PartyTable([ids[row] for row in order], frame, labels)


# --- files


@dataclass(frozen=True)
class _Kind:
    """How files of one kind are read."""

    name: str
    read_names: Callable[[Path], list[str]]
    read_columns: Callable[[Path, list[str], list[str]], pa.Table]
    """Columns to read as text, and columns of features."""


def _kind_of(path: Path) -> _Kind:
    if not path.is_file():
        raise DataError(
            f"there is no file {path.name} at the dataset's `path`: correct it; a relative one starts at the folder of "
            "the configuration"
        )
    if path.name.endswith((".csv", ".csv.gz")):
        return _Kind("CSV file in UTF-8", _csv_names, _read_csv)
    if path.suffix == ".parquet":
        return _Kind("Parquet file", _parquet_names, _read_parquet)
    raise DataError(f"{path.name} is of an unknown kind: its name must end in .csv, .csv.gz or .parquet")


@contextmanager
def _public_errors(path: Path, kind: _Kind) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise DataError(f"{path.name} may not be read by this process: change its owner or mode") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        raise DataError(
            f"{path.name} cannot be read as a {kind.name}: it may be empty, damaged or of another kind"
        ) from None


def _check_names(names: list[str], dataset: DatasetConfig) -> None:
    file = dataset.path.name
    required = {"id": dataset.id}
    if dataset.label is not None:
        required["label.column"] = dataset.label.column
    for setting, name in required.items():
        if name not in names:
            log.warning("%s has no column %r, but these: %r", file, name, names)
            raise DataError(f"`{setting}` names a column {name!r} that {file} does not have: {_way_out(names)}")
    if "" in names:
        raise DataError(
            f"{file} has a column without a name: name it, or leave it out "
            "(pandas writes one without `to_csv(..., index=False)`)"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{file} has several columns of the same name: {_listed(twice)}")


def _way_out(names: list[str]) -> str:
    """What to do where the names may be anything, so that none is told."""
    for separator, plural in ((";", "semicolons"), ("\t", "tabs")):
        if any(separator in name for name in names):
            return f"its values seem to be separated by {plural}; separate them by commas"
    if any(_is_number(name) for name in names):
        return "its first line seems to hold values, and must hold the names of the columns"
    return (
        "correct the name, or the file, whose first line must hold the names of the columns;"
        " this organisation's own log has what stands there"
    )


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _csv_names(path: Path) -> list[str]:
    # A line of another length is reported, with the number of such lines, by the reading that follows.
    options = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _: "skip")
    with csv.open_csv(path, parse_options=options) as reader:
        return list(reader.schema.names)


def _read_csv(path: Path, texts: list[str], features: list[str]) -> pa.Table:
    lengths: list[int] = []  # of the lines with too few or too many values

    def note_line(line: csv.InvalidRow) -> str:
        lengths.append(line.actual_columns)
        return "skip"

    def read(feature_type: pa.DataType) -> pa.Table:
        types = dict.fromkeys(texts, pa.string()) | dict.fromkeys(features, feature_type)
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=note_line),
            convert_options=csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=MISSING),
        )

    try:
        table = read(pa.float64())
    except pa.ArrowInvalid:
        # Some value is not a number. As text, the columns can be named and their values counted.
        lengths.clear()
        table = read(pa.string())
    if lengths:
        raise DataError(f"{path.name} has {len(lengths)} lines with more or fewer values than there are column names")
    return table


def _parquet_names(path: Path) -> list[str]:
    return list(parquet.read_schema(path).names)


def _read_parquet(path: Path, texts: list[str], features: list[str]) -> pa.Table:
    with parquet.ParquetFile(path) as file:
        return file.read(columns=texts + features)


# --- columns


def _choose_features(names: list[str], dataset: DatasetConfig) -> list[str]:
    """The feature columns, in the order of the file; `_check_names` has found the ID and the label."""
    special = {dataset.id} if dataset.label is None else {dataset.id, dataset.label.column}
    for name in dataset.features or []:
        _check_exists(name, "features", names)
    # A misspelt name here would train on a column that was meant to be kept out.
    for name in dataset.exclude:
        _check_exists(name, "exclude", names)

    wanted = set(dataset.features or names) - special - set(dataset.exclude)
    features = [name for name in names if name in wanted]
    if not features:
        raise DataError(f"no feature is left in {dataset.path.name}: its columns are {_listed(names)}")
    return features


def _check_exists(name: str, setting: str, names: list[str]) -> None:
    if name in names:
        return
    message = f"`{setting}` names a column {name!r} that does not exist"
    close = difflib.get_close_matches(name, names, n=3)
    message += f": did you mean {' or '.join(map(repr, close))}?" if close else "."
    raise DataError(f"{message} The columns are {_listed(names)}")


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(map(repr, names[:_LISTED_NAMES]))
    return text if len(names) <= _LISTED_NAMES else f"{text} and {len(names) - _LISTED_NAMES} more"


def _read_text(column: pa.ChunkedArray, name: str) -> list[str]:
    """A column as text, empty where a value is missing."""
    try:
        return [value or "" for value in column.cast(pa.string()).to_pylist()]
    except pa.ArrowException:
        raise DataError(f"column {name!r} is of type {column.type}, which cannot be read as text") from None


def _read_ids(column: pa.ChunkedArray, name: str) -> list[str]:
    if pa.types.is_floating(column.type):
        raise DataError(f"column {name!r} is of a floating-point type: write IDs as text or as integers")
    ids = _read_text(column, name)
    empty = sum(not one.strip() for one in ids)
    if empty:
        raise DataError(f"column {name!r} has no ID in {empty} of {len(ids)} rows")
    repeated = len(ids) - len(set(ids))
    if repeated:
        raise DataError(
            f"column {name!r} repeats an earlier ID in {repeated} of {len(ids)} rows: keep one row for each ID"
        )
    return ids


def _read_labels(column: pa.ChunkedArray, label: LabelConfig) -> FloatVector:
    """Labels as -1 and +1, shape (n_rows,)."""
    name, expected = label.column, f"`label` expects {label.positive!r} and {label.negative!r}"
    values = _read_text(column, name)
    missing = sum(not value.strip() for value in values)
    if missing:
        raise DataError(f"column {name!r} has no label in {missing} of {len(values)} rows: leave those rows out")
    y = {label_key(label.positive): 1.0, label_key(label.negative): -1.0}
    # Labels have few distinct values, so the keys are made once for each.
    y_of = {value: y.get(label_key(value), np.nan) for value in set(values)}
    labels = np.array([y_of[value] for value in values])
    other = int(np.isnan(labels).sum())
    if other:
        raise DataError(f"column {name!r} has another value than the two in {other} of {len(values)} rows: {expected}")
    if (labels == labels[0]).all():
        raise DataError(f"column {name!r} holds only one of the two values: {expected}, and training needs both")
    return labels


def _read_numbers(column: pa.ChunkedArray, name: str) -> FloatVector:
    """A feature as float64, NaN where a value is missing; shape (n_rows,)."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if any(is_type(column.type) for is_type in _NUMBER_TYPES):
        # Not safe: integers beyond 2^53 may be rounded.
        numbers: FloatVector = column.cast(pa.float64(), safe=False).to_numpy()
        wrong = 0
    else:
        numbers, wrong = _parse_numbers(column)
    if wrong:
        raise DataError(
            f"column {name!r} has {wrong} values that are not numbers: "
            "write numbers with a decimal point and leave missing values empty, encode categories as numbers "
            "(one column of 0 and 1 for each), or exclude the column"
        )
    infinite = int(np.isinf(numbers).sum())
    if infinite:
        raise DataError(f"column {name!r} has {infinite} infinite values: make them missing, or exclude the column")
    if np.isnan(numbers).all():
        raise DataError(f"column {name!r} has no value in any row: exclude it")
    return numbers


def _parse_numbers(column: pa.ChunkedArray) -> tuple[FloatVector, int]:
    """Numbers that are written as text, and how many values are not numbers at all."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return np.full(len(column), np.nan), len(column) - column.null_count
    texts: pd.Series[str] = column.to_pandas()
    texts = texts.mask(texts.isin(MISSING))
    numbers: FloatVector = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return numbers, int((np.isnan(numbers) & texts.notna().to_numpy()).sum())
