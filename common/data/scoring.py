"""One party's part of the scores of any rows: its model file applied to its table."""

from collections.abc import Callable

import numpy as np

from common.config.dataset import DatasetConfig
from common.data.id_form import normalise
from common.data.model_file import PartyModel
from common.data.spool import ScoredRows
from common.data.table import stream_table
from common.errors import DataError


def score_table(
    model: PartyModel, dataset: DatasetConfig, rows: ScoredRows, on_progress: Callable[[int], None]
) -> None:
    """Read a table in bounded memory, score its rows, and put them into `rows`, which is finished then.

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
    categorical = [column.name for column in steps.columns if column.kind == "category"]
    for chunk in stream_table(dataset, steps.features, categorical):
        with np.errstate(over="ignore", invalid="ignore"):  # What overflows is found below.
            scores = steps.transform(chunk.features) @ weights
        infinite = int((~np.isfinite(scores)).sum())
        if infinite:
            raise DataError(
                f"{infinite} rows have values beyond all training rows whose score is no number: correct them, or train"
                " with `clip`"
            )
        rows.add(normalise(chunk.ids, dataset.id_form).ids, chunk.ids, scores)
        on_progress(rows.n_ids)
    rows.finish()
