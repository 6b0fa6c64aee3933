"""Which rows are held out, and which form a batch. Both parties draw them from the job's seed, with the same result.

Nothing here is secret. Every order comes from the raw 64-bit stream of a Philox generator and a stable sort. numpy
keeps the streams of its bit generators from version to version, but not the results of methods of `Generator`, such as
`permutation`.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Literal, Self

import numpy as np

from trilateral.common.base.arrays import Rows
from trilateral.common.config.job import JobConfig


class _Purpose(IntEnum):
    """Keeps orders for different purposes independent under one seed."""

    HOLDOUT = 1
    BATCHES = 2
    CURVATURE = 3
    EPOCH = 4


def _order(n_rows: int, seed: int, purpose: _Purpose, number: int) -> Rows:
    key = np.array([seed, purpose << 48 | number], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(n_rows), kind="stable").astype(np.int64)


def holdout_split(n_rows: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows 0 .. n_rows - 1 into training rows and round(fraction * n_rows) hold-out rows, each sorted."""
    order = _order(n_rows, seed, _Purpose.HOLDOUT, 0)
    n_holdout = round(fraction * n_rows)
    return np.sort(order[n_holdout:]), np.sort(order[:n_holdout])


@dataclass(frozen=True)
class Batch:
    """Which samples a round works on: batch `index` of `epoch`, or all of them if `epoch` is 0."""

    epoch: int
    index: int = 0


WHOLE_SET = Batch(0)
"""All training rows."""


@dataclass(frozen=True)
class Batches:
    """The batches S: the training rows 0 .. n_train - 1 in one drawn order, cut into equal parts.

    Every epoch has the same batches in a new order. New batches in every epoch would be new sums over the same labels.
    With a small learning rate, somebody who knows the features could then solve for the labels by least squares after
    some epochs, however large the batches.

    There are n_train // batch batches, whose sizes differ by at most one, so that none is smaller than `batch`. The
    remainder of a division could be a batch of a few rows, whose gradient would show too much of them.

    Raises:
        ValueError: there are fewer training rows than `batch`.
    """

    n_train: int
    batch: int | Literal["all"]
    seed: int
    curvature_batch: int | None = None
    """|S_H|, if S_H is drawn separately from S."""

    @classmethod
    def of(cls, job: JobConfig, n_train: int) -> Self:
        """The batches of a job."""
        return cls(n_train, job.batch, job.seed, job.curvature_batch)

    def __post_init__(self) -> None:
        if self.batch != "all" and not 1 <= self.batch <= self.n_train:
            raise ValueError(f"a batch of {self.batch} cannot be drawn from {self.n_train} rows")

    @property
    def count(self) -> int:
        """Batches in an epoch."""
        return 1 if self.batch == "all" else self.n_train // self.batch

    def rows(self, batch: Batch) -> Rows:
        """Return S, the sorted rows of a batch."""
        if self.size(batch) == self.n_train:
            return np.arange(self.n_train, dtype=np.int64)
        return self._parts[self._part(batch)]

    def size(self, batch: Batch) -> int:
        """Return |S| without drawing S."""
        if batch == WHOLE_SET:
            return self.n_train
        # As np.array_split cuts: the first ones are larger by one.
        return self.n_train // self.count + (self._part(batch) < self.n_train % self.count)

    @cached_property
    def _parts(self) -> list[Rows]:
        """The batches of every epoch. They are drawn and sorted once, since every round needs one."""
        order = _order(self.n_train, self.seed, _Purpose.BATCHES, 0)
        return [np.sort(part) for part in np.array_split(order, self.count)]

    def _part(self, batch: Batch) -> int:
        """Return which part of the rows is batch `index` of its epoch."""
        if batch.epoch < 1 or not 0 <= batch.index < self.count:
            raise ValueError(f"there is no batch {batch.index} of epoch {batch.epoch}: an epoch has {self.count}")
        return int(_order(self.count, self.seed, _Purpose.EPOCH, batch.epoch)[batch.index])

    def curvature_rows(self, batch: Batch, draw: int) -> Rows:
        """Return S_H, sorted: the round's own batch if `draw` is 0, else draw number `draw`."""
        if draw == 0 or self.curvature_batch is None:
            return self.rows(batch)
        return subsample(self.n_train, self.curvature_batch, self.seed, draw)

    def curvature_size(self, batch: Batch, draw: int) -> int:
        """Return |S_H| without drawing S_H."""
        return self.size(batch) if draw == 0 or self.curvature_batch is None else self.curvature_batch


def subsample(n_train: int, size: int, seed: int, draw: int) -> Rows:
    """Draw the curvature batch S_H number `draw`, from 1 up: `size` different training rows, sorted."""
    if draw < 1 or not 1 <= size <= n_train:
        raise ValueError(f"draw {draw} of {size} rows out of {n_train} is not possible")
    return np.sort(_order(n_train, seed, _Purpose.CURVATURE, draw)[:size])
