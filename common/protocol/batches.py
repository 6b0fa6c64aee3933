"""Which rows are held out, and which rows form a batch. Both parties draw the same rows from the job's seed.

A party may decide the folds of a cross-validation in place of the seed; see `row_roles`.

Nothing here is secret. Every order comes from the raw 64-bit stream of a Philox generator and a stable sort. numpy
guarantees the same stream of a bit generator in every version, but not the same results of the methods of `Generator`,
such as `permutation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import RowArray, Rows, SelectedRows
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.row_roles import RoleVector, rows_of

ScalarT = TypeVar("ScalarT", bound=np.generic)


class _Purpose(IntEnum):
    """Keeps orders for different purposes independent under one seed."""

    HOLDOUT = 1
    BATCHES = 2
    CURVATURE = 3
    EPOCH = 4
    ROUNDING = 5
    FOLDS = 6


def _order(n_rows: int, seed: int, purpose: _Purpose, number: int, stream: tuple[int, int] = (0, 0)) -> Rows:
    numbers = _numbers(n_rows, seed, purpose, number, stream)
    return np.argsort(numbers, kind="stable").astype(np.int64, copy=False)


def _are_first(size: int, n_rows: int, seed: int, purpose: _Purpose, number: int) -> NDArray[np.bool_]:
    """Return whether each row is among the first `size` rows of an order, shape (n_rows,).

    This takes far less time and memory than the order itself.
    """
    if size in {0, n_rows}:
        return np.full(n_rows, size > 0)
    numbers = _numbers(n_rows, seed, purpose, number)
    last = np.partition(numbers, size - 1)[size - 1]
    are_first: NDArray[np.bool_] = numbers < last
    # In a stable order, the first of equal numbers come first.
    equal = np.flatnonzero(numbers == last)
    are_first[equal[: size - np.count_nonzero(are_first)]] = True
    return are_first


def _numbers(
    n_rows: int, seed: int, purpose: _Purpose, number: int, stream: tuple[int, int] = (0, 0)
) -> NDArray[np.uint64]:
    """Return the numbers that put rows in an order, shape (n_rows,). They are independent of those of other streams."""
    key = np.array([seed, purpose << 48 | number], dtype=np.uint64)
    # The generator counts in the two lower words of its counter.
    return np.random.Philox(key=key, counter=np.array([0, 0, *stream], dtype=np.uint64)).random_raw(n_rows)


def holdout_split(n_rows: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows 0 .. n_rows - 1 into training rows and round(fraction * n_rows) hold-out rows, each sorted."""
    are_held_out = _are_first(round(fraction * n_rows), n_rows, seed, _Purpose.HOLDOUT, 0)
    return np.flatnonzero(~are_held_out), np.flatnonzero(are_held_out)


def rounding_order(n_rows: int, seed: int) -> Rows:
    """Return an order of rows in which rounding errors of their weights are carried on, shape (n_rows,)."""
    return _order(n_rows, seed, _Purpose.ROUNDING, 0)


@dataclass(frozen=True)
class Batch:
    """Which samples a round works on: batch `index` of `epoch`, or all of them if `epoch` is 0.

    In a job with folds, an epoch has one batch: all training rows, or those outside or inside of a fold.

    In a job with classes, `index` is the class that is told from the rest, and the samples are all of them.
    """

    epoch: int
    index: int = 0
    fold: int = 0
    """Which fold is left out, from 1 up; 0 for none."""
    held_out: bool = False
    """Whether the batch is that fold alone, and not the rows outside of it."""


WHOLE_SET = Batch(0)
"""All training rows."""


