"""Reading a party's table: as a whole for training, in chunks of bounded size for scoring.

In a file without a header, the first row would be read as column names, including an ID and a label. So errors reveal
column names only after the ID column and, at the guest, the label column were found. Until then the names are a note
of the error, which only this organisation can read.
"""

import difflib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import Counted, DataError
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.config.dataset import ClassWeight, DatasetConfig
from trilateral.common.data.features import Column, Features
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.column_reader import (
    MISSING,
    NOT_NUMBERS,
    Columns,
    Faults,
    expected_labels,
    note_numbers,
    read_categories,
    read_fold_values,
    read_ids,
    read_labels,
    read_numbers,
    read_split,
    read_weights,
)
from trilateral.common.data.tables.gathering import GatheredFeatures, release_freed_memory
from trilateral.common.data.tables.id_form import NormalIds, normalise
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import (
    DistinctIds,
    aggregate_column,
    described,
    mean_of_owner,
    repeated_error,
    rows_with_another_label,
)
from trilateral.common.data.tables.table_file import TableFile, open_table
from trilateral.common.data.tables.technical_columns import technical_columns
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.common.scratch.arrays import IN_MEMORY, Scratch

if TYPE_CHECKING:
    import pandas as pd

_LISTED_NAMES = 40
"""The maximum number of column names in an error."""

_ROWS_AT_A_TIME = 100_000
_PARSED_ROWS = 16_384
"""Rows of a file that are turned from text into numbers together."""

_NOW_NUMBERS = (
    "was categorical at training, now holds {count:number|numbers} (preprocessing mismatch): write the column in the "
    "same way as for the training"
)
_CHANGED = (
    "was numeric at training, now holds {count:value that is not a number|values that are not numbers} (preprocessing "
    "mismatch): write the column in the same way as for the training"
)


@dataclass(frozen=True, eq=False)
class PartyTable:
    """A party's rows in canonical order of their IDs."""

    ids: Ids
    """The IDs in their normal form."""
    features: Features
    """The features of the rows, in the order of the file's columns."""
    labels: FloatVector | None
    """-1 or +1, shape (n_rows,); None at the host."""
    changed_ids: Mapping[str, int] = field(default_factory=dict)
    """How many IDs of the file each rule of `id_form` has changed, by name of the rule."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns of the file that are not features although no setting excludes them: the reason by name of the column."""
    n_repeated: int = 0
    """How many rows of the file had the ID of an earlier row, and were dropped or merged."""
    missing: Sequence[str] | None = tuple(MISSING)
    """The texts that meant a missing category; None if the file marked missing values itself."""
    weights: FloatVector | None = None
    """Weights of the rows as they are in the file, at least 0, shape (n_rows,); None without such a column."""
    class_weight: Literal["balanced"] | ClassWeight | None = None
    """Weights by label, which multiply `weights`."""
    split: RoleVector | None = None
    """What each row is for, by the `split` of the settings, shape (n_rows,); None without it."""
    fold_values: FloatVector | None = None
    """The group or the time of each row, by the `folds` of the settings, shape (n_rows,); None without them. See
    `column_reader.read_fold_values`."""

    fold_by: Literal["group", "time"] | None = None
    """Which of the two `fold_values` are."""

    def select(self, rows: Rows) -> Self:
        """Return the table of some of the rows.

        Args:
            rows: row numbers in ascending order, shape (n_selected,).
        """
        labels = None if self.labels is None else self.labels[rows]
        weights = None if self.weights is None else self.weights[rows]
        split = None if self.split is None else self.split[rows]
        fold_values = None if self.fold_values is None else self.fold_values[rows]
        return replace(
            self,
            ids=self.ids.take(rows),
            features=self.features.select(rows),
            labels=labels,
            weights=weights,
            split=split,
            fold_values=fold_values,
        )


