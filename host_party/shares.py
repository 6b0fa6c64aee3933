"""The host's side of the protocol on shares: A in `shares.kernels`."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.roles import Role
from trilateral.common.protocol.shares.arithmetic import SharesArithmetic
from trilateral.common.protocol.shares.blocks import BlockTables, CloseBlock, OpenBlock, Sums, Work
from trilateral.common.protocol.shares.rows import RowRange, Selection
from trilateral.common.protocol.shares.tables import SectionOrder, Table
from trilateral.common.shares import kernels
from trilateral.common.shares.kernels import Residual
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped


def open_block(work: Work, tables: BlockTables, residual: Residual, sums: Sums) -> ElementVector | None:
    """Return d_1 - e_1, and with sample weights the host's share of the loss under a mask as well."""
    rows, nothing = tables.rows, np.zeros(0, np.uint64)
    if work.is_holdout:
        _add_loss(sums, residual.loss)
        return nothing
    if work.fmt.weighted:
        return _open_weighted(work, tables, residual, sums)
    _add_loss(sums, residual.loss)
    if not work.gradient:
        return nothing
    kernels.add_products(tables.own, residual.d, sums.host)
    kernels.add_products(tables.peers, residual.d, sums.guest)
    return residual.d - kernels.stream(work.round_key, Purpose.OPENED, rows.first, rows.n_rows, 1)


def _open_weighted(work: Work, tables: BlockTables, residual: Residual, sums: Sums) -> ElementVector:
    """Multiply by c = D_c + U_c what is masked by e, which the host knows; the guest multiplies what it opens."""
    masked_weights, weighted = tables.weights, tables.weighted
    if masked_weights is None or weighted is None:
        raise RuntimeError("the host has no masked weights")
    rows = tables.rows
    masks = grouped(kernels.stream(work.round_key, Purpose.OPENED, rows.first, rows.n_rows, 2), 2)
    loss_mask = masks[:, 1].ravel()
    _add_loss(sums, masked_weights * loss_mask)
    opened = [residual.loss - loss_mask]
    if work.gradient:
        mask = masks[:, 0].ravel()
        opened.insert(0, residual.d - mask)
        kernels.add_products(tables.own, masked_weights * mask + residual.v, sums.host)
        kernels.add_products(weighted, mask, sums.guest)
    return np.stack([each.reshape(-1, GROUP) for each in opened], axis=1).ravel()


def close_block(
    work: Work, tables: BlockTables, residual: Residual | None, opened: ElementVector, sums: Sums
) -> ElementVector | None:
    """Multiply what the guest opens by the masks of the host's columns."""
    del residual
    if len(opened):
        first = tables.rows.first
        kernels.add_mask_products(work.session_key, Purpose.COLUMNS, first, work.n_host, opened, sums.host)
    return None


def _add_loss(sums: Sums, loss: ElementVector) -> None:
    np.add(sums.loss, loss.sum(dtype=np.uint64), out=sums.loss)


class HostShares(SharesArithmetic):
    """A's side. It opens d_1 - e_1, and with sample weights its share of the loss under a mask as well."""

    role: ClassVar[Role] = Role.HOST
    peer: ClassVar[Role] = Role.GUEST

    def _prepare_exchange(self, order: SectionOrder) -> None:
        """Make room for D_c and D_Y. D_q serves for the label products alone, so the host does not keep it."""
        del order
        self._weights: Table[np.uint64] | None = None
        self._weighted: Table[np.uint64] | None = None
        if self._fmt.weighted:
            self._weights = self._make_table(np.uint64, 1)
            self._weighted = self._make_table(np.uint64, self._n_guest)

    def _masked(self, rows: RowRange) -> ElementVector:
        return kernels.mask(self._own[rows], self._dealer.session, Purpose.COLUMNS, rows.first, self._n_host)

    def _keep_masked(self, rows: RowRange, columns: NDArray[np.uint64]) -> None:
        n_guest = self._n_guest
        self._peers.append(rows, columns[:, :n_guest])
        if self._weights is not None and self._weighted is not None:
            self._weights.append(rows, columns[:, n_guest + self._job.n_models])
            self._weighted.append(rows, columns[:, n_guest + self._job.n_models + 1 :])
        key = self._dealer.session
        for number, part in self._rows.by_section(rows):
            for model, vector in enumerate(self._rows.vectors_of(number)):
                labels = columns[:, n_guest + model].ravel()
                masked = labels[part.first - rows.first : part.end - rows.first]
                sums = self._products[vector, : self._n_host]
                kernels.add_mask_products(key, Purpose.COLUMNS, part.first, self._n_host, masked, sums)

    @property
    def _block_parts(self) -> tuple[OpenBlock, CloseBlock]:
        return open_block, close_block

    def _read(self, rows: RowRange, model: int) -> BlockTables:
        del model  # The host has no labels.
        weights = None if self._weights is None else self._weights[rows]
        weighted = None if self._weighted is None else self._weighted[rows]
        return BlockTables(rows, self._own[rows], self._peers[rows], weights=weights, weighted=weighted)

    def _constant_part(self, training: Selection | None) -> ElementVector:
        del training
        return np.zeros(1, np.uint64)
