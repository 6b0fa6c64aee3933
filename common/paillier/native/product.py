"""Inner products of an encrypted vector with columns by the kernel, by the method of `paillier.product`."""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.threads import in_parallel, thread_count
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.product import check_columns, typical_bits, window_width

_TABLE_BYTES = 16 << 20
"""Maximum bytes of the tables of powers that exist at one time, whatever the size of a piece."""
_WIDEST = 10
"""Wider digits save products, but reading their larger tables takes as long; docs/kernel.md has the figures."""


class NativeProduct:
    """Computes prod_g c_g^{E_gj} for every column j, from ciphertexts that arrive in order, in pieces of any size.

    Apart from the tables of one block, it holds its buckets: k (e + 1) elements per column if the columns have e bits,
    which is 230 KiB for 16 slots, 21 bits and a 2048-bit key.
    """

    def __init__(self, numbers: Numbers, layout: SlotLayout, columns: NDArray[np.int64]) -> None:
        """`columns` has shape (n_samples, n_columns) and values below 2^62 in size."""
        largest = check_columns(columns)
        self._numbers = numbers
        self._layout = layout
        self._columns = np.ascontiguousarray(columns)
        self._n_groups = layout.n_groups(len(columns))
        self._n_seen = 0
        n_columns = columns.shape[1]
        uses = n_columns * min(layout.slots, len(columns))
        self.width = window_width(uses, typical_bits(columns), _widest(numbers))
        self._bits = largest.bit_length() + 1
        self._buckets = numbers.empty(n_columns, layout.slots * self._bits)
        self._filled = np.zeros((n_columns, layout.slots * self._bits), dtype=np.uint8)
        lanes, table_bytes = numbers.lanes, 8 * numbers.size << self.width - 1
        self._block = max(lanes * thread_count(), _TABLE_BYTES // table_bytes // lanes * lanes)

    def update(self, vector: EncryptedVector) -> None:
        """See Product."""
        if self._n_seen + len(vector) > self._n_groups:
            raise ValueError(f"the vector has {self._n_groups} ciphertexts, but more were given")
        for start in range(0, len(vector), self._block):
            self._update_block(vector.elements[start : start + self._block])

    def _update_block(self, bases: Elements) -> None:
        numbers, width, slots = self._numbers, self.width, self._layout.slots
        inverses = numbers.invert(bases)
        powers = numbers.empty(len(bases), 1 << width - 1)
        numbers.in_parallel(
            lambda start, stop: _kernel.odd_powers(
                numbers.constants, powers[start:stop], bases[start:stop], inverses[start:stop], width
            ),
            len(bases),
        )
        samples = self._columns[self._n_seen * slots : (self._n_seen + len(bases)) * slots]
        self._n_seen += len(bases)
        n_columns = samples.shape[1]
        buckets = (self._buckets, self._filled)
        sizes = (n_columns, slots, self._bits)
        in_parallel(
            lambda first, stop: _kernel.fill_buckets(
                numbers.constants, *buckets, powers, samples, width, *sizes, first, stop
            ),
            n_columns,
            unit=1,
        )

    def result(self) -> EncryptedVector:
        """See Product. A column of zeros gives 1."""
        if self._n_seen < self._n_groups:
            raise ValueError(f"{self._n_groups - self._n_seen} ciphertexts of the vector are missing")
        numbers, layout = self._numbers, self._layout
        out = numbers.empty(len(self._buckets))
        buckets = (self._buckets, self._filled)
        sizes = (layout.slots, self._bits, layout.slot_bits)
        numbers.in_parallel(
            lambda first, stop: _kernel.join_buckets(numbers.constants, out, *buckets, *sizes, first, stop), len(out)
        )
        return EncryptedVector(out)


def _widest(numbers: Numbers) -> int:
    """Return the largest w for which the tables of as many ciphertexts as there are lanes fit _TABLE_BYTES."""
    powers = _TABLE_BYTES // (numbers.lanes * thread_count() * 8 * numbers.size)
    return min(_WIDEST, max(2, powers.bit_length()))
