"""A party's tables of shares: made once, in the order of `rows`, and read by blocks wherever they lie.

Columns are rounded at random. Two roundings under one mask would tell the other party their difference, so the integers
are made once in a session and kept.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatMatrix, RowArray, Rows, blocks_of
from trilateral.common.base.errors import DataError
from trilateral.common.protocol.shares.blocks import Tile
from trilateral.common.protocol.shares.rows import RowPlan, RowRange, Section
from trilateral.common.scratch.arrays import Array, Scratch
from trilateral.common.shares.layout import GROUP

ScalarT = TypeVar("ScalarT", np.int8, np.int32, np.uint64)

SHUFFLE_BYTES = 64 * 2**20
"""Bytes of a table on disk that are brought into another order in memory at a time."""

MAX_PARTS = 256
"""The most parts into which such a table is cut: each is a file."""


class Table(Generic[ScalarT]):
    """A table in the layout of `shares.layout`. Its rows are appended in order, and read by runs.

    Args:
        scratch: where it lies.
        dtype: of an element.
        n_rows: rows that it will have.
        n_columns: columns.
    """

    def __init__(self, scratch: Scratch, dtype: type[ScalarT], n_rows: int, n_columns: int) -> None:
        self._array: Array[ScalarT] = scratch.array(dtype, (n_rows // GROUP, n_columns * GROUP))
        self._n_elements = n_columns * GROUP

    def append(self, rows: RowRange, elements: NDArray[ScalarT]) -> None:
        """Append the next rows, shape (n_rows * n_columns,)."""
        if rows.first != len(self._array) * GROUP:
            raise ValueError(f"rows from {rows.first}, but those from {len(self._array) * GROUP} come next")
        self._array.append(elements.reshape(rows.n_rows // GROUP, self._n_elements))

    def __getitem__(self, rows: RowRange) -> NDArray[ScalarT]:
        """Return some rows, shape (n_rows * n_columns,). Do not change them."""
        groups: NDArray[ScalarT] = self._array[rows.first // GROUP : rows.end // GROUP]
        return groups.reshape(-1)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the values of some rows."""

    norm: float
    """The largest Euclidean norm of a row."""
    spread: float
    """The largest root of the sum of squared scores, for weights of norm 1."""
    fourth: float
    """The largest sum of the fourth powers of a column."""


def measure(columns: RowArray[np.float64]) -> Sizes:
    """Return the sizes of the values of a matrix, shape (n_rows, n_columns)."""
    n_rows, n_columns = columns.shape
    norm, gram, fourth = 0.0, np.zeros((n_columns, n_columns)), np.zeros(n_columns)
    if not n_rows or not n_columns:
        return Sizes(0.0, 0.0, 0.0)
    for block in blocks_of(n_rows):
        values = columns[block]
        norm = max(norm, float(np.einsum("ij,ij->i", values, values).max()))
        gram += values.T @ values
        fourth += np.square(values * values).sum(axis=0)
    return Sizes(math.sqrt(norm), math.sqrt(float(np.linalg.eigvalsh(gram)[-1])), float(fourth.max()))


