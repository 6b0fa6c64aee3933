"""Random n-th residues by the kernel: the numbers of `paillier.randomness.NthResidues`."""

import secrets

import numpy as np

from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.threads import thread_count
from trilateral.common.paillier.randomness import TOOTH_BITS, comb_rows, draw_base


class NativeResidues:
    """Powers h^a of a random base h, by a table of 256 powers for each byte of a."""

    def __init__(self, public_key: PublicKey, numbers: Numbers) -> None:
        self._numbers = numbers
        n_rows = comb_rows(public_key)
        bases = numbers.enter([draw_base(public_key)])
        for _ in range(n_rows - 1):
            bases = np.concatenate([bases, numbers.square(bases[-1:], TOOTH_BITS)])
        self._comb = numbers.empty(n_rows, 1 << TOOTH_BITS)
        numbers.in_parallel(
            lambda start, stop: _kernel.fill_comb(numbers.constants, self._comb[start:stop], bases[start:stop]), n_rows
        )

    @property
    def piece(self) -> int:
        """See Source: each thread draws one residue per lane at a time."""
        return self._numbers.lanes * thread_count()

    def draw(self, count: int) -> list[Elements]:
        """Make `count` residues, each an element."""
        numbers, comb = self._numbers, self._comb
        n_rows = len(comb)
        exponents = memoryview(secrets.token_bytes(count * n_rows))
        out = numbers.empty(count)
        numbers.in_parallel(
            lambda start, stop: _kernel.draw(
                numbers.constants, out[start:stop], comb, exponents[start * n_rows : stop * n_rows]
            ),
            count,
        )
        return list(out)
