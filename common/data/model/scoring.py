"""Scoring: a party's part of a model applied to its table."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import FloatArray, of_each_row
from trilateral.common.base.errors import Counted, DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.features import Categories, Features
from trilateral.common.data.model.distributions import ShiftCounter
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.reasons import Places, Reasons
from trilateral.common.data.party_data import describe_repeated
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.tables.id_form import normalise
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import stream_table
from trilateral.common.scratch.arrays import IN_MEMORY, Scratch

_MIN_KNOWN = 0.01
"""The share of known categories below which a column is reported. By default, every known category alone was at least
this frequent in the training rows."""


class ScoreSink(Protocol):
    """Receives the scored rows of a table, such as `ScoredRows` and `ScoredIds`."""

    @property
    def n_ids(self) -> int:
        """The number of rows added so far."""
        ...

    def add(self, ids: Ids, written: Ids, scores: FloatArray, reasons: Places | None) -> None:
        """Add rows, in the order of the table.

        Args:
            ids: the IDs in their normal form.
            written: the same IDs as they are written.
            scores: this party's parts of the scores, shape (n_added,), or (n_added, n_classes).
            reasons: the reasons of the scores, shape (n_added, n_reasons); None if nobody has asked for them.
        """
        ...

    def finish(self) -> None:
        """Take note that the last row was added."""
        ...


def score_table(
    model: PartyModel,
    dataset: DatasetConfig,
    rows: ScoreSink,
    on_progress: Callable[[int], None],
    scratch: Scratch = IN_MEMORY,
    *,
    shift: ShiftCounter | None = None,
    reasons: Reasons | None = None,
) -> list[str]:
    """Read a table in bounded memory, score its rows and add them to `rows`.

    Args:
        model: this party's part of the model.
        dataset: the settings of the table. Only the ID and the features of the model are read.
        rows: receives the scored rows and is finished at the end.
        on_progress: is called after each chunk with the number of rows so far. Its exceptions end the reading.
        scratch: where the columns lie if rows that are far apart may have to be merged.
        shift: counts the rows for the shift since the training.
        reasons: finds the reasons of the scores.

    Returns:
        Warnings for this party only: a sentence about the rows that repeat an ID, and one for each categorical column
        in which the model knows almost no value, possibly because the values are spelt differently.

    Raises:
        DataError: the table cannot be used. The text has the column and the number of faulty rows.
        ConfigError: there is no room for the columns.
        OSError: the rows cannot be written.
    """
    steps, weights = model.steps, model.score_weights
    categorical = steps.texts
    known = [column for column in categorical if column.known]
    n_present, n_known = Counter[str](), Counter[str]()
    n_repeated = 0
    for chunk in stream_table(dataset, steps.features, categorical, missing=model.missing, scratch=scratch):
        n_repeated += chunk.n_repeated
        scores = score_features(steps, weights, chunk.features)
        if shift is not None:
            shift.add(chunk.features)
        for column in known:
            values = chunk.features[column.name]
            if isinstance(values, Categories):
                n_present[column.name] += int((~values.missing).sum())
                n_known[column.name] += int((column.places(values) >= 0).sum())
        ids = normalise(chunk.ids, dataset.id_form, len(dataset.id_columns)).ids
        rows.add(ids, chunk.ids, scores, None if reasons is None else reasons.find(chunk.features))
        on_progress(rows.n_ids)
    rows.finish()
    repeated = describe_repeated(n_repeated, dataset)
    unknown = [
        f"the model knows the category in column {name!r} in only {n_known[name]} of {count} rows: check that the "
        "column is written in the same way as for the training"
        for name, count in n_present.items()
        if n_known[name] < _MIN_KNOWN * count
    ]
    return [repeated, *unknown] if repeated else unknown


def count_shift(model: PartyModel, dataset: DatasetConfig, shift: ShiftCounter, scratch: Scratch = IN_MEMORY) -> None:
    """Read a table in bounded memory, and count its rows for the shift since the training.

    Args:
        model: this party's part of the model.
        dataset: the settings of the table. Only the ID and the features of the model are read.
        shift: counts the rows.
        scratch: where the columns lie if rows that are far apart may have to be merged.

    Raises:
        DataError: the table cannot be used. The text has the column and the number of faulty rows.
    """
    steps = model.steps
    for chunk in stream_table(dataset, steps.features, steps.texts, missing=model.missing, scratch=scratch):
        shift.add(chunk.features)


def score_features(steps: Preprocessing, weights: FloatArray, features: Features) -> FloatArray:
    """Compute a party's part of the score of some rows, shape (n_rows,), or (n_rows, n_classes).

    Args:
        steps: of the party's model.
        weights: of its training columns, shape (n_columns,) or (n_columns, n_classes).
        features: the rows, as `read_frame` and `stream_table` make them.

    Raises:
        DataError: a score overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # The check below finds what overflows.
        scores: FloatArray = steps.transform(features) @ weights
    infinite = int((~of_each_row(np.isfinite(scores))).sum())
    if infinite:
        raise DataError(
            f"{Counted(infinite):row has|rows have} values so far outside the training rows that the score overflows: "
            "correct the values, or train with `clip`"
        )
    return scores