@dataclass(frozen=True, eq=False)
class TableChunk:
    """Some rows of a party's table, in the order of the file."""

    ids: Ids
    """The IDs as they are written."""
    features: Features
    """As in `PartyTable`."""
    n_repeated: int = 0
    """In the first chunk, as in `PartyTable`; 0 in the others."""


def read_table(dataset: DatasetConfig, scratch: Scratch = IN_MEMORY, *, is_trained: bool = False) -> PartyTable:
    """Read and check a whole table.

    Args:
        dataset: the settings of the table.
        scratch: where its columns lie.
        is_trained: whether training columns are made of all rows, for which there must be room too.

    Returns:
        All rows of the table.

    Raises:
        DataError: the table cannot be used. The text has the column and the number of faulty rows, a note the line of
            the first. A table without features can be used if it has a label.
        ConfigError: there is no room for the columns.
    """
    label = dataset.label
    file = open_table(dataset.path)
    _check_names(file, _required(dataset, labelled=True))
    features, left_out = _choose_features(file, dataset)
    missing = dataset.missing
    if missing is None and not file.marks_missing:
        missing = MISSING
    gathered = GatheredFeatures(features, dataset.categorical, file.n_rows or 0, scratch, is_trained=is_trained)
    rows = _read_rows(file, dataset, features, missing or (), gathered)
    y, weights, split, changed = rows.labels, rows.weights, rows.split, rows.ids.changed
    fold_values = rows.fold_values
    report_progress(Stage.SORTING, 0, 1)
    distinct = _distinct_ids(rows.ids, dataset, file)
    del rows  # The IDs in the order of the file are not needed while the columns are put in order.
    first = distinct.first
    arrange: Callable[[Column], Column] | None
    if distinct.n_repeated and dataset.repeated_ids == "aggregate":
        owner = distinct.owners()
        if label is not None and y is not None:
            _check_labels_of_repeated(owner, y, label.column, "labels", file)
        if dataset.split is not None and split is not None:
            _check_labels_of_repeated(owner, split, dataset.split.column, "roles", file)
        if dataset.folds is not None and fold_values is not None:
            _check_labels_of_repeated(owner, fold_values, dataset.folds.column, "values", file)
        weights = None if weights is None else mean_of_owner(owner, weights)
        arrange = partial(aggregate_column, owner)
    else:
        weights = None if weights is None else weights[first]
        arrange = None if distinct.is_in_order else operator.itemgetter(first)
    joined = gathered.finish(arrange, len(first))
    y = None if y is None else y[first]
    split = None if split is None else split[first]
    fold_values = None if fold_values is None else fold_values[first]
    if label is not None and y is not None and len(np.unique(y)) < len(label.classes or (0, 1)):
        has = "only one of the two values" if label.classes is None else "not all of the classes"
        needs = "both" if label.classes is None else "all of them"
        raise DataError(f"column {label.column!r} holds {has}: {expected_labels(label)}, and training needs {needs}")
    return PartyTable(
        distinct.ids,
        joined,
        y,
        changed,
        left_out,
        n_repeated=distinct.n_repeated,
        missing=missing,
        weights=weights,
        class_weight=None if label is None else label.class_weight,
        split=split,
        fold_values=fold_values,
        fold_by=None if dataset.folds is None else dataset.folds.by,
    )


@dataclass(frozen=True, eq=False)
class _FileRows:
    """What a file has for each row besides the features, in its order."""

    ids: NormalIds
    labels: FloatVector | None
    weights: FloatVector | None
    split: RoleVector | None
    fold_values: FloatVector | None


