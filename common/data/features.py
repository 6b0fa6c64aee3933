"""The features of a party's rows, by column: numbers, or the codes of categories.

These are plain arrays, because a data frame would cost a process 40 MB for the import alone. The columns of a large
table lie on disk. Whoever uses a column reads a block of rows, `column[rows]`, which gives a column in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatRows, RowArray, Rows, ScalarT_co, SelectedRows


@dataclass(frozen=True, eq=False)
class Categories:
    """A column of text. Most such columns have few different values."""

    codes: RowArray[np.int32]
    """The place of each row's value among `levels`, -1 where it is missing; shape (n_rows,)."""
    levels: tuple[str, ...]
    """Different values in ascending order. Rows may have been taken away, so a value may be in no row."""

    @classmethod
    def of(cls, codes: NDArray[np.int32], values: Sequence[str]) -> Self:
        """Return a column of values in any order, in which a value may be repeated.

        Args:
            codes: the place of each row's value among `values`, -1 where it is missing; shape (n_rows,).
            values: the values.
        """
        levels = tuple(sorted(set(values)))
        places = {level: place for place, level in enumerate(levels)}
        return cls(np.array([*map(places.__getitem__, values), -1], dtype=np.int32)[codes], levels)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | Rows, /) -> Self:
        """Return the column of some rows, in memory; see `RowArray`."""
        return type(self)(self.codes[rows], self.levels)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Whether each row's value is missing, shape (n_rows,)."""
        return self.codes[:] < 0

    def to_list(self) -> list[str | None]:
        """Return the value of each row, None where it is missing."""
        values = [*self.levels, None]
        return [values[code] for code in self.codes[:]]


Column: TypeAlias = FloatRows | Categories
"""A column of numbers, NaN where one is missing, or of text; shape (n_rows,)."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features of some rows. There may be no feature: `n_rows` holds nevertheless."""

    columns: Mapping[str, Column]
    """The columns by name, in their order."""
    n_rows: int
    """Number of rows."""

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, name: str) -> Column:
        """Return a column by its name."""
        return self.columns[name]

    def take(self, rows: slice | Rows) -> Self:
        """Return the features of some rows, in memory; see `RowArray`. A slice of what is in memory copies nothing."""
        n_rows = len(range(self.n_rows)[rows]) if isinstance(rows, slice) else len(rows)
        return type(self)({name: column[rows] for name, column in self.columns.items()}, n_rows)

    def select(self, rows: Rows) -> Self:
        """Return the features of some rows, in ascending order and none of them twice. Columns on disk stay there."""
        if len(rows) == self.n_rows:
            return self
        return type(self)({name: _selected(column, rows) for name, column in self.columns.items()}, len(rows))


def _selected(column: Column, rows: Rows) -> Column:
    if isinstance(column, Categories):
        return Categories(_rows_of(column.codes, rows), column.levels)
    return _rows_of(column, rows)


def _rows_of(array: RowArray[ScalarT_co], rows: Rows) -> RowArray[ScalarT_co]:
    return array[rows] if isinstance(array, np.ndarray) else SelectedRows(array, rows)
