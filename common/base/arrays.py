"""Type names for numpy arrays, and for arrays that are read by rows wherever they lie."""

from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatVector = NDArray[np.float64]
"""Floating-point numbers, shape (n,)."""
FloatMatrix = NDArray[np.float64]
"""Floating-point numbers, shape (n_rows, n_columns)."""
FloatArray = NDArray[np.float64]
"""Floating-point numbers, shape (n,) or (n_rows, n_columns)."""
IntMatrix = NDArray[np.int64]
"""Integers, shape (n_rows, n_columns)."""
Rows = NDArray[np.int64]
"""Row numbers, shape (n,)."""
ElementVector = NDArray[np.uint64]
"""Elements of the ring of integers modulo 2^64, shape (n,)."""


def of_each_row(are_true: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether all values of each row are true, shape (n_rows,), for an array of one dimension or more."""
    return np.asarray(are_true.all(axis=tuple(range(1, are_true.ndim))), dtype=np.bool_)


BLOCK_ROWS = 65_536
"""Rows that are read and computed with at once. Sums over blocks of one size are the same to the last bit wherever the
rows lie."""

ScalarT_co = TypeVar("ScalarT_co", bound=np.generic, covariant=True)


class RowArray(Protocol[ScalarT_co]):
    """An array that is read by rows. It lies in memory, as a numpy array does, or on disk.

    Code that takes one reads a block of rows at a time and never all rows together.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; the first dimension is the rows."""
        ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[ScalarT_co]:
        """Return some rows.

        Args:
            rows: a slice of step 1, or row numbers from 0 up in ascending order.

        Returns:
            Shape (n_rows, ...). Do not change it: it may be a view.
        """
        ...


FloatRows: TypeAlias = RowArray[np.float64]
"""Floating-point numbers, shape (n_rows,) or (n_rows, n_columns)."""


class SelectedRows(RowArray[ScalarT_co]):
    """Some rows of an array, which are read when they are needed.

    Args:
        array: the array.
        rows: row numbers in ascending order.
    """

    def __init__(self, array: RowArray[ScalarT_co], rows: Rows) -> None:
        self._array, self._rows = array, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; see `RowArray`."""
        return (len(self._rows), *self._array.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[ScalarT_co]:
        return self._array[self._rows[rows]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def blocks_of(n_rows: int, size: int = BLOCK_ROWS) -> list[slice]:
    """Return slices that cover rows 0 .. n_rows - 1, each of `size` rows but the last."""
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
