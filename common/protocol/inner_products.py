"""Inner products of an encrypted vector that comes in pieces with columns in clear: here, or on an engine's workers.

Each sum is a product of ciphertexts modulo n^2, so neither the order nor the grouping of its factors changes it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.compute.engine import Engine, Placed
from trilateral.common.compute.ordered import Ordered
from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher, Product
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined
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
        scale: the scale of the batch.
        read: returns some rows of the training columns, and of further columns in fixed point; see `multiplied`.
        on_sums: see `OnSums`.
        engine: runs the tasks.
        tasks: the tasks that the machine waits for.
    """

    def __init__(
        self,
        cipher: PartyCipher,
        scale: RoundScale,
        read: Callable[[slice], tuple[Placed[FloatMatrix] | FloatMatrix | None, NDArray[np.int64] | None]],
        on_sums: OnSums,
        *,
        engine: Engine,
        tasks: Ordered[Envelope],
    ) -> None:
        super().__init__(cipher, on_sums)
        self._engine = engine
        self._tasks = tasks
        self._products = tasks.beside()
        self._scale = scale
        self._read = read
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
        self._n_samples = min(first + len(received) * self._scale.layout.slots, self._scale.n_samples)
        columns = self._read(slice(first, self._n_samples))
        task = self._engine.submit(multiplied, self._cipher, self._scale, received, *columns)
        self._products.add(task, partial(self._take, is_last))
        if is_last:
            self._tasks.take_over(self._products)
        else:
            yield from self._products.drain(2 * self._engine.n_slots + 1)

    def _take(self, is_last: bool, product: Ciphertexts) -> Iterator[Envelope]:
        part = self._cipher.open(product)
        self._sums = part if self._sums is None else self._cipher.add(self._sums, part)
        if is_last:
            yield from self._on_sums(self._sums)
