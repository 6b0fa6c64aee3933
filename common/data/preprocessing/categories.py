"""Fitting a column of categories: terms of 0 and 1, or one number."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from trilateral.common.base.arrays import blocks_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.features import Categories
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS, is_constant, leverage
from trilateral.common.data.preprocessing.formulas import evaluate
from trilateral.common.data.preprocessing.reasons import (
    NO_VALUE,
    SAME_NUMBER,
    SHOWS_ROWS,
    ConstantError,
    UnusableError,
)
from trilateral.common.data.preprocessing.terms import CategoryColumn, EncodedColumn, FittedColumn, is_fraction


def fit_text(name: str, values: Categories, config: PreprocessingConfig) -> FittedColumn:
    """Fit a column of categories.

    Args:
        name: of the column.
        values: of the training rows.
        config: the settings of the party.

    Raises:
        ConstantError: the column says too little, or too much about a few rows.
        UnusableError: the column has a category that its encoding lacks.
    """
    own = config.of_column(name)
    if own.encoding == "one_hot":
        return _fit_category(name, values, config.rare)
    if values.missing.all():
        raise ConstantError(NO_VALUE)
    column = (
        _fit_order(name, values, own.encoding, own.standardise)
        if isinstance(own.encoding, list)
        else _fit_frequencies(name, values, config.rare, own.standardise)
    )
    numbers = evaluate(column.formulas[0], {name: values}, {})
    if is_constant(float(numbers.min()), float(numbers.max())):
        raise ConstantError(SAME_NUMBER)
    if leverage(lambda: [numbers[rows, np.newaxis] for rows in blocks_of(len(numbers))]).shows_rows:
        raise ConstantError(SHOWS_ROWS)
    return column


def _fit_frequencies(name: str, values: Categories, rare: float, standardise: bool) -> EncodedColumn:
    """Encode each frequent category by its share of the training rows, and all other values by their common share."""
    counts = _Counts.of(values, rare)
    most = max([*counts.frequent.values(), counts.n_missing, counts.n_other])
    # As for terms of 0 and 1: where too few rows are left, they count as the most frequent group.
    n_other = counts.n_other if counts.n_other >= MIN_ROWS else most
    return EncodedColumn(
        name=name,
        category=_known(name, counts.frequent, counts.levels),
        encoding="frequency",
        numbers=[count / len(values) for count in counts.frequent.values()],
        missing=(counts.n_missing or n_other) / len(values),
        other=n_other / len(values),
        standardise=standardise,
    )


def _fit_order(name: str, values: Categories, order: list[str], standardise: bool) -> EncodedColumn:
    """Encode each category by its place in the order, and a missing or unknown one by the median."""
    category = _known(name, order, values.levels)
    places = category.places(values)
    known = places[places >= 0]
    if len(known) + np.count_nonzero(values.missing) < len(values):
        raise UnusableError("categories that its `encoding` does not list: list them, or name them in `missing`")
    median = float(np.median(known))
    return EncodedColumn(
        name=name,
        category=category,
        encoding="ordinal",
        numbers=[float(place) for place in range(len(order))],
        missing=median,
        other=median,
        standardise=standardise,
    )


def _known(name: str, known: Iterable[str], levels: Iterable[str]) -> CategoryColumn:
    """Return a column of categories without terms, for reading the table."""
    return CategoryColumn(
        name=name,
        reference=None,
        categories=list(known),
        missing="other",
        other="reference",
        fractions=any(map(is_fraction, levels)),
    )


@dataclass(frozen=True)
class _Counts:
    """How many training rows have each value of a column of categories."""

    least: int
    """The minimum number of rows of a frequent category."""
    levels: dict[str, int]
    """By category that there is."""
    frequent: dict[str, int]
    """By frequent category."""
    n_missing: int
    """Rows without a value; 0 if they are too few and count as others."""
    n_other: int
    """All other rows."""

    @classmethod
    def of(cls, values: Categories, rare: float) -> Self:
        least = max(MIN_ROWS, math.ceil(round(rare * len(values), 6)))
        n_missing, *counts = np.bincount(values.codes[:] + 1, minlength=len(values.levels) + 1).tolist()
        levels = {level: count for level, count in zip(values.levels, counts, strict=True) if count}
        frequent = {level: count for level, count in levels.items() if count >= least}
        if n_missing < least:
            n_missing = 0
        return cls(least, levels, frequent, n_missing, len(values) - sum(frequent.values()) - n_missing)


def _fit_category(name: str, values: Categories, rare: float) -> CategoryColumn:
    if values.missing.all():
        raise ConstantError(NO_VALUE)
    counts = _Counts.of(values, rare)
    column = _choose_terms(name, counts.frequent, counts.n_missing, counts.n_other, counts.least)
    return column.model_copy(update={"fractions": any(map(is_fraction, counts.levels))})


def _choose_terms(name: str, frequent: dict[str, int], n_missing: int, n_other: int, least: int) -> CategoryColumn:
    """Give each group of rows a term, except the largest. Of equal ones, the first here is the reference."""
    most = max([*frequent.values(), n_missing, n_other])
    reference = next((category for category, count in frequent.items() if count == most), None)
    missing_is_reference = reference is None and n_missing == most
    other_is_reference = reference is None and not missing_is_reference
    column = CategoryColumn(
        name=name,
        reference=reference,
        categories=[category for category in frequent if category != reference],
        missing="reference" if missing_is_reference else "term" if n_missing else "other",
        other="reference" if other_is_reference or n_other < MIN_ROWS else "term",
    )
    if not column.terms:
        raise ConstantError(f"fewer than two categories with at least {least} training rows (see `preprocessing.rare`)")
    return column