def _read_rows(
    file: TableFile, dataset: DatasetConfig, features: list[str], missing: Sequence[str], gathered: GatheredFeatures
) -> _FileRows:
    """Read the rows of a file and check each of them. `gathered` receives the features."""
    id_columns, label = dataset.id_columns, dataset.label
    weight = None if label is None else label.weight
    split, folds = dataset.split, dataset.folds
    described_by = [*([] if label is None else label.columns), *_deciding(dataset)]
    columns = [*id_columns, *described_by, *features]
    faults = Faults(file)
    n_rows = 0
    ids: list[NormalIds] = []
    labels: list[FloatVector] = []
    weights: list[FloatVector] = []
    roles: list[RoleVector] = []
    fold_values: list[FloatVector] = []
    for batch in file.batches(columns, _PARSED_ROWS):
        if label is not None:
            labels.append(read_labels(batch[label.column], label, faults, n_rows))
        if weight is not None:
            weights.append(read_weights(batch[weight], weight, faults, n_rows, missing=missing))
        if split is not None:
            roles.append(read_split(batch[split.column], split, faults, n_rows))
        if folds is not None:
            fold_values.append(read_fold_values(batch[folds.column], folds))
        gathered.append(
            _read_features(
                batch,
                features,
                dataset.categorical,
                faults,
                n_rows=batch.num_rows,
                first_row=n_rows,
                missing=missing,
            )
        )
        written = read_ids(batch, id_columns, faults, n_rows)
        ids.append(normalise(written, dataset.id_form, len(id_columns)))
        n_rows += batch.num_rows
        report_progress(Stage.READING, file.share_read, 1)
    release_freed_memory()  # What Arrow keeps for more batches is needed for the columns.
    _check_rows(file, n_rows)
    faults.check(n_rows)
    of_rows = np.concatenate(weights) if weights else None
    if of_rows is not None and not of_rows.any():
        raise DataError(f"column {weight!r} has the weight 0 in every row: correct it, or remove `label.weight`")
    return _FileRows(
        NormalIds.join(ids),
        np.concatenate(labels) if labels else None,
        of_rows,
        np.concatenate(roles) if roles else None,
        np.concatenate(fold_values) if fold_values else None,
    )


def read_table_ids(dataset: DatasetConfig) -> NormalIds:
    """Read and check only the IDs of a table.

    Args:
        dataset: the settings of the table.

    Returns:
        The IDs in canonical order of their normal form.

    Raises:
        DataError: the IDs cannot be used. The text has the column and the number of faulty rows, a note the line of
            the first.
    """
    file = open_table(dataset.path)
    _check_names(file, _required(dataset))
    faults = Faults(file)
    n_rows = 0
    ids: list[NormalIds] = []
    for written in _written_ids(file, dataset, faults):
        ids.append(normalise(written, dataset.id_form, len(dataset.id_columns)))
        n_rows += len(written)
        report_progress(Stage.READING, file.share_read, 1)
    _check_rows(file, n_rows)
    faults.check(n_rows)
    normal = NormalIds.join(ids)
    ids.clear()
    return NormalIds(_distinct_ids(normal, dataset, file).ids, normal.changed)


def _written_ids(file: TableFile, dataset: DatasetConfig, faults: Faults) -> Iterator[Ids]:
    n_rows = 0
    for batch in file.batches(dataset.id_columns, _PARSED_ROWS):
        yield read_ids(batch, dataset.id_columns, faults, n_rows)
        n_rows += batch.num_rows


