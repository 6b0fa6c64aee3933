"""The terms of a fitted column: a number, a number and whether it is missing, or 0 and 1 for each category.

Each weight of a model belongs to one *term*. All fitted parameters are fields that JSON represents exactly.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, SerializerFunctionWrapHandler, model_serializer, model_validator

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.config.dataset import Transform
from trilateral.common.config.settings import Settings
from trilateral.common.data.features import Categories, Column
from trilateral.common.data.preprocessing.formulas import (
    Clipped,
    Filled,
    Formula,
    IsMissing,
    Lookup,
    Number,
    Product,
    Transformed,
    categories_of,
    evaluate,
)
from trilateral.common.data.preprocessing.splines import Spline

ROWS_AT_A_TIME = 65_536
"""Rows whose terms are computed at once. All terms of all rows would take far more memory than the table."""


class FittedColumn(Settings, ABC):
    """What a kind of fitted column offers, whatever its kind.

    A kind has a literal `kind` that identifies it in JSON, and its fitted parameters as fields. What else it has to say
    follows from these.
    """

    NEW: ClassVar[frozenset[str]] = frozenset()
    """Fields that 0.1.0 did not have. They are absent from JSON while they are None, so that a column of 0.1.0 stays as
    it was, and with it the digest by which the ledger knows a model."""

    kind: str
    """Identifies the class in JSON."""
    name: str
    """Name of the fitted column. Where there is one source, its name in the table."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the table's columns that the terms follow from."""
        return (self.name,)

    @property
    def texts(self) -> "tuple[CategoryColumn, ...]":
        """Those of the sources that are read as text."""
        return ()

    @property
    @abstractmethod
    def terms(self) -> list[str]:
        """Names of the terms."""

    @property
    def reference_name(self) -> str | None:
        """What the terms are compared with because it has no term, for people; None if there is no such thing."""
        return None

    @property
    @abstractmethod
    def binary(self) -> list[bool]:
        """For each term, whether it is 0 or 1 in every row."""

    @property
    @abstractmethod
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised. A term of 0 and 1 never is."""

    @property
    @abstractmethod
    def formulas(self) -> list[Formula]:
        """For each term, how it follows from the sources. Terms share the parts that they have in common."""

    @model_serializer(mode="wrap")
    def _without_new(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialise(self)
        return {name: value for name, value in fields.items() if value is not None or name not in self.NEW}

    def expand(self, columns: Mapping[str, Column], out: FloatMatrix) -> None:
        """Compute the terms of any rows.

        Args:
            columns: the columns of the table by name, each of shape (n_rows,); at least the sources.
            out: receives the terms, shape (n_rows, n_column_terms).

        Raises:
            DataError: a source is numeric and was text at training, or the other way round.
        """
        known: dict[int, FloatVector] = {}
        formulas = self.formulas
        for term, formula in enumerate(formulas):
            out[:, term] = evaluate(formula, columns, known)


class NumberColumn(FittedColumn):
    """A numeric column: missing values are filled, then all values are clipped and transformed."""

    NEW = frozenset({"transform", "power", "spline"})
    kind: Literal["number"] = "number"
    fill: FiniteFloat
    """The replacement for missing values, before clipping."""
    lower: FiniteFloat | None = None
    """The lower clipping limit; None without."""
    upper: FiniteFloat | None = None
    """The upper clipping limit; None without."""
    missing_indicator: bool = False
    """Whether there is a last term that is 1 where the value is missing and 0 elsewhere."""
    standardise: bool = True
    """Whether the terms but that for missing values are scaled to mean 0 and mean square 1 later."""
    transform: Transform | None = None
    """The transform of the clipped values; None without."""
    power: FiniteFloat | None = None
    """lambda of the transform `yeo_johnson`; None for others."""
    spline: Spline | None = None
    """The curve of the transformed values; None if they are a term themselves."""

    @model_validator(mode="after")
    def _check_power(self) -> Self:
        if (self.power is None) == (self.transform == "yeo_johnson"):
            raise ValueError("`power` belongs to the transform `yeo_johnson`")
        return self

    @property
    def terms(self) -> list[str]:
        """Names of the terms."""
        value = self.name if self.transform is None else f"{self.transform}({self.name})"
        values = [value] if self.spline is None else self.spline.terms(value)
        return [*values, f"{self.name} is missing"] if self.missing_indicator else values

    @property
    def binary(self) -> list[bool]:
        """For each term, whether it is 0 or 1 in every row."""
        return [False] * self._n_values + [True] * self.missing_indicator

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised. A term of 0 and 1 never is."""
        return [self.standardise] * self._n_values + [False] * self.missing_indicator

    @property
    def _n_values(self) -> int:
        return 1 if self.spline is None else len(self.spline.coefs)

    @property
    def formulas(self) -> list[Formula]:
        """For each term, how it follows from the sources."""
        value: Formula = Filled(Number(self.name), self.fill)
        if self.lower is not None or self.upper is not None:
            value = Clipped(value, self.lower, self.upper)
        if self.transform is not None:
            value = Transformed(value, self.transform, self.power)
        values = [value] if self.spline is None else self.spline.formulas(value)
        return [*values, IsMissing(self.name)] if self.missing_indicator else values


