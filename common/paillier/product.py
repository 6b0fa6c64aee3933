"""Inner products of an encrypted vector with columns in clear: products of many powers.

The product for column j is prod_g c_g^{E_gj} with E_gj = sum_i x_{gk+i,j} Z^{k-1-i}. It encrypts
sum_g D_g E_gj (see `packing`).

The exponents are thousands of bits long but sparse: each slot has a few digits. Each x is written in
odd signed digits, the width-w non-adjacent form (Solinas 2000), which has about one digit in w + 1 bits:

- The odd powers c^(+-1), c^(+-3), ... +-(2^(w-1) - 1) of a ciphertext are computed once and serve all columns and all k
  samples.
- A digit at bit t of the exponent multiplies one of them into *bucket* t of its column; a zero costs nothing. When all
  ciphertexts have come, Horner's rule joins the buckets. So squarings are made once per column, whatever the number of
  ciphertexts and of the pieces in which they come.

A negative digit needs c^-1. One inversion for each ciphertext costs about five products (2048 bits, GMP), less than a
hundredth of the other work on that ciphertext. Separate buckets for negative digits, with one inversion a column, would
double the squarings. Inverting all ciphertexts at once by Montgomery's trick would save two of the five products.

1000 rows of 21 bits in 13 columns with 15 slots take about 56 000 products; the rows one at a time would take about
300 000. The time and the memory accesses depend on the party's own columns.
"""

from collections.abc import Iterator, Sequence

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.packing import SlotLayout

_BLOCK = 64
"""Ciphertexts whose tables exist at one time: a few MiB, whatever the size of a piece."""


class PackedProduct:
    """Computes prod_g c_g^{E_gj} for every column j, from ciphertexts that arrive in order, in pieces of any size.

    Apart from the tables of one block, it holds its buckets: at most k (e + 1) ciphertexts per column
    if the columns have e bits, which is 180 KiB for 16 slots, 21 bits and a 2048-bit key.
    """

    def __init__(
        self, public_key: PublicKey, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None
    ) -> None:
        """See `PartyCipher.start_product`."""
        bounds = bounds or ColumnBounds.of(columns)
        layout.check_fits(public_key)
        n_samples, n_columns = columns.shape
        self._n_squared = public_key.n_squared
        self._layout = layout
        self._columns = columns
        self._largest = bounds.largest
        self._n_groups = layout.n_groups(n_samples)
        self._n_seen = 0
        self._n_uses = n_columns * min(layout.slots, n_samples)
        self._width = 0
        """Chosen for the values of the first block."""
        # The carry of a signed digit can reach one bit beyond the magnitude.
        self._n_buckets = layout.slot_bits * (layout.slots - 1) + bounds.largest.bit_length() + 1
        self._buckets = [mpz(1)] * (self._n_buckets * n_columns)

    def update(self, vector: EncryptedVector) -> None:
        """See Product."""
        ciphertexts: list[mpz] = vector.elements
        if self._n_seen + len(ciphertexts) > self._n_groups:
            raise ValueError(f"the vector has {self._n_groups} ciphertexts, but more were given")
        for start in range(0, len(ciphertexts), _BLOCK):
            self._update_block(ciphertexts[start : start + _BLOCK])

    def _update_block(self, ciphertexts: Sequence[mpz]) -> None:
        n_squared, buckets, slots = self._n_squared, self._buckets, self._layout.slots
        block = self._columns[self._n_seen * slots : (self._n_seen + len(ciphertexts)) * slots]
        if int(np.abs(block).max(initial=0)) > self._largest:
            raise ValueError("a value is beyond the bounds of the columns")
        self._width = self._width or window_width(self._n_uses, typical_bits(block))
        powers = [power for c in ciphertexts for power in odd_powers(c, self._width, n_squared)]
        self._n_seen += len(ciphertexts)
        # Transposed, so that consecutive products stay in the buckets of one column.
        x = block.T
        sample = np.arange(x.shape[1])
        middle_power = (1 << self._width - 1) * (sample // slots) + (1 << self._width - 2)
        place_of_sample = self._layout.slot_bits * (slots - 1 - sample % slots)
        lowest_bucket = self._n_buckets * np.arange(x.shape[0])[:, np.newaxis] + place_of_sample
        for bit, digits in enumerate(signed_digits(x, self._width)):
            present = digits != 0
            # `>>` rounds down, so digits -3, -1, 1, 3 are at -2, -1, 0, 1 from the middle.
            power_index = ((digits >> 1) + middle_power)[present].tolist()
            bucket_index = (lowest_bucket[present] + bit).tolist()
            for b, p in zip(bucket_index, power_index, strict=True):
                buckets[b] = buckets[b] * powers[p] % n_squared

    def result(self) -> EncryptedVector:
        """See Product.

        A column of zeros gives 1. After re-randomisation, that is an encryption of 0 like any other.
        """
        if self._n_seen < self._n_groups:
            raise ValueError(f"{self._n_groups - self._n_seen} ciphertexts of the vector are missing")
        n = self._n_buckets
        return EncryptedVector(
            [self._join(self._buckets[start : start + n]) for start in range(0, len(self._buckets), n)]
        )

    def _join(self, buckets: list[mpz]) -> mpz:
        """Return prod_t buckets[t]^(2^t)."""
        n_squared = self._n_squared
        product = mpz(1)
        for bucket in reversed(buckets):
            product = product * product % n_squared
            if bucket != 1:
                product = product * bucket % n_squared
        return product


def typical_bits(columns: NDArray[np.int64]) -> int:
    """Return the bits of the mean absolute value. The cost estimate uses it."""
    return int(np.abs(columns).mean()).bit_length()


def window_width(n_uses: int, exponent_bits: int, most: int = 12) -> int:
    """Choose w, at most `most`, for ciphertexts whose table serves `n_uses` exponents: columns times slots.

    A table costs 2^(w-1) products, and an exponent costs about (exponent_bits + 1) / (w + 1) products.
    """
    return min(range(2, most + 1), key=lambda w: (1 << w - 1) + n_uses * (exponent_bits + 1) / (w + 1))


def odd_powers(ciphertext: mpz, width: int, n_squared: mpz) -> list[mpz]:
    """Return the 2^(w-1) powers of one ciphertext to the odd exponents of up to w - 1 bits, ascending."""
    positive = _ascending_odd_powers(ciphertext, width, n_squared)
    negative = _ascending_odd_powers(gmpy2.invert(ciphertext, n_squared), width, n_squared)
    return negative[::-1] + positive


def _ascending_odd_powers(base: mpz, width: int, n_squared: mpz) -> list[mpz]:
    square = base * base % n_squared
    powers = [base]
    for _ in range((1 << width - 2) - 1):
        powers.append(powers[-1] * square % n_squared)
    return powers


def signed_digits(x: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
    """Yield the digits of bit 0, 1, ... of the width-w non-adjacent form, each of the shape of `x`.

    x = sum_t 2^t digits_t, where every digit is 0, or odd and below 2^(w-1) in size.
    """
    half = 1 << width - 1
    rest = x.copy()
    while rest.any():
        digits = ((rest + half) & (2 * half - 1)) - half
        digits[rest & 1 == 0] = 0
        yield digits
        rest = (rest - digits) >> 1
