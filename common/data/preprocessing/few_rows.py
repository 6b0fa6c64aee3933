"""Columns that would show a few rows, because training would see little else of them.

A term that is 1 for a few rows only would make a gradient a sum over these rows, and a sum over one row is that row.
The same holds for a number that is equal in all rows but a few, and for a mixture of terms, such as a difference of two
functions of a spline, that is large in a few rows.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector

MIN_ROWS = 10
"""The minimum number of training rows in which a term of 0 and 1 is 1, and in which it is 0. Also the minimum number of
training rows in which a numeric column differs from its most frequent value. A leverage is at most 1 / `MIN_ROWS`."""

CONSTANT = 1e-12
"""A column counts as constant if its range is at most this share of its largest absolute value: rounding errors."""

_RANK = 1e-6
"""Mixtures of standardised terms below this share of the largest are rounding errors, see `whitening`."""

_ROUNDING = 1e-10
"""A term is constant if it varies by no more than this share of its mean."""


def is_constant(smallest: float, largest: float) -> bool:
    """Return whether the values of a column, from its smallest to its largest, count as equal."""
    return bool(largest - smallest <= CONSTANT * max(abs(smallest), abs(largest)))


def is_too_rare(values: FloatVector) -> bool:
    """Return whether most values are equal and fewer than `MIN_ROWS` differ."""
    error = CONSTANT * max(abs(values.min()), abs(values.max()))
    # If so, more than half of any 2 `MIN_ROWS` values are equal, and their median is one of them. This is fast to test,
    # and few columns pass.
    some = np.sort(values[: 2 * MIN_ROWS])
    n_equal = np.count_nonzero(np.abs(some - some[len(some) // 2]) <= 2 * error)
    if len(some) == 2 * MIN_ROWS and math.isfinite(error) and n_equal <= MIN_ROWS:
        return False
    # If more than half of the values are equal, so is the median.
    usual = np.partition(values, len(values) // 2)[len(values) // 2]
    distances = values - usual
    np.abs(distances, out=distances)
    n_others = int(np.count_nonzero(distances > error))
    return n_others < MIN_ROWS and 2 * n_others < len(values)


class Leverage(NamedTuple):
    """How much a single row can make up of a mixture of terms."""

    largest: float
    """The largest leverage of a row, from 1/n to 1."""
    row: int
    """The row that has it."""
    rank: int
    """The number of independent terms."""

    @property
    def shows_rows(self) -> bool:
        """Whether some mixture of the terms says too much about a row."""
        return self.largest > 1 / MIN_ROWS


def leverage(blocks: Callable[[], Iterable[FloatMatrix]]) -> Leverage:
    """Find the row that can make up the largest part of a mixture of centred terms.

    The leverage of a row is h_i = max over v of (z_i' v)^2 / sum_k (z_k' v)^2, so a bound on it holds for every mixture
    Z v of the terms at once. With h_i <= 1 / `MIN_ROWS`, every mixture z has at least `MIN_ROWS` effective rows,
    (sum z^2)^2 / sum z^4 >= `MIN_ROWS`, because sum z^4 <= max z^2 sum z^2. A term of 0 and 1 that is 1 in k of n rows
    has h_i = (1 - k/n) / k, so for such a term this is the rule that k is at least `MIN_ROWS`.

    Source of the leverage: Hoaglin and Welsch (1978), The Hat Matrix in Regression and ANOVA.

    Args:
        blocks: returns the terms of the training rows in blocks of shape (n_block_rows, n_terms), the same at each
            call. There is at least one row.
    """
    triangle: FloatMatrix | None = None
    for block in blocks():
        with_ones = np.column_stack([np.ones(len(block)), block])
        stacked = with_ones if triangle is None else np.vstack([triangle, with_ones])
        triangle = np.asarray(np.linalg.qr(stacked, mode="r"), dtype=np.float64)
    if triangle is None:
        raise ValueError("a leverage needs rows")
    # The first row of the triangle is that of the ones, so the rest is the triangle of the centred terms.
    first, triangle = triangle[0], triangle[1:, 1:]
    mean = first[1:] / first[0]
    size = np.sqrt(np.sum(triangle**2, axis=0))
    size[size <= _ROUNDING * np.abs(first[1:])] = np.inf  # A constant term says nothing.
    _, s, Vt = np.linalg.svd(triangle / size, full_matrices=False)
    kept = s > _RANK * s[0]
    orthonormal = Vt[kept].T / s[kept] / size[:, np.newaxis]
    largest, row, n_done = 0.0, 0, 0
    for block in blocks():
        each = np.sum(((block - mean) @ orthonormal) ** 2, axis=1)
        if each.max() > largest:
            largest, row = float(each.max()), n_done + int(each.argmax())
        n_done += len(block)
    return Leverage(largest, row, int(np.count_nonzero(kept)))
