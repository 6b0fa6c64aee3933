"""Scores of a file that `predict` wrote, and the labels of the same rows from a table of the guest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.config.dataset import DatasetConfig, IdForm, LabelConfig
from trilateral.common.data.features import Categories, Column
from trilateral.common.data.model.classes import ClassNumbers, one_vs_rest
from trilateral.common.data.model.score_columns import CLASS, FIGURES, SCORE, figures_of_class, is_reason
from trilateral.common.data.tables.arrow_arrays import from_booleans, to_booleans, to_numpy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import read_table
from trilateral.common.data.tables.table_file import open_table

_DEFAULT_FORM = IdForm()


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """Rows that have scores by one or more models, and a label."""

    scores: tuple[FloatVector, ...]
    """The score u of each row by each model, each of shape (n_rows,)."""
    labels: FloatVector
    """-1 or +1, shape (n_rows,); +1 for the rows of a class against the rest."""
    probabilities: tuple[FloatVector, ...]
    """The probability of each row by each model, as its file has it, each of shape (n_rows,)."""


@dataclass(frozen=True, eq=False)
class ClassifiedScores:
    """Rows that have a score for each of several classes, and a class."""

    scores: FloatMatrix
    """The score u of each row for each class, shape (n_rows, n_classes)."""
    classes: ClassNumbers
    """The class of each row, shape (n_rows,)."""


def read_class_scores(path: Path, classes: Sequence[str], form: IdForm = _DEFAULT_FORM) -> tuple[Ids, FloatMatrix]:
    """Read the scores for all classes of a file.

    Args:
        path: file that `trilateral predict` wrote for a model of several classes.
        classes: the classes of the model.
        form: the form in which IDs are compared.

    Returns:
        The IDs in canonical order, and the scores u of these rows, shape (n_rows, n_classes).

    Raises:
        DataError: the file cannot be used.
    """
    ids, figures = _read(path, form, [figures_of_class(each)[0] for each in classes], of_classes=True)
    return ids, np.column_stack(figures)


def read_classified_scores(path: Path, dataset: DatasetConfig, name: str, classes: Sequence[str]) -> ClassifiedScores:
    """Read the scores for all classes of the rows that have a class.

    Args:
        path: see `read_class_scores`.
        dataset: the table with the labels, which has the same classes in any order.
        name: name of the dataset, for errors.
        classes: the classes of the model.

    Returns:
        The rows, in canonical order of their IDs.

    Raises:
        ConfigError: the label of the dataset has other classes, or there is none.
        DataError: the file or the table cannot be used, or they have no IDs in common.
    """
    label = _label_of(dataset, name)
    if label.classes is None or {*label.classes} != {*classes}:
        raise ConfigError(
            f"datasets.{name}: the label has other classes than the model: name a dataset with the `classes`"
            f" {', '.join(classes)}"
        )
    ids, scores = read_class_scores(path, classes, dataset.id_form)
    labels, places = _labels_of(dataset, label, name, ids)
    number_of = np.array([list(classes).index(each) for each in label.classes])
    return ClassifiedScores(scores[places], number_of[labels.astype(np.int64)])


def read_scores(
    paths: Sequence[Path], form: IdForm = _DEFAULT_FORM, of_class: str | None = None
) -> tuple[Ids, list[FloatVector]]:
    """Read the scores of the rows that are in each file.

    Args:
        paths: files that `trilateral predict` wrote, one for each model.
        form: the form in which IDs are compared.
        of_class: the class whose scores to read, in files of a model of several classes.

    Returns:
        The IDs in canonical order; and for each file the scores u of these rows, shape (n_rows,).

    Raises:
        DataError: a file cannot be used, or the files have no IDs in common.
    """
    ids, figures = _read_common(paths, form, of_class)
    return ids, [scores for scores, _ in figures]


def _read_common(
    paths: Sequence[Path], form: IdForm, of_class: str | None
) -> tuple[Ids, list[tuple[FloatVector, FloatVector]]]:
    """Return the IDs that are in each file and, for each file, the scores and probabilities of their rows."""
    ids, first = _read_pair(paths[0], form, of_class)
    figures = [first]
    for path in paths[1:]:
        others, further = _read_pair(path, form, of_class)
        ids, places = _common(ids, others)
        kept = [(scores[places[0]], probabilities[places[0]]) for scores, probabilities in figures]
        figures = [*kept, (further[0][places[1]], further[1][places[1]])]
    if not len(ids):
        raise DataError("the files of scores have no IDs in common: score the same rows with both models")
    return ids, figures


def read_labelled_scores(
    paths: Sequence[Path], dataset: DatasetConfig, name: str, of_class: str | None = None
) -> LabelledScores:
    """Read the scores of the rows that are in each file and have a label.

    Args:
        paths: see `read_scores`.
        dataset: the table with the labels.
        name: name of the dataset, for errors.
        of_class: see `read_scores`. The labels say whether a row has this class.

    Returns:
        The rows, in canonical order of their IDs.

    Raises:
        ConfigError: the dataset has no `label`, or a label that does not suit `of_class`.
        DataError: a file or the table cannot be used, or they have no IDs in common.
    """
    label = _label_of(dataset, name)
    classes = label.classes
    if classes is not None and of_class is None:
        raise ConfigError(f"datasets.{name}: the label has several classes: name a dataset whose label has two values")
    if of_class is not None and of_class not in (classes or []):
        raise ConfigError(f"datasets.{name}: the label has no class {of_class}: name a dataset with these `classes`")
    ids, figures = _read_common(paths, dataset.id_form, of_class)
    labels, places = _labels_of(dataset, label, name, ids)
    if classes is not None and of_class is not None:
        labels = one_vs_rest(labels.astype(np.int64), classes.index(of_class))
    return LabelledScores(
        scores=tuple(scores[places] for scores, _ in figures),
        labels=labels,
        probabilities=tuple(probabilities[places] for _, probabilities in figures),
    )


def _label_of(dataset: DatasetConfig, name: str) -> LabelConfig:
    if dataset.label is None:
        raise ConfigError(f"datasets.{name}: labels are needed: set `label`, or name another dataset")
    return dataset.label


def _labels_of(dataset: DatasetConfig, label: LabelConfig, name: str, ids: Ids) -> tuple[FloatVector, Rows]:
    """Read the labels of rows from a table, no other column of which is read.

    Returns:
        The labels of the rows that the table has, and the places of these rows among the IDs.
    """
    special = {*dataset.id_columns, *label.columns}
    others = [column for column in open_table(dataset.path).names if column not in special]
    table = read_table(dataset.model_copy(update={"features": None, "categorical": [], "exclude": others}))
    assert table.labels is not None  # noqa: S101 (the dataset has a label)
    common, places = _common(ids, table.ids)
    if not len(common):
        raise DataError(
            f"the scores and the labels of {name} have no IDs in common: compare how both write their IDs, and see"
            " `id_form`"
        )
    return table.labels[places[1]], places[0]


def _common(first: Ids, second: Ids) -> tuple[Ids, tuple[Rows, Rows]]:
    """Return the common IDs, in the order of the first, and their places in both."""
    places = pc.index_in(first.texts, value_set=second.texts)
    found = to_booleans(pc.is_valid(places))
    return Ids(first.texts.filter(from_booleans(found))), (
        np.flatnonzero(found),
        to_numpy(places.drop_null()).astype(np.int64),
    )


def _read_pair(path: Path, form: IdForm, of_class: str | None) -> tuple[Ids, tuple[FloatVector, FloatVector]]:
    """Read the IDs of a file, in their normal form, and the scores and probabilities."""
    ids, (scores, probabilities) = _read(path, form, figures_of_class(of_class), of_classes=of_class is not None)
    return ids, (scores, probabilities)


def _read(path: Path, form: IdForm, wanted: Sequence[str], *, of_classes: bool) -> tuple[Ids, list[FloatVector]]:
    """Read the IDs of a file, in their normal form, and some columns of figures.

    Args:
        path: the file.
        form: of the IDs.
        wanted: names of the columns.
        of_classes: whether the file should be of a model of several classes.
    """
    if not path.exists():
        raise DataError(f"there is no file of scores {path}: name a file that `trilateral predict` wrote")
    names = open_table(path).names
    if not of_classes and SCORE not in names and _figures_of_classes(names):
        raise DataError(
            f"{path.name} has a score for each of several classes: name a class with --class, or scores by a model of a"
            " label with two values"
        )
    others = {CLASS, *_figures_of_classes(names)} if of_classes else {*FIGURES}
    id_columns = [name for name in names if name not in others and not is_reason(name)]
    if not {*wanted} <= {*names} or not id_columns:
        raise DataError(
            f"{path.name} has no IDs with columns {', '.join(map(repr, wanted[:-1]))} and {wanted[-1]!r}: name a file"
            " that `trilateral predict` wrote"
        )
    table = read_table(DatasetConfig(path=path, id=id_columns, id_form=form, features=list(wanted)))
    figures = [_numbers(table.features[name]) for name in wanted]
    if not all(np.isfinite(each).all() for each in figures):
        raise DataError(f"{path.name}: some rows have no finite score")
    return table.ids, figures


def _figures_of_classes(names: Sequence[str]) -> list[str]:
    """Return the names of the columns with figures of classes. A column such as `score_id` alone may be an ID."""
    classes = [name.removeprefix(f"{SCORE}_") for name in names if name.startswith(f"{SCORE}_")]
    pairs = [figures_of_class(each) for each in classes]
    return [name for pair in pairs if {*pair} <= {*names} for name in pair]


def _numbers(column: Column) -> FloatVector:
    assert not isinstance(column, Categories)  # noqa: S101 (no feature of a file of scores is categorical)
    return np.asarray(column[:], np.float64)
