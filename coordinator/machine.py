"""The coordinator's state machine: C of the paper, which leads the rounds and sees no row."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.bounds import MAX_ATTEMPTS
from trilateral.common.protocol.messages import (
    Began,
    ElementPiece,
    Envelope,
    Evaluation,
    Failed,
    Finished,
    JobEnded,
    Message,
    ObservationRecord,
    OutOfRange,
    Piece,
    Ready,
    RoundKey,
    RoundTimedOut,
    RowsDone,
    SharesReady,
    VectorPiece,
)
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.coordinator.computation import Offer
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.rounds import Attempt, Rounds, check_memory


@dataclass(frozen=True)
class Past:
    """What is known about a job's earlier sessions."""

    job_id: bytes
    """Run ID of the first session."""
    ready: Mapping[Role, Ready] = field(default_factory=dict)
    """What each party reported when both were ready; empty if that never happened."""
    observations: Sequence[Observation | None] = ()
    """The observation of each round, in order; None for a void round."""


class CoordinatorMachine:
    """Leads the rounds of one job: asks both parties, opens their answers, and lets the optimiser choose what follows.

    Args:
        job: the job's settings.
        offer: what differs between the protocols. It is made for this session alone and lives as long as this machine.
        phase: times the kinds of work, if the process has a clock.
        past: what is known about the job's earlier sessions; None in the first.
    """

    def __init__(self, job: JobConfig, offer: Offer, *, phase: Phase = no_phase, past: Past | None = None) -> None:
        self._job = job
        self._past = past
        self._offer = offer
        self._phase = phase
        self._ready: dict[Role, Ready] = {}
        self._rounds: Rounds | None = None
        self._attempt: Attempt | None = None
        self._conclusion: Conclusion | None = None
        self._finished: set[Role] = set()
        self._ended = False

    def start(self) -> Iterator[Envelope]:
        """Offer the job to the host first, because the guest calls the host as soon as it knows about the job."""
        for party in PARTIES:
            offer = self._offer.to(party)
            if self._past is not None:
                offer = replace(offer, job_id=self._past.job_id, was_ready=bool(self._past.ready))
            yield Envelope(party, offer)

    @property
    def under_way(self) -> bool:
        """See `Machine.under_way`: the coordinator has no rows, and so no tasks."""
        return False

    def settle(self) -> Iterator[Envelope]:
        """See `Machine.settle`."""
        yield from ()

    def prepare(self) -> bool:
        """See `Machine.prepare`."""
        return self._rounds is not None and self._rounds.computation.prepare()

    @property
    def prepared(self) -> int:
        """See `Machine.prepared`."""
        return 0

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """See `Machine.handle`."""
        if self._ended:
            return
        match message:
            case Ready() if sender in PARTIES:
                yield from self._take_ready(sender, message)
            case VectorPiece() | ElementPiece() if sender in PARTIES:
                yield from self._take_piece(sender, message)
            case RowsDone() if sender in PARTIES:
                if self._conclusion is None:
                    yield from self._take_rows_done(sender, message)
            case Evaluation() if sender is Role.GUEST:
                yield from self._take_evaluation(sender, message)
            case OutOfRange() if sender in PARTIES:
                if (attempt := self._find_open(sender, message.key)) is not None:
                    yield from self._observe(attempt, None)
            case RoundTimedOut() if sender is Role.COORDINATOR:
                if (attempt := self._find_open(sender, message.key)) is not None:
                    yield from self._begin_again(attempt)
            case Finished() if sender in PARTIES:
                yield from self._take_finished(sender)
            case Failed():
                yield from self._fail(message.reason)
            case _:
                raise ProtocolError(f"the coordinator does not take a {type(message).__name__} from the {sender}")

    # --- the start

    def _take_ready(self, sender: Role, ready: Ready) -> Iterator[Envelope]:
        if sender in self._ready:
            return
        self._ready[sender] = ready
        if len(self._ready) < len(PARTIES):
            return
        # They come in either order, and all vectors have the host's columns first.
        self._ready = {party: self._ready[party] for party in PARTIES}
        host, guest = self._ready.values()
        if host.n_train != guest.n_train:
            raise ProtocolError(f"the host trains on {host.n_train} rows and the guest on {guest.n_train}")
        batch = 1 if self._job.batch == "all" else self._job.batch
        least = max(batch, self._job.curvature_batch or 1, self._job.folds or 1)
        if host.n_train < least:
            raise ProtocolError(
                f"the parties train on {host.n_train} rows, but the job's batches or folds need {least}"
            )
        check_memory(self._job, host.n_train, host.n_columns + guest.n_columns)
        past = self._past or Past(b"")
        self._check_sizes_as_before(past)
        n_columns = {party: ready.n_columns for party, ready in self._ready.items()}
        self._rounds = Rounds(self._job, host.n_train, n_columns, self._offer.agree(self._ready))
        if not past.ready:
            yield Envelope(Role.COORDINATOR, Began(dict(self._ready)))
        places = {party: ready.round for party, ready in self._ready.items()}
        following = yield from self._rounds.replay(past.observations, places)
        yield from self._follow(following)

    def _check_sizes_as_before(self, past: Past) -> None:
        for party, before in past.ready.items():
            now = self._ready[party]
            if (now.n_train, now.n_columns) != (before.n_train, before.n_columns):
                raise ProtocolError(
                    f"the {party} has {now.n_train} training rows and {now.n_columns} columns, but had"
                    f" {before.n_train} and {before.n_columns} when the job began"
                )
            if not _are_alike(now.shares, before.shares):
                raise ProtocolError(
                    f"the {party}'s hold-out rows, the size of its values, its penalty, its sample weights or its start"
                    " are not those with which the job began: restore its table and configuration, or start another job"
                )

    # --- a round

    def _follow(self, following: RoundPlan | Conclusion | GivenUp) -> Iterator[Envelope]:
        match following:
            case RoundPlan():
                yield from self._begin(following, RoundKey(following.round, 1))
            case Conclusion():
                self._conclusion = following
                yield from self._begun_rounds.finish(following)
            case GivenUp():
                yield from self._fail(following.reason)

    def _begin(self, plan: RoundPlan, key: RoundKey) -> Iterator[Envelope]:
        """Ask both parties for an attempt. Answers to an earlier attempt are dropped."""
        self._attempt = self._begun_rounds.attempt(plan, key)
        yield from self._begun_rounds.begin(self._attempt)
        yield from self._begun_rounds.computation.deal()

    def _begin_again(self, attempt: Attempt) -> Iterator[Envelope]:
        key = attempt.key
        if key.attempt < MAX_ATTEMPTS:
            yield from self._begin(attempt.plan, RoundKey(key.round, key.attempt + 1))
            return
        yield from self._fail(
            f"round {key.round} was not completed in {key.attempt} attempts:"
            " read the parties' logs, or raise limits.round_timeout for all three processes"
        )

    def _take_piece(self, sender: Role, piece: Piece) -> Iterator[Envelope]:
        attempt = self._find_open(sender, piece.key)
        rounds = self._begun_rounds
        rounds.allowances[sender].spend(piece.n_rows)
        rounds.computation.add(sender, piece, None if attempt is None else attempt.opening)
        if attempt is not None:
            yield from self._go_on(attempt)

    def _take_rows_done(self, sender: Role, done: RowsDone) -> Iterator[Envelope]:
        computation = self._begun_rounds.computation
        computation.take_rows_done(sender, done)
        attempt = self._find_open(sender, done.key)
        if attempt is not None and (progress := attempt.advance(sender, done.n_rows)) is not None:
            yield Envelope(Role.COORDINATOR, progress)
        yield from computation.deal()

    def _take_evaluation(self, sender: Role, evaluation: Evaluation) -> Iterator[Envelope]:
        attempt = self._find_open(sender, evaluation.key)
        if attempt is not None:
            attempt.opening.add_evaluation(evaluation)
            yield from self._go_on(attempt)

    def _go_on(self, attempt: Attempt) -> Iterator[Envelope]:
        if attempt.opening.complete:
            yield from self._observe(attempt, attempt.opening.observation())

    def _find_open(self, sender: Role, key: RoundKey) -> Attempt | None:
        """Return the attempt that a message belongs to; None if that attempt is over.

        Raises:
            ProtocolError: the attempt has not begun.
        """
        newest = RoundKey(0, 0) if self._attempt is None else self._attempt.key
        if key > newest:
            raise ProtocolError(
                f"the {sender} sent a message for round {key.round}, attempt {key.attempt}, which has not begun"
            )
        return self._attempt if key == newest and self._conclusion is None else None

    def _observe(self, attempt: Attempt, observation: Observation | None) -> Iterator[Envelope]:
        """End the round: report its observation, or that it was void, and continue as the optimiser decides."""
        with self._phase("optimise"):
            following = self._begun_rounds.training.observe(observation)
        yield Envelope(Role.COORDINATOR, _record(attempt.key.round, observation))
        yield self._begun_rounds.report(attempt, observation, following)
        yield from self._follow(following)

    @property
    def _begun_rounds(self) -> Rounds:
        if self._rounds is None:
            raise ProtocolError("a message of a round came before both parties were ready")
        return self._rounds

    # --- the end

    def _take_finished(self, sender: Role) -> Iterator[Envelope]:
        if self._conclusion is None:
            raise ProtocolError(f"the {sender} reported that it has finished before the training had ended")
        self._finished.add(sender)
        if len(self._finished) == len(PARTIES):
            self._ended = True
            done = self._conclusion
            loss = self._begun_rounds.computation.disclose(done.loss)
            yield Envelope(
                Role.COORDINATOR, JobEnded(done.reason, loss, done.epochs, self._begun_rounds.compared(done))
            )

    def _fail(self, reason: str) -> Iterator[Envelope]:
        self._ended = True
        for party in PARTIES:
            yield Envelope(party, Failed(reason))
        yield Envelope(Role.COORDINATOR, JobEnded(reason))


def _are_alike(now: SharesReady | None, before: SharesReady | None) -> bool:
    """Return whether a party reports what it has reported in an earlier session, apart from its seed."""
    if now is None or before is None:
        return now is before
    return (
        _whole_numbers(now) == _whole_numbers(before)
        and math.isclose(now.total_weight, before.total_weight)
        and now.penalty.shape == before.penalty.shape
        and np.allclose(now.penalty, before.penalty, rtol=1e-6, atol=0)
        and np.array_equal(now.start, before.start)
    )


def _whole_numbers(shares: SharesReady) -> tuple[int | None, ...]:
    bits = shares.norm_bits, shares.spread_bits, shares.weight_bits, shares.fourth_bits
    return shares.n_holdout, *bits, *shares.fold_sizes


def _record(round_number: int, observation: Observation | None) -> ObservationRecord:
    if observation is None:
        return ObservationRecord(round_number, None)
    return ObservationRecord(
        round_number,
        observation.loss,
        observation.gradient,
        observation.curvature,
        observation.holdout_loss,
        observation.information,
        observation.auc,
    )
