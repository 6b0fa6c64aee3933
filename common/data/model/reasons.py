"""The reasons of a score: which of a party's columns raise it most, or which of the labels that it gives to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError
from trilateral.common.data.features import Features
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing import Preprocessing

NONE = -1
"""Place of a name where a row has no further reason."""

Places: TypeAlias = NDArray[np.int16]
"""Places of names, shape (n_rows, n_reasons): the strongest reason of each row first, and `NONE` after the last."""


@dataclass(frozen=True, eq=False)
class Reasons:
    """Finds the reasons of scores.

    Attributes:
        names: what the reasons are called.
        groups: for each fitted column, the place of its name; `NONE` for a column that is never a reason.
        n_reasons: the most reasons of a row.
    """

    names: tuple[str, ...]
    groups: tuple[int, ...]
    n_reasons: int
    _steps: Preprocessing = field(repr=False)
    _beta: FloatVector = field(repr=False)
    """The weights of the standardised terms, shape (n_terms,)."""

    @classmethod
    def of_columns(cls, model: PartyModel, n_reasons: int) -> Self:
        """Return the reasons by the names of a party's columns.

        Raises:
            ConfigError: the model has several classes.
        """
        names = tuple(column.name for column in model.steps.columns)
        return cls._of(model, names, tuple(range(len(names))), n_reasons)

    @classmethod
    def of_labels(cls, model: PartyModel, labels: Mapping[str, str], n_reasons: int) -> Self:
        """Return the reasons by the labels that a party gives to its columns. Columns of one label count together.

        Args:
            model: the party's part of a model.
            labels: the label by the name of a column. A column without one is never a reason.
            n_reasons: the most reasons of a row.

        Raises:
            ConfigError: the model has several classes.
        """
        given = [labels.get(column.name) for column in model.steps.columns]
        names = tuple(dict.fromkeys(label for label in given if label is not None))
        groups = tuple(NONE if label is None else names.index(label) for label in given)
        return cls._of(model, names, groups, n_reasons)

    @classmethod
    def _of(cls, model: PartyModel, names: tuple[str, ...], groups: tuple[int, ...], n_reasons: int) -> Self:
        check_one_score(model)
        steps = model.steps
        beta = np.array([model.standardised_weights[term] for term in steps.terms])
        return cls(names, groups, n_reasons, steps, beta)

    def find(self, features: Features) -> Places:
        """Return the reasons that raise the score of each row most, in comparison with the mean of the training rows.

        A column raises the score by the sum of beta times the standardised term over its terms. The mean of a
        standardised term is 0, except for a term of 0 and 1 without whitening: there the comparison is with the
        reference category.
        """
        found = np.full((len(features), self.n_reasons), NONE, np.int16)
        if not self.names:
            return found
        starts = np.cumsum([0, *(len(column.terms) for column in self._steps.columns[:-1])])
        sums = np.array(self.groups)[:, None] == np.arange(len(self.names))
        first = 0
        for block in self._steps.standardised(features):
            raised = np.add.reduceat(block * self._beta, starts, axis=1) @ sums
            places = np.argsort(-raised, axis=1, kind="stable")[:, : self.n_reasons]
            raises = np.take_along_axis(raised, places, axis=1) > 0
            found[first : first + len(block), : places.shape[1]] = np.where(raises, places, NONE)
            first += len(block)
        return found


def check_one_score(model: PartyModel) -> None:
    """Check that the scores of a model have reasons.

    Raises:
        ConfigError: the model has several classes.
    """
    if model.classes is not None:
        raise ConfigError("reasons are those of one score, and the model has several classes: ask for no reasons")


def reason_columns(names: Sequence[str], places: Places) -> list[pa.Array]:
    """Return the names of reasons as columns: the first reason of each row, then the second, and so on."""
    texts = pa.array(names, pa.string())
    return [texts.take(pa.array(each, mask=each == NONE)) for each in np.ascontiguousarray(places.T)]


def reason_names(names: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the reasons of one row."""
    return tuple(names[place] for place in places if place != NONE)


# --- on the wire: one byte for each reason, 0 for none


def encode_places(places: Places) -> NDArray[np.uint8]:
    """Return places of at most 255 names as bytes of the same shape."""
    return (places + 1).astype(np.uint8)


def decode_places(content: bytes, shape: tuple[int, int], n_names: int) -> Places:
    """Return the places that `encode_places` has made bytes of, shape (n_rows, n_reasons).

    Raises:
        ValueError: the bytes are those of another number of rows or reasons, or of more names.
    """
    places: Places = np.frombuffer(content, np.uint8).reshape(shape).astype(np.int16) - np.int16(1)
    if places.size and places.max() >= n_names:
        raise ValueError("a reason has no name")
    return places
