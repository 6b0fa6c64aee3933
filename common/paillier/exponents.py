"""The columns in clear of an encrypted product, and the bounds of their values."""

from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import RowArray

Exponents: TypeAlias = RowArray[np.int64]
"""The columns of a product, shape (n_samples, n_columns), of which it reads a block of rows at a time."""


@dataclass(frozen=True, eq=False)
class ColumnBounds:
    """Between which numbers the values of each column lie, both bounds included; shape (n_columns,).

    A product takes less time if the bounds are close. A value beyond them is an error.

    Raises:
        ValueError: a bound is 2^62 or more in size.
    """

    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.largest >= 1 << 62:
            raise ValueError("columns must be below 2^62 in size")

    @classmethod
    def of(cls, columns: Exponents) -> Self:
        """Return the bounds of columns in memory.

        Raises:
            ValueError: they are not a table of int64, or are empty.
        """
        if not isinstance(columns, np.ndarray) or columns.ndim != 2 or columns.dtype != np.int64 or not columns.size:
            raise ValueError("columns must be a table of int64, with at least one row and one column")
        return cls(columns.min(axis=0), columns.max(axis=0))

    @property
    def largest(self) -> int:
        """The largest size of a value."""
        return max(int(self.highest.max()), -int(self.lowest.min()))