class CategoryColumn(FittedColumn):
    """A categorical column: one term for each category, 1 in the rows of that category and 0 elsewhere.

    The largest group of the training rows is the reference and has no term. Without it, the terms of a column do not
    add up to a column of ones. Rows of the reference are 0 in all terms.
    """

    kind: Literal["category"] = "category"
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
    def reference_name(self) -> str:
        """See the base."""
        if self.reference is not None:
            return repr(self.reference)
        return "missing values" if self.missing == "reference" else "all other values"

    @property
    def known(self) -> list[str]:
        """All categories that were frequent in the training rows, including the reference."""
        return [*self.categories, *([] if self.reference is None else [self.reference])]

    @property
    def texts(self) -> "tuple[CategoryColumn, ...]":
        """Those of the sources that are read as text."""
        return (self,)

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
    def binary(self) -> list[bool]:
        """For each term, whether it is 0 or 1 in every row."""
        return [True] * len(self.terms)

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised. A term of 0 and 1 never is."""
        return [False] * len(self.terms)

    @property
    def formulas(self) -> list[Formula]:
        """For each term, how it follows from the sources."""
        other_missing = float(self.missing == "other")
        formulas: list[Formula] = [Lookup(self.name, {each: 1.0}, 0.0, 0.0) for each in self.categories]
        if self.missing == "term":
            formulas.append(IsMissing(self.name))
        if self.other == "term":
            formulas.append(Lookup(self.name, dict.fromkeys(self.known, 0.0), other_missing, 1.0))
        return formulas

    def expand(self, columns: Mapping[str, Column], out: FloatMatrix) -> None:
        """Compute the terms of any rows, with one look at the categories for all terms; see the base."""
        values = categories_of(self.name, columns)
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


class EncodedColumn(FittedColumn):
    """A categorical column as one number: the share of the training rows with a category, or its place in a list."""

    kind: Literal["encoded"] = "encoded"
    category: CategoryColumn
    """The categories that have a number of their own, for reading the column."""
    encoding: Literal["frequency", "ordinal"]
    """Which number it is."""
    numbers: list[FiniteFloat]
    """The number of each category."""
    missing: FiniteFloat
    """The number of a missing value."""
    other: FiniteFloat
    """The number of every other category."""
    standardise: bool = True
    """Whether the term is scaled to mean 0 and mean square 1 later."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.category.name != self.name or len(self.numbers) != len(self.category.known):
            raise ValueError("an encoded column has a number for each category")
        return self

    @property
    def texts(self) -> "tuple[CategoryColumn, ...]":
        """Those of the sources that are read as text."""
        return (self.category,)

    @property
    def terms(self) -> list[str]:
        """Names of the terms."""
        return [f"{self.encoding}({self.name})"]

    @property
    def binary(self) -> list[bool]:
        """For each term, whether it is 0 or 1 in every row."""
        return [False]

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised."""
        return [self.standardise]

    @property
    def formulas(self) -> list[Formula]:
        """For each term, how it follows from the sources."""
        numbers = dict(zip(self.category.known, self.numbers, strict=True))
        return [Lookup(self.name, numbers, self.missing, self.other)]


class InteractionColumn(FittedColumn):
    """Products of a number and another number, or of a number and terms of a column of categories."""

    kind: Literal["interaction"] = "interaction"
    number: NumberColumn
    """The number, as one term."""
    other: NumberColumn | CategoryColumn = Field(discriminator="kind")
    """The other number, as one term, or the column of categories."""
    with_terms: Annotated[list[str], Field(min_length=1)]
    """The terms of `other` that are multiplied."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.number.spline is not None or not {*self.with_terms} <= {*self.other.terms}:
            raise ValueError("an interaction multiplies one term by terms of the other column")
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the table's columns that the terms follow from."""
        return (self.number.name, self.other.name)

    @property
    def texts(self) -> "tuple[CategoryColumn, ...]":
        """Those of the sources that are read as text."""
        return self.other.texts

    @property
    def terms(self) -> list[str]:
        """Names of the terms."""
        return [f"{self.number.terms[0]}:{term}" for term in self.with_terms]

    @property
    def binary(self) -> list[bool]:
        """For each term, whether it is 0 or 1 in every row."""
        return [False] * len(self.with_terms)

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised."""
        return [self.number.standardise] * len(self.with_terms)

    @property
    def formulas(self) -> list[Formula]:
        """For each term, how it follows from the sources."""
        number, others = self.number.formulas[0], dict(zip(self.other.terms, self.other.formulas, strict=True))
        return [Product(number, others[term]) for term in self.with_terms]


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


AnyColumn = Annotated[NumberColumn | CategoryColumn | EncodedColumn | InteractionColumn, Field(discriminator="kind")]
"""Every kind of fitted column, for reading from JSON."""
