"""Where the rows of a job lie in its tables of shares: sections, ranges and blocks.

Every table and every stream has its rows in one order: the training rows, batch by batch, then the hold-out rows. A
*section* is one batch, or the hold-out rows. It ends with rows of zeros, which fill its last group, so the training
rows of all sections are one *range* as well. A range is worked through in *blocks*, from its first row.

In a job with folds, the sections of training rows are the folds. A round works on all of them, on all but one, or on
one. Each section is then a range of its own, so a fold has the same blocks in every round.

The products of the columns with the labels have a *vector* for each section. In a job with classes there is one section
of training rows, and a vector for each class, whose labels are that class against the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Self

import numpy as np

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.common.shares.format import Format
from trilateral.common.shares.layout import BLOCK_ROWS, pad


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of the tables: a section, several sections, or a block of them."""

    first: int
    n_rows: int
    """Rows in the tables, those of zeros included: a multiple of `layout.ROWS`."""

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + self.n_rows

    def blocks(self) -> Iterator["RowRange"]:
        """Yield the blocks, in order. All have `BLOCK_ROWS` rows, except that the last may have fewer."""
        for first in range(self.first, self.end, BLOCK_ROWS):
            yield RowRange(first, min(BLOCK_ROWS, self.end - first))

    def runs(self, n_blocks: int) -> Iterator[Sequence["RowRange"]]:
        """Yield the blocks, in order, as many at a time."""
        blocks = self.blocks()
        while run := list(islice(blocks, n_blocks)):
            yield run


@dataclass(frozen=True)
class Section(RowRange):
    """A range of whole sections: what one loss or one gradient is a sum over."""

    n_real: int
    """Rows that are samples. The others are zeros."""


@dataclass(frozen=True)
class Selection:
    """The training rows of a round: some of the sections."""

    numbers: Sequence[int]
    """The numbers of the sections, in ascending order."""
    ranges: tuple[Section, ...]
    """Their rows, in order: a range for each section, or one for all of them."""

    @property
    def n_rows(self) -> int:
        """Rows in the tables, those of zeros included."""
        return sum(each.n_rows for each in self.ranges)

    @property
    def n_real(self) -> int:
        """Rows that are samples."""
        return sum(each.n_real for each in self.ranges)

    def blocks(self) -> Iterator[RowRange]:
        """Yield the blocks of each range, in order."""
        for each in self.ranges:
            yield from each.blocks()

    def runs(self, n_blocks: int) -> Iterator[Sequence[RowRange]]:
        """Yield the blocks, in order, as many at a time. No run has blocks of two ranges."""
        for each in self.ranges:
            yield from each.runs(n_blocks)


@dataclass(frozen=True)
class RowPlan:
    """The rows of one job. Its size does not depend on theirs."""

    batches: Batches
    n_holdout: int

    @classmethod
    def of(cls, batches: Batches, n_holdout: int) -> Self:
        """Return the plan of a job.

        Args:
            batches: the job's batches.
            n_holdout: hold-out rows.
        """
        return cls(batches, n_holdout)

    @property
    def n_sections(self) -> int:
        """Sections of training rows: one for each batch of an epoch, or for each fold."""
        return self.batches.n_parts

    def section(self, number: int) -> Section:
        """Return a section of training rows, from 0 up: part `number` of the batches."""
        if self.batches.fold_sizes is not None:
            n_real = self.batches.fold_sizes[number]
            return Section(sum(map(pad, self.batches.fold_sizes[:number])), pad(n_real), n_real)
        sizes = self.batches.part_size(0), self.batches.part_size(self.n_sections - 1)
        n_larger = min(number, self.batches.n_train % self.n_sections)
        first = n_larger * pad(sizes[0]) + (number - n_larger) * pad(sizes[1])
        n_real = self.batches.part_size(number)
        return Section(first, pad(n_real), n_real)

    @property
    def sections(self) -> Iterator[Section]:
        """The sections of training rows, in order."""
        return map(self.section, range(self.n_sections))

    @cached_property
    def training(self) -> Section:
        """All training rows."""
        return Section(0, self.section(self.n_sections - 1).end, self.batches.n_train)

    @cached_property
    def holdout(self) -> Section:
        """The hold-out rows, a section of their own after the training rows."""
        return Section(self.training.end, pad(self.n_holdout), self.n_holdout)

    @property
    def n_rows(self) -> int:
        """Rows of the tables."""
        return self.holdout.end

    @property
    def most_summed(self) -> int:
        """The most rows that a sum is over: all training rows or, if they are more, all hold-out rows."""
        return max(self.batches.n_train, self.n_holdout)

    def format_of(self, max_score: int, weight_bits: int | None) -> Format:
        """Return the format of the job's numbers; see `Format.of`.

        Raises:
            ProtocolError: there is none for so many rows and bits.
        """
        try:
            return Format.of(self.most_summed, max_score, weight_bits)
        except ValueError as error:
            raise ProtocolError(f"these tables do not fit the protocol on shares: {error}") from None

    def selection(self, batch: Batch) -> Selection:
        """Return the rows that a round on this batch works through."""
        if self.batches.n_classes is not None:
            return Selection([batch.index], (self.training,))
        numbers = self.batches.parts_of(batch)
        if self.batches.n_folds == 0 and len(numbers) == self.n_sections:
            return self.all_selected
        return Selection(numbers, tuple(map(self.section, numbers)))

    @cached_property
    def all_selected(self) -> Selection:
        """All training rows of a job without folds, as one range."""
        return Selection(range(self.n_sections), (self.training,))

    @property
    def n_vectors(self) -> int:
        """Vectors of label products. Only evaluations in rounds need those of the hold-out rows, which come last."""
        classes = self.batches.n_classes
        return self.n_sections + (self.n_holdout > 0) if classes is None else classes

    def vectors_of(self, number: int) -> range:
        """Return the numbers of the vectors of a section; see `by_section`."""
        classes = self.batches.n_classes
        if classes is None:
            return range(number, number + 1)
        return range(classes if number == 0 else 0)

    def by_section(self, rows: RowRange) -> Iterator[tuple[int, RowRange]]:
        """Cut rows at the ends of the sections; yield each part with the number of its section.

        The hold-out rows have the number after the last section of training rows.
        """
        number = min(rows.first // pad(self._longest), self.n_sections)
        while number <= self.n_sections:
            section = self.holdout if number == self.n_sections else self.section(number)
            first, end = max(rows.first, section.first), min(rows.end, section.end)
            if first < end:
                yield number, RowRange(first, end - first)
            if rows.end <= section.end:
                return
            number += 1

    @cached_property
    def _longest(self) -> int:
        """Rows of the longest section of training rows. Without sizes of folds, that is the first."""
        return max(self.batches.fold_sizes or [self.batches.part_size(0)])

    def draw_order(self) -> Rows | None:
        """Return the training rows by section, shape (n_train,); None if they have the order of the table.

        Only a party, which has the rows, needs the order, and only once, so nothing keeps its 8 bytes a row.
        """
        if self.n_sections == 1:
            return None
        batches = replace(self.batches)  # It would keep the parts that it has drawn.
        return np.concatenate([batches.part_rows(number) for number in range(self.n_sections)])
