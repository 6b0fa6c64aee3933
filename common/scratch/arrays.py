"""What scratch space offers: arrays that are filled in order and read by rows. Pure, so that state machines can use it.

`MemoryScratch` keeps everything in memory. `trilateral.common.scratch.space` moves what is large to disk.
"""

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trilateral.common.base.arrays import RowArray, Rows

ScalarT = TypeVar("ScalarT", bound=np.generic)


class Array(RowArray[ScalarT], Protocol[ScalarT]):
    """An array that grows by appended rows. The rows so far can be read at any time."""

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """The type of an entry."""
        ...

    def append(self, rows: NDArray[ScalarT]) -> None:
        """Append rows. They are copied.

        Args:
            rows: shape (n_rows, ...), of the type of the array.

        Raises:
            ConfigError: the settings or the disk leave no room for them.
            ValueError: the rows have another shape or type.
        """
        ...

    def finish(self) -> RowArray[ScalarT]:
        """Return the array to read from, after the last row: a numpy array if it lies in memory."""
        ...

    def close(self) -> None:
        """Free the space now. Without this call, it is free once nothing refers to the array."""
        ...


class Scratch(Protocol):
    """The scratch space of one job or one command."""

    def array(self, dtype: type[ScalarT], shape: tuple[int, ...]) -> Array[ScalarT]:
        """Make an empty array.

        Args:
            dtype: the type of an entry, such as `numpy.float64`.
            shape: the expected number of rows, or 0 if it is not known, and the shape of a row. The room for the
                expected rows is set aside at once. More rows than expected may be appended.

        Raises:
            ConfigError: the settings or the disk leave no room for so many rows.
            ValueError: the job has ended.
        """
        ...

    def reserve(self, n_bytes: int) -> None:
        """Set room aside for all arrays that this scratch space will have at one time.

        Call it before long work, so that it fails before the work rather than after.

        Args:
            n_bytes: the total size of these arrays.

        Raises:
            ConfigError: the settings or the disk leave no room for so many bytes.
        """
        ...


class MemoryArray(Array[ScalarT]):
    """An array in memory.

    Args:
        dtype: see `Scratch.array`.
        shape: see there.

    Attributes:
        buffer: holds the rows and may have room for more.
    """

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        self.buffer: NDArray[ScalarT] = np.empty(shape, dtype)
        self._n_rows = 0

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """The type of an entry."""
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; see `RowArray`."""
        return (self._n_rows, *self.buffer.shape[1:])

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[ScalarT]:
        return self.finish()[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.finish(), dtype)

    def append(self, rows: NDArray[ScalarT]) -> None:
        """Append rows; see `Array`."""
        check_rows(self, rows)
        end = self._n_rows + len(rows)
        if end > len(self.buffer):
            self.make_room(max(end, 2 * len(self.buffer)))
        self.buffer[self._n_rows : end] = rows
        self._n_rows = end

    def make_room(self, n_rows: int) -> None:
        """Move the rows to a buffer for `n_rows` rows."""
        larger: NDArray[ScalarT] = np.empty((n_rows, *self.buffer.shape[1:]), self.dtype)
        larger[: self._n_rows] = self.buffer[: self._n_rows]
        self.buffer = larger

    def finish(self) -> NDArray[ScalarT]:
        """Return the rows; see `Array`."""
        return self.buffer[: self._n_rows]

    def close(self) -> None:
        """Free the space; see `Array`."""
        self.buffer = self.buffer[:0].copy()
        self._n_rows = 0


class MemoryScratch(Scratch):
    """Scratch space that is all in memory and without a limit."""

    def array(self, dtype: type[ScalarT], shape: tuple[int, ...]) -> MemoryArray[ScalarT]:
        """Make an empty array; see `Scratch`."""
        return MemoryArray(dtype, shape)

    def reserve(self, n_bytes: int) -> None:
        """Do nothing."""


IN_MEMORY = MemoryScratch()
"""Scratch space without a limit, for small tables and tests."""


def check_rows(array: Array[ScalarT], rows: NDArray[ScalarT]) -> None:
    """Check that rows may be appended to an array.

    Raises:
        ValueError: they have another shape or type.
    """
    if rows.dtype != array.dtype or rows.shape[1:] != array.shape[1:]:
        raise ValueError(f"rows of shape {rows.shape} and type {rows.dtype} do not fit an array of {array.dtype}")
