"""The guest's arithmetic: [4 d] for the host, and X_B'[d], X_B'[h] and the loss for the coordinator."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined
from trilateral.common.protocol.arithmetic import PaillierArithmetic, PaillierSession
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.inner_products import ProductsHere, ProductsOnWorkers
from trilateral.common.protocol.intake import Expected, VectorBounds
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, RowsDone, VectorPiece
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.scales import RoundScale
from trilateral.guest_party.loss import LossSum, begin_loss_sum

CONFIRMATIONS = 4
"""How often the guest confirms pieces to the host within a window, in a round in which it does not answer them."""


@dataclass(frozen=True, eq=False)
class _Sum:
    """What becomes of a vector of the host."""

    own: NDArray[np.int64]
    """The guest's values in fixed point, which are added, shape (n_samples,)."""
    scale: RoundScale
    products: ProductsHere | ProductsOnWorkers
    """Take the sums."""
    answer: Kind | None
    """As what the sums go to the host; None if they do not."""
    waiting: list[VectorPiece] = field(default_factory=list)
    """Pieces for the next task."""


class GuestArithmetic(PaillierArithmetic):
    """B's side of equations (3), (4) and (7).

    [4 d] is [u_A] plus the guest's own u_B - 2y, re-randomised. Without fresh randomness the host could divide it by
    [u_A] and read u_B - 2y in clear, because (1 + n)^m = 1 + m n.

    Raises:
        DataError: the block has no labels; for other errors see `PaillierArithmetic`.
    """

    peer: ClassVar[Role] = Role.HOST

    def __init__(
        self,
        job: JobConfig,
        block: TrainingBlock,
        session: PaillierSession,
        phase: Phase,
    ) -> None:
        super().__init__(job, block, session, phase)
        if block.labels is None:
            raise DataError("the guest's table has no label")
        self._labels: FloatVector = block.labels

    @property
    def bounds(self) -> Mapping[Role, VectorBounds]:
        """See Arithmetic: the host may have begun an attempt before the guest has."""
        longest = {Kind.SCORES: self._longest, Kind.SQUARES: 1, Kind.SCORE_CHANGE: self._longest_curvature}
        early = {kind: min(most, self._window * PIECE) for kind, most in longest.items()}
        return {Role.HOST: VectorBounds(longest, early)}

    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic. All answers follow from the host's vectors, so nothing can be sent at once."""
        self._n_rows_done = 0
        yield from self._expect_scores(asked)
        if asked.direction is not None:
            yield self._expect_score_change(asked, asked.direction)

    def take_rows_done(self, done: RowsDone) -> Iterator[Envelope]:
        """See Arithmetic: the host sends no such message."""
        raise ProtocolError(f"the guest does not take a {type(done).__name__} from the host")

    def _expect_scores(self, asked: BeginRound) -> Iterator[Expected[VectorPiece]]:
        """Make [4 d] for the host, X_B'[d] for the coordinator, and the loss, all from the pieces of [u_A]."""
        key, gradient = asked.key, asked.gradient
        columns = self._batches.select(asked.batch, self._columns)
        scale = self._scale(len(columns))
        own = self._scores(columns, self._coef, scale, self._batches.select(asked.batch, self._labels))
        loss = begin_loss_sum(own, scale, self._n_train, self._penalty_loss())
        added = self._masked(self._penalty_terms(self._coef, scale) if gradient else [], scale)

        def seal(sums: EncryptedVector) -> Iterator[Envelope]:
            loss.product = sums[-1:]
            # The loss leaves first: the coordinator decrypts it together with the gradient.
            yield from self._sealed_loss(key, loss)
            if gradient:
                yield from self._sealed(key, Kind.GRADIENT, sums[:-1], added)

        further = loss.column, loss.column.bounds
        self._choose_task_pieces(scale.layout.n_groups(scale.n_samples))
        products = self._start_products(columns if gradient else None, scale, seal, further, n_pieces=self._task_pieces)
        wanted = _Sum(own, scale, products, Kind.RESIDUAL if gradient else None)

        def use_scores(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            yield from self._add_own(piece, wanted, is_last)

        def use_squares(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            loss.squares = self._opened(piece)
            yield from self._sealed_loss(key, loss)

        yield Expected(Kind.SCORES, scale.layout.n_groups(scale.n_samples), use_scores)
        yield Expected(Kind.SQUARES, 1, use_squares)

    def _expect_score_change(self, asked: BeginRound, direction: FloatVector) -> Expected[VectorPiece]:
        """Make [h] for the host and X_B'[h] for the coordinator, from the pieces of [Delta u-bar_A]."""
        key = asked.key
        columns = self._batches.select_curvature(asked.batch, asked.curvature_draw, self._columns)
        scale = self._scale(len(columns))
        own = self._scores(columns, direction, scale)
        added = self._masked(self._penalty_terms(direction, scale), scale)

        def seal(sums: EncryptedVector) -> Iterator[Envelope]:
            yield from self._sealed(key, Kind.CURVATURE, sums, added)

        products = self._start_products(columns, scale, seal, n_pieces=self._task_pieces)
        wanted = _Sum(own, scale, products, Kind.TOTAL_CHANGE)

        def use_score_change(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            yield from self._add_own(piece, wanted, is_last)

        return Expected(Kind.SCORE_CHANGE, scale.layout.n_groups(scale.n_samples), use_score_change)

    def _sealed_loss(self, key: RoundKey, loss: LossSum) -> Iterator[Envelope]:
        """Send the loss to the coordinator once both of its ciphertexts are ready."""
        if loss.product is not None and loss.squares is not None:
            total = self._cipher.add(loss.product, loss.squares)
            yield from self._sealed(key, Kind.LOSS, total, self._masked([loss.own_term], loss.scale))

    def _add_own(self, piece: VectorPiece, wanted: _Sum, is_last: bool) -> Iterator[Envelope]:
        """Add the guest's own values to the host's ciphertexts in the same slots.

        The sums go to the products, and with fresh randomness to the host.
        """
        products = wanted.products
        if isinstance(products, ProductsOnWorkers):
            yield from self._add_on_worker(piece, wanted, products, is_last)
            return
        received = self._opened(piece)
        with self._phase("encrypt"):
            slots = wanted.scale.layout.slots
            values = wanted.own[piece.offset * slots : (piece.offset + len(received)) * slots]
            sums = self._cipher.add_plaintexts(received, wanted.scale.layout.pack(values))
            fresh = None if wanted.answer is None else self._cipher.rerandomise(sums)
        yield from self._answer(piece, wanted, fresh)
        yield from products.add_opened(sums, is_last)
        yield from self._used(piece, wanted, is_last)

    def _add_on_worker(
        self, piece: VectorPiece, wanted: _Sum, products: ProductsOnWorkers, is_last: bool
    ) -> Iterator[Envelope]:
        """Do the same on a worker, for several pieces at a time."""
        wanted.waiting.append(piece)
        if len(wanted.waiting) < self._task_pieces and not is_last:
            return
        pieces = tuple(wanted.waiting)
        wanted.waiting.clear()
        first = pieces[0].offset

        def use(fresh: Ciphertexts | None) -> Iterator[Envelope]:
            for each in pieces:
                start = each.offset - first
                part = None if fresh is None else fresh[start : start + len(each.ciphertexts)]
                yield from self._answer(each, wanted, part)
                yield from self._used(each, wanted, is_last and each is piece)

        received = joined([each.ciphertexts for each in pieces])
        products.add_summed(received, wanted.own, is_last, use, answered=wanted.answer is not None)
        yield from self._keep_few()

    def _answer(self, piece: VectorPiece, wanted: _Sum, fresh: Ciphertexts | None) -> Iterator[Envelope]:
        """Answer a piece of the host with the sums, which have fresh randomness."""
        if wanted.answer is not None and fresh is not None:
            yield Envelope(Role.HOST, VectorPiece(piece.key, wanted.answer, piece.offset, piece.total, fresh))

    def _used(self, piece: VectorPiece, wanted: _Sum, is_last: bool) -> Iterator[Envelope]:
        """Tell the coordinator that a piece has been used, and the host if it gets no other answer."""
        stop = piece.offset + len(piece.ciphertexts)
        each = PIECE * max(1, self._window // CONFIRMATIONS)
        if wanted.answer is None and not is_last and stop % each == 0:
            yield Envelope(Role.HOST, RowsDone(piece.key, stop * wanted.scale.layout.slots))
        yield from self._done_with(piece, wanted.scale, is_last)
