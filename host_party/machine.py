"""The host's state machine: A of the paper, which has features only."""

from collections.abc import Iterator, Sequence
from secrets import token_bytes
from typing import ClassVar

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import Arithmetic, Introduction, PaillierSession, Session
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.evaluation import round_scores
from trilateral.common.protocol.ids import NONCE_BYTES, check_id_digest, id_digest
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    EvaluationRecord,
    Finished,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Message,
    RoundKey,
    RowsDone,
    ScoresDue,
)
from trilateral.common.protocol.party import CheckPeer, PartyMachine
from trilateral.common.protocol.phases import Phase
from trilateral.host_party.arithmetic import HostArithmetic
from trilateral.host_party.shares import HostShares

HOLDOUT_PIECE = 65_536
"""Scores in one message: 512 KiB."""


class HostMachine(PartyMachine):
    """Answers the guest's challenge about the IDs, and gives its part of the hold-out scores.

    Args:
        job: the job's settings, the same for all three roles.
        data: the host's rows, in canonical order of their IDs.
        arithmetic: the host's side of the job's protocol.
        check_peer: refuses a guest with too many columns, see `CheckPeer`.
    """

    role: ClassVar[Role] = Role.HOST
    peer: ClassVar[Role] = Role.GUEST

    def __init__(self, job: JobConfig, data: PartyData, arithmetic: Arithmetic, *, check_peer: CheckPeer) -> None:
        super().__init__(job, data, arithmetic, check_peer)
        self._nonces: tuple[bytes, bytes] | None = None
        self._guest: Introduction | None = None

    # --- the proof that both parties hold the same IDs

    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        match message:
            case IdChallenge() if sender is Role.GUEST:
                yield self._prove_ids(message)
            case IdConfirmation() if sender is Role.GUEST:
                yield from self._confirm_ids(message)
            case RowsDone() if sender is Role.GUEST:
                yield from self._take_rows_done(message)
            case _:
                yield from super()._handle_own(sender, message)

    def _prove_ids(self, challenge: IdChallenge) -> Envelope:
        if challenge.n_rows != self._n_rows:
            raise DataError(
                f"the host has {self._n_rows} rows and the guest {challenge.n_rows}: both must hold the same IDs"
            )
        self._learn_peer_columns(challenge.n_columns)
        if self._nonces is None or self._nonces[0] != challenge.nonce:
            self._nonces = challenge.nonce, token_bytes(NONCE_BYTES)
        digest = id_digest(self._list_digest, *self._nonces, Role.HOST)
        self._guest = Introduction(challenge.n_columns, challenge.seed, challenge.weight_bits)
        own = self._arithmetic.introduction
        return Envelope(Role.GUEST, IdProof(self._nonces[1], digest, own.n_columns, own.seed))

    def _confirm_ids(self, confirmation: IdConfirmation) -> Iterator[Envelope]:
        if self._nonces is None or self._guest is None:
            raise ProtocolError("the guest confirmed the IDs before it asked for a proof of them")
        check_id_digest(confirmation.digest, self._list_digest, *self._nonces, Role.GUEST)
        yield from self._meet(self._guest)

    # --- a round

    def _take_rows_done(self, done: RowsDone) -> Iterator[Envelope]:
        """Go on with a round in which the guest has used some of the host's rows. One that is over needs nothing."""
        if done.key > self._place.key:
            raise ProtocolError(f"the guest is done with rows of round {done.key.round}, which has not begun")
        if self._place.open_round is not None and done.key == self._place.key:
            yield from self._unless_out_of_range(self._arithmetic.take_rows_done(done))

    # --- the hold-out rows, and the end

    def _remember(self, evaluations: Sequence[EvaluationRecord]) -> None:
        """Do nothing: the host does not evaluate."""

    def _round_ended(self, round_number: int, loss: float | None) -> None:
        """Do nothing: the host does not keep anything about a round."""

    def _work_on_holdout(self, begin: BeginRound) -> Iterator[Envelope]:
        if begin.evaluate_at is not None:
            scores = self._arithmetic.holdout_part(begin.evaluate_at)
            yield from self._give_scores(begin.key, scores, self.coef + begin.evaluate_at)

    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        yield from self._give_scores(RoundKey(finish.round, 1), self._arithmetic.result_part(), self.coef)
        yield self._result(finish)
        yield Envelope(Role.COORDINATOR, Finished())

    def _give_scores(self, key: RoundKey, exact: FloatVector, point: FloatVector) -> Iterator[Envelope]:
        """Give scores of rows at a point: of the hold-out rows, and at the end also of the further sets."""
        scores = round_scores(exact)
        if len(scores):
            yield Envelope(Role.HOST, ScoresDue(key, point))
        for first in range(0, len(scores), HOLDOUT_PIECE):
            piece = scores[first : first + HOLDOUT_PIECE]
            yield Envelope(Role.GUEST, HoldoutScores(key, first, len(scores), piece))


def make_host(
    job: JobConfig,
    data: PartyData,
    session: Session,
    *,
    phase: Phase,
    check_peer: CheckPeer,
) -> HostMachine:
    """Make the host's machine for one session of a job, under the protocol of the session.

    Args:
        job: the job's settings.
        data: the host's rows.
        session: what the session's arithmetic needs.
        phase: times the kinds of work, if the process has a clock.
        check_peer: see `CheckPeer`.
    """
    arithmetic: Arithmetic
    if isinstance(session, PaillierSession):
        arithmetic = HostArithmetic(job, data.block, session, phase)
    else:
        arithmetic = HostShares(job, data.block, session, phase)
    return HostMachine(job, data, arithmetic, check_peer=check_peer)
