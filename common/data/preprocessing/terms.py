"""The terms of a fitted column: a number, a number and whether it is missing, or 0 and 1 for each category.

Each weight of a model belongs to one *term*. All fitted parameters are fields that JSON represents exactly.
"""

import math
from bisect import bisect_left
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.settings import Settings
from trilateral.common.data.features import Categories, Column

ROWS_AT_A_TIME = 65_536
"""Rows whose terms are computed at once. All terms of all rows would take far more memory than the table."""


class NumberColumn(Settings):
    """A numeric column: missing values are filled, then all values are clipped."""

    kind: Literal["number"] = "number"
    """Identifies the class in JSON."""
    name: str
    """Name of the column in the table."""
    fill: FiniteFloat
    """The replacement for missing values, before clipping."""
    lower: FiniteFloat | None = None
    """The lower clipping limit; None without clipping."""
    upper: FiniteFloat | None = None
    """The upper clipping limit; None without clipping."""
    missing_indicator: bool = False
    """Whether there is a second term that is 1 where the value is missing and 0 elsewhere."""
    standardise: bool = True
    """Whether the first term is scaled to mean 0 and mean square 1 later."""

    @property
    def terms(self) -> list[str]:
        """Names of the terms."""
        return [self.name, f"{self.name} is missing"] if self.missing_indicator else [self.name]

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised. A term of 0 and 1 never is."""
        return [self.standardise, False] if self.missing_indicator else [self.standardise]

    def expand(self, values: Column, out: FloatMatrix) -> None:
        """Compute the terms of any rows.

        Args:
            values: the column, shape (n_rows,).
            out: receives the terms, shape (n_rows, n_column_terms).

        Raises:
            DataError: the column is not numeric.
        """
        if isinstance(values, Categories):
            raise DataError(f"preprocessing mismatch: column {self.name!r} was numeric at training, now holds text")
        numbers = values[:]
        missing = np.isnan(numbers)
        out[:, 0] = np.where(missing, self.fill, numbers)
        if self.lower is not None and self.upper is not None:
            out[:, 0].clip(self.lower, self.upper, out=out[:, 0])
        if self.missing_indicator:
            out[:, 1] = missing


class CategoryColumn(Settings):
    """A categorical column: one term for each category, 1 in the rows of that category and 0 elsewhere.

    The largest group of the training rows is the reference and has no term. Without it, the terms of a column do not
    add up to a column of ones. Rows of the reference are 0 in all terms.
    """

    kind: Literal["category"] = "category"
    """Identifies the class in JSON."""
    name: str
    """Name of the column in the table."""
    reference: str | None
    """The reference category; None if the missing or the other values are the reference."""
    categories: list[str]
    """The categories that have a term."""
    missing: Literal["term", "reference", "other"]
    """Whether missing values have a term, are the reference or belong to the other values."""
    other: Literal["term", "reference"]
    """Whether other values have a term or belong to the reference. Other values are those that were rare or absent in
    the training rows."""
    fractions: bool = False
    """Whether the training rows had a number that is not an integer."""

    @property
    def known(self) -> list[str]:
        """All categories that were frequent in the training rows, including the reference."""
        return [*self.categories, *([] if self.reference is None else [self.reference])]

    def may_be_categories(self, numbers: FloatVector) -> NDArray[np.bool_]:
        """Return which values of a numeric column are missing or may be categories.

        No number may be a category if no known category is a number. A number that is not an integer may be a category
        only if the training rows had such numbers.

        Args:
            numbers: the column, NaN where a value is missing; shape (n_rows,).

        Returns:
            Shape (n_rows,).
        """
        missing: NDArray[np.bool_] = np.isnan(numbers)
        if self.known and all(_number(category) is None for category in self.known):
            return missing
        if self.fractions:
            return np.ones(len(numbers), dtype=bool)
        whole: NDArray[np.bool_] = numbers == np.floor(numbers)
        return missing | whole

    def places(self, values: Categories) -> NDArray[np.int64]:
        """Return the place of each row's value among the known categories, -1 for other values; shape (n_rows,)."""
        place_of_level = np.full(len(values.levels) + 1, -1)  # The last one is for the code -1.
        for place, category in enumerate(self.known):
            level = bisect_left(values.levels, category)
            if level < len(values.levels) and values.levels[level] == category:
                place_of_level[level] = place
        return place_of_level[values.codes[:]]

    @property
    def terms(self) -> list[str]:
        """Names of the terms."""
        names = [f"{self.name}={category}" for category in self.categories]
        if self.missing == "term":
            names.append(f"{self.name} is missing")
        if self.other == "term":
            names.append(f"{self.name} is other")
        return names

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised. A term of 0 and 1 never is."""
        return [False] * len(self.terms)

    def expand(self, values: Column, out: FloatMatrix) -> None:
        """Compute the terms of any rows.

        Args:
            values: the column, shape (n_rows,).
            out: receives the terms, shape (n_rows, n_column_terms).

        Raises:
            DataError: the column is numeric.
        """
        if not isinstance(values, Categories):
            raise DataError(
                f"preprocessing mismatch: column {self.name!r} was categorical at training, now holds numbers"
            )
        place, missing = self.places(values), values.missing
        for term in range(len(self.categories)):
            out[:, term] = place == term
        other = place < 0
        if self.missing != "other":
            other &= ~missing
        if self.missing == "term":
            out[:, len(self.categories)] = missing
        if self.other == "term":
            out[:, -1] = other


def is_fraction(text: str) -> bool:
    """Return whether a text is a number that is not an integer."""
    number = _number(text)
    return number is not None and not number.is_integer()


def _number(text: str) -> float | None:
    """Parse a finite number, or return None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


FittedColumn = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]
