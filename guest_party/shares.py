"""The guest's side of the protocol on shares: B in `shares.kernels`, which has the labels and the sample weights."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import SharesSession
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.shares.arithmetic import Attempt, BlockState, SharesArithmetic
from trilateral.common.protocol.shares.rows import RowRange, Section
from trilateral.common.shares import kernels
from trilateral.common.shares.kernels import Residual
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import grouped


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

    def _prepare_exchange(self) -> None:
        """Make q = 1 - 2y and c of every row. Both are 0 at padding."""
        self._signs = np.zeros(self._rows.n_rows, np.int8)
        weights = self._block.sample_weights
        self._weights = np.zeros(0 if weights is None else self._rows.n_rows, np.uint64)
        first = 0
        for section in self._rows.sections:
            samples = self._rows.order[first : first + section.n_real]
            first += section.n_real
            place = slice(section.first, section.first + section.n_real)
            self._signs[place] = -self._labels[samples]
            if weights is not None:
                self._weights[place] = np.rint(np.ldexp(weights[samples], self._fmt.f_c)).astype(np.uint64)
        holdout = slice(self._rows.holdout.first, self._rows.holdout.first + self._rows.n_holdout)
        self._signs[holdout] = -self._holdout_labels
        if weights is not None:
            self._weights[holdout] = 1
        for number in range(self._n_vectors):
            section = self._rows.holdout if number == self._rows.n_sections else self._rows.section(number)
            for rows in section.blocks():
                kernels.add_products(self._own(rows), self._targets(rows), self._products[number, self._n_host :])

    def _sign_elements(self, rows: RowRange) -> ElementVector:
        """Q of some rows, as elements."""
        return self._signs[rows.first : rows.end].astype(np.int64).view(np.uint64)

    def _targets(self, rows: RowRange) -> ElementVector:
        """Return c q of some rows."""
        signs = self._sign_elements(rows)
        return signs * self._weights[rows.first : rows.end] if len(self._weights) else signs

    def _masked(self, rows: RowRange) -> ElementVector:
        key, first, n_guest = self._dealer.session, rows.first, self._n_guest
        own = self._own(rows)
        tables = [
            (kernels.mask(own, key, Purpose.COLUMNS, first, n_guest), n_guest),
            (kernels.mask(self._targets(rows), key, Purpose.LABELS, first, 1), 1),
        ]
        if self._fmt.weighted:
            weights = self._weights[rows.first : rows.end]
            weighted = grouped(own.astype(np.int64).view(np.uint64), n_guest) * weights.reshape(-1, 1, 8)
            tables += [
                (kernels.mask(weights, key, Purpose.WEIGHTS, first, 1), 1),
                (kernels.mask(weighted.ravel(), key, Purpose.WEIGHTED, first, n_guest), n_guest),
            ]
        return np.concatenate([grouped(table, n_columns) for table, n_columns in tables], axis=1).ravel()

    def _keep_masked(self, rows: RowRange, columns: NDArray[np.uint64]) -> None:
        table = self._peers(rows)
        table[:] = columns.ravel()
        for number, part in self._by_section(rows):
            first, end = (row - rows.first for row in (part.first, part.end))
            own = table[first * self._n_host : end * self._n_host]
            kernels.add_products(own, self._targets(part), self._products[number, : self._n_host])

    def _open(self, attempt: Attempt, state: BlockState, residual: Residual) -> ElementVector | None:
        rows, sums, nothing = state.rows, attempt.sums, np.zeros(0, np.uint64)
        if state.is_holdout:
            sums.holdout_loss += residual.loss.sum(dtype=np.uint64)
        if self._fmt.weighted:
            return None  # Hold-out rows wait as well, so that the pieces leave in the order of the rows.
        if state.is_holdout:
            return nothing
        sums.loss += residual.loss.sum(dtype=np.uint64)
        if not attempt.asked.gradient:
            return nothing
        own = self._own_residual(rows, residual)
        kernels.add_products(self._peers(rows), own, sums.host)
        kernels.add_products(self._own(rows), own, sums.guest)
        return own - self._residual_mask(attempt, rows)

    def _own_residual(self, rows: RowRange, residual: Residual) -> ElementVector:
        """Add 1/2 - y = q / 2 to this party's share of sigma(u) - 1/2."""
        return residual.d + (self._sign_elements(rows) << np.uint64(self._fmt.f_d - 1))

    def _residual_mask(self, attempt: Attempt, rows: RowRange) -> ElementVector:
        """Return e_2."""
        key = self._dealer.of(attempt.asked.key)
        return kernels.stream(key, Purpose.OPENED, rows.first, rows.n_rows, 1)

    def _close(
        self, attempt: Attempt, state: BlockState, residual: Residual, opened: ElementVector
    ) -> ElementVector | None:
        rows, sums = state.rows, attempt.sums
        if self._fmt.weighted:
            if state.is_holdout:
                return np.zeros(0, np.uint64)
            return self._close_weighted(attempt, state, residual, opened)
        if len(opened):
            key = self._dealer.session
            kernels.add_mask_products(key, Purpose.COLUMNS, rows.first, self._n_guest, opened, sums.guest)
        return None

    def _close_weighted(
        self, attempt: Attempt, state: BlockState, residual: Residual, opened: ElementVector
    ) -> ElementVector:
        """Multiply by c what the host has opened and this party's own shares."""
        rows, sums = state.rows, attempt.sums
        weights = self._weights[rows.first : rows.end]
        columns = grouped(opened, len(opened) // rows.n_rows)
        sums.loss += (weights * (residual.loss + columns[:, -1].ravel())).sum(dtype=np.uint64)
        if not attempt.asked.gradient:
            return np.zeros(0, np.uint64)
        product = weights * (self._own_residual(rows, residual) + columns[:, 0].ravel())
        share = product + residual.v
        kernels.add_products(self._peers(rows), share, sums.host)
        kernels.add_products(self._own(rows), product, sums.guest)
        return share - self._residual_mask(attempt, rows)

    def _constant_part(self, training: Section | None) -> ElementVector:
        holdout = self._rows.holdout
        if training is None:
            return self._fmt.holdout.loss_offset(holdout.n_real, holdout.n_rows - holdout.n_real)
        if not self._fmt.weighted:
            return self._fmt.loss_offset(training.n_real, training.n_rows - training.n_real)
        total = self._weights[training.first : training.end].sum(dtype=np.uint64)
        return self._fmt.loss_offset(float(np.ldexp(float(total), -self._fmt.f_c)), 0)
