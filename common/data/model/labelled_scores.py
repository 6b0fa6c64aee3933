"""Scores of a file that `predict` wrote, and the labels of the same rows from a table of the guest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.config.dataset import DatasetConfig, IdForm
from trilateral.common.data.features import Categories
from trilateral.common.data.tables.arrow_arrays import from_booleans, to_booleans, to_numpy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import read_table
from trilateral.common.data.tables.table_file import open_table

SCORE = "score"
FIGURES = (SCORE, "probability")
_REASON = re.compile(r"(host_)?reason_\d+")
"""`FIGURES` and such names are those of the columns of a score file that are not part of an ID."""
_DEFAULT_FORM = IdForm()


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """Rows that have scores by one or more models, and a label."""

    scores: tuple[FloatVector, ...]
    """The score u of each row by each model, each of shape (n_rows,)."""
    labels: FloatVector
    """-1 or +1, shape (n_rows,)."""


def read_scores(paths: Sequence[Path], form: IdForm = _DEFAULT_FORM) -> tuple[Ids, list[FloatVector]]:
    """Read the scores of the rows that are in each file.

    Args:
        paths: files that `trilateral predict` wrote, one for each model.
        form: the form in which IDs are compared.

    Returns:
        The IDs in canonical order; and for each file the scores u of these rows, shape (n_rows,).

    Raises:
        DataError: a file cannot be used, or the files have no IDs in common.
    """
    ids, first = _read(paths[0], form)
    scores = [first]
    for path in paths[1:]:
        others, further = _read(path, form)
        ids, places = _common(ids, others)
        scores = [*(each[places[0]] for each in scores), further[places[1]]]
    if not len(ids):
        raise DataError("the files of scores have no IDs in common: score the same rows with both models")
    return ids, scores


def read_labelled_scores(paths: Sequence[Path], dataset: DatasetConfig, name: str) -> LabelledScores:
    """Read the scores of the rows that are in each file and have a label.

    Args:
        paths: see `read_scores`.
        dataset: the table with the labels.
        name: name of the dataset, for errors.

    Returns:
        The rows, in canonical order of their IDs.

    Raises:
        ConfigError: the dataset has no `label`, or one of several classes.
        DataError: a file or the table cannot be used, or they have no IDs in common.
    """
    if dataset.label is None:
        raise ConfigError(f"datasets.{name}: labels are needed: set `label`, or name another dataset")
    if dataset.label.classes is not None:
        raise ConfigError(f"datasets.{name}: the label has several classes: name a dataset whose label has two values")
    special = {*dataset.id_columns, *dataset.label.columns}
    others = [column for column in open_table(dataset.path).names if column not in special]
    table = read_table(dataset.model_copy(update={"features": None, "categorical": [], "exclude": others}))
    assert table.labels is not None  # noqa: S101 (the dataset has a label)
    ids, scores = read_scores(paths, dataset.id_form)
    common, places = _common(ids, table.ids)
    if not len(common):
        raise DataError(
            f"the scores and the labels of {name} have no IDs in common: compare how both write their IDs, and see"
            " `id_form`"
        )
    return LabelledScores(tuple(each[places[0]] for each in scores), table.labels[places[1]])


def _common(first: Ids, second: Ids) -> tuple[Ids, tuple[Rows, Rows]]:
    """Return the common IDs, in the order of the first, and their places in both."""
    places = pc.index_in(first.texts, value_set=second.texts)
    found = to_booleans(pc.is_valid(places))
    return Ids(first.texts.filter(from_booleans(found))), (
        np.flatnonzero(found),
        to_numpy(places.drop_null()).astype(np.int64),
    )


def _read(path: Path, form: IdForm) -> tuple[Ids, FloatVector]:
    """Read the IDs of a file, in their normal form, and the scores."""
    if not path.exists():
        raise DataError(f"there is no file of scores {path}: name a file that `trilateral predict` wrote")
    names = open_table(path).names
    if SCORE not in names and any(name.startswith(f"{SCORE}_") for name in names):
        raise DataError(
            f"{path.name} has a score for each of several classes: name scores by a model of a label with two values"
        )
    id_columns = [name for name in names if name not in FIGURES and not _REASON.fullmatch(name)]
    if SCORE not in names or not id_columns:
        raise DataError(f"{path.name} has no IDs with a column {SCORE!r}: name a file that `trilateral predict` wrote")
    table = read_table(DatasetConfig(path=path, id=id_columns, id_form=form, features=[SCORE]))
    column = table.features[SCORE]
    assert not isinstance(column, Categories)  # noqa: S101 (no feature of this table is categorical)
    scores = np.asarray(column[:], np.float64)
    if not np.isfinite(scores).all():
        raise DataError(f"{path.name}: some rows have no finite score")
    return table.ids, scores
