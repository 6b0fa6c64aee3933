"""Equation (3) under encryption: the loss of a batch from two ciphertexts and a number that the guest knows.

8 (loss - log 2 + 1/2) is the mean of d'^2, with d' = u_A + e and e = u_B - 2y, because y^2 = 1. With
c = 2e, rounded to the fixed-point exponents,

    sum d'^2 = sum u_A^2 + sum c d' + sum (e^2 - c e)

The host sends the first term, the second is one more column of the guest's encrypted product, and the guest knows the
third. The rounding of c leaves an error of sum (2e - c) u_A.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import RowArray, Rows, blocks_of
from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.exponents import ColumnBounds
from trilateral.common.paillier.fixed_point import decode, encode, encode_wide
from trilateral.common.protocol.scales import VALUE_BITS, RoundScale


class LossColumn(RowArray[np.int64]):
    """c in fixed point, made from e block by block, shape (n_samples, 1).

    Args:
        own: e in fixed point, shape (n_samples,).
        scale: the scale of the batch.
    """

    def __init__(self, own: NDArray[np.int64], scale: RoundScale) -> None:
        self._own = own
        self._scale = scale

    @property
    def shape(self) -> tuple[int, ...]:
        """See RowArray."""
        return len(self._own), 1

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[np.int64]:
        return self._encode(self._own[rows])

    @property
    def bounds(self) -> ColumnBounds:
        """The bounds of c, which grows with e."""
        lowest, highest = self._encode(np.array([self._own.min(), self._own.max()]))
        return ColumnBounds(lowest, highest)

    def _encode(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        doubled = 2 * decode(own, self._scale.value_fraction_bits)
        return encode(doubled, self._scale.loss_column_fraction_bits, VALUE_BITS + 1)[:, np.newaxis]


@dataclass
class LossSum:
    """The parts of sum d'^2 in one round. The two ciphertexts come in either order."""

    column: LossColumn
    """c."""
    own_term: int
    """sum (e^2 - c e), plus the guest's penalty."""
    scale: RoundScale
    product: EncryptedVector | None = None
    """[sum c d'], once the host's scores have arrived."""
    squares: EncryptedVector | None = None
    """[sum u_A^2] plus the host's penalty, once the host has sent it."""


def begin_loss_sum(own: NDArray[np.int64], scale: RoundScale, n_train: int, penalty_loss: float) -> LossSum:
    """Compute the guest's parts.

    Args:
        own: e in fixed point, shape (n_samples,).
        scale: the scale of the batch.
        n_train: training rows.
        penalty_loss: the guest's part of the L2 penalty, in units of the loss.

    Raises:
        OutOfRangeError: the parts do not fit a slot.
    """
    loss_column = LossColumn(own, scale)
    mass = 0
    squares: list[float] = []
    products: list[float] = []
    for rows in blocks_of(len(own), scale.piece_samples):
        residual = decode(own[rows], scale.value_fraction_bits)
        column = loss_column[rows][:, 0]
        mass += int(np.abs(column).sum())
        squares.append(float(residual @ residual))
        products.append(float(decode(column, scale.loss_column_fraction_bits) @ residual))
    if mass > scale.column_mass_limit(n_train):
        raise OutOfRangeError("the guest's part of the residual is out of range")
    # sum e^2 is not sent, but the bound of the loss's slot depends on it; see `RoundScale.term_limit`.
    total = math.fsum(squares)
    scale.check_terms(encode_wide([total], scale.loss_fraction_bits))
    constant = total - math.fsum(products) + 8 * scale.n_samples * penalty_loss
    (own_term,) = encode_wide([constant], scale.loss_fraction_bits)
    return LossSum(loss_column, own_term, scale)
