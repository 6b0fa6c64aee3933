"""The host's state machine: A of the paper, who has features only."""

from collections.abc import Iterator, Sequence
from secrets import token_bytes

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.paillier.cipher import Product
from trilateral.common.paillier.fixed_point import decode, encode_wide
from trilateral.common.protocol.ids import NONCE_BYTES, check_id_digest, id_digest
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
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
from trilateral.common.protocol.scales import RoundScale

HOLDOUT_PIECE = 65_536
"""Scores in one message: 512 KiB."""


class HostMachine(PartyMachine):
    """Sends [u_A], receives [d], and sends X_A^T [d] to the coordinator; the same with s in the place of w."""

    role = Role.HOST
    peer = Role.GUEST
    _nonces: tuple[bytes, bytes] | None = None

    # --- the proof that both hold the same IDs

    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        match message:
            case IdChallenge() if sender is Role.GUEST:
                yield self._prove_ids(message)
            case IdConfirmation() if sender is Role.GUEST:
                yield self._confirm_ids(message)
            case _:
                yield from super()._handle_own(sender, message)

    def _prove_ids(self, challenge: IdChallenge) -> Envelope:
        if challenge.n_rows != len(self._ids):
            raise DataError(
                f"the host has {len(self._ids)} rows and the guest {challenge.n_rows}: both must hold the same IDs"
            )
        if self._nonces is None or self._nonces[0] != challenge.nonce:
            self._nonces = challenge.nonce, token_bytes(NONCE_BYTES)
        digest = id_digest(self._ids, *self._nonces, Role.HOST)
        return Envelope(Role.GUEST, IdProof(self._nonces[1], digest))

    def _confirm_ids(self, confirmation: IdConfirmation) -> Envelope:
        if self._nonces is None:
            raise ProtocolError("the guest confirmed the IDs before it had asked for them")
        check_id_digest(confirmation.digest, self._ids, *self._nonces, Role.GUEST)
        return Envelope(Role.COORDINATOR, self.ready)

    # --- a round

    def _work(self, begin: BeginRound) -> Iterator[Envelope]:
        rows = self._batches.rows(begin.batch)
        scale = self._scale(len(rows))
        scores = self._encode(self._scores(rows, self._coef), scale)
        if begin.gradient:
            product = self._cipher.start_product(scale.layout, self._fixed_columns(rows, scale))
            penalty = self._penalty_terms(self._coef, scale)
            self._expect(Kind.RESIDUAL, Kind.GRADIENT, product, penalty, scale)
        yield from self._pieces(Kind.SCORES, scores, scale, self._cipher.encrypt)
        yield self._squares(decode(scores, scale.value_fraction_bits), scale)
        if begin.direction is not None:
            rows = self._batches.curvature_rows(begin.batch, begin.curvature_draw)
            scale = self._scale(len(rows))
            product = self._cipher.start_product(scale.layout, self._fixed_columns(rows, scale))
            penalty = self._penalty_terms(begin.direction, scale)
            self._expect(Kind.TOTAL_CHANGE, Kind.CURVATURE, product, penalty, scale)
            change = self._encode(self._scores(rows, begin.direction), scale)
            yield from self._pieces(Kind.SCORE_CHANGE, change, scale, self._cipher.encrypt)
        if begin.evaluate_at is not None:
            yield from self._holdout_scores(self._key, self._holdout_part(begin.evaluate_at))

    def _holdout_scores(self, key: RoundKey, scores: FloatVector) -> Iterator[Envelope]:
        for offset in range(0, len(scores), HOLDOUT_PIECE):
            piece = scores[offset : offset + HOLDOUT_PIECE]
            yield Envelope(Role.GUEST, HoldoutScores(key, offset, len(scores), piece))

    def _squares(self, scores: FloatVector, scale: RoundScale) -> Envelope:
        """[sum u_A^2] and the host's penalty: all that the loss needs of the host beside [u_A] itself."""
        total = float(scores @ scores) + 8 * scale.n_samples * self._penalty_loss()
        terms = encode_wide([total], scale.loss_fraction_bits)
        scale.check_terms(terms)
        with self._phase("encrypt"):
            ciphertexts = self._cipher.encrypt([scale.layout.place(term) for term in terms])
        return Envelope(Role.GUEST, VectorPiece(self._key, Kind.SQUARES, 0, 1, ciphertexts))

    def _expect(self, kind: Kind, answer: Kind, product: Product, own_terms: Sequence[int], scale: RoundScale) -> None:
        """X_A^T [d] or X_A^T [h] from the pieces of `kind`, sent to the coordinator as `answer`."""

        def take(piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
            self._accumulate(product, piece.ciphertexts)
            if is_last:
                yield from self._sealed(answer, product.result(), own_terms, scale)

        self._incoming[kind] = Incoming(scale.layout.n_groups(scale.n_samples), take)

    # --- the end

    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        yield from self._holdout_scores(RoundKey(finish.round, 1), self._holdout_part())
        yield self._result(finish)
        yield Envelope(Role.COORDINATOR, Finished())
