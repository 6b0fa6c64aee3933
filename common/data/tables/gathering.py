"""The features of a table that is read in batches, first in the order of the file and then in that of the IDs.

Each column is an array of its own. A table that is larger than the memory is put in order one column at a time.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from trilateral.common.base.arrays import FloatRows, RowArray, blocks_of
from trilateral.common.base.heap import trim_heap
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.data.features import Categories, Column, Features
from trilateral.common.scratch.arrays import ScalarT, Scratch

NUMBER_BYTES, CODE_BYTES = 8, 4
"""Bytes of a value in scratch space: a number, and the code of a category."""


class GatheredFeatures:
    """Receives the features of a file, batch by batch.

    Args:
        names: names of the features.
        categorical: those of them that are categories.
        n_rows: the expected number of rows; 0 if it is not known.
        scratch: where the columns lie.
        is_trained: whether training columns are made of them all, for which there must be room too.

    Raises:
        ConfigError: there is no room for so many rows.
    """

    def __init__(
        self, names: Sequence[str], categorical: Sequence[str], n_rows: int, scratch: Scratch, *, is_trained: bool
    ) -> None:
        self._scratch = scratch
        widths = [CODE_BYTES if name in categorical else NUMBER_BYTES for name in names]
        # While a column is put in order, it is there twice. Later the training columns, of which most features give at
        # least one, are there beside the columns of the table.
        beside = NUMBER_BYTES * len(names) if is_trained else max(widths, default=0)
        scratch.reserve(n_rows * (sum(widths) + beside))
        self._columns: dict[str, _Numbers | _Codes] = {
            name: _Codes(n_rows, scratch) if name in categorical else _Numbers(n_rows, scratch) for name in names
        }

    def append(self, batch: Features) -> None:
        """Append the rows of a batch.

        Raises:
            ConfigError: there is no room for them.
        """
        for name, column in self._columns.items():
            column.append(batch[name])

    def finish(self, arrange: Callable[[Column], Column] | None, n_rows: int) -> Features:
        """Return the features. Call it once, after the last batch.

        Args:
            arrange: gets each column in memory, in the order of the file, and returns the rows that are wanted; None if
                these are all rows as they are.
            n_rows: the number of rows that are wanted.

        Raises:
            ConfigError: there is no room for the columns.
        """
        finished: dict[str, Column] = {}
        names = [*self._columns]
        for done, name in enumerate(names):
            report_progress(Stage.SORTING, done, len(names))
            column = self._columns.pop(name).finish()
            finished[name] = column if arrange is None else _stored(arrange(column[:]), self._scratch)
            del column
            release_freed_memory()
        return Features(finished, n_rows)


class _Numbers:
    """A column of numbers."""

    def __init__(self, n_rows: int, scratch: Scratch) -> None:
        self._numbers = scratch.array(np.float64, (n_rows,))

    def append(self, numbers: Column) -> None:
        if isinstance(numbers, Categories):
            raise TypeError("a column of numbers has categories")
        self._numbers.append(numbers[:])

    def finish(self) -> FloatRows:
        return self._numbers.finish()


class _Codes:
    """A column of categories, whose values are numbered as they appear."""

    def __init__(self, n_rows: int, scratch: Scratch) -> None:
        self._scratch = scratch
        self._codes = scratch.array(np.int32, (n_rows,))
        self._places: dict[str, int] = {}

    def append(self, categories: Column) -> None:
        if not isinstance(categories, Categories):
            raise TypeError("a column of categories has numbers")
        places = [self._places.setdefault(level, len(self._places)) for level in categories.levels]
        self._codes.append(np.array([*places, -1], dtype=np.int32)[categories.codes[:]])

    def finish(self) -> Categories:
        values = [*self._places]
        if values == sorted(values):
            return Categories(self._codes.finish(), tuple(values))
        renumbered = self._scratch.array(np.int32, (len(self._codes),))
        levels: tuple[str, ...] = ()
        for block in blocks_of(len(self._codes)):
            part = Categories.of(self._codes[block], values)
            renumbered.append(part.codes[:])
            levels = part.levels
        return Categories(renumbered.finish(), levels)


def _stored(column: Column, scratch: Scratch) -> Column:
    """Move a column from memory to scratch space."""
    if isinstance(column, Categories):
        return Categories(_stored_array(column.codes, np.int32, scratch), column.levels)
    return _stored_array(column, np.float64, scratch)


def _stored_array(array: RowArray[ScalarT], dtype: type[ScalarT], scratch: Scratch) -> RowArray[ScalarT]:
    stored = scratch.array(dtype, (len(array),))
    for block in blocks_of(len(array)):
        stored.append(array[block])
    return stored.finish()


def release_freed_memory() -> None:
    """Give memory back that Arrow and the C library keep after a whole table went through it."""
    pa.default_memory_pool().release_unused()
    trim_heap()
