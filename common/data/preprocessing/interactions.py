"""Fitting the products of two columns."""

from collections.abc import Mapping

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.features import Column
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS, is_constant
from trilateral.common.data.preprocessing.formulas import evaluate
from trilateral.common.data.preprocessing.terms import CategoryColumn, InteractionColumn, NumberColumn


def product_of(name: str, number: NumberColumn, other: NumberColumn | CategoryColumn) -> InteractionColumn:
    """Return the interaction of two columns with all terms of the other one.

    A number counts as one term: its transformed value, even if it has a spline or an indicator of its own.
    """
    plain = {"spline": None, "missing_indicator": False}
    if isinstance(other, NumberColumn):
        other = other.model_copy(update=plain)
    number = number.model_copy(update=plain)
    return InteractionColumn(name=name, number=number, other=other, with_terms=other.terms)


def without_small_cells(column: InteractionColumn, sources: Mapping[str, Column]) -> InteractionColumn | None:
    """Leave out the products with those terms in whose rows a single row has too much weight.

    With the terms of both columns, a product gives the rows of a category, its cell, a line of their own: a + b x. The
    leverage of a row for that line is 1/k + (x - mean)^2 / sum (x - mean)^2 over the k rows of the cell. Where a row
    has more than 1 / `MIN_ROWS`, the cell keeps the slope of the reference. So do the rows without any term, and the
    same must hold for all these rows together.

    Args:
        column: a number and a column of categories.
        sources: their columns of the table, all training rows.

    Returns:
        The interaction with the terms that are left; None if there are none.
    """
    x = evaluate(column.number.formulas[0], sources, {})
    kept: list[str] = []
    rest = np.ones(len(x), dtype=bool)
    for term, formula in zip(column.other.terms, column.other.formulas, strict=True):
        cell = evaluate(formula, sources, {}) != 0
        if _is_spread(x[cell]):
            kept.append(term)
            rest &= ~cell
    return column.model_copy(update={"with_terms": kept}) if kept and _is_spread(x[rest]) else None


def _is_spread(x: FloatVector) -> bool:
    """Return whether no row of a cell has a leverage above 1 / `MIN_ROWS` for a line of its own."""
    if len(x) <= MIN_ROWS or is_constant(float(x.min()), float(x.max())):
        return False
    squares = (x - x.mean()) ** 2
    return bool(1 / len(x) + squares.max() / squares.sum() <= 1 / MIN_ROWS)
