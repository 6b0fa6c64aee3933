"""The guest's side of the protocol on shares: B in `shares.kernels`, which has the labels and the sample weights."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import SharesSession
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.evaluation import disclosed_auc, measure
from trilateral.common.protocol.messages import Envelope, Evaluation
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.shares.arithmetic import SharesArithmetic
from trilateral.common.protocol.shares.attempts import Attempt, RunState
from trilateral.common.protocol.shares.blocks import (
    BlockTables,
    CloseBlock,
    OpenBlock,
    Sums,
    Tile,
    Work,
    without_column,
)
from trilateral.common.protocol.shares.rows import RowRange, Selection
from trilateral.common.protocol.shares.tables import SectionOrder, Table
from trilateral.common.shares import kernels
from trilateral.common.shares.information import WEIGHT_LIMIT_BITS
from trilateral.common.shares.kernels import Residual
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped
from trilateral.common.shares.scores import open_scores

NO_AUC = 0.5
"""What a fold counts as in which all rows have one label."""


def open_block(work: Work, tables: BlockTables, residual: Residual, sums: Sums) -> ElementVector | None:
    """Return d_2 - e_2; None with sample weights, because that needs what the host opens."""
    if work.is_holdout:
        _add_loss(sums, residual.loss)
    if work.fmt.weighted:
        return None  # Hold-out rows wait as well, so that the pieces leave in the order of the rows.
    if work.is_holdout:
        return np.zeros(0, np.uint64)
    _add_loss(sums, residual.loss)
    if not work.gradient:
        return np.zeros(0, np.uint64)
    own = _own_residual(work, tables, residual)
    kernels.add_products(tables.peers, own, sums.host)
    kernels.add_products(tables.own, own, sums.guest)
    return own - _residual_mask(work, tables.rows)


def close_block(
    work: Work, tables: BlockTables, residual: Residual | None, opened: ElementVector, sums: Sums
) -> ElementVector | None:
    """Multiply what the host opens by the masks of the guest's columns, and with sample weights by c."""
    if residual is not None:
        return np.zeros(0, np.uint64) if work.is_holdout else _close_weighted(work, tables, residual, opened, sums)
    if len(opened):
        first = tables.rows.first
        kernels.add_mask_products(work.session_key, Purpose.COLUMNS, first, work.n_guest, opened, sums.guest)
    return None


def _close_weighted(
    work: Work, tables: BlockTables, residual: Residual, opened: ElementVector, sums: Sums
) -> ElementVector:
    """Multiply by c what the host has opened and this party's own shares."""
    weights = tables.weights
    if weights is None:
        raise RuntimeError("the guest has no sample weights")
    columns = grouped(opened, work.n_opened[Role.HOST])
    _add_loss(sums, weights * (residual.loss + columns[:, -1].ravel()))
    if not work.gradient:
        return np.zeros(0, np.uint64)
    product = weights * (_own_residual(work, tables, residual) + columns[:, 0].ravel())
    share = product + residual.v
    kernels.add_products(tables.peers, share, sums.host)
    kernels.add_products(tables.own, product, sums.guest)
    return share - _residual_mask(work, tables.rows)


def _own_residual(work: Work, tables: BlockTables, residual: Residual) -> ElementVector:
    """Add 1/2 - y = q / 2 to this party's share of sigma(u) - 1/2."""
    if tables.signs is None:
        raise RuntimeError("the guest's table has no label")
    return residual.d + (_elements(tables.signs) << np.uint64(work.fmt.f_d - 1))


def _residual_mask(work: Work, rows: RowRange) -> ElementVector:
    """Return e_2."""
    return kernels.stream(work.round_key, Purpose.OPENED, rows.first, rows.n_rows, 1)


def _elements(signs: NDArray[np.int8]) -> ElementVector:
    return signs.astype(np.int64).view(np.uint64)


def _add_loss(sums: Sums, loss: ElementVector) -> None:
    np.add(sums.loss, loss.sum(dtype=np.uint64), out=sums.loss)


