"""Inner products of an encrypted vector that comes in pieces, with columns in clear: here, or on the workers of an engine.

Each sum is a product of ciphertexts modulo n^2, so neither the order nor the grouping of its factors changes it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.compute.engine import Engine, Placed, Task
from trilateral.common.compute.ordered import Ordered
from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher, Product
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.messages import Envelope
from trilateral.common.protocol.paillier_tasks import multiplied
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.scales import RoundScale

GROUP = 16
"""Pieces that one task multiplies. To join the buckets of a product takes a sixteenth of the work on a piece with ten
columns, so with this number of them, tasks cost half a percent."""

OnSums = Callable[[EncryptedVector], Iterator[Envelope]]
"""Called with one ciphertext for each column once all pieces have come; yields the messages that follow."""


class InnerProducts(ABC):
    """The inner products of one vector with every column of a table.

    Args:
        cipher: the party's cipher.
        on_sums: see `OnSums`.
    """

    def __init__(self, cipher: PartyCipher, on_sums: OnSums) -> None:
        self._cipher = cipher
        self._on_sums = on_sums

    @abstractmethod
    def add(self, piece: Ciphertexts, is_last: bool) -> Iterator[Envelope]:
        """Add the next piece, which may come from anyone. After the last piece, `on_sums` follows.

        Raises:
            BadCiphertextError: a ciphertext is not safe to compute with. The error may come later.
        """


class ProductsHere(InnerProducts):
    """See InnerProducts: computed in this process, piece by piece.

    Args:
        cipher: the party's cipher.
        product: multiplies.
        phase: times the work.
        on_sums: see `OnSums`.
    """

    def __init__(self, cipher: PartyCipher, product: Product, phase: Phase, on_sums: OnSums) -> None:
        super().__init__(cipher, on_sums)
        self._product = product
        self._phase = phase

    def add(self, piece: Ciphertexts, is_last: bool) -> Iterator[Envelope]:
        """See InnerProducts."""
        with self._phase("check"):
            opened = self._cipher.open(piece)
        yield from self.add_opened(opened, is_last)

    def add_opened(self, piece: EncryptedVector, is_last: bool) -> Iterator[Envelope]:
        """Add the next piece, which has been checked."""
        with self._phase("product"):
            self._product.update(piece)
        if is_last:
            yield from self._on_sums(self._product.result())


class ProductsOnWorkers(InnerProducts):
    """See InnerProducts: computed by tasks of an engine.

    Args:
        cipher: the party's cipher, of which each worker makes its own.
        engine: runs the tasks.
        tasks: the tasks that the machine waits for.
        scale: the scale of the batch.
        columns: returns the training columns of samples first ... stop - 1, or None if there are none to multiply by.
        further: the same for columns in fixed point, which come last.
        on_sums: see `OnSums`.
    """

    def __init__(
        self,
        cipher: PartyCipher,
        engine: Engine,
        tasks: Ordered[Envelope],
        scale: RoundScale,
        columns: Callable[[int, int], Placed[FloatMatrix] | FloatMatrix | None],
        further: Callable[[int, int], NDArray[np.int64] | None],
        on_sums: OnSums,
    ) -> None:
        super().__init__(cipher, on_sums)
        self._engine = engine
        self._tasks = tasks
        self._products = tasks.beside()
        self._scale = scale
        self._columns = columns
        self._further = further
        self._group: list[Ciphertexts] = []
        self._n_samples = 0
        """Samples of the tasks so far."""
        self._sums: EncryptedVector | None = None

    def add(self, piece: Ciphertexts, is_last: bool) -> Iterator[Envelope]:
        """See InnerProducts."""
        self._group.append(piece)
        if len(self._group) < GROUP and not is_last:
            return
        received, self._group = joined(self._group), []
        first = self._n_samples
        stop = self._n_samples = min(first + len(received) * self._scale.layout.slots, self._scale.n_samples)
        task = self._engine.submit(
            multiplied, self._cipher, self._scale, received, self._columns(first, stop), self._further(first, stop)
        )
        self._products.add(task, self._multiply)
        if not is_last:
            yield from self._products.drain(2 * self._engine.n_slots + 1)
            return
        self._products.add(Finished(), self._finish)
        self._tasks.take_over(self._products)
