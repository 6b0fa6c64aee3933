"""What a fitted column of a table becomes: a number, a number and whether it is missing, or 0 and 1 for categories.

Each of these values is a *term*: what a weight in a model belongs to. All that was fitted is in fields that JSON holds
exactly, and applying it needs numpy and pandas alone.
"""

import math
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype
from pydantic import Field, FiniteFloat

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.settings import Settings

ROWS_AT_A_TIME = 65_536
"""All terms of all rows take far more memory than the table, so no more rows than these are expanded at once."""


class NumberColumn(Settings):
    """A column of numbers: filled where one is missing, then clipped."""

    kind: Literal["number"] = "number"
    name: str
    fill: FiniteFloat
    """What a missing value becomes, before clipping."""
    lower: FiniteFloat | None = None
    """Clipping limits; None without clipping."""
    upper: FiniteFloat | None = None
    missing_indicator: bool = False
    """Whether a second term is 1 where a value is missing, and else 0."""
    standardise: bool = True
    """Whether the first term is brought to mean 0 and mean square 1 in the end."""

    @property
    def terms(self) -> list[str]:
        """Their names."""
        return [self.name, f"{self.name} is missing"] if self.missing_indicator else [self.name]

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised: what is 0 or 1 by nature never is."""
        return [self.standardise, False] if self.missing_indicator else [self.standardise]

    def expand(self, values: "pd.Series[float]", out: FloatMatrix) -> None:
        """Write the terms of any rows into `out`, shape (n_rows, n_terms).

        Raises:
            DataError: the column holds no numbers.
        """
        if not is_numeric_dtype(values.dtype):
            raise DataError(
                f"preprocessing mismatch: column {self.name!r} had numbers when the model was fitted, and has none here"
            )
        numbers = values.to_numpy(np.float64, na_value=np.nan)
        missing = np.isnan(numbers)
        out[:, 0] = np.where(missing, self.fill, numbers)
        if self.lower is not None and self.upper is not None:
            out[:, 0].clip(self.lower, self.upper, out=out[:, 0])
        if self.missing_indicator:
            out[:, 1] = missing


class CategoryColumn(Settings):
    """A column of text: a term for each category, 1 where a row is of it, and else 0.

    The most frequent group of the training rows is the reference and has no term: rows of it are 0 in all of them, so
    that the terms of a column do not add up to a column of ones.
    """

    kind: Literal["category"] = "category"
    name: str
    reference: str | None
    """The reference category; None where the missing values or the others are more than any category."""
    categories: list[str]
    """Those with a term of their own."""
    missing: Literal["term", "reference", "other"]
    """Missing values have a term, are the reference, or count among the others."""
    other: Literal["term", "reference"]
    """What is none of `categories`, rare in the training rows or not there at all, has one term, or counts as the
    reference."""
    fractions: bool = False
    """Whether a value in the training rows was a number that is not whole."""

    @property
    def known(self) -> list[str]:
        """All categories that were frequent in the training rows, the reference included."""
        return [*self.categories, *([] if self.reference is None else [self.reference])]

    def may_be_categories(self, numbers: FloatVector) -> NDArray[np.bool_]:
        """Which values of a column of a numeric type may be categories, or are missing; all of shape (n_rows,).

        Numbers may not where no known category is one, nor numbers that are not whole where there was none such.
        """
        missing: NDArray[np.bool_] = np.isnan(numbers)
        if self.known and all(_number(category) is None for category in self.known):
            return missing
        if self.fractions:
            return np.ones(len(numbers), dtype=bool)
        whole: NDArray[np.bool_] = numbers == np.floor(numbers)
        return missing | whole

    def count_known(self, values: "pd.Series[str]") -> int:
        """How many of the rows are of a known category."""
        return int(values.isin(self.known).sum())

    @property
    def terms(self) -> list[str]:
        """Their names."""
        names = [f"{self.name}={category}" for category in self.categories]
        if self.missing == "term":
            names.append(f"{self.name} is missing")
        if self.other == "term":
            names.append(f"{self.name} is other")
        return names

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised: what is 0 or 1 by nature never is."""
        return [False] * len(self.terms)

    def expand(self, values: "pd.Series[str]", out: FloatMatrix) -> None:
        """Write the terms of any rows into `out`, shape (n_rows, n_terms).

        Raises:
            DataError: the column holds numbers.
        """
        missing = values.isna().to_numpy()
        if is_numeric_dtype(values.dtype) and not missing.all():
            raise DataError(
                f"preprocessing mismatch: column {self.name!r} had text when the model was fitted, and has numbers here"
            )
        place = pd.Index(self.known, dtype=object).get_indexer(pd.Index(values, dtype=object))
        place[missing] = -1
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
    """Whether a text is a number that is not whole."""
    number = _number(text)
    return number is not None and not number.is_integer()


def _number(text: str) -> float | None:
    """A finite number as it is written."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]