@dataclass(frozen=True)
class Batches:
    """The batches S: the training rows 0 .. n_train - 1 in one drawn order, cut into parts of nearly equal size.

    Every epoch has the same batches in a new order. New batches in every epoch would give new sums over the same
    labels. With a small learning rate, anyone who knows the features could then solve for the labels by least squares
    after some epochs, however large the batches are.

    There are n_train // batch batches, and their sizes differ by at most one, so that none is smaller than `batch`. If
    the rows left over formed a batch, it could have only a few rows, and its gradient would reveal too much about them.

    Raises:
        ValueError: there are fewer training rows than `batch`.
    """

    n_train: int
    batch: int | Literal["all"]
    seed: int
    curvature_batch: int | None = None
    """|S_H|, if S_H is drawn separately from S."""
    n_folds: int = 0
    """Folds of a cross-validation, which are the parts if there are any."""
    n_classes: int | None = None
    """The number of classes; None if the job fits one model."""
    is_apart: bool = False
    """Whether another number of rows or parts gives an independent order. Otherwise the first batch of 100 rows is the
    first one of 101 but for a row, and whoever sees the sums of both jobs sees that row. Folds are always apart.
    Batches under `paillier` are not, as in release 0.1.0, whose jobs continue. There the secret start differs."""
    fold_sizes: Sequence[int] | None = None
    """Rows of each fold; None if the seed draws folds of nearly equal size."""
    folds: RoleVector | None = field(default=None, repr=False, compare=False)
    """At a party, with `fold_sizes`: the fold of each training row, from 0 up; shape (n_train,)."""

    @classmethod
    def of(cls, job: JobConfig, n_train: int, folds: RoleVector | None = None, fold_sizes: Sequence[int] = ()) -> Self:
        """Return the batches of a job.

        Args:
            job: the job.
            n_train: training rows.
            folds: at a party, the fold of each training row if a party decides it; shape (n_train,).
            fold_sizes: at the coordinator, the rows of each of these folds.

        Raises:
            ValueError: the sizes do not fit the job.
        """
        if folds is not None:
            fold_sizes = np.bincount(folds, minlength=job.folds or 0).tolist()
        return cls(
            n_train,
            job.batch,
            job.seed,
            job.curvature_batch,
            job.folds or 0,
            job.classes,
            job.protocol == "shares",
            tuple(fold_sizes) or None,
            folds,
        )

    def __post_init__(self) -> None:
        if self.batch != "all" and not 1 <= self.batch <= self.n_train:
            raise ValueError(f"a batch of {self.batch} cannot be drawn from {self.n_train} rows")
        if self.n_folds > self.n_train:
            raise ValueError(f"{self.n_folds} folds cannot be drawn from {self.n_train} rows")
        sizes = self.fold_sizes
        if sizes is not None and (len(sizes) != self.n_folds or sum(sizes) != self.n_train or min(sizes) < 1):
            raise ValueError("the sizes of the folds do not fit the job and its rows")

    @property
    def count(self) -> int:
        """Batches in an epoch."""
        return 1 if self.batch == "all" else self.n_train // self.batch

    @property
    def n_parts(self) -> int:
        """Parts that the rows are cut into: the folds, or the batches of an epoch."""
        return self.n_folds or self.count

    @property
    def sizes(self) -> set[int]:
        """Every size that a batch can have, that of the whole training set included."""
        return {self.n_train // self.count, -(-self.n_train // self.count), self.n_train}

    def rows(self, batch: Batch) -> Rows:
        """Return S, the sorted rows of a batch."""
        numbers = self.parts_of(batch)
        if len(numbers) == self.n_parts:
            return np.arange(self.n_train, dtype=np.int64)
        rows = [self._parts[number] for number in numbers]
        return rows[0] if len(rows) == 1 else np.sort(np.concatenate(rows))

    def select(self, batch: Batch, table: RowArray[ScalarT]) -> RowArray[ScalarT]:
        """Return the rows S of a table or vector, which are read when they are needed."""
        return table if self.size(batch) == self.n_train else SelectedRows(table, self.rows(batch))

    def size(self, batch: Batch) -> int:
        """Return |S| without drawing S."""
        if batch == WHOLE_SET:
            return self.n_train
        return sum(self.part_size(number) for number in self.parts_of(batch))

    def parts_of(self, batch: Batch) -> Sequence[int]:
        """Return the numbers of the parts that a batch consists of.

        Raises:
            ValueError: the job has no such batch.
        """
        if batch.fold:
            if not 1 <= batch.fold <= self.n_folds or batch.index:
                raise ValueError(f"there is no fold {batch.fold}: the job has {self.n_folds}")
            return [number for number in range(self.n_parts) if (number == batch.fold - 1) is batch.held_out]
        if batch == WHOLE_SET or self.n_folds:
            return range(self.n_parts)
        return [self.part(batch)]

    @cached_property
    def _parts(self) -> list[Rows]:
        """The batches of every epoch. They are drawn and sorted once, because every round needs one of them."""
        if self.folds is not None:
            return [rows_of(self.folds, number) for number in range(self.n_folds)]
        purpose = _Purpose.FOLDS if self.n_folds else _Purpose.BATCHES
        stream = (self.n_train, self.n_parts) if self.n_folds or self.is_apart else (0, 0)
        order = _order(self.n_train, self.seed, purpose, 0, stream)
        return [np.sort(part) for part in np.array_split(order, self.n_parts)]

    def part_rows(self, part: int) -> Rows:
        """Return the sorted rows of a part, from 0 up: a fold, or one batch of every epoch."""
        return np.arange(self.n_train, dtype=np.int64) if self.n_parts == 1 else self._parts[part]

    def part_size(self, part: int) -> int:
        """Return how many rows a part has, without drawing them."""
        if self.fold_sizes is not None:
            return self.fold_sizes[part]
        # np.array_split makes the first parts larger by one.
        return self.n_train // self.n_parts + (part < self.n_train % self.n_parts)

    def part_of_rows(self) -> NDArray[np.int32]:
        """Return the part of each training row, a fold or a batch, from 0 up; shape (n_train,)."""
        parts = np.zeros(self.n_train, dtype=np.int32)
        for number in range(self.n_parts):
            parts[self.part_rows(number)] = number
        return parts

    def part(self, batch: Batch) -> int:
        """Return the number of the part that is batch `index` of its epoch.

        Raises:
            ValueError: the job has no such batch.
        """
        if batch.epoch < 1 or not 0 <= batch.index < self.count:
            raise ValueError(f"there is no batch {batch.index} of epoch {batch.epoch}: an epoch has {self.count}")
        return int(_order(self.count, self.seed, _Purpose.EPOCH, batch.epoch)[batch.index])

    def curvature_rows(self, batch: Batch, draw: int) -> Rows:
        """Return S_H, sorted: the round's own batch if `draw` is 0, else draw number `draw`."""
        if draw == 0 or self.curvature_batch is None:
            return self.rows(batch)
        return subsample(self.n_train, self.curvature_batch, self.seed, draw)

    def select_curvature(self, batch: Batch, draw: int, table: RowArray[ScalarT]) -> RowArray[ScalarT]:
        """Return the rows S_H of a table or vector; see `select` and `curvature_rows`."""
        if draw == 0 or self.curvature_batch is None:
            return self.select(batch, table)
        return SelectedRows(table, self.curvature_rows(batch, draw))

    def curvature_size(self, batch: Batch, draw: int) -> int:
        """Return |S_H| without drawing S_H."""
        return self.size(batch) if draw == 0 or self.curvature_batch is None else self.curvature_batch


def subsample(n_train: int, size: int, seed: int, draw: int) -> Rows:
    """Draw curvature batch S_H number `draw`, from 1 up: `size` different training rows, sorted."""
    if draw < 1 or not 1 <= size <= n_train:
        raise ValueError(f"draw {draw} of {size} rows out of {n_train} is not possible")
    return np.flatnonzero(_are_first(size, n_train, seed, _Purpose.CURVATURE, draw))
