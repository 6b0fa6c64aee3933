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
from trilateral.common.protocol.paillier_tasks import multiplied, summed
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.scales import RoundScale

MAX_TASK_PIECES = 16
"""Pieces of a vector that a task on a worker works on, at most. With as many, it takes a third of a second to encrypt
and a second to multiply, under a key of 2048 bits with ten columns. To send it there and back takes 10 ms."""
TASKS_PER_SLOT = 4
"""Tasks for each slot of an engine into which a vector is divided, if it is long enough: with fewer, some workers would
have nothing to do at the end."""

OnSums = Callable[[EncryptedVector], Iterator[Envelope]]
"""Called with one ciphertext for each column once all pieces have come; yields the messages that follow."""


def task_pieces(n_pieces: int, engine: Engine) -> int:
    """Return how many consecutive pieces a task works on. The result of a round does not depend on it.

    Args:
        n_pieces: pieces that there are for tasks at a time.
        engine: runs the tasks. One that runs them at once gets the pieces one by one.

    Returns:
        A power of two, so that it seldom changes when workers come and go, and groups of both parties match.
    """
    if engine.at_once:
        return 1
    most = min(n_pieces // (TASKS_PER_SLOT * engine.n_slots), MAX_TASK_PIECES)
    return 1 << (max(1, most).bit_length() - 1)


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
        n_pieces: pieces that one task multiplies.
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
        n_pieces: int,
    ) -> None:
        super().__init__(cipher, on_sums)
        self._engine = engine
        self._tasks = tasks
        self._products = tasks.beside()
        self._scale = scale
        self._read = read
        self._n_pieces = n_pieces
        self._group: list[Ciphertexts] = []
        self._n_samples = 0
        """Samples of the tasks so far."""
        self._sums: EncryptedVector | None = None

    def add(self, piece: Ciphertexts, is_last: bool) -> Iterator[Envelope]:
        """See InnerProducts."""
        self._group.append(piece)
        if len(self._group) < self._n_pieces and not is_last:
            return
        received, self._group = joined(self._group), []
        columns = self._read(self._next_rows(received))
        task = self._engine.submit(multiplied, self._cipher, self._scale, received, *columns)
        self._products.add(task, partial(self._take, is_last))
        if is_last:
            self._tasks.take_over(self._products)
        else:
            yield from self._products.drain(2 * self._engine.n_slots + 1)

    def add_summed(
        self,
        received: Ciphertexts,
        own: NDArray[np.int64],
        is_last: bool,
        use: Callable[[Ciphertexts | None], Iterator[Envelope]],
        *,
        answered: bool,
    ) -> None:
        """Add the sums of the next pieces and the party's own values, which one task adds up and multiplies.

        Args:
            received: the pieces, joined.
            own: the party's own vector, in fixed point.
            is_last: whether no piece comes after these.
            use: called with the sums, or None without `answered`, before the inner products are used.
            answered: whether `use` needs the sums.
        """
        rows = self._next_rows(received)
        args = self._cipher, self._scale, received, own[rows], *self._read(rows), answered
        self._tasks.add(self._engine.submit(summed, *args, urgent=True), partial(self._take_both, is_last, use))

    def _next_rows(self, received: Ciphertexts) -> slice:
        first = self._n_samples
        self._n_samples = min(first + len(received) * self._scale.layout.slots, self._scale.n_samples)
        return slice(first, self._n_samples)

    def _take_both(
        self,
        is_last: bool,
        use: Callable[[Ciphertexts | None], Iterator[Envelope]],
        result: tuple[Ciphertexts | None, Ciphertexts],
    ) -> Iterator[Envelope]:
        fresh, product = result
        yield from use(fresh)
        yield from self._take(is_last, product)

    def _take(self, is_last: bool, product: Ciphertexts) -> Iterator[Envelope]:
        part = self._cipher.open(product)
        self._sums = part if self._sums is None else self._cipher.add(self._sums, part)
        if is_last:
            yield from self._on_sums(self._sums)
