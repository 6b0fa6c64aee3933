"""A party's columns as the exponents of an encrypted product, made block by block."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatRows, FloatVector, RowArray, Rows, blocks_of
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.protocol.scales import RoundScale

Extremes = tuple[FloatVector, FloatVector]
"""The lowest and the highest value of each column, each of shape (n_columns,)."""


def extremes_of(columns: FloatRows) -> Extremes:
    """Return the extremes of columns of at least one row."""
    n_columns = columns.shape[1]
    lowest, highest = np.full(n_columns, np.inf), np.full(n_columns, -np.inf)
    for rows in blocks_of(len(columns)):
        block = columns[rows]
        np.minimum(lowest, block.min(axis=0), out=lowest)
        np.maximum(highest, block.max(axis=0), out=highest)
    return lowest, highest


def fixed_bounds(extremes: Extremes, scale: RoundScale) -> ColumnBounds:
    """Return the bounds of `FixedColumns`. Rounding keeps the order of values."""
    lowest, highest = scale.encode_columns(np.stack(extremes))
    return ColumnBounds(lowest, highest)


class FixedColumns(RowArray[np.int64]):
    """Training columns in fixed point.

    Args:
        columns: the columns of the samples of a batch.
        scale: the scale of the batch.
    """

    def __init__(self, columns: FloatRows, scale: RoundScale) -> None:
        self._columns = columns
        self._scale = scale

    @property
    def shape(self) -> tuple[int, ...]:
        """See RowArray."""
        return self._columns.shape

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[np.int64]:
        return self._scale.encode_columns(self._columns[rows])


class _Beside(RowArray[np.int64]):
    """Columns of the same rows, those of one table after those of the other."""

    def __init__(self, tables: Sequence[Exponents]) -> None:
        self._tables = tables

    @property
    def shape(self) -> tuple[int, ...]:
        """See RowArray."""
        return len(self), sum(table.shape[1] for table in self._tables)

    def __len__(self) -> int:
        return len(self._tables[0])

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[np.int64]:
        return np.column_stack([table[rows] for table in self._tables])


def beside(tables: Sequence[tuple[Exponents, ColumnBounds]]) -> tuple[Exponents, ColumnBounds]:
    """Return the columns of several tables of the same rows as one table. Each has its bounds."""
    if len(tables) == 1:
        return tables[0]
    lowest = np.concatenate([bounds.lowest for _, bounds in tables])
    highest = np.concatenate([bounds.highest for _, bounds in tables])
    return _Beside([table for table, _ in tables]), ColumnBounds(lowest, highest)
