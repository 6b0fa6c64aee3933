"""Random n-th residues by the kernel: the numbers of `paillier.randomness.NthResidues`."""

import numpy as np

from trilateral.common.paillier.keys import PublicKey
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.threads import in_parallel, thread_count
from trilateral.common.paillier.randomness import TABLES, TEETH, comb_steps, draw_indices, draw_root


class NativeResidues:
    """Powers h^a of a random base h, by a comb."""

    def __init__(self, public_key: PublicKey, numbers: Numbers) -> None:
        self._numbers = numbers
        self._steps = comb_steps(public_key)
        root = numbers.enter([draw_root(public_key)])
        n = public_key.n.to_bytes(numbers.width // 2, "big")
        bases = numbers.empty(TEETH * TABLES)
        _kernel.power(numbers.constants, bases[:1], root, n, 0, 1)
        for i in range(1, len(bases)):
            bases[i : i + 1] = numbers.square(bases[i - 1 : i], self._steps)
        by_table = np.ascontiguousarray(bases.reshape(TEETH, TABLES, numbers.size).swapaxes(0, 1))
        self._comb = numbers.empty(TABLES, 1 << TEETH)
        in_parallel(
            lambda first, stop: _kernel.fill_tables(numbers.constants, self._comb, by_table, TABLES, first, stop),
            2 * TABLES,
            unit=1,
        )

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
