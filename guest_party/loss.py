"""Equation (3) under encryption: the loss of a batch from two ciphertexts and a number that the guest knows.

8 (loss - log 2 + 1/2) is the mean of d'^2, with d' = u_A + e and e = u_B - 2y, because y^2 = 1. With
c = 2e, rounded to the fixed-point exponents,

    sum d'^2 = sum u_A^2 + sum c d' + sum (e^2 - c e)

The host sends the first term, the second is one more column of the guest's encrypted product, and the guest knows the
third. The rounding of c leaves an error of sum (2e - c) u_A.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.fixed_point import decode, encode, encode_wide
from trilateral.common.protocol.scales import VALUE_BITS, RoundScale


@dataclass
class LossSum:
    """The parts of sum d'^2 in one round. The two ciphertexts come in either order."""

    column: NDArray[np.int64]
    """c, shape (n_samples,)."""
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
    residual = decode(own, scale.value_fraction_bits)
    column = encode(2 * residual, scale.loss_column_fraction_bits, VALUE_BITS + 1)
    if int(np.abs(column).sum()) > scale.column_mass_limit(n_train):
        raise OutOfRangeError("the guest's part of the residual is out of range")
    # sum e^2 is not sent, but the bound of the loss's slot depends on it; see `RoundScale.term_limit`.
    scale.check_terms(encode_wide([residual @ residual], scale.loss_fraction_bits))
    doubled = decode(column, scale.loss_column_fraction_bits)
    constant = residual @ residual - doubled @ residual + 8 * scale.n_samples * penalty_loss
    (own_term,) = encode_wide([constant], scale.loss_fraction_bits)
    return LossSum(column, own_term, scale)
