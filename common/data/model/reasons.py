"""The reasons of a score: which of a party's own columns raise it most."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError
from trilateral.common.data.features import Features
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing import Preprocessing

NONE = -1
"""Place of a column where a row has no further reason."""
_Places = np.int16


def top_columns(steps: Preprocessing, beta: FloatVector, features: Features, n_reasons: int) -> NDArray[np.int16]:
    """Return the columns that raise the score of each row most, in comparison with the mean of the training rows.

    A column raises the score by the sum of beta times the standardised term over its terms. The mean of a standardised
    term is 0, except for a term of 0 and 1 without whitening: there the comparison is with the reference category.

    Args:
        steps: of a party's model.
        beta: the weights of its standardised terms, shape (n_terms,).
        features: the rows.
        n_reasons: the most columns of a row.

    Returns:
        Places in `steps.columns`, the largest first, and `NONE` after the last column that raises the score; shape
        (n_rows, n_reasons).
    """
    found = np.full((len(features), n_reasons), NONE, _Places)
    if not steps.columns:
        return found
    starts = np.cumsum([0, *(len(column.terms) for column in steps.columns[:-1])])
    first = 0
    for block in steps.standardised(features):
        raised = np.add.reduceat(block * beta, starts, axis=1)
        places = np.argsort(-raised, axis=1, kind="stable")[:, :n_reasons]
        raises = np.take_along_axis(raised, places, axis=1) > 0
        found[first : first + len(block), : places.shape[1]] = np.where(raises, places, NONE)
        first += len(block)
    return found


class ReasonRows:
    """The reasons of the rows of a table, on disk: two bytes for each.

    Args:
        model: the party's part.
        n_reasons: the most reasons of a row.
        path: a new file.

    Raises:
        ConfigError: the model has several classes.
    """

    def __init__(self, model: PartyModel, n_reasons: int, path: Path) -> None:
        if model.classes is not None:
            raise ConfigError("reasons are those of one score, and the model has several classes: ask for no reasons")
        self._steps = model.steps
        self._beta = np.array([model.standardised_weights[term] for term in self._steps.terms])
        self._names = pa.array([column.name for column in self._steps.columns], pa.string())
        self._n_reasons = n_reasons
        self._path = path
        path.touch(exist_ok=False)

    def add(self, features: Features) -> None:
        """Add rows, in the order of the table."""
        with self._path.open("ab") as file:
            top_columns(self._steps, self._beta, features, self._n_reasons).tofile(file)

    def read(self, first: int, found: NDArray[np.bool_]) -> list[pa.Array]:
        """Return the names of the columns that are reasons: the first reason of each row, then the second, and so on.

        Args:
            first: the first row.
            found: which of the rows from there on to read.
        """
        n_bytes = np.dtype(_Places).itemsize * self._n_reasons
        places = np.fromfile(self._path, _Places, len(found) * self._n_reasons, offset=first * n_bytes)
        chosen = places.reshape(len(found), self._n_reasons)[found]
        return [self._names.take(pa.array(each, mask=each == NONE)) for each in chosen.T]
