"""Several samples in one plaintext, laid out so that a product of plaintexts is an inner product.

With Z = 2^slot_bits and k slots, group g of k consecutive samples is the number

    D_g = sum_i d_{gk+i} Z^i          and, for a column x,      E_g = sum_i x_{gk+i} Z^{k-1-i}

so the coefficient of Z^{k-1} in sum_g D_g E_g is the inner product sum_i d_i x_i. The other 2k - 2
coefficients are mixtures that the reader must not see. `SlotLayout.mask` hides them.
Samples and coefficients are signed.
"""

import secrets
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.keys import PublicKey

MIN_MASK_BITS, MAX_MASK_BITS = 40, 64
"""Excess bits of the mask above the middle slot. With b bits, the reader's advantage is below 2^-b for each ciphertext,
so below 2^(20 - b) for a training with 2^20 ciphertexts."""


@dataclass(frozen=True)
class SlotLayout:
    """k = `slots` samples in one plaintext, each `slot_bits` wide.

    A slot must hold a whole inner product with two bits to spare: every coefficient of a product
    stays within +-Z/4, and after all additions the middle slot stays below Z/2 - 1 in size.
    `mask_bits` is the excess of the mask above the middle slot.
    """

    slot_bits: int
    slots: int
    mask_bits: int = MIN_MASK_BITS

    def __post_init__(self) -> None:
        if self.slot_bits < 3 or self.slots < 1 or self.mask_bits < MIN_MASK_BITS:
            raise ValueError(
                f"a layout needs slots of at least 3 bits, at least one slot, and at least {MIN_MASK_BITS} bits of"
                f" mask, not {self}"
            )

    @property
    def plaintext_bits(self) -> int:
        """Bits of a masked product."""
        return self.slot_bits * (2 * self.slots - 1) + self.mask_bits

    def check_fits(self, public_key: PublicKey) -> None:
        """Raise ValueError if a masked product could leave (-n/2, n/2].

        A mask is below 2^plaintext_bits, and a product adds less than that again. So the sum is below
        2^(bits - 2), and n/2 is at least 2^(bits - 2).
        """
        if self.plaintext_bits > public_key.bits - 3:
            raise ValueError(
                f"{self.slots} slots of {self.slot_bits} bits need a key of {self.plaintext_bits + 3} bits, "
                f"but the key has {public_key.bits}: use fewer slots or a longer key"
            )

    def n_groups(self, n_samples: int) -> int:
        """Return how many plaintexts hold `n_samples` samples."""
        return -(-n_samples // self.slots)

    def pack(self, samples: NDArray[np.int64]) -> list[mpz]:
        """Pack samples of shape (n,), k to a plaintext. The last plaintext holds the remainder."""
        values = samples.tolist()
        return [self._pack_group(values[start : start + self.slots]) for start in range(0, len(values), self.slots)]

    def _pack_group(self, values: list[int]) -> mpz:
        plaintext = mpz(0)
        for value in reversed(values):
            plaintext = (plaintext << self.slot_bits) + value
        return plaintext

    def place(self, value: int) -> mpz:
        """Return the plaintext that adds `value` to the middle slot of a product."""
        return mpz(value) << self.slot_bits * (self.slots - 1)

    def mask(self) -> mpz:
        """Draw a plaintext that hides everything in a product except its middle slot.

        Below the middle slot the mask is uniform over the whole range, and so is the sum. Above the middle slot the
        coefficients sum to less than Z^{k-1}, and the mask's uniform bits, which are `mask_bits` longer, hide them.
        """
        side_bits = self.slot_bits * (self.slots - 1)
        below = mpz(secrets.randbits(side_bits))
        above = mpz(secrets.randbits(side_bits + self.mask_bits))
        return (above << side_bits + self.slot_bits) + below

    def read(self, plaintext: mpz) -> int:
        """Read the middle slot of a signed plaintext, masked or not. The result is at most one unit off.

        The lower coefficients sum to less than Z^{k-1} in size, and the mask adds less than Z^{k-1}
        again, so the carry from the lower slots is -1, 0 or 1.
        """
        size = 1 << self.slot_bits
        middle = int((plaintext >> self.slot_bits * (self.slots - 1)) % size)
        return middle - size if 2 * middle >= size else middle