def stream_table(
    dataset: DatasetConfig,
    features: Sequence[str],
    categorical: Sequence[CategoryColumn],
    rows: int = _ROWS_AT_A_TIME,
    missing: Sequence[str] | None = MISSING,
    *,
    scratch: Scratch = IN_MEMORY,
) -> Iterator[TableChunk]:
    """Read a table of any size in bounded memory, for a model that was fitted before.

    If `repeated_ids` makes one row of several, which may be far apart, all IDs are in memory and all columns in
    `scratch`.

    Args:
        dataset: the settings of the table. The label and the choice of features are not used.
        features: names of the columns that the model was fitted on.
        categorical: the fitted categorical columns among them.
        rows: rows in each chunk; the last chunk may have fewer.
        missing: the texts that meant a missing category at training, as in `PartyTable`. The `missing` of the dataset
            takes precedence.
        scratch: see above.

    Yields:
        The rows of the table, in the order of the file. Duplicate IDs are not detected if the settings refuse them.

    Raises:
        DataError: the table cannot be used. The text has the column and the number of faulty rows so far. It contains
            "preprocessing mismatch" if a column is missing, or its type differs from the training.
    """
    chunks = _stream(dataset, features, categorical, rows, missing)
    if dataset.repeated_ids == "refuse":
        yield from chunks
        return
    ids: list[Ids] = []
    normal: list[NormalIds] = []
    gathered = GatheredFeatures(features, [column.name for column in categorical], 0, scratch, is_trained=False)
    for chunk in chunks:
        ids.append(chunk.ids)
        normal.append(normalise(chunk.ids, dataset.id_form, len(dataset.id_columns)))
        gathered.append(chunk.features)
    written = Ids.join(ids)
    ids.clear()
    distinct = DistinctIds.of(NormalIds.join(normal).ids)
    normal.clear()
    in_file = np.argsort(distinct.first)
    kept = distinct.first[in_file]
    owner = distinct.owners() if dataset.repeated_ids == "aggregate" else None

    def arrange(column: Column) -> Column:
        return column[kept] if owner is None else aggregate_column(owner, column)[in_file]

    features_of_ids = gathered.finish(arrange, len(kept))
    for start in range(0, len(kept), rows):
        part = slice(start, start + rows)
        n_repeated = 0 if start else distinct.n_repeated
        yield TableChunk(written.take(kept[part]), features_of_ids.take(part), n_repeated)


def _stream(
    dataset: DatasetConfig,
    features: Sequence[str],
    categorical: Sequence[CategoryColumn],
    rows: int,
    missing: Sequence[str] | None,
) -> Iterator[TableChunk]:
    file = open_table(dataset.path)
    _check_names(file, _required(dataset))
    gone = [name for name in features if name not in file.names]
    if gone:
        raise DataError(
            f"preprocessing mismatch: {file.path.name} lacks columns that the model was fitted on: {_listed(gone)}"
        )
    texts = _missing_in_new_rows(file, dataset, missing, categorical)
    faults = Faults(file)
    n_rows = 0
    names = [column.name for column in categorical]
    for batch in file.batches([*dataset.id_columns, *features], rows):
        for column in categorical:
            note_numbers(batch[column.name], column, faults, n_rows, _NOW_NUMBERS)
        columns = _read_features(
            batch,
            features,
            names,
            faults,
            n_rows=batch.num_rows,
            first_row=n_rows,
            missing=texts,
            not_numbers=_CHANGED,
        )
        ids = read_ids(batch, dataset.id_columns, faults, n_rows)
        n_rows += len(ids)
        faults.check(n_rows)
        yield TableChunk(ids, columns)
    if n_rows == 0:
        _check_rows(file, n_rows)


def read_frame(
    frame: "pd.DataFrame",
    features: Sequence[str],
    categorical: Sequence[CategoryColumn],
    missing: Sequence[str] | None = MISSING,
) -> Features:
    """Read the features of a table in memory as `stream_table` reads those of a file.

    Args:
        frame: the table.
        features: names of the columns that the model was fitted on.
        categorical: those of them that are text.
        missing: the texts that meant a missing category at training, as in `PartyTable`.

    Returns:
        The features as in `PartyTable`.

    Raises:
        DataError: a column is missing or there twice, or its values are of the wrong kind.
    """
    gone = [name for name in features if name not in frame.columns]
    if gone:
        raise DataError(f"preprocessing mismatch: the table lacks columns of the model: {_listed(gone)}")
    faults = Faults(None)
    columns = {name: _arrow_column(frame[name], name) for name in features}
    names = [column.name for column in categorical]
    for column in categorical:
        note_numbers(columns[column.name], column, faults, 0, _NOW_NUMBERS)
    read = _read_features(
        columns,
        features,
        names,
        faults,
        n_rows=len(frame),
        first_row=0,
        missing=missing or (),
        not_numbers=_CHANGED,
    )
    faults.check(len(frame))
    return read


