"""The coordinator's state machine: C of the paper, who has the private key and chooses the steps."""

from collections.abc import Iterator, Sequence

from gmpy2 import mpz

from common.arrays import FloatVector
from common.config.job import JobConfig
from common.data.split import Batches
from common.errors import ProtocolError
from common.paillier.keys import PrivateKey, check_ciphertexts
from common.paillier.reference import reference_decrypt
from common.protocol.messages import (
    BeginRound,
    Envelope,
    Failed,
    Finished,
    FinishJob,
    JobEnded,
    Message,
    OpenJob,
    OutOfRange,
    Ready,
    RoundKey,
    RoundReport,
    RoundTimedOut,
    VectorPiece,
)
from common.protocol.phases import Phase, no_phase
from common.protocol.scales import round_scale
from common.roles import PARTIES, Role
from coordinator.opening import RoundOpening, direction_scale
from coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from coordinator.training import Training


class CoordinatorMachine:
    """Leads the rounds of one job: asks, decrypts, lets the optimiser choose, pushes the step.

    Args:
        job: the job's settings.
        private_key: made for this job alone; it lives as long as this machine does.
        max_attempts: how often one round may be begun before the job fails.
        phase: names the kinds of work, for whoever holds a clock.
    """

    def __init__(
        self, job: JobConfig, private_key: PrivateKey, *, max_attempts: int = 5, phase: Phase = no_phase
    ) -> None:
        self._job = job
        self._private_key = private_key
        self._max_attempts = max_attempts
        self._phase = phase
        self._ready: dict[Role, Ready] = {}
        self._rounds: _Rounds | None = None
        self._conclusion: Conclusion | None = None
        self._finished: set[Role] = set()
        self._ended = False

    def start(self) -> Iterator[Envelope]:
        """Offer the job to the host first: the guest, once it knows of the job, calls the host."""
        for party in PARTIES:
            yield Envelope(party, OpenJob(self._job, self._private_key.public_key.n))

    def prepare(self) -> bool:
        """Nothing: the coordinator encrypts nothing."""
        return False

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """See `Machine.handle`."""
        if self._ended:
            return
        match message:
            case Ready() if sender in PARTIES:
                yield from self._take_ready(sender, message)
            case VectorPiece() if sender in PARTIES:
                yield from self._take_piece(sender, message)
            case OutOfRange() if sender in PARTIES:
                if self._rounds is not None and self._rounds.key == message.key:
                    yield from self._observe(self._rounds, None)
            case RoundTimedOut() if sender is Role.COORDINATOR:
                if self._rounds is not None and self._rounds.key == message.key:
                    yield from self._begin_again(self._rounds)
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
        self._rounds = _Rounds(self._job, host.n_train, {Role.HOST: host.n_columns, Role.GUEST: guest.n_columns})
        yield from self._follow(self._rounds, self._rounds.training.begin())

    # --- a round

    def _follow(self, rounds: "_Rounds", following: RoundPlan | Conclusion | GivenUp) -> Iterator[Envelope]:
        match following:
            case RoundPlan():
                yield from rounds.begin(following, RoundKey(following.round, 1))
            case Conclusion():
                self._rounds = None
                self._conclusion = following
                for party, step in rounds.parts(following.step).items():
                    done = FinishJob(
                        round=following.round,
                        step=step,
                        loss=following.loss,
                        epochs=following.epochs,
                        reason=following.reason,
                        round_loss=rounds.last_loss,
                    )
                    yield Envelope(party, done)
            case GivenUp():
                yield from self._fail(following.reason)

    def _take_piece(self, sender: Role, piece: VectorPiece) -> Iterator[Envelope]:
        rounds = self._rounds
        if rounds is None or piece.key != rounds.key:
            return  # of an attempt that is over
        rounds.opening.take(sender, piece, self._decrypt)
        if rounds.opening.complete:
            yield from self._observe(rounds, rounds.opening.observation())

    def _decrypt(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        with self._phase("decrypt"):
            check_ciphertexts(self._private_key.public_key, ciphertexts)
            if self._job.cipher == "reference":
                return [reference_decrypt(self._private_key, ciphertext) for ciphertext in ciphertexts]
            return [self._private_key.decrypt(ciphertext) for ciphertext in ciphertexts]

    def _observe(self, rounds: "_Rounds", observation: Observation | None) -> Iterator[Envelope]:
        """The round is over, with an observation or void: report it, and go where the optimiser says."""
        plan, key = rounds.plan, rounds.key
        with self._phase("optimise"):
            following = rounds.training.observe(observation)
        rounds.last_loss = _loss_to_report(plan, observation, following)
        report = RoundReport(
            key=key,
            epoch=rounds.epoch,
            n_epochs=self._job.epochs,
            batch=plan.batch.index + 1,
            n_batches=rounds.batches.count,
            loss=rounds.last_loss,
            evaluation=not plan.gradient,
            note=following.note if isinstance(following, RoundPlan) else None,
        )
        yield Envelope(Role.COORDINATOR, report)
        yield from self._follow(rounds, following)

    def _begin_again(self, rounds: "_Rounds") -> Iterator[Envelope]:
        key = rounds.key
        if key.attempt < self._max_attempts:
            yield from rounds.begin(rounds.plan, RoundKey(key.round, key.attempt + 1))
            return
        yield from self._fail(
            f"round {key.round} was not finished in {key.attempt} attempts:"
            " look into the parties' logs, or raise limits.round_timeout"
        )

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
        self._rounds = None
        for party in PARTIES:
            yield Envelope(party, Failed(reason))
        yield Envelope(Role.COORDINATOR, JobEnded(reason))


def _loss_to_report(
    plan: RoundPlan, observation: Observation | None, following: RoundPlan | Conclusion | GivenUp
) -> float | None:
    """The batch's loss at w_k; where an exact step leads to a point of known loss, that; None if void."""
    if observation is None:
        return None
    if isinstance(following, RoundPlan) and following.reached is not None:
        return following.reached
    if isinstance(following, Conclusion) and plan.gradient:
        return following.loss
    return observation.loss


class _Rounds:
    """The rounds of a job once both parties are ready: the training, and the attempt under way."""

    plan: RoundPlan
    key: RoundKey
    opening: RoundOpening

    def __init__(self, job: JobConfig, n_train: int, n_columns: dict[Role, int]) -> None:
        self._job = job
        self._n_train = n_train
        self._n_columns = n_columns
        self.batches = Batches.of(job, n_train)
        self.training = Training(job, sum(n_columns.values()), self.batches.count)
        self.epoch = 0
        self.last_loss: float | None = None

    def begin(self, plan: RoundPlan, key: RoundKey) -> Iterator[Envelope]:
        """Ask both parties for this attempt; all that came for another is dropped."""
        self.plan = plan
        self.key = key
        self.epoch = self.training.epoch
        sizes = self.batches.size(plan.batch), self.batches.curvature_size(plan.batch, plan.curvature_draw)
        scale, curvature_scale = (round_scale(self._job, size, self._n_train) for size in sizes)
        self.opening = RoundOpening(plan, self._n_columns, scale, curvature_scale)
        directions: dict[Role, FloatVector] = {}
        if plan.direction is not None:
            directions = self.parts(plan.direction * direction_scale(plan.direction))
        for party, step in self.parts(plan.step).items():
            begin = BeginRound(
                key=key,
                step=step,
                batch=plan.batch,
                gradient=plan.gradient,
                direction=directions.get(party),
                curvature_draw=plan.curvature_draw,
                loss=self.last_loss,
            )
            yield Envelope(party, begin)

    def parts(self, vector: FloatVector) -> dict[Role, FloatVector]:
        """A joint vector's part for each party."""
        host = self._n_columns[Role.HOST]
        return {Role.HOST: vector[:host], Role.GUEST: vector[host:]}