def round_columns(values: FloatMatrix, n_rows: int, scale: int, random: np.random.Generator) -> Tile:
    """Round columns to integers, at random, so that no column of few values is biased.

    Args:
        values: shape (at most n_rows, n_columns).
        n_rows: rows of the result. The others are 0.
        scale: `Format.column_scale`.
        random: the source of the roundings.

    Returns:
        Shape (n_rows * n_columns,), in the layout.

    Raises:
        DataError: a value does not fit.
    """
    n_columns = values.shape[1]
    scaled = np.zeros((n_rows, n_columns))
    np.multiply(values, scale, out=scaled[: len(values)])
    scaled += random.random(scaled.shape)
    np.floor(scaled, out=scaled)
    if not (np.abs(scaled) < 2.0**31).all():
        most = 2.0**31 / scale
        raise DataError(
            f"a value of a training column exceeds {most:g} standard deviations, the most that `protocol:"
            " shares` takes: set `preprocessing.clip`"
        )
    by_group = scaled.reshape(n_rows // GROUP, GROUP, n_columns).transpose(0, 2, 1)
    return by_group.astype(np.int32, order="C").reshape(-1)


class SectionOrder:
    """Reads rows in the order of the tables: the training rows by section, then the hold-out rows.

    Args:
        plan: the job's rows.
        scratch: where a table on disk is brought into this order.
    """

    def __init__(self, plan: RowPlan, scratch: Scratch) -> None:
        self._plan = plan
        self._scratch = scratch
        self._order = plan.draw_order()

    def blocks(
        self, training: RowArray[np.float64], holdout: RowArray[np.float64]
    ) -> Iterator[tuple[int, RowRange, NDArray[np.float64]]]:
        """Yield the blocks of all sections, in order.

        Args:
            training: values of the training rows, shape (n_train, ...).
            holdout: values of the hold-out rows.

        Yields:
            The number of the section, the rows, and the values of those that are samples, which come first.
        """
        samples = self._in_order(training)
        for number, section in enumerate(self._plan.sections):
            yield from _blocks_of(number, section, samples)
        yield from _blocks_of(self._plan.n_sections, self._plan.holdout, _Following(holdout.__getitem__))

    def _in_order(self, table: RowArray[np.float64]) -> "_Following":
        order = self._order
        if order is None:
            return _Following(table.__getitem__)
        if isinstance(table, np.ndarray):
            return _Following(lambda places: table[order[places]])
        return _Following(_Shuffled(table, order, self._scratch).read)


class _Following:
    """Reads rows one run after the other.

    Args:
        read: returns the rows at some places.
    """

    def __init__(self, read: Callable[[slice], NDArray[np.float64]]) -> None:
        self._read = read
        self._place = 0

    def take(self, n_rows: int) -> NDArray[np.float64]:
        """Return the next rows."""
        first = self._place
        self._place += n_rows
        return self._read(slice(first, self._place))


def _blocks_of(
    number: int, section: Section, samples: _Following
) -> Iterator[tuple[int, RowRange, NDArray[np.float64]]]:
    end = section.first + section.n_real
    for rows in section.blocks():
        yield number, rows, samples.take(min(rows.n_rows, end - rows.first))


class _Shuffled:
    """A table on disk in another order. It is read once, whatever the order, and written and read once more.

    The order is cut into parts that fit in memory. The first pass appends each row to the part that it belongs to. The
    second pass reads one part after the other, and brings its rows into their order in memory.

    Args:
        table: shape (n_rows, ...).
        order: the rows of the table in the order to read.
        scratch: for the parts.
    """

    def __init__(self, table: RowArray[np.float64], order: Rows, scratch: Scratch) -> None:
        self._order = order
        row_bytes = 8 * math.prod(table.shape[1:])
        self._size = max(1, SHUFFLE_BYTES // max(1, row_bytes), -(-len(order) // MAX_PARTS))
        """Rows of a part."""
        part_of = np.empty(len(order), np.uint16)
        self._parts = []
        for number, start in enumerate(range(0, len(order), self._size)):
            rows = order[start : start + self._size]
            part_of[rows] = number
            self._parts.append(scratch.array(np.float64, (len(rows), *table.shape[1:])))
        for block in blocks_of(len(order)):
            values, numbers = table[block], part_of[block]
            by_part = np.argsort(numbers, kind="stable")
            ends = np.cumsum(np.bincount(numbers, minlength=len(self._parts)))
            for part, start, end in zip(self._parts, [0, *ends], ends, strict=False):
                if start < end:
                    part.append(values[by_part[start:end]])
        self._loaded = -1
        self._rows: NDArray[np.float64] = np.zeros(0)
        self._places: Rows = np.zeros(0, np.int64)

    def read(self, places: slice) -> NDArray[np.float64]:
        """Return the rows at some places of the order. They may not lie before those that were read last."""
        found = []
        start = places.start
        while start < places.stop:
            part = start // self._size
            self._load(part)
            end = min(places.stop, (part + 1) * self._size)
            found.append(self._rows[self._places[start - part * self._size : end - part * self._size]])
            start = end
        return found[0] if len(found) == 1 else np.concatenate([self._rows[:0], *found])

    def _load(self, part: int) -> None:
        if part == self._loaded:
            return
        self._rows, self._loaded = self._parts[part][:], part
        self._parts[part].close()
        # Within a part, rows have the order of the table.
        rows = self._order[part * self._size : (part + 1) * self._size]
        self._places = np.empty(len(rows), np.int64)
        self._places[np.argsort(rows)] = np.arange(len(rows))