def _arrow_column(values: "pd.Series[Any] | pd.DataFrame", name: str) -> pa.ChunkedArray:
    if values.ndim > 1:
        raise DataError(f"the table has several columns named {name!r}: keep one")
    try:
        return pa.chunked_array([pa.Array.from_pandas(values)])
    except pa.ArrowException:
        raise DataError(
            f"column {name!r} mixes values of different types: convert it to numbers, or to text if it holds categories"
        ) from None


def _read_features(
    batch: Columns,
    features: Sequence[str],
    categorical: Sequence[str],
    faults: Faults,
    *,
    n_rows: int,
    first_row: int,
    missing: Sequence[str],
    not_numbers: str = NOT_NUMBERS,
) -> Features:
    columns: dict[str, Column] = {
        name: read_categories(batch[name], name, missing)
        if name in categorical
        else read_numbers(batch[name], name, faults, first_row, missing=missing, not_numbers=not_numbers)
        for name in features
    }
    return Features(columns, n_rows)


def _check_rows(file: TableFile, n_rows: int) -> None:
    if not n_rows:
        raise DataError(f"{file.path.name} has no rows, only column names")


def _missing_in_new_rows(
    file: TableFile, dataset: DatasetConfig, at_training: Sequence[str] | None, categorical: Sequence[CategoryColumn]
) -> Sequence[str]:
    """Return the texts that mean a missing category in the rows that a model scores.

    If the training file marked missing values itself and this file does not, a usual text is missing unless the model
    knows it as a category.
    """
    if dataset.missing is not None:
        return dataset.missing
    if at_training is not None:
        return at_training
    known = {category for column in categorical for category in column.known}
    return () if file.marks_missing else [text for text in MISSING if text not in known]


def _distinct_ids(normal: NormalIds, dataset: DatasetConfig, file: TableFile) -> DistinctIds:
    """Return the different IDs among those of all rows of a file, in their normal form.

    Raises:
        DataError: an ID is repeated, and the settings refuse that.
    """
    distinct = DistinctIds.of(normal.ids)
    repeated = distinct.n_repeated
    if repeated and dataset.repeated_ids == "refuse":
        by_form = 0
        if any(normal.changed.values()):
            written = Ids.join([*_written_ids(file, dataset, Faults(file))])
            by_form = repeated - DistinctIds.of(written).n_repeated
        error = repeated_error(dataset.id_columns, repeated, len(normal.ids), by_form)
        error.add_note(f"the first is in {file.place(distinct.first_repeated)}, {described(dataset.id_columns)}")
        raise error
    return distinct


def _check_labels_of_repeated(
    owner: NDArray[np.int64], values: FloatVector | RoleVector, column: str, what: str, file: TableFile
) -> None:
    differ = rows_with_another_label(owner, values)
    if len(differ):
        error = DataError(
            f"column {column!r} has different {what} in rows of the same ID, for "
            f"{Counted(len(np.unique(owner[differ]))):ID|IDs}: correct the {what}, or set `repeated_ids: first`"
        )
        error.add_note(f"the first is in {file.place(int(differ[0]))}, column {column!r}")
        raise error


# --- names of columns


def _required(dataset: DatasetConfig, *, labelled: bool = False) -> dict[str, str]:
    """Return the columns of the ID and, if the rows are `labelled`, of the label, and the setting that names each."""
    required = dict.fromkeys(dataset.id_columns, "id")
    if labelled and dataset.label is not None:
        required[dataset.label.column] = "label.column"
        if dataset.label.weight is not None:
            required[dataset.label.weight] = "label.weight"
    if labelled and dataset.split is not None:
        required[dataset.split.column] = "split.column"
    if labelled and dataset.folds is not None:
        required[dataset.folds.column] = f"folds.{dataset.folds.by}"
    return required


