"""The coordinator's state machine: C of the paper, who has the private key and chooses the steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gmpy2 import mpz

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import Decryptor
from trilateral.common.paillier.keys import check_ciphertexts
from trilateral.common.protocol.bounds import MAX_ATTEMPTS
from trilateral.common.protocol.messages import (
    Began,
    Envelope,
    Evaluation,
    Failed,
    Finished,
    JobEnded,
    Message,
    Observed,
    OpenJob,
    OutOfRange,
    Ready,
    RoundKey,
    RoundTimedOut,
    VectorPiece,
)
from trilateral.common.protocol.phases import Phase, no_phase
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.rounds import Attempt, Rounds


@dataclass(frozen=True)
class Past:
    """What is known of a job's earlier sessions.

    Attributes:
        job_id: run ID of the first.
        ready: what each party said, once both had been ready; else empty.
        observations: of each round that was over, in order; None where it was void.
    """

    job_id: bytes
    ready: Mapping[Role, Ready] = field(default_factory=dict)
    observations: Sequence[Observation | None] = ()


class CoordinatorMachine:
    """Leads the rounds of one job: asks, decrypts, lets the optimiser choose, pushes the step.

    Args:
        job: the job's settings.
        decryptor: holds the private key, which is made for this job alone and lives as long as this machine.
        phase: times the kinds of work, if the process has a clock.
        past: what is known of the job's earlier sessions; None in the first.
    """

    def __init__(
        self, job: JobConfig, decryptor: Decryptor, *, phase: Phase = no_phase, past: Past | None = None
    ) -> None:
        self._job = job
        self._past = past
        self._decryptor = decryptor
        self._phase = phase
        self._ready: dict[Role, Ready] = {}
        self._rounds: Rounds | None = None
        self._attempt: Attempt | None = None
        self._newest = RoundKey(0, 0)
        self._conclusion: Conclusion | None = None
        self._finished: set[Role] = set()
        self._ended = False

    def start(self) -> Iterator[Envelope]:
        """Offer the job to the host first: the guest, once it knows of the job, calls the host."""
        modulus, past = self._decryptor.public_key.n, self._past
        for party in PARTIES:
            if past is None:
                yield Envelope(party, OpenJob(self._job, modulus, party))
            else:
                yield Envelope(party, OpenJob(self._job, modulus, party, past.job_id, bool(past.ready)))

    def prepare(self) -> bool:
        """Nothing: the coordinator encrypts nothing."""
        return False

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
            case VectorPiece() if sender in PARTIES:
                yield from self._take_piece(sender, message)
            case Evaluation() if sender is Role.GUEST:
                yield from self._take_evaluation(sender, message)
            case OutOfRange() if sender in PARTIES:
                self._check_begun(sender, message.key)
                if self._attempt is not None and self._attempt.key == message.key:
                    yield from self._observe(self._attempt, None)
            case RoundTimedOut() if sender is Role.COORDINATOR:
                if self._attempt is not None and self._attempt.key == message.key:
                    yield from self._begin_again(self._attempt)
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
        host, guest = (self._ready[party] for party in PARTIES)
        if host.n_train != guest.n_train:
            raise ProtocolError(f"the host trains on {host.n_train} rows and the guest on {guest.n_train}")
        least = max(1 if self._job.batch == "all" else self._job.batch, self._job.curvature_batch or 1)
        if host.n_train < least:
            raise ProtocolError(f"the parties train on {host.n_train} rows, where the job's batches need {least}")
        self._rounds = Rounds(self._job, host.n_train, {Role.HOST: host.n_columns, Role.GUEST: guest.n_columns})
        past = self._past or Past(b"")
        self._check_sizes_as_before(past)
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
                    f"the {party} has {now.n_train} training rows and {now.n_columns} columns, and had"
                    f" {before.n_train} and {before.n_columns} when the job began"
                )

    # --- a round

    def _follow(self, following: RoundPlan | Conclusion | GivenUp) -> Iterator[Envelope]:
        match following:
            case RoundPlan():
                yield from self._begin(following, RoundKey(following.round, 1))
            case Conclusion():
                self._attempt = None
                self._conclusion = following
                yield from self._begun_rounds.finish(following)
            case GivenUp():
                yield from self._fail(following.reason)

    def _begin(self, plan: RoundPlan, key: RoundKey) -> Iterator[Envelope]:
        """Ask both parties for an attempt; all that came for another is dropped."""
        self._attempt = self._begun_rounds.attempt(plan, key)
        self._newest = key
        yield from self._begun_rounds.begin(self._attempt)

    def _begin_again(self, attempt: Attempt) -> Iterator[Envelope]:
        key = attempt.key
        if key.attempt < MAX_ATTEMPTS:
            yield from self._begin(attempt.plan, RoundKey(key.round, key.attempt + 1))
            return
        yield from self._fail(
            f"round {key.round} was not finished in {key.attempt} attempts:"
            " look into the parties' logs, or raise limits.round_timeout at all three processes"
        )

    def _take_piece(self, sender: Role, piece: VectorPiece) -> Iterator[Envelope]:
        self._check_begun(sender, piece.key)
        self._begun_rounds.allowances[sender].spend(len(piece.ciphertexts))
        attempt = self._attempt
        if attempt is None or piece.key != attempt.key:
            return  # of an attempt that is over
        attempt.opening.take(sender, piece, self._decrypt)
        if attempt.opening.complete:
            yield from self._observe(attempt, attempt.opening.observation())

    def _take_evaluation(self, sender: Role, evaluation: Evaluation) -> Iterator[Envelope]:
        self._check_begun(sender, evaluation.key)
        attempt = self._attempt
        if attempt is None or evaluation.key != attempt.key:
            return  # of an attempt that is over
        if attempt.opening.take_evaluation(evaluation) and attempt.opening.complete:
            yield from self._observe(attempt, attempt.opening.observation())

    def _check_begun(self, sender: Role, key: RoundKey) -> None:
        if key > self._newest:
            raise ProtocolError(f"the {sender} speaks of round {key.round}, attempt {key.attempt}, which is not begun")

    def _decrypt(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        with self._phase("decrypt"):
            check_ciphertexts(self._decryptor.public_key, ciphertexts)
            return self._decryptor.decrypt_all(ciphertexts)

    def _observe(self, attempt: Attempt, observation: Observation | None) -> Iterator[Envelope]:
        """The round is over, with an observation or void: report it, and go where the optimiser says."""
        with self._phase("optimise"):
            following = self._begun_rounds.training.observe(observation)
        yield Envelope(Role.COORDINATOR, _to_keep(attempt.key.round, observation))
        yield self._begun_rounds.report(attempt, observation, following)
        yield from self._follow(following)

    @property
    def _begun_rounds(self) -> Rounds:
        if self._rounds is None:
            raise ProtocolError("a round before both parties were ready")
        return self._rounds

    # --- the end

    def _take_finished(self, sender: Role) -> Iterator[Envelope]:
        if self._conclusion is None:
            raise ProtocolError(f"the {sender} says that it has finished before the training has")
        self._finished.add(sender)
        if len(self._finished) == len(PARTIES):
            self._ended = True
            done = self._conclusion
            yield Envelope(Role.COORDINATOR, JobEnded(done.reason, done.loss, done.epochs))

    def _fail(self, reason: str) -> Iterator[Envelope]:
        self._ended = True
        self._attempt = None
        for party in PARTIES:
            yield Envelope(party, Failed(reason))
        yield Envelope(Role.COORDINATOR, JobEnded(reason))


def _to_keep(round_number: int, observation: Observation | None) -> Observed:
    if observation is None:
        return Observed(round_number, None)
    return Observed(
        round_number, observation.loss, observation.gradient, observation.curvature, observation.holdout_loss
    )
