"""One party's part of the scores of any rows: its model file applied to its table."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.tables.id_form import normalise
from trilateral.common.data.tables.table import stream_table

_MIN_KNOWN = 0.01
"""A column is told of if a smaller share of its values is of known categories. By default a known one alone was as
frequent in the training rows."""


def score_table(
    model: PartyModel, dataset: DatasetConfig, rows: ScoredRows, on_progress: Callable[[int], None]
) -> list[str]:
    """Read a table in bounded memory, score its rows, and put them into `rows`, which is finished then.

    Returns a sentence on each column of categories of which nearly none is known to the model: what is wrong with the
    column may be its spelling. It is for this party alone.

    Args:
        model: this party's part.
        dataset: the table; of its columns only the ID and the model's features are read.
        rows: where they go.
        on_progress: is told how many rows there are so far, after each piece; what it raises ends the reading.

    Raises:
        DataError: the table cannot be used, by column and count.
        OSError: the rows cannot be written.
    """
    steps, weights = model.steps, np.array(model.training_weights)
    categorical = [column for column in steps.columns if column.kind == "category"]
    known = [column for column in categorical if column.known]
    n_present, n_known = Counter[str](), Counter[str]()
    for chunk in stream_table(dataset, steps.features, categorical):
        scores = score_features(steps, weights, chunk.features)
        for column in known:
            values = chunk.features[column.name]
            n_present[column.name] += int(values.notna().sum())
            n_known[column.name] += column.count_known(values)
        rows.add(normalise(chunk.ids, dataset.id_form).ids, chunk.ids, scores)
        on_progress(rows.n_ids)
    rows.finish()
    return [
        f"column {name!r} has a category that the model knows in {n_known[name]} of {count} rows: "
        "is it written as it was for the training?"
        for name, count in n_present.items()
        if n_known[name] < _MIN_KNOWN * count
    ]


def score_features(steps: Preprocessing, weights: FloatVector, features: pd.DataFrame) -> FloatVector:
    """Compute a party's part of the score of some rows, shape (n_rows,).

    Args:
        steps: of the party's model.
        weights: of its training columns, shape (n_columns,).
        features: the rows, as `read_frame` and `stream_table` make them.

    Raises:
        DataError: a score overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # The check below finds what overflows.
        scores: FloatVector = steps.transform(features) @ weights
    infinite = int((~np.isfinite(scores)).sum())
    if infinite:
        raise DataError(
            f"{infinite} rows have values so far outside the training rows that their score overflows: correct the "
            "values, or train with `clip`"
        )
    return scores