class GuestShares(SharesArithmetic):
    """B's side. It opens d_2 - e_2; with sample weights, its share of c d once the host has opened its part.

    Raises:
        DataError: the block has no labels; for other errors see `SharesArithmetic`.
    """

    role: ClassVar[Role] = Role.GUEST
    peer: ClassVar[Role] = Role.HOST

    def __init__(self, job: JobConfig, block: TrainingBlock, session: SharesSession, phase: Phase) -> None:
        super().__init__(job, block, session, phase, block.weight_bits)
        if block.labels is None or block.holdout_labels is None:
            raise DataError("the guest's table has no label")
        self._labels, self._holdout_labels = block.labels, block.holdout_labels
        weights = block.sample_weights
        if job.inference and weights is not None and weights.max() >= 2**WEIGHT_LIMIT_BITS:
            raise DataError(
                "`inference` needs more even sample weights: the largest is more than 16 times their root mean square;"
                " set an upper limit to the column of `label.weight`, or `inference: false` in the job"
            )

    def _prepare_exchange(self, order: SectionOrder) -> None:
        """Make q = 1 - 2y and c of every row. Both are 0 at padding. With classes, q follows from their numbers."""
        self._signs = self._make_table(np.int8, 1)
        """q; with classes, one more than the number of the class."""
        for _, rows, labels in order.blocks(self._labels, self._holdout_labels):
            signs = -labels if self._job.classes is None else labels + 1
            self._signs.append(rows, _padded(signs, rows.n_rows).astype(np.int8))
        self._weights: Table[np.uint64] | None = None
        self._section_weights = np.zeros(self._rows.n_sections, np.uint64)
        """The sum of c over each section of training rows."""
        weights = self._block.sample_weights
        if weights is None:
            return
        self._weights = self._make_table(np.uint64, 1)
        ones = np.broadcast_to(np.float64(1), self._rows.n_holdout)
        for number, rows, values in order.blocks(weights, ones):
            is_holdout = number == self._rows.n_sections
            scaled = np.rint(np.ldexp(values, 0 if is_holdout else self._fmt.f_c))
            elements = _padded(scaled, rows.n_rows).astype(np.uint64)
            self._weights.append(rows, elements)
            if not is_holdout:
                self._section_weights[number] += elements.sum(dtype=np.uint64)

    def _use_own(self, number: int, rows: RowRange, tile: Tile) -> None:
        for model, vector in enumerate(self._rows.vectors_of(number)):
            kernels.add_products(tile, self._targets(rows, model), self._products[vector, self._n_host :])

    def _signs_of(self, rows: RowRange, model: int) -> NDArray[np.int8]:
        """Return q of some rows in a model."""
        signs = self._signs[rows]
        if self._job.classes is None:
            return signs
        return np.where(signs == model + 1, np.int8(-1), (signs > 0).astype(np.int8))

    def _targets(self, rows: RowRange, model: int) -> ElementVector:
        """Return c q of some rows in a model."""
        signs = _elements(self._signs_of(rows, model))
        return signs if self._weights is None else signs * self._weights[rows]

    def _masked(self, rows: RowRange) -> ElementVector:
        key, first, n_guest = self._dealer.session, rows.first, self._n_guest
        own, n_models = self._own[rows], self._job.n_models
        labels = np.stack([self._targets(rows, model).reshape(-1, GROUP) for model in range(n_models)], axis=1).ravel()
        tables = [
            (kernels.mask(own, key, Purpose.COLUMNS, first, n_guest), n_guest),
            (kernels.mask(labels, key, Purpose.LABELS, first, n_models), n_models),
        ]
        if self._weights is not None:
            weights = self._weights[rows]
            weighted = grouped(own.astype(np.int64).view(np.uint64), n_guest) * weights.reshape(-1, 1, GROUP)
            tables += [
                (kernels.mask(weights, key, Purpose.WEIGHTS, first, 1), 1),
                (kernels.mask(weighted.ravel(), key, Purpose.WEIGHTED, first, n_guest), n_guest),
            ]
        return np.concatenate([grouped(table, n_columns) for table, n_columns in tables], axis=1).ravel()

    def _keep_masked(self, rows: RowRange, columns: NDArray[np.uint64]) -> None:
        table = columns.ravel()
        self._peers.append(rows, table)
        for number, part in self._rows.by_section(rows):
            first, end = (row - rows.first for row in (part.first, part.end))
            own = table[first * self._n_host : end * self._n_host]
            for model, vector in enumerate(self._rows.vectors_of(number)):
                kernels.add_products(own, self._targets(part, model), self._products[vector, : self._n_host])

    def _take_opened(self, attempt: Attempt, state: RunState, number: int) -> ElementVector:
        rows, own = state.blocks[number], None if state.opened is None else state.opened[number].scores
        if own is None:
            raise RuntimeError("scores are opened before this party has its shares of them")
        rest, theirs = without_column(state.answers[number].elements, rows.n_rows)
        labels = -self._signs_of(rows, 0).astype(np.float64)
        is_row = labels != 0
        attempt.opened_scores.append((open_scores(self._fmt, own, theirs)[is_row], labels[is_row]))
        return rest

    def _report_scores(self, attempt: Attempt) -> Iterator[Envelope]:
        """Report the AUC of a fold; 1/2 for a fold of one label, so that it favours no penalty."""
        if not attempt.opened_scores:
            return
        scores, labels = (np.concatenate(parts) for parts in zip(*attempt.opened_scores, strict=True))
        auc = disclosed_auc(measure(scores, labels).auc)
        yield Envelope(Role.COORDINATOR, Evaluation(attempt.asked.key, 0.0, NO_AUC if auc is None else auc))

    @property
    def _block_parts(self) -> tuple[OpenBlock, CloseBlock]:
        return open_block, close_block

    def _read(self, rows: RowRange, model: int) -> BlockTables:
        weights = None if self._weights is None else self._weights[rows]
        return BlockTables(rows, self._own[rows], self._peers[rows], self._signs_of(rows, model), weights)

    def _constant_part(self, training: Selection | None) -> ElementVector:
        holdout = self._rows.holdout
        if training is None:
            return self._fmt.holdout.loss_offset(holdout.n_real, holdout.n_rows - holdout.n_real)
        if not self._fmt.weighted:
            return self._fmt.loss_offset(training.n_real, training.n_rows - training.n_real)
        total = self._section_weights[list(training.numbers)].sum(dtype=np.uint64)
        return self._fmt.loss_offset(float(np.ldexp(float(total), -self._fmt.f_c)), 0)


def _padded(values: FloatVector, n_rows: int) -> FloatVector:
    """Return values with zeros up to `n_rows`."""
    return np.concatenate([values, np.zeros(n_rows - len(values))])
