"""A round of the protocol on shares by the three roles, with kernels alone: no messages, no windows, one block."""

from dataclasses import dataclass
from secrets import token_bytes

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.roles import Role
from trilateral.common.shares import kernels
from trilateral.common.shares.format import Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import pad, tile
from trilateral.common.shares.ring import cut_share, decode, encode, join_shares

Array = NDArray[np.float64]
Elements = NDArray[np.uint64]


def uniform(n: int) -> Elements:
    return np.frombuffer(token_bytes(8 * n), np.uint64).copy()


def total(elements: Elements) -> Elements:
    """The sum, shape (1,)."""
    return np.array([elements.sum(dtype=np.uint64)])


@dataclass
class Observed:
    """What the coordinator decodes: sums over the rows."""

    gradient: Array
    loss: float
    residual: Array
    """What nobody has in the protocol: d of each row, both shares together, labels included."""


class ShareRoles:
    """The three roles of one session. With `exact`, no low bits are dropped, as the protocol never does."""

    def __init__(
        self,
        fmt: Format,
        host: Array,
        guest: Array,
        y: Array,
        weights: Array | None = None,
        *,
        first_row: int = 0,
        exact: bool = False,
    ) -> None:
        self.fmt, self.y, self.exact, self.first_row = fmt, y, exact, first_row
        self.n_rows, self.n_padded = len(y), pad(len(y))
        self.n_host, self.n_guest = host.shape[1], guest.shape[1]
        self.keys = kernels.DealerKeys(*(token_bytes(16) for _ in range(4)))
        self.parties, self.linear = token_bytes(16), token_bytes(16)
        self.host, self.guest = (tile(self._columns(X), self.n_padded) for X in (host, guest))
        c = np.ones(len(y)) if weights is None else weights
        self.total = float(c.sum())
        self.c = self._vector(encode(c, fmt.f_c))
        self.q = self._vector(encode(c * (1 - 2 * y), fmt.f_c))
        self._open_columns()

    def _columns(self, X: Array) -> NDArray[np.int32]:
        return np.rint(X * self.fmt.column_scale).astype(np.int32)

    def _vector(self, elements: Elements) -> Elements:
        return np.concatenate([elements, np.zeros(self.n_padded - self.n_rows, np.uint64)])

    def _open_columns(self) -> None:
        row, host, guest = self.first_row, self.keys.host_session, self.keys.guest_session
        self.masked_host = kernels.mask(self.host, host, Purpose.COLUMNS, row, self.n_host)
        self.masked_guest = kernels.mask(self.guest, guest, Purpose.COLUMNS, row, self.n_guest)
        self.masked_q = kernels.mask(self.q, guest, Purpose.LABELS, row, 1)
        if self.fmt.weighted:
            repeated = np.repeat(self.c.reshape(-1, 1, 8), self.n_guest, axis=1).ravel()
            self.weighted = self.guest.astype(np.int64).view(np.uint64) * repeated
            self.masked_c = kernels.mask(self.c, guest, Purpose.WEIGHTS, row, 1)
            self.masked_weighted = kernels.mask(self.weighted, guest, Purpose.WEIGHTED, row, self.n_guest)
        # Label products, once.
        self.h_host, self.h_guest, self.h_own = (np.zeros(self.n_host + self.n_guest, np.uint64) for _ in range(3))
        n = self.n_host
        kernels.add_mask_products(host, Purpose.COLUMNS, row, n, self.masked_q, self.h_host[:n])
        kernels.add_products(self.masked_host, self.q, self.h_guest[:n])
        kernels.add_products(self.guest, self.q, self.h_guest[n:])
        masks = kernels.stream(guest, Purpose.LABELS, row, self.n_padded, 1)
        kernels.add_mask_products(host, Purpose.COLUMNS, row, n, masks, self.h_own[:n])

    def at_zero(self) -> Array:
        """The sum of the gradient at w = 0."""
        bits = self.fmt.f_x + self.fmt.f_c
        return decode(self.h_host + self.h_guest + self.h_own, bits) / 2

    def round(self, w: Array, *, gradient: bool = True, holdout: bool = False) -> Observed:
        fmt, keys, row, n = self.fmt, self.keys, self.first_row, self.n_host
        encoded, of_loss = fmt.encode_score_weights(w), fmt.encode_loss_weights(w)
        w_1, loss_1, a, b = uniform(len(w)), uniform(len(w)), uniform(n), uniform(self.n_guest)
        w_2, loss_2 = encoded - w_1, of_loss - loss_1
        own = kernels.DealerSums.zeros(n, self.n_guest)
        for_host, for_guest = kernels.deal(fmt, keys, (a, b), row, self.n_padded, None if holdout else own)
        assert len(for_host) == fmt.n_odd * self.n_padded
        assert len(for_guest) == fmt.n_even * self.n_padded

        z = kernels.score_part(
            self.host,
            self.masked_guest,
            kernels.Weights(w_1[:n], w_2[:n] - a, w_1[n:]),
            (keys.host_session, keys.host_round),
            row,
            offset=True,
        ) + kernels.score_part(
            self.guest,
            self.masked_host,
            kernels.Weights(w_2[n:], w_1[n:] - b, w_2[:n]),
            (keys.guest_session, keys.guest_round),
            row,
            offset=False,
        )
        one = kernels.residual(fmt, Role.HOST, keys.host_round, for_host, z, row, gradient=gradient)
        two = kernels.residual(fmt, Role.GUEST, keys.guest_round, for_guest, z, row, gradient=gradient)
        assert one.digest == two.digest
        assert len(one.digest) == 64
        half = self._vector(encode(0.5 - self.y, fmt.f_d))
        d_2 = two.d + half if gradient else two.d
        sums_1, sums_2 = (np.zeros(len(w), np.uint64) for _ in range(2))
        if fmt.weighted:
            loss_1_sum, loss_2_sum = self._weighted(one, two, d_2, sums_1, sums_2, gradient=gradient)
        else:
            loss_1_sum, loss_2_sum = total(one.loss), total(two.loss)
            if gradient:
                self._gradient(one.d, d_2, sums_1, sums_2)
        if not gradient:
            own.host[:] = own.guest[:] = 0
        padding = 0 if fmt.weighted else self.n_padded - self.n_rows
        loss_2_sum = loss_2_sum + fmt.loss_offset(self.total, padding)
        opened, rest = self._linear(loss_1, loss_2)
        # C: the linear part from G, and the masked rest.
        loss = self._to_c(loss_1_sum + rest[0], loss_2_sum + rest[1], own.loss, 7, loss=True)
        loss = loss + total(of_loss * (opened + self.h_own))
        own_gradient = np.concatenate([own.host, own.guest])
        return Observed(
            decode(self._to_c(sums_1, sums_2, own_gradient, 8, loss=False), fmt.gradient_bits),
            float(decode(loss, fmt.loss_bits)[0]) * fmt.loss_unit,
            decode(one.d + d_2, fmt.f_d)[: self.n_rows] if gradient else np.zeros(0),
        )

    def _gradient(self, d_1: Elements, d_2: Elements, sums_1: Elements, sums_2: Elements) -> None:
        """What A and B open to each other, and their shares of the gradient."""
        keys, row, n = self.keys, self.first_row, self.n_host
        to_guest = kernels.mask(d_1, keys.host_round, Purpose.OPENED, row, 1)
        to_host = kernels.mask(d_2, keys.guest_round, Purpose.OPENED, row, 1)
        kernels.add_products(self.host, d_1, sums_1[:n])
        kernels.add_mask_products(keys.host_session, Purpose.COLUMNS, row, n, to_host, sums_1[:n])
        kernels.add_products(self.masked_guest, d_1, sums_1[n:])
        kernels.add_products(self.masked_host, d_2, sums_2[:n])
        kernels.add_products(self.guest, d_2, sums_2[n:])
        kernels.add_mask_products(keys.guest_session, Purpose.COLUMNS, row, self.n_guest, to_guest, sums_2[n:])

    def _weighted(
        self,
        one: kernels.Residual,
        two: kernels.Residual,
        d_2: Elements,
        sums_1: Elements,
        sums_2: Elements,
        *,
        gradient: bool,
    ) -> tuple[Elements, Elements]:
        """The same with sample weights; returns both shares of the loss."""
        keys, row, n = self.keys, self.first_row, self.n_host
        d_1 = one.d if gradient else np.zeros_like(one.loss)
        both = np.stack([d_1.reshape(-1, 8), one.loss.reshape(-1, 8)], axis=1).ravel()
        opened = kernels.mask(both, keys.host_round, Purpose.OPENED, row, 2).reshape(-1, 2, 8)
        masks = kernels.stream(keys.host_round, Purpose.OPENED, row, self.n_padded, 2).reshape(-1, 2, 8)
        e_1, e_loss = masks[:, 0].ravel(), masks[:, 1].ravel()
        if gradient:
            D = d_2 + opened[:, 0].ravel()
            h_2 = self.c * D + two.v
            h_1 = self.masked_c * e_1 + one.v
            to_host = kernels.mask(h_2, keys.guest_round, Purpose.OPENED, row, 1)
            kernels.add_products(self.host, h_1, sums_1[:n])
            kernels.add_mask_products(keys.host_session, Purpose.COLUMNS, row, n, to_host, sums_1[:n])
            kernels.add_products(self.masked_weighted, e_1, sums_1[n:])
            kernels.add_products(self.masked_host, h_2, sums_2[:n])
            kernels.add_products(self.weighted, D, sums_2[n:])
        loss_1 = total(self.masked_c * e_loss)
        loss_2 = total(self.c * (two.loss + opened[:, 1].ravel()))
        return loss_1, loss_2

    def _linear(self, loss_1: Elements, loss_2: Elements) -> tuple[Elements, list[Elements]]:
        """What A and B send of the label products, and what they take from the rest of the loss for it."""
        n_1, n_2 = (kernels.stream(self.linear, Purpose.LINEAR, row, 8, len(loss_1))[: len(loss_1)] for row in (0, 8))
        opened = self.h_host + n_1 + self.h_guest + n_2
        return opened, [total(-share * (n_1 + n_2)) for share in (loss_1, loss_2)]

    def _to_c(self, one: Elements, two: Elements, own: Elements, row: int, *, loss: bool) -> Elements:
        masks = kernels.stream(self.parties, Purpose.SUMS, 8 * row, 8, len(one))[: len(one)]
        drop = self.fmt.loss_drop(self.n_rows) if loss else self.fmt.gradient_drop(self.n_rows)
        bits = 0 if self.exact else drop
        return join_shares(
            cut_share(one, masks, bits, subtract=False), cut_share(two, masks, bits, subtract=True), own, bits
        )
