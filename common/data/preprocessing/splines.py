"""Splines: a number as several terms, whose weighted sum is a smooth curve."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from pydantic import FiniteFloat, model_validator

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.config.dataset import SplineKind
from trilateral.common.config.settings import Settings
from trilateral.common.data.preprocessing.formulas import Formula, Piecewise

_DEGREE = 3


class Spline(Settings):
    """The functions of a fitted spline but the first one, as cubic polynomials between its knots.

    At every number, all functions of a spline add up to 1, so the first one says nothing that the others do not.
    """

    kind: SplineKind
    """Which functions these are."""
    knots: list[FiniteFloat]
    """b_1 < ... < b_m, the smallest and the largest value of the training rows included."""
    coefs: list[list[list[FiniteFloat]]]
    """For each function, and for each of the m + 1 pieces, the coefficients of 1, t, t^2 and t^3, where t is the number
    minus the knot at which the piece begins; see `Piecewise`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.knots or not np.all(np.diff(self.knots) > 0) or not self.coefs:
            raise ValueError("a spline has knots in ascending order, and functions")
        if any(len(pieces) != len(self.knots) + 1 or {*map(len, pieces)} != {_DEGREE + 1} for pieces in self.coefs):
            raise ValueError("a spline has four coefficients for each function and piece")
        return self

    def terms(self, value: str) -> list[str]:
        """Return names of the terms of a number with this name."""
        name = "spline" if self.kind == "natural" else self.kind
        return [f"{name}({value}) {number}" for number in range(1, len(self.coefs) + 1)]

    def formulas(self, of: Formula) -> list[Formula]:
        """Return the formula of each term of a number with this formula."""
        breaks = tuple(self.knots)
        return [Piecewise(of, breaks, tuple(tuple(piece) for piece in pieces)) for pieces in self.coefs]


def make_spline(kind: SplineKind, knots: Sequence[float]) -> Spline:
    """Return the spline with these knots, at least two, in ascending order.

    `natural`: the functions of a cubic spline that is straight beyond its ends. Function j is 1 at knot j and 0 at the
    other knots, so a weight is the value of the curve at its knot, minus that at the first knot. Source: Wood (2017),
    Generalized Additive Models, section 5.3.1, and `cr` in patsy.

    `bspline`: cubic B-splines, each different from 0 between at most five neighbouring knots, and constant beyond the
    ends. The knots beyond the ends continue the first and the last distance, as in scikit-learn's `SplineTransformer`.
    Source: Eilers and Marx (1996), Flexible Smoothing with B-splines and Penalties.
    """
    from scipy.interpolate import BSpline, CubicSpline  # The import takes time and memory, and few jobs need it.

    b = np.array(knots)
    functions: Any
    if kind == "natural":
        functions = CubicSpline(b, np.eye(len(b)), bc_type="natural")
    else:
        steps = np.arange(_DEGREE, 0, -1)
        below, above = b[0] - steps * (b[1] - b[0]), b[-1] + steps[::-1] * (b[-1] - b[-2])
        functions = BSpline(np.concatenate([below, b, above]), np.eye(len(b) + _DEGREE - 1), _DEGREE)
    # A polynomial is its Taylor series at the knot where it begins; shape (power, piece, function).
    value, slope, second, third = (functions(b, nu=power) for power in range(_DEGREE + 1))
    taylor = np.stack([value, slope, second / 2, third / 6])
    taylor = taylor[:, [0, *range(len(b))]]
    outer = [0, -1]  # The pieces below the first knot and from the last knot on.
    taylor[2 if kind == "natural" else 1 :, outer] = 0
    coefs: FloatMatrix = taylor.transpose(2, 1, 0)[1:]
    return Spline(kind=kind, knots=b.tolist(), coefs=coefs.tolist())
