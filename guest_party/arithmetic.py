"""The guest's arithmetic: [4 d] for the host, and X_B'[d], X_B'[h] and the loss for the coordinator."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.protocol.arithmetic import PaillierArithmetic, PaillierSession
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.intake import Expected, VectorBounds
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, VectorPiece
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.scales import RoundScale
from trilateral.guest_party.loss import LossSum, begin_loss_sum


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
        return {Role.HOST: VectorBounds(longest, early=longest)}

    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic. All answers follow from the host's vectors, so nothing can be sent at once."""
        yield from self._expect_scores(asked)
        if asked.direction is not None:
            yield self._expect_score_change(asked, asked.direction)

    def _expect_scores(self, asked: BeginRound) -> Iterator[Expected[VectorPiece]]:
        """Make [4 d] for the host, X_B'[d] for the coordinator, and the loss, all from the pieces of [u_A]."""
        key, gradient = asked.key, asked.gradient
        rows = self._batches.rows(asked.batch)
        scale = self._scale(len(rows))
        own = self._encode(self._scores(rows, self._coef) - 2 * self._labels[rows], scale)
        loss = begin_loss_sum(own, scale, self._n_train, self._penalty_loss())
        columns = loss.column[:, np.newaxis]
        if gradient:
            columns = np.column_stack([self._fixed_columns(rows, scale), columns])
        product = self._cipher.start_product(scale.layout, columns)
        added = self._masked(self._penalty_terms(self._coef, scale) if gradient else [], scale)
        packed = self._packed(own, scale)

        def use_scores(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            residual = self._add_packed(piece, packed)
            if gradient:
                yield self._forward(key, Kind.RESIDUAL, piece, residual)
            self._accumulate(product, residual)
            if is_last:
                sums = product.result()
                loss.product = sums[-1:]
                # The loss leaves first: the coordinator decrypts it together with the gradient.
                yield from self._sealed_loss(key, loss)
                if gradient:
                    yield from self._sealed(key, Kind.GRADIENT, sums[:-1], added)

        def use_squares(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            loss.squares = self._opened(piece)
            yield from self._sealed_loss(key, loss)

        yield Expected(Kind.SCORES, scale.layout.n_groups(len(rows)), use_scores)
        yield Expected(Kind.SQUARES, 1, use_squares)

    def _expect_score_change(self, asked: BeginRound, direction: FloatVector) -> Expected[VectorPiece]:
        """Make [h] for the host and X_B'[h] for the coordinator, from the pieces of [Delta u-bar_A]."""
        key = asked.key
        rows = self._batches.curvature_rows(asked.batch, asked.curvature_draw)
        scale = self._scale(len(rows))
        own = self._encode(self._scores(rows, direction), scale)
        product = self._cipher.start_product(scale.layout, self._fixed_columns(rows, scale))
        added = self._masked(self._penalty_terms(direction, scale), scale)
        packed = self._packed(own, scale)

        def use_score_change(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            total_change = self._add_packed(piece, packed)
            yield self._forward(key, Kind.TOTAL_CHANGE, piece, total_change)
            self._accumulate(product, total_change)
            if is_last:
                yield from self._sealed(key, Kind.CURVATURE, product.result(), added)

        return Expected(Kind.SCORE_CHANGE, scale.layout.n_groups(len(rows)), use_score_change)

    def _sealed_loss(self, key: RoundKey, loss: LossSum) -> Iterator[Envelope]:
        """Send the loss to the coordinator once both of its ciphertexts are ready."""
        if loss.product is not None and loss.squares is not None:
            total = self._cipher.add(loss.product, loss.squares)
            yield from self._sealed(key, Kind.LOSS, total, self._masked([loss.own_term], loss.scale))

    def _packed(self, own: NDArray[np.int64], scale: RoundScale) -> list[mpz]:
        with self._phase("encrypt"):
            return scale.layout.pack(own)

    def _add_packed(self, piece: VectorPiece, packed: Sequence[mpz]) -> EncryptedVector:
        """Add the guest's own values to the host's ciphertexts in the same slots, without re-randomisation."""
        received = self._opened(piece)
        with self._phase("encrypt"):
            return self._cipher.add_plaintexts(received, packed[piece.offset : piece.offset + len(received)])

    def _forward(self, key: RoundKey, kind: Kind, piece: VectorPiece, summed: EncryptedVector) -> Envelope:
        """Send sums to the host, with fresh randomness."""
        with self._phase("encrypt"):
            fresh = self._cipher.rerandomise(summed)
        return Envelope(Role.HOST, VectorPiece(key, kind, piece.offset, piece.total, fresh))
