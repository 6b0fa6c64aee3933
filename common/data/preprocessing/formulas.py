"""How a term follows from the table's columns, as a formula of few kinds of steps.

A formula is what a fitted column says about itself: `terms.py` computes terms by it, and an export writes it in another
language. So an export needs to know these steps, and not the kinds of columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import Transform
from trilateral.common.data.features import Categories, Column
from trilateral.common.data.preprocessing.transforms import transformed


@dataclass(frozen=True)
class Number:
    """The value of a numeric column, NaN where it is missing."""

    source: str
    """Name of the column."""


@dataclass(frozen=True)
class IsMissing:
    """1 where the value of a column of numbers or text is missing, 0 elsewhere."""

    source: str
    """Name of the column."""


@dataclass(frozen=True)
class Lookup:
    """The number that belongs to the value of a column of text."""

    source: str
    """Name of the column."""
    numbers: Mapping[str, float]
    """The number of each listed category."""
    missing: float
    """The number of a missing value."""
    other: float
    """The number of every other value."""


@dataclass(frozen=True)
class Filled:
    """A formula with NaN replaced."""

    of: "Formula"
    """The formula."""
    value: float
    """The replacement for NaN."""


@dataclass(frozen=True)
class Clipped:
    """A formula within limits; NaN stays NaN."""

    of: "Formula"
    """The formula."""
    lower: float | None
    """Smaller values become this one; None without a lower limit."""
    upper: float | None
    """Larger values become this one; None without an upper limit."""


@dataclass(frozen=True)
class Transformed:
    """A transform of a formula; NaN stays NaN."""

    of: "Formula"
    """The formula."""
    transform: Transform
    """Which transform."""
    power: float | None
    """lambda of `yeo_johnson`; None for other transforms."""


@dataclass(frozen=True)
class Piecewise:
    """A polynomial of a formula, another one between each two breaks; NaN stays NaN."""

    of: "Formula"
    """The formula, x."""
    breaks: tuple[float, ...]
    """b_1 < ... < b_m. The first piece applies below b_1, piece k + 1 to b_k <= x < b_k+1, the last one from b_m on."""
    coefs: tuple[tuple[float, ...], ...]
    """A row for each of the m + 1 pieces: c_0, c_1, ... of c_0 + c_1 t + c_2 t^2 ..., where t is x minus the break at
    which the piece begins. In the first piece, t = x - b_1. All rows have the same length."""


@dataclass(frozen=True)
class Product:
    """The product of two formulas."""

    left: "Formula"
    """One formula."""
    right: "Formula"
    """The other one."""


Formula: TypeAlias = Number | IsMissing | Lookup | Filled | Clipped | Transformed | Piecewise | Product


def evaluate(formula: Formula, columns: Mapping[str, Column], known: dict[int, FloatVector]) -> FloatVector:
    """Compute a formula for some rows.

    Args:
        formula: what to compute.
        columns: the columns of the table that it uses, by name.
        known: results so far by the `id` of their formula; receives new ones. Formulas of several terms often have a
            part in common. They must stay alive as long as `known`.

    Returns:
        Shape (n_rows,). It may be part of `known`, so it must not be changed.

    Raises:
        DataError: a column is numeric and was text at training, or the other way round.
    """
    key = id(formula)
    if key not in known:
        known[key] = _evaluated(formula, columns, known)
    return known[key]


def _evaluated(formula: Formula, columns: Mapping[str, Column], known: dict[int, FloatVector]) -> FloatVector:
    match formula:
        case Number(source):
            return _numbers_of(source, columns)
        case IsMissing(source):
            column = columns[source]
            return (column.missing if isinstance(column, Categories) else np.isnan(column[:])).astype(np.float64)
        case Lookup(source, numbers, missing, other):
            categories = categories_of(source, columns)
            of_level = np.array([*(numbers.get(level, other) for level in categories.levels), missing])
            return of_level[categories.codes[:]]  # The code -1 of a missing value is the last place.
        case Filled(of, value):
            x = evaluate(of, columns, known)
            return np.where(np.isnan(x), value, x)
        case Clipped(of, lower, upper):
            return np.asarray(np.clip(evaluate(of, columns, known), lower, upper))
        case Transformed(of, transform, power):
            return transformed(evaluate(of, columns, known), transform, power)
        case Piecewise(of, breaks, coefs):
            return _polynomials(evaluate(of, columns, known), breaks, coefs)
        case Product(left, right):
            return evaluate(left, columns, known) * evaluate(right, columns, known)


def _numbers_of(source: str, columns: Mapping[str, Column]) -> FloatVector:
    """Return the values of a numeric column, shape (n_rows,).

    Raises:
        DataError: the column is text.
    """
    values = columns[source]
    if isinstance(values, Categories):
        raise DataError(f"preprocessing mismatch: column {source!r} was numeric at training, now holds text")
    return values[:]


def categories_of(source: str, columns: Mapping[str, Column]) -> Categories:
    """Return the values of a column of text, shape (n_rows,).

    Raises:
        DataError: the column is numeric.
    """
    values = columns[source]
    if not isinstance(values, Categories):
        raise DataError(f"preprocessing mismatch: column {source!r} was categorical at training, now holds numbers")
    return values


def _polynomials(x: FloatVector, breaks: tuple[float, ...], coefs: tuple[tuple[float, ...], ...]) -> FloatVector:
    piece = np.searchsorted(breaks, x, side="right")
    start = np.array([*breaks[:1], *breaks]) if breaks else np.zeros(1)
    t = x - start[piece]
    *lower, highest = np.array(coefs).T  # One row for each power.
    total: FloatVector = highest[piece]
    for coef in reversed(lower):
        total *= t
        total += coef[piece]
    total[np.isnan(x)] = np.nan
    return total
