"""Fixed-point scales and slot widths of a round, computed from public sizes alone.

A slot must hold any coefficient of the packed product, whatever the data are: a scale that depends on private values
would reveal something about them. So everything follows from the key's bits, the number of samples in the batch and the
number in the training set.

The bound. Each party keeps its part of d' = u_A + u_B - 2y within 2^VALUE_BITS, so
|d'| <= 2^(VALUE_BITS + 1). A training column has mean square at most 1 over the n training
samples, so over a batch of m samples sum |x| <= sqrt(m n) (Cauchy-Schwarz), which is far
below m max|x|. Every coefficient of the product, complete or partial, is a sum of terms d' x
in which each x occurs at most once, hence

    |coefficient| <= 2^(VALUE_BITS + 1) sqrt(m n)     (times the two scales)

One bit covers the rounding of x, one bit the party's own additions (its penalty), and one bit the sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.errors import ConfigError, OutOfRangeError
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.fixed_point import encode
from trilateral.common.paillier.packing import MAX_MASK_BITS, MIN_MASK_BITS, SlotLayout
from trilateral.common.protocol.bounds import PIECE

VALUE_BITS = 8
"""Each party's |u|, and |u - 2y|, is at most 2^8 = 256. Beyond that the training has diverged."""

GRADIENT_BITS = 28
"""x and d = d'/4 are rounded so finely that the mean of d x over the batch is off by about 2^-28 / sqrt(12) of d and x.

Rounding errors of m samples average out like 1/sqrt(m), so the values need GRADIENT_BITS - log2 sqrt(m) fraction
bits."""

LOSS_BITS = 4
"""For the loss, the guest multiplies by 2 (u_B - 2y). Its mean may be 2^4 times a column's, at 4 fraction bits less."""

MIN_VALUE_FRACTION_BITS = 20
"""u, d' and h have at least this resolution, however large the batch; the number of slots follows from it."""

MAX_VALUE_FRACTION_BITS = 30
"""More bits would gain nothing, and 2^(10 + 30) is well inside int64."""

_SPARE_BITS = 3  # the rounding of x, the party's own additions, the sign


@dataclass(frozen=True)
class RoundScale:
    """How the vectors of one batch are coded: the slots, and the fraction bits of the values in them."""

    layout: SlotLayout
    value_fraction_bits: int
    """Fraction bits of u, d' and h."""
    column_fraction_bits: int
    """Fraction bits of x."""
    n_samples: int
    """m, the samples of the batch."""

    @property
    def piece_samples(self) -> int:
        """The samples of a whole piece of a vector. Sums of floating-point numbers are made of sums over pieces."""
        return PIECE * self.layout.slots

    @property
    def product_fraction_bits(self) -> int:
        """Fraction bits of an inner product with a column."""
        return self.value_fraction_bits + self.column_fraction_bits

    @property
    def loss_column_fraction_bits(self) -> int:
        """Fraction bits of the column that the guest multiplies by for the loss."""
        return self.column_fraction_bits - LOSS_BITS

    @property
    def loss_fraction_bits(self) -> int:
        """Fraction bits of the sum of d'^2, from which the loss is made."""
        return self.value_fraction_bits + self.loss_column_fraction_bits

    @property
    def term_limit(self) -> int:
        """The maximum that a party may add to a readable slot: an eighth of the signed range.

        With this limit, the gradient's slot (data below 2^(b-2) plus a penalty) stays below 2^(b-1). So
        does the loss's slot: sum d'^2 <= 2 (sum u_A^2 + sum (u_B - 2y)^2) <= 4/16 2^b, plus two penalties
        of 1/16.
        """
        return 1 << (self.layout.slot_bits - 4)

    def column_mass_limit(self, n_train: int) -> int:
        """Return the maximum of sum |x| of a fixed-point column over this batch; see the bound above."""
        return 1 << (_mass_bits(self.n_samples, n_train) + self.column_fraction_bits + 1)

    def encode_columns(self, columns: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return training columns in fixed point, int64 of the same shape."""
        return encode(columns, self.column_fraction_bits, 62 - self.column_fraction_bits)

    def check_terms(self, terms: Sequence[int]) -> None:
        """Check the terms that a party adds to readable slots.

        Raises:
            OutOfRangeError: a term exceeds `term_limit`.
        """
        if any(abs(term) > self.term_limit for term in terms):
            raise OutOfRangeError("a party's own part of the penalty or of the loss is out of range")


def round_scale(job: JobConfig, n_samples: int, n_train: int) -> RoundScale:
    """Return the scale of a batch of `n_samples` out of `n_train` samples. Both parties get the same scale.

    There are as many slots as fit beside the shortest mask. The bits that are left then go to the mask, up to the
    longest one, and after that to the values.

    Raises:
        ConfigError: the key is too short for `job.slots` samples in one ciphertext.
    """
    column_fraction = GRADIENT_BITS - _mass_bits(n_samples, 1)
    fixed = VALUE_BITS + 1 + column_fraction + _mass_bits(n_samples, n_train) + _SPARE_BITS
    # A plaintext must stay below n/2, that is below 2^(key_bits - 2).
    room = job.key_bits - 3
    least = fixed + max(MIN_VALUE_FRACTION_BITS, column_fraction - 2)
    max_slots = ((room - MIN_MASK_BITS) // least + 1) // 2
    slots = 1 if job.cipher == "reference" else job.slots or max_slots
    if not 1 <= slots <= max_slots:
        raise ConfigError(
            f"a {job.key_bits}-bit key has room for {max_slots} slots of {least} bits at a batch of {n_samples}"
            f" samples: lower `slots`, leave it out, or raise `key_bits`"
        )
    products = 2 * slots - 1
    mask = min(room - least * products, MAX_MASK_BITS)
    fraction = min((room - mask) // products - fixed, MAX_VALUE_FRACTION_BITS)
    return RoundScale(SlotLayout(fixed + fraction, slots, mask), fraction, column_fraction, n_samples)


def _mass_bits(n_samples: int, n_train: int) -> int:
    """Return ceil(log2 sqrt(m n)), in integers so that every machine agrees."""
    return ((n_samples * n_train - 1).bit_length() + 1) // 2
