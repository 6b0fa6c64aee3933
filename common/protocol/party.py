"""A party's state machine: messages in, messages out.

It has three parts. The `Place` keeps track of the rounds and limits what the coordinator may ask for. The `Intake`
takes the peer's vectors and checks their sizes. The `Arithmetic` computes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, OutOfRangeError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import Arithmetic
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.bounds import max_rounds
from trilateral.common.protocol.intake import Expected, Intake
from trilateral.common.protocol.messages import (
    BeginRound,
    Envelope,
    EvaluationRecord,
    FinishJob,
    Message,
    OutOfRange,
    Ready,
    Result,
    StepTaken,
    VectorPiece,
)
from trilateral.common.protocol.place import Place, State


class PartyMachine(ABC):
    """One party in one job, except for what only the host or only the guest does.

    Args:
        job: the job's settings, the same for all three roles.
        data: this party's rows, in canonical order of their IDs.
        arithmetic: this party's side of the protocol.

    Raises:
        DataError: if the job evaluates on hold-out rows and there are none.
    """

    role: ClassVar[Role]
    peer: ClassVar[Role]

    def __init__(self, job: JobConfig, data: PartyData, arithmetic: Arithmetic) -> None:
        if job.evaluate_every is not None and not len(data.block.holdout_columns):
            raise DataError("the job evaluates on hold-out rows, but its `holdout` leaves none: raise it")
        self._ids = data.ids
        n_train, n_columns = data.block.columns.shape
        self._sizes = n_train, n_columns
        n_batches = Batches.of(job, n_train).count
        self._max_rounds = max_rounds(job, n_batches)
        self._arithmetic = arithmetic
        self._place = Place(self.role, job, n_batches, n_columns, arithmetic)
        self._intake = Intake(self.peer, self._max_rounds, arithmetic.bounds, arithmetic.check)

    @property
    def coef(self) -> FloatVector:
        """This party's part of w, shape (n_columns,), in training units."""
        return self._arithmetic.coef

    @property
    def ready(self) -> Ready:
        """What the coordinator is told once the IDs are proved."""
        return Ready(*self._sizes, self._place.key.round)

    def restore(self, steps: Sequence[BeginRound | FinishJob], evaluations: Sequence[EvaluationRecord] = ()) -> None:
        """Return to this party's place in earlier sessions of the job. Call it before any message is handled.

        Args:
            steps: what the coordinator asked in those sessions, each round once, in order; see `StepTaken`.
            evaluations: at the guest, what it measured in those sessions.

        Raises:
            ProtocolError: if these are not the steps of this job on this data.
        """
        self._place.restore(steps)
        self._remember(evaluations)
        for asked in steps:
            if isinstance(asked, BeginRound):
                self._round_ended(asked.key.round - 1, asked.loss)

    def start(self) -> Iterator[Envelope]:
        """Yield nothing, unless the role speaks first."""
        yield from ()

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """See `Machine.handle`."""
        match message:
            case BeginRound() if sender is Role.COORDINATOR:
                yield from self._begin_round(message)
            case VectorPiece() if sender is self.peer:
                yield from self._unless_out_of_range(self._intake.take(message, self._place.key))
            case FinishJob() if sender is Role.COORDINATOR:
                if self._place.finish(message):
                    self._round_ended(message.round - 1, message.round_loss)
                    yield Envelope(self.role, StepTaken(message))
                    yield from self._finish(message)
            case _:
                yield from self._handle_own(sender, message)

    def prepare(self) -> bool:
        """See `Machine.prepare`."""
        return self._place.state is not State.FINISHED and self._arithmetic.prepare()

    @property
    def prepared(self) -> int:
        """See `Machine.prepared`."""
        return self._arithmetic.prepared

    # --- a round

    def _begin_round(self, begin: BeginRound) -> Iterator[Envelope]:
        if not self._place.begin(begin):
            return
        early = self._intake.open(begin.key)
        self._round_ended(begin.key.round - 1, begin.loss)
        yield Envelope(self.role, StepTaken(begin))
        if begin.over:
            return
        yield from self._unless_out_of_range(self._work(begin, early))

    def _work(self, begin: BeginRound, early: Sequence[VectorPiece]) -> Iterator[Envelope]:
        """Start an attempt, and use what the peer has sent for it already."""
        for item in self._arithmetic.begin(begin):
            if isinstance(item, Expected):
                self._intake.expect(item)
            else:
                yield item
        yield from self._work_on_holdout(begin)
        for piece in early:
            yield from self._intake.receive(piece)

    def _unless_out_of_range(self, work: Iterator[Envelope]) -> Iterator[Envelope]:
        try:
            yield from work
        except OutOfRangeError:
            yield from self._declare_void()

    def _declare_void(self) -> Iterator[Envelope]:
        """End the attempt for this party, which ignores what still comes for it."""
        self._place.declare_void()
        self._intake.close()
        yield Envelope(Role.COORDINATOR, OutOfRange(self._place.key))

    def _result(
        self,
        finish: FinishJob,
        holdout_scores: FloatVector | None = None,
        evaluations: Sequence[EvaluationRecord] = (),
    ) -> Envelope:
        """Hand this party's part of the model to the process around the machine."""
        self._intake.end()
        result = Result(
            coef=self.coef,
            loss=finish.loss,
            rounds=finish.round - 1,
            epochs=finish.epochs,
            reason=finish.reason,
            holdout_scores=holdout_scores,
            evaluations=evaluations,
        )
        return Envelope(self.role, result)

    # --- what the roles add

    @abstractmethod
    def _handle_own(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """Handle a message that only this role takes."""
        raise ProtocolError(f"the {self.role} does not take a {type(message).__name__} from the {sender}")

    @abstractmethod
    def _remember(self, evaluations: Sequence[EvaluationRecord]) -> None:
        """Take up the evaluations of earlier sessions."""

    @abstractmethod
    def _round_ended(self, round_number: int, loss: float | None) -> None:
        """Learn from the coordinator the mean loss of a round that is over; None if the round was void."""

    @abstractmethod
    def _work_on_holdout(self, begin: BeginRound) -> Iterator[Envelope]:
        """Do this role's part of the round's evaluation on the hold-out rows, if the round asks for one."""

    @abstractmethod
    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        """Make this party's part of the model. The last step has been taken."""
