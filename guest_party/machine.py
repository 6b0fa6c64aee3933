"""The guest's state machine: B of the paper, which has features and the labels."""

from collections.abc import Callable, Iterator, Sequence
from secrets import token_bytes
from typing import ClassVar

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, OutOfRangeError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import Arithmetic, Introduction, PaillierSession, Session
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.bounds import is_beyond
from trilateral.common.protocol.evaluation import HoldoutMetrics, disclosed_auc, disclosed_log_loss, measure
from trilateral.common.protocol.ids import NONCE_BYTES, check_id_digest, id_digest
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    Evaluation,
    EvaluationRecord,
    Finished,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Message,
    RoundKey,
)
from trilateral.common.protocol.party import CheckPeer, PartyMachine
from trilateral.common.protocol.phases import Phase
from trilateral.guest_party.arithmetic import GuestArithmetic
from trilateral.guest_party.holdout import HoldoutIntake
from trilateral.guest_party.shares import GuestShares

Measure = Callable[[FloatVector, FloatVector], HoldoutMetrics]


class GuestMachine(PartyMachine):
    """Challenges the host about the IDs, and evaluates on the hold-out rows.

    Args:
        job: the job's settings, the same for all three roles.
        data: the guest's rows, in canonical order of their IDs.
        arithmetic: the guest's side of the job's protocol.
        check_peer: refuses a host with too many columns, see `CheckPeer`.
        measure: compares scores u of the hold-out rows with labels in {-1, +1}, both of shape (n_holdout,).

    Raises:
        DataError: the data has no labels.
    """

    role: ClassVar[Role] = Role.GUEST
    peer: ClassVar[Role] = Role.HOST

    def __init__(
        self,
        job: JobConfig,
        data: PartyData,
        arithmetic: Arithmetic,
        *,
        check_peer: CheckPeer,
        measure: Measure = measure,
    ) -> None:
        super().__init__(job, data, arithmetic, check_peer)
        if data.block.holdout_labels is None:
            raise DataError("the guest's table has no label")
        self._measure = measure
        self._holdout_labels = data.block.holdout_labels
        self._nonce = token_bytes(NONCE_BYTES)
        self._holdout = HoldoutIntake(len(data.block.holdout_columns), job.n_models * data.block.n_scored)
        self._evaluations: dict[int, EvaluationRecord] = {}
        """The evaluations of the rounds that evaluated and were not void."""
        self._conclusion: FinishJob | None = None

    # --- the proof that both parties hold the same IDs

    def start(self) -> Iterator[Envelope]:
        """Ask the host to prove that it holds the same IDs."""
        own = self._arithmetic.introduction
        challenge = IdChallenge(self._nonce, self._n_rows, own.n_columns, own.seed, own.weight_bits)
        yield Envelope(Role.HOST, challenge)

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
        check_id_digest(proof.digest, self._list_digest, *nonces, Role.HOST)
        self._learn_peer_columns(proof.n_columns)
        yield Envelope(Role.HOST, IdConfirmation(id_digest(self._list_digest, *nonces, Role.GUEST)))
        yield from self._meet(Introduction(proof.n_columns, proof.seed))

    # --- the hold-out rows

    def _take_holdout(self, message: HoldoutScores) -> Iterator[Envelope]:
        if is_beyond(message.key, self._max_rounds + 1):  # The last step belongs to the round after the last.
            raise ProtocolError(
                f"the host sent hold-out scores for round {message.key.round}, attempt {message.key.attempt}:"
                f" this job has at most {self._max_rounds} rounds"
            )
        if self._holdout.add(message):
            yield from self._evaluate()
            yield from self._conclude()

    def _work_on_holdout(self, begin: BeginRound) -> Iterator[Envelope]:
        del begin
        yield from self._evaluate()  # The host's part may have come early.

    def _evaluate(self) -> Iterator[Envelope]:
        """Once the host's part has arrived, report two metrics of the point to the coordinator."""
        asked = self._place.open_round
        if asked is None or (host_part := self._holdout.scores(asked.key)) is None:
            return
        if asked.evaluate_at is None:
            if len(host_part):
                raise ProtocolError(
                    f"the host sent hold-out scores in round {asked.key.round}, which does not ask for them"
                )
            return
        try:
            scores = self._arithmetic.holdout_part(asked.evaluate_at) + host_part
        except OutOfRangeError:
            yield from self._declare_void()
            return
        metrics = self._measure(scores, self._holdout_labels)
        evaluated = EvaluationRecord(asked.key, asked.batch.epoch - 1, metrics)
        self._evaluations[asked.key.round] = evaluated
        yield Envelope(Role.GUEST, evaluated)
        told = Evaluation(asked.key, disclosed_log_loss(scores, self._holdout_labels), disclosed_auc(metrics.auc))
        yield Envelope(Role.COORDINATOR, told)

    def _declare_void(self) -> Iterator[Envelope]:
        self._evaluations.pop(self._place.key.round, None)
        yield from super()._declare_void()

    def _remember(self, evaluations: Sequence[EvaluationRecord]) -> None:
        self._evaluations = {each.key.round: each for each in evaluations}

    def _round_ended(self, round_number: int, loss: float | None) -> None:
        """Forget the evaluation of a void round."""
        if loss is None:
            self._evaluations.pop(round_number, None)

    # --- the end

    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        self._conclusion = finish
        yield from self._conclude()

    def _conclude(self) -> Iterator[Envelope]:
        """Make the result once the last step and the host's hold-out scores have arrived, in either order."""
        finish = self._conclusion
        if finish is None or (host_part := self._holdout.result(RoundKey(finish.round, 1))) is None:
            return
        yield self._result(finish, self._arithmetic.result_part() + host_part, tuple(self._evaluations.values()))
        yield Envelope(Role.COORDINATOR, Finished())


def make_guest(
    job: JobConfig,
    data: PartyData,
    session: Session,
    *,
    phase: Phase,
    check_peer: CheckPeer,
    measure: Measure = measure,
) -> GuestMachine:
    """Make the guest's machine for one session of a job, under the protocol of the session.

    Args:
        job: the job's settings.
        data: the guest's rows.
        session: what the session's arithmetic needs.
        phase: times the kinds of work, if the process has a clock.
        check_peer: see `CheckPeer`.
        measure: see `GuestMachine`.
    """
    arithmetic: Arithmetic
    if isinstance(session, PaillierSession):
        arithmetic = GuestArithmetic(job, data.block, session, phase)
    else:
        arithmetic = GuestShares(job, data.block, session, phase)
    return GuestMachine(job, data, arithmetic, check_peer=check_peer, measure=measure)
