"""Inner products of an encrypted vector with columns in clear, by the kernel: products of subsets of ciphertexts.

As in `paillier.product`, the product for column j is prod_g c_g^{E_gj} with E_gj = sum_i x_{gk+i,j} Z^{k-1-i}, and
each bit of a column has a bucket for each slot. Here an offset 2^b makes the values positive, and they are written in
plain binary digits. So the bucket of a bit gets the product of those ciphertexts whose value has a one there:

- A few ciphertexts form a group, and a table holds the products of all 2^r subsets of a group. For each bucket and
  group, the kernel multiplies one entry of the group's table into the bucket.
- The offset adds 2^b to each exponent in a slot. The factor (prod_g c_g)^-1 in bucket b takes it off, so one inversion
  is enough for all columns and ciphertexts.
- Horner's rule joins the buckets of a column.
"""

from itertools import pairwise

import gmpy2
import numpy as np

from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.exponents import ColumnBounds, Exponents
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.threads import in_parallel, thread_count
from trilateral.common.paillier.packing import SlotLayout

_TABLE_BYTES = 16 << 20
"""Maximum bytes of the tables that exist at one time, whatever the size of a piece."""
_LARGEST_GROUP = 12
"""Larger groups save products, but reading their larger tables takes as long; docs/kernel.md has the figures."""


class NativeProduct:
    """Computes prod_g c_g^{E_gj} for every column j, from ciphertexts that arrive in order, in pieces of any size.

    Apart from the tables of one block, it holds its buckets: k e elements per column if its values have e bits with
    their offset, which is 250 KB for 15 slots, 26 bits and a 2048-bit key.
    """

    def __init__(
        self, numbers: Numbers, layout: SlotLayout, columns: Exponents, bounds: ColumnBounds | None = None
    ) -> None:
        """See `PartyCipher.start_product`."""
        bounds = bounds or ColumnBounds.of(columns)
        n_samples, n_columns = columns.shape
        self.numbers = numbers
        self._layout = layout
        self._columns = columns
        self._n_groups = layout.n_groups(n_samples)
        self._n_seen = 0
        self._offset_bits = [(-x - 1).bit_length() if x < 0 else None for x in bounds.lowest.tolist()]
        self._offsets = np.array([0 if b is None else 1 << b for b in self._offset_bits], np.int64)
        self._bits = max(1, int((np.maximum(bounds.highest, 0) + self._offsets).max()).bit_length())
        self._buckets = numbers.empty(n_columns, layout.slots, self._bits)
        element_bytes = numbers.empty(1).nbytes
        room = max(2, _TABLE_BYTES // element_bytes)
        self.group = group_size(n_columns * layout.slots * self._bits, min(_LARGEST_GROUP, room.bit_length() - 1))
        self._block = self.group * (room >> self.group)
        self._product = numbers.empty(0)

    def update(self, vector: EncryptedVector) -> None:
        """See Product."""
        count = len(vector)
        if self._n_seen + count > self._n_groups:
            raise ValueError(f"the vector has {self._n_groups} ciphertexts, but more were given")
        n_blocks = -(-count // self._block)
        bounds = [count * i // max(1, n_blocks) for i in range(n_blocks + 1)]
        for start, stop in pairwise(bounds):
            self._update_block(vector.elements[start:stop])

    def _update_block(self, bases: Elements) -> None:
        numbers, slots = self.numbers, self._layout.slots
        count = len(bases)
        n_groups = -(-count // self.group)
        tables = numbers.empty(n_groups, 1 << -(-count // n_groups))
        in_parallel(
            lambda first, stop: _kernel.fill_tables(numbers.constants, tables, bases, n_groups, first, stop),
            2 * n_groups,
            unit=1,
        )
        samples = np.ascontiguousarray(self._columns[self._n_seen * slots : (self._n_seen + count) * slots])
        fresh = not self._n_seen
        sizes = (count, n_groups, slots, self._bits, fresh)
        numbers.in_parallel(
            lambda first, stop: _kernel.fill_buckets(
                numbers.constants, self._buckets, tables, samples, self._offsets, *sizes, first, stop
            ),
            samples.shape[1] * slots,
        )
        self._n_seen += count
        # The last entry of a table is the product of its whole group.
        ends = [count * (g + 1) // n_groups - count * g // n_groups for g in range(n_groups)]
        whole = [tables[g, (1 << size) - 1 : 1 << size] for g, size in enumerate(ends)]
        self._product = numbers.product(np.concatenate([self._product, *whole]))
        if self._n_seen == self._n_groups:
            self._take_off_offsets()

    def result(self) -> EncryptedVector:
        """See Product. A column of zeros gives 1."""
        if self._n_seen < self._n_groups:
            raise ValueError(f"{self._n_groups - self._n_seen} ciphertexts of the vector are missing")
        numbers, layout = self.numbers, self._layout
        out = numbers.empty(len(self._buckets))
        sizes = (layout.slots, self._bits, layout.slot_bits)
        # A thread fills its lanes best if it has all of its columns at a time. Fewer columns than lanes take as long.
        in_parallel(
            lambda first, stop: _kernel.join_buckets(numbers.constants, out, self._buckets, *sizes, first, stop),
            len(out),
            unit=max(numbers.lanes, -(-len(out) // thread_count())),
        )
        return EncryptedVector(out)

    def _take_off_offsets(self) -> None:
        """Multiply the inverse of the product of all ciphertexts into the bucket of each offset."""
        numbers, slots = self.numbers, self._layout.slots
        columns = [column for column, bit in enumerate(self._offset_bits) if bit is not None]
        if not columns:
            return
        bits = [bit for bit in self._offset_bits if bit is not None]
        inverse = numbers.enter([gmpy2.invert(number, numbers.n_squared) for number in numbers.leave(self._product)])
        buckets = self._buckets[columns, :, bits].reshape(-1, numbers.size)
        corrected = numbers.multiply(buckets, np.repeat(inverse, len(buckets), axis=0))
        self._buckets[columns, :, bits] = corrected.reshape(-1, slots, numbers.size)


def group_size(n_buckets: int, most: int) -> int:
    """Choose r, the number of ciphertexts that share a table of 2^r entries, at most `most`.

    For r ciphertexts, a table takes 2^r - r - 1 products, because r entries are the ciphertexts and one is empty. Each
    bucket takes one.
    """
    return min(range(1, most + 1), key=lambda r: ((1 << r) - r - 1 + n_buckets) / r)
