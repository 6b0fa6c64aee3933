"""The host's side of the protocol on shares: A in `shares.kernels`."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import Role
from trilateral.common.protocol.shares.arithmetic import Attempt, BlockState, SharesArithmetic
from trilateral.common.protocol.shares.rows import RowRange, Section
from trilateral.common.shares import kernels
from trilateral.common.shares.kernels import Residual
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped


class HostShares(SharesArithmetic):
    """A's side. It opens d_1 - e_1, and with sample weights its share of the loss under a mask as well."""

    role: ClassVar[Role] = Role.HOST
    peer: ClassVar[Role] = Role.GUEST

    def _prepare_exchange(self) -> None:
        """Make room for D_c and D_Y. D_q serves for the label products alone, so the host does not keep it."""
        n_rows = self._rows.n_rows if self._fmt.weighted else 0
        self._masked_weights = np.empty(n_rows, np.uint64)
        self._weighted_tile = np.empty(n_rows * self._n_guest, np.uint64)

    def _masked(self, rows: RowRange) -> ElementVector:
        return kernels.mask(self._own(rows), self._dealer.session, Purpose.COLUMNS, rows.first, self._n_host)

    def _keep_masked(self, rows: RowRange, columns: NDArray[np.uint64]) -> None:
        n_guest = self._n_guest
        self._peers(rows)[:] = columns[:, :n_guest].ravel()
        labels = columns[:, n_guest].ravel()
        if self._fmt.weighted:
            self._masked_weights[rows.first : rows.end] = columns[:, n_guest + 1].ravel()
            self._weighted(rows)[:] = columns[:, n_guest + 2 :].ravel()
        key = self._dealer.session
        for number, part in self._by_section(rows):
            masked = labels[part.first - rows.first : part.end - rows.first]
            sums = self._products[number, : self._n_host]
            kernels.add_mask_products(key, Purpose.COLUMNS, part.first, self._n_host, masked, sums)

    def _weighted(self, rows: RowRange) -> ElementVector:
        """D_Y of some rows."""
        return self._weighted_tile[rows.first * self._n_guest : rows.end * self._n_guest]

    def _open(self, attempt: Attempt, state: BlockState, residual: Residual) -> ElementVector | None:
        rows, sums, nothing = state.rows, attempt.sums, np.zeros(0, np.uint64)
        if state.is_holdout:
            sums.holdout_loss += residual.loss.sum(dtype=np.uint64)
            return nothing
        if self._fmt.weighted:
            return self._open_weighted(attempt, state, residual)
        sums.loss += residual.loss.sum(dtype=np.uint64)
        if not attempt.asked.gradient:
            return nothing
        kernels.add_products(self._own(rows), residual.d, sums.host)
        kernels.add_products(self._peers(rows), residual.d, sums.guest)
        key = self._dealer.of(attempt.asked.key)
        return residual.d - kernels.stream(key, Purpose.OPENED, rows.first, rows.n_rows, 1)

    def _open_weighted(self, attempt: Attempt, state: BlockState, residual: Residual) -> ElementVector:
        """Multiply by c = D_c + U_c what is masked by e, which the host knows; the guest multiplies what it opens."""
        rows, sums, key = state.rows, attempt.sums, self._dealer.of(attempt.asked.key)
        masks = grouped(kernels.stream(key, Purpose.OPENED, rows.first, rows.n_rows, 2), 2)
        masked_weights = self._masked_weights[rows.first : rows.end]
        loss_mask = masks[:, 1].ravel()
        sums.loss += (masked_weights * loss_mask).sum(dtype=np.uint64)
        opened = [residual.loss - loss_mask]
        if attempt.asked.gradient:
            mask = masks[:, 0].ravel()
            opened.insert(0, residual.d - mask)
            kernels.add_products(self._own(rows), masked_weights * mask + residual.v, sums.host)
            kernels.add_products(self._weighted(rows), mask, sums.guest)
        return np.stack([each.reshape(-1, GROUP) for each in opened], axis=1).ravel()

    def _close(
        self, attempt: Attempt, state: BlockState, residual: Residual, opened: ElementVector
    ) -> ElementVector | None:
        del residual
        if len(opened):
            key, first = self._dealer.session, state.rows.first
            kernels.add_mask_products(key, Purpose.COLUMNS, first, self._n_host, opened, attempt.sums.host)
        return None

    def _constant_part(self, training: Section | None) -> ElementVector:
        del training
        return np.zeros(1, np.uint64)