def _deciding(dataset: DatasetConfig) -> list[str]:
    """Return the columns that say what rows are for, each once."""
    return list(dict.fromkeys(each.column for each in (dataset.split, dataset.folds) if each is not None))


def _check_names(file: TableFile, required: Mapping[str, str]) -> None:
    """Check the names of all columns; `required` has the columns that the file must have, and the settings' names."""
    names = file.names
    for name, setting in required.items():
        if name not in names:
            error = DataError(
                f"`{setting}` names a column {name!r} that {file.path.name} does not have: {_way_out(file)}"
            )
            where = file.path.name if file.marks_missing else f"the first line of {file.path.name}"
            error.add_note(f"{where} holds these names: {names!r}")
            raise error
    # Several columns without a name are common: none of them is read.
    twice = sorted(name for name, count in Counter(names).items() if count > 1 and (name or "" in required))
    if twice:
        raise DataError(f"{file.path.name} has several columns with the same name: {_listed(twice)}")


def _way_out(file: TableFile) -> str:
    """Suggest a remedy without quoting a name, since the names may be values of a row."""
    names = file.names
    if file.marks_missing:
        return "correct the setting"
    if names[:1] and names[0].lower().startswith("sep="):
        return "its first line tells a spreadsheet the separator; remove that line, and separate values by commas"
    for separator, plural in ((";", "semicolons"), ("\t", "tabs")):
        if any(separator in name for name in names):
            return f"its values seem to be separated by {plural}; separate them by commas"
    if any("\0" in name for name in names):
        return "it seems to be encoded in UTF-16; save it in UTF-8"
    if any(_is_number(name) for name in names):
        return "its first line seems to hold values, but must hold the column names"
    return "correct the setting, or the first line of the file, which must hold the column names"


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _choose_features(file: TableFile, dataset: DatasetConfig) -> tuple[list[str], dict[str, str]]:
    """Return the feature columns in the order of the file, and why others are left out.

    `_check_names` has found the ID and the label.
    """
    names = file.names
    special = {*dataset.id_columns, *([] if dataset.label is None else dataset.label.columns)}
    special |= {*_deciding(dataset)}
    for name in dataset.features or []:
        _check_exists(name, "features", names)
    # Without this check, a misspelt name would let a column into the training that was meant to stay out.
    for name in dataset.exclude:
        _check_exists(name, "exclude", names)
    for name in dataset.categorical:
        _check_exists(name, "categorical", names)

    named = special | {*(dataset.features or []), *dataset.categorical, *dataset.preprocessing.columns}
    added = {
        name: why
        for name, why in technical_columns(names, file.indexes).items()
        if name not in named and name not in dataset.exclude and dataset.features is None
    }
    wanted = set(dataset.features or names) - special - set(dataset.exclude) - set(added)
    features = [name for name in names if name in wanted]
    if not features and dataset.label is None:
        error = DataError(f"no feature is left in {dataset.path.name}: add a feature, or choose columns in `features`")
        error.add_note(f"its columns are {_listed(names)}")
        raise error
    return features, added


def _check_exists(name: str, setting: str, names: list[str]) -> None:
    """Refuse a name that no column has. The text reaches the other organisations, so only its note has the columns."""
    if name in names:
        return
    error = DataError(f"`{setting}` names a column {name!r} that does not exist: correct the setting")
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        error.add_note(f"did you mean {' or '.join(map(repr, close))}?")
    error.add_note(f"the columns are {_listed(names)}")
    raise error


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(map(repr, names[:_LISTED_NAMES]))
    return text if len(names) <= _LISTED_NAMES else f"{text} and {len(names) - _LISTED_NAMES} more"
