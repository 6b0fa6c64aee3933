"""A party's columns as the exponents of an encrypted product, made block by block."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.protocol.batches import Samples, spans
from trilateral.common.protocol.scales import RoundScale

BLOCK_ROWS = 8192
"""Rows that are read at a time to find the bounds of columns."""

Extremes = tuple[FloatVector, FloatVector]
"""The lowest and the highest value of each column, each of shape (n_columns,)."""


def extremes_of(columns: FloatMatrix, samples: Samples) -> Extremes:
    """Return the extremes of the columns over some rows, at least one."""
    n_columns = columns.shape[1]
    lowest, highest = np.full(n_columns, np.inf), np.full(n_columns, -np.inf)
    for first, stop in spans(len(samples), BLOCK_ROWS):
        block = samples.of(columns, first, stop)
        np.minimum(lowest, block.min(axis=0), out=lowest)
        np.maximum(highest, block.max(axis=0), out=highest)
    return lowest, highest


def fixed_bounds(extremes: Extremes, scale: RoundScale) -> ColumnBounds:
    """Return the bounds of `FixedColumns`. Rounding keeps the order of values."""
    lowest, highest = scale.encode_columns(np.stack(extremes))
    return ColumnBounds(lowest, highest)


class FixedColumns:
    """The training columns of a batch in fixed point.

    Args:
        columns: the training columns of all rows.
        samples: the rows of the batch.
        scale: the scale of the batch.
    """

    def __init__(self, columns: FloatMatrix, samples: Samples, scale: RoundScale) -> None:
        self._columns = columns
        self._samples = samples
        self._scale = scale
        self.shape = len(samples), columns.shape[1]

    def __getitem__(self, rows: slice) -> NDArray[np.int64]:
        """Return consecutive samples."""
        first, stop, _ = rows.indices(len(self._samples))
        return self._scale.encode_columns(self._samples.of(self._columns, first, stop))


class Beside:
    """Several tables of the same rows, one beside the other.

    Args:
        tables: at least one.
    """

    def __init__(self, tables: Sequence[Exponents]) -> None:
        self._tables = tables
        self.shape = tables[0].shape[0], sum(table.shape[1] for table in tables)

    def __getitem__(self, rows: slice) -> NDArray[np.int64]:
        """Return consecutive rows."""
        return np.column_stack([table[rows] for table in self._tables])


def bounds_beside(bounds: Sequence[ColumnBounds]) -> ColumnBounds:
    """Return the bounds of `Beside`."""
    return ColumnBounds(
        np.concatenate([each.lowest for each in bounds]), np.concatenate([each.highest for each in bounds])
    )
