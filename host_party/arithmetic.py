"""The host's arithmetic: [u_A] for the guest, and X_A'[d] and X_A'[h] for the coordinator."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import ClassVar

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatRows, FloatVector, blocks_of
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.fixed_point import decode, encode_wide
from trilateral.common.protocol.arithmetic import PaillierArithmetic, PaillierSession
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.inner_products import InnerProducts, task_pieces
from trilateral.common.protocol.intake import Expected, VectorBounds
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, RowsDone, VectorPiece
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.scales import RoundScale


class HostArithmetic(PaillierArithmetic):
    """A's side of equations (3), (4) and (7).

    The host sends its vectors piece by piece, and never has more than a window of pieces that the guest has not
    answered; see `bounds.window_pieces`. The guest answers a piece of the scores with one of the residual, or with
    `RowsDone` if the round takes no gradient, and a piece of the change of the scores with one of the total change.
    """

    peer: ClassVar[Role] = Role.GUEST

    def __init__(
        self,
        job: JobConfig,
        block: TrainingBlock,
        session: PaillierSession,
        phase: Phase,
    ) -> None:
        super().__init__(job, block, session, phase)
        self._outgoing: Iterator[int] = iter(())
        """Each step begins the encryption of some more pieces of the attempt, and gives their number."""
        self._n_sent = 0
        """Pieces of the attempt that have left."""
        self._n_answered: dict[Kind, int] = {}
        """Pieces that the guest has answered, by the kind of their vector."""
        self._confirmable: RoundScale | None = None
        """The scale of the scores if the attempt takes no gradient, so that no vector answers them."""

    @property
    def bounds(self) -> Mapping[Role, VectorBounds]:
        """See Arithmetic: the guest answers each of the host's vectors with one of the same length."""
        longest = {Kind.RESIDUAL: self._longest, Kind.TOTAL_CHANGE: self._longest_curvature}
        return {Role.GUEST: VectorBounds(longest, early={})}

    def begin(self, asked: BeginRound) -> Iterator[Envelope | Expected[VectorPiece]]:
        """See Arithmetic: send [u_A] and the sum of its squares, and expect [4 d]; with curvature, the same for h."""
        key = asked.key
        self._n_rows_done, self._n_sent, self._n_answered = 0, 0, {}
        columns = self._batches.select(asked.batch, self._columns)
        scale = self._scale(len(columns))
        self._choose_task_pieces(scale.layout.n_groups(scale.n_samples))
        scores = self._scores(columns, self._coef, scale)
        self._confirmable = None if asked.gradient else scale
        later: list[Callable[[], object]] = []
        if asked.gradient:
            expected, prepare = self._expect_product(key, Kind.RESIDUAL, Kind.GRADIENT, columns, self._coef)
            later.append(prepare)
            yield expected
        squares = self._squares(scores, scale)
        self._outgoing = self._pieces(key, Kind.SCORES, scores, scale, ahead=(Kind.SQUARES, [squares]))
        if asked.direction is not None:
            columns = self._batches.select_curvature(asked.batch, asked.curvature_draw, self._columns)
            expected, prepare = self._expect_product(key, Kind.TOTAL_CHANGE, Kind.CURVATURE, columns, asked.direction)
            later.append(prepare)
            yield expected
            self._outgoing = chain(self._outgoing, self._score_change(key, columns, asked.direction))
        del scores
        yield from self._go_on()
        # The guest is at work now.
        for prepare in later:
            prepare()

    def take_rows_done(self, done: RowsDone) -> Iterator[Envelope]:
        """See Arithmetic: the guest answers the scores with this message if the attempt takes no gradient."""
        scale = self._confirmable
        if scale is None or done.n_rows > self._n_sent * scale.piece_samples:
            raise ProtocolError(
                f"the guest cannot be done with {done.n_rows} rows of round {done.key.round} that the host has not sent"
            )
        yield from self._go_on(Kind.SCORES, done.n_rows // scale.piece_samples)

    def _score_change(self, key: RoundKey, columns: FloatRows, direction: FloatVector) -> Iterator[int]:
        scale = self._scale(len(columns))
        yield from self._pieces(key, Kind.SCORE_CHANGE, self._scores(columns, direction, scale), scale)

    def _go_on(self, answered: Kind | None = None, n_pieces: int = 0) -> Iterator[Envelope]:
        """Send further pieces, as far as the guest has room for them.

        Args:
            answered: a vector of which the guest has answered some pieces.
            n_pieces: how many pieces of this vector it has answered.
        """
        if answered is not None:
            self._n_answered[answered] = max(n_pieces, self._n_answered.get(answered, 0))
        most = self._window - self._task_pieces
        while self._n_sent - sum(self._n_answered.values()) <= most and (n_more := next(self._outgoing, 0)):
            self._n_sent += n_more
            yield from self._keep_few()

    def _squares(self, scores: NDArray[np.int64], scale: RoundScale) -> mpz:
        """Return sum u_A^2 plus the host's penalty: all that the loss needs from the host besides [u_A] itself.

        Raises:
            OutOfRangeError: it does not fit the slot of the loss.
        """
        blocks = (
            decode(scores[rows], scale.value_fraction_bits) for rows in blocks_of(len(scores), scale.piece_samples)
        )
        total = math.fsum(float(block @ block) for block in blocks) + 8 * scale.n_samples * self._penalty_loss()
        terms = encode_wide([total], scale.loss_fraction_bits)
        scale.check_terms(terms)
        return scale.layout.place(terms[0])

    def _expect_product(
        self, key: RoundKey, kind: Kind, answer: Kind, columns: FloatRows, coef: FloatVector
    ) -> tuple[Expected[VectorPiece], Callable[[], object]]:
        """Make X_A'[d] or X_A'[h] from the pieces of `kind`, and send it to the coordinator as `answer`.

        Returns:
            The vector to expect, and a function that does the part of the work for which no vector is needed. It may be
            called before the first piece comes.
        """
        scale = self._scale(len(columns))
        total = scale.layout.n_groups(scale.n_samples)

        @cache
        def start() -> InnerProducts:
            added = self._masked(self._penalty_terms(coef, scale), scale)

            def seal(sums: EncryptedVector) -> Iterator[Envelope]:
                yield from self._sealed(key, answer, sums, added)

            return self._start_products(columns, scale, seal, n_pieces=task_pieces(-(-total // PIECE), self._engine))

        def use(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            yield from start().add(piece.ciphertexts, is_last)
            stop = piece.total + PIECE - 1 if is_last else piece.offset + len(piece.ciphertexts)
            yield from self._go_on(kind, stop // PIECE)
            yield from self._done_with(piece, scale, is_last)

        return Expected(kind, total, use), start
