"""The guest's state machine: B of the paper, who has features and the labels."""

from collections.abc import Iterator
from secrets import token_bytes

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError, OutOfRangeError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.party_data import PartyData
from trilateral.common.paillier.keys import PublicKey
from trilateral.common.protocol.bounds import is_beyond
from trilateral.common.protocol.evaluation import measure, to_tell
from trilateral.common.protocol.ids import NONCE_BYTES, check_id_digest, id_digest
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    Evaluated,
    Evaluation,
    Finished,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Kind,
    Message,
    RoundKey,
    VectorPiece,
)
from trilateral.common.protocol.party import Incoming, PartyMachine
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.common.protocol.scales import RoundScale
from trilateral.guest_party.holdout import HoldoutIntake
from trilateral.guest_party.loss import LossSum, begin_loss_sum


class GuestMachine(PartyMachine):
    """Receives [u_A], sends [d], and sends X_B^T [d] and the loss to the coordinator.

    [d] is [u_A] plus the guest's own u_B - 2y, re-randomised: without fresh randomness the
    host could divide it by [u_A] and read u_B - 2y in clear, since (1+n)^m = 1 + m n.
    """

    role = Role.GUEST
    peer = Role.HOST

    def __init__(self, job: JobConfig, data: PartyData, public_key: PublicKey, *, phase: Phase = no_phase) -> None:
        super().__init__(job, data, public_key, phase=phase)
        if data.block.labels is None or data.block.holdout_labels is None:
            raise DataError("the guest's table has no label")
        self._labels = data.block.labels
        self._holdout_labels = data.block.holdout_labels
        self._nonce = token_bytes(NONCE_BYTES)
        self._holdout = HoldoutIntake(len(data.block.holdout_columns))
        self._conclusion: FinishJob | None = None

    def start(self) -> Iterator[Envelope]:
        """Ask the host to prove that it holds the same IDs."""
        yield Envelope(Role.HOST, IdChallenge(self._nonce, len(self._ids)))

    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        match message:
            case IdProof() if sender is Role.HOST:
                yield from self._check_proof(message)
            case HoldoutScores() if sender is Role.HOST:
                yield from self._take_holdout(message)
            case _:
                yield from super()._handle_own(sender, message)

    def _check_proof(self, proof: IdProof) -> Iterator[Envelope]:
        nonces = self._nonce, proof.nonce
        check_id_digest(proof.digest, self._ids, *nonces, Role.HOST)
        yield Envelope(Role.HOST, IdConfirmation(id_digest(self._ids, *nonces, Role.GUEST)))
        yield Envelope(Role.COORDINATOR, self.ready)

    # --- a round

    def _work(self, begin: BeginRound) -> Iterator[Envelope]:
        yield from ()
        rows = self._batches.rows(begin.batch)
        self._expect_scores(rows, self._scale(len(rows)), gradient=begin.gradient)
        if begin.direction is not None:
            rows = self._batches.curvature_rows(begin.batch, begin.curvature_draw)
            self._expect_score_change(rows, self._scale(len(rows)), begin.direction)
        yield from self._evaluate()  # What came early.

    def _expect_scores(self, rows: Rows, scale: RoundScale, *, gradient: bool) -> None:
        """[d] to the host, X_B^T [d] to the coordinator, and the loss, all from the pieces of [u_A]."""
        own = self._encode(self._scores(rows, self._coef) - 2 * self._labels[rows], scale)
        loss = begin_loss_sum(own, scale, self._n_train, self._penalty_loss())
        columns = loss.column[:, np.newaxis]
        if gradient:
            columns = np.column_stack([self._fixed_columns(rows, scale), columns])
        product = self._cipher.start_product(scale.layout, columns)
        penalty = self._penalty_terms(self._coef, scale)

        def take_scores(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            residual = self._add_packed(piece, own, scale)
            if gradient:
                yield self._forward(Kind.RESIDUAL, piece, residual)
            self._accumulate(product, residual)
            if is_last:
                *gradient_products, loss.product = product.result()
                if gradient:
                    yield from self._sealed(Kind.GRADIENT, gradient_products, penalty, scale)
                yield from self._sealed_loss(loss)

        def take_squares(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            (loss.squares,) = piece.ciphertexts
            yield from self._sealed_loss(loss)

        self._incoming[Kind.SCORES] = Incoming(scale.layout.n_groups(len(rows)), take_scores)
        self._incoming[Kind.SQUARES] = Incoming(1, take_squares)

    def _sealed_loss(self, loss: LossSum) -> Iterator[Envelope]:
        """Once both of its ciphertexts are there."""
        if loss.product is not None and loss.squares is not None:
            total = self._cipher.add([loss.product], [loss.squares])
            yield from self._sealed(Kind.LOSS, total, [loss.own_term], loss.scale)

    def _expect_score_change(self, rows: Rows, scale: RoundScale, direction: FloatVector) -> None:
        """[h] to the host and X_B^T [h] to the coordinator, from the pieces of [Delta u-bar_A]."""
        own = self._encode(self._scores(rows, direction), scale)
        product = self._cipher.start_product(scale.layout, self._fixed_columns(rows, scale))
        penalty = self._penalty_terms(direction, scale)

        def take_score_change(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            total_change = self._add_packed(piece, own, scale)
            yield self._forward(Kind.TOTAL_CHANGE, piece, total_change)
            self._accumulate(product, total_change)
            if is_last:
                yield from self._sealed(Kind.CURVATURE, product.result(), penalty, scale)

        self._incoming[Kind.SCORE_CHANGE] = Incoming(scale.layout.n_groups(len(rows)), take_score_change)

    def _add_packed(self, piece: VectorPiece, own: NDArray[np.int64], scale: RoundScale) -> list[mpz]:
        """The host's ciphertexts plus the guest's own values in the same slots, not yet re-randomised."""
        slots = scale.layout.slots
        span = slice(piece.offset * slots, (piece.offset + len(piece.ciphertexts)) * slots)
        with self._phase("encrypt"):
            return self._cipher.add_plaintexts(piece.ciphertexts, scale.layout.pack(own[span]))

    def _forward(self, kind: Kind, piece: VectorPiece, summed: list[mpz]) -> Envelope:
        """To the host, under fresh randomness."""
        with self._phase("encrypt"):
            fresh = self._cipher.rerandomise(summed)
        return Envelope(Role.HOST, VectorPiece(self._key, kind, piece.offset, piece.total, fresh))

    # --- the hold-out rows

    def _take_holdout(self, message: HoldoutScores) -> Iterator[Envelope]:
        if is_beyond(message.key, self._max_rounds + 1):  # The last step belongs to the round after the last.
            raise ProtocolError(
                f"the host sent hold-out scores for round {message.key.round}, attempt {message.key.attempt}:"
                f" this job has at most {self._max_rounds} rounds"
            )
        if self._holdout.take(message):
            yield from self._evaluate()
            yield from self._conclude()

    def _evaluate(self) -> Iterator[Envelope]:
        """Once the host's part is there: how good the point is, in two numbers for the coordinator."""
        begun = self._begun
        if begun is None or self._is_void or self._finished or (host_part := self._holdout.scores(begun.key)) is None:
            return
        if begun.evaluate_at is None:
            if len(host_part):
                raise ProtocolError(f"the host sent hold-out scores in round {begun.key.round}, which asks for none")
            return
        try:
            scores = self._holdout_part(begun.evaluate_at) + host_part
        except OutOfRangeError:
            yield from self._declare_void()
            return
        metrics = measure(scores, self._holdout_labels)
        evaluated = Evaluated(begun.key, begun.batch.epoch - 1, metrics)
        self._evaluations[begun.key.round] = evaluated
        yield Envelope(Role.GUEST, evaluated)
        auc = None if metrics.auc is None else to_tell(metrics.auc)
        yield Envelope(Role.COORDINATOR, Evaluation(begun.key, to_tell(metrics.log_loss), auc))

    def _declare_void(self) -> Iterator[Envelope]:
        self._evaluations.pop(self._key.round, None)
        yield from super()._declare_void()

    # --- the end

    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        self._forget_if_void(finish.round - 1, finish.round_loss)
        self._conclusion = finish
        yield from self._conclude()

    def _conclude(self) -> Iterator[Envelope]:
        """Once the last step and the host's part of the hold-out scores are there, in either order."""
        finish = self._conclusion
        if finish is None or (host_part := self._holdout.scores(RoundKey(finish.round, 1))) is None:
            return
        yield self._result(finish, self._holdout_part() + host_part, tuple(self._evaluations.values()))
        yield Envelope(Role.COORDINATOR, Finished())
