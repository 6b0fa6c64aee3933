"""Random n-th residues by the kernel: the numbers of `paillier.randomness.NthResidues`."""

import numpy as np
from gmpy2 import mpz

from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.threads import thread_count
from trilateral.common.paillier.randomness import TABLES, TEETH, comb_steps, draw_indices, draw_root


class NativeResidues:
    """Powers h^a of a random base h, by a comb."""

    def __init__(self, public_key: PublicKey, numbers: Numbers) -> None:
        self._numbers = numbers
        self._steps = comb_steps(public_key)
        bases = numbers.empty(TEETH, TABLES)
        root = numbers.enter([draw_root(public_key)])
        n = public_key.n.to_bytes(numbers.width // 2, "big")
        _kernel.power(numbers.constants, bases[0, :1], root, n, 0, 1)
        chain = bases.reshape(TEETH * TABLES, numbers.size)
        for i in range(1, len(chain)):
            chain[i : i + 1] = numbers.square(chain[i - 1 : i], self._steps)
        self._comb = numbers.empty(TABLES, 1 << TEETH)
        self._comb[:, 0] = numbers.enter([mpz(1)])
        for tooth in range(TEETH):
            half = 1 << tooth
            powers = np.ascontiguousarray(self._comb[:, :half]).reshape(TABLES * half, numbers.size)
            products = numbers.multiply(powers, np.repeat(bases[tooth], half, axis=0))
            self._comb[:, half : 2 * half] = products.reshape(TABLES, half, numbers.size)

    @property
    def piece(self) -> int:
        """See Source: each thread draws one residue per lane at a time."""
        return self._numbers.lanes * thread_count()

    def empty(self, count: int) -> Elements:
        """See Source."""
        return self._numbers.empty(count)

    def draw(self, out: Elements) -> None:
        """See Source."""
        numbers = self._numbers
        indices = draw_indices(len(out), self._steps)
        numbers.in_parallel(
            lambda start, stop: _kernel.draw(
                numbers.constants, out[start:stop], self._comb, indices[start:stop], TABLES
            ),
            len(out),
        )
