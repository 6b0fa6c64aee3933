"""A party's state machine: messages in, messages out.

It has three parts. The `Place` keeps track of the rounds and limits what the coordinator may ask for. The `Intake`
takes the peer's vectors and checks their sizes. The `Arithmetic` computes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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

CheckPeer = Callable[[int], None]
"""Called with the number of the other party's training columns; raises if this party's policy does not allow so many.

The host's step is a sum over the guest's labels, with one number for each of the host's columns. So what protects a
party is a bound on the columns of the *other* party."""


class PartyMachine(ABC):
    """One party in one job: the common part of the host and the guest.

    Args:
        job: the job's settings, the same for all three roles.
        data: this party's rows, in canonical order of their IDs.
        arithmetic: this party's side of the protocol.
        check_peer: see `CheckPeer`.

    Raises:
        DataError: the job evaluates on hold-out rows and there are none.
    """

    role: ClassVar[Role]
    peer: ClassVar[Role]

    def __init__(self, job: JobConfig, data: PartyData, arithmetic: Arithmetic, check_peer: CheckPeer) -> None:
        if job.evaluate_every is not None and not len(data.block.holdout_columns):
            raise DataError("the job evaluates on hold-out rows, but its `holdout` leaves no such rows: raise it")
        self._ids = data.ids
        n_train, n_columns = data.block.columns.shape
        self._sizes = n_train, n_columns
        self._check_peer = check_peer
        self._peer_columns: int | None = None
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
        """The message to the coordinator once the proof of the IDs is complete."""
        return Ready(*self._sizes, self._place.key.round)

    def restore(self, steps: Sequence[BeginRound | FinishJob], evaluations: Sequence[EvaluationRecord] = ()) -> None:
        """Return to this party's place in earlier sessions of the job. Call it before any message is handled.

        Args:
            steps: what the coordinator asked in those sessions, each round once, in order; see `StepTaken`.
            evaluations: at the guest, what it measured in those sessions.

        Raises:
            ProtocolError: these are not the steps of this job on this data.
        """
        self._place.restore(steps)
        self._remember(evaluations)
        for asked in steps:
            if isinstance(asked, BeginRound):
                self._round_ended(asked.key.round - 1, asked.loss)

    def start(self) -> Iterator[Envelope]:
        """Yield nothing, unless the role sends the first message."""
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

    def _learn_peer_columns(self, n_columns: int) -> None:
        """Hold the number of the other party's training columns against this party's policy.

        A peer may repeat its number, but not change it: each refusal tells it something about this party's data.
        """
        if self._peer_columns is None:
            self._check_peer(n_columns)
            self._peer_columns = n_columns
        elif n_columns != self._peer_columns:
            raise ProtocolError(
                f"the {self.peer} told the {self.role} {self._peer_columns} of training columns, and then {n_columns}"
            )

    def _check_peer_columns(self, begin: BeginRound) -> None:
        """Refuse to compute with a peer that has told the coordinator another number of columns than this party."""
        if begin.peer_columns != self._peer_columns:
            told = "no number" if self._peer_columns is None else self._peer_columns
            raise ProtocolError(
                f"the {self.peer} told the {self.role} {told} of training columns, and the coordinator"
                f" {begin.peer_columns}: install the same release of trilateral at all three"
            )

    def _begin_round(self, begin: BeginRound) -> Iterator[Envelope]:
        self._check_peer_columns(begin)
        if not self._place.begin(begin):
            return
        early = self._intake.open(begin.key)
        self._round_ended(begin.key.round - 1, begin.loss)
        yield Envelope(self.role, StepTaken(begin))
        if begin.over:
            return
        yield from self._unless_out_of_range(self._work(begin, early))

    def _work(self, begin: BeginRound, early: Sequence[VectorPiece]) -> Iterator[Envelope]:
        """Start an attempt, and use the pieces that the peer has already sent for it."""
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
        """End the attempt for this party, which ignores all further pieces for it."""
        self._place.declare_void()
        self._intake.close()
        yield Envelope(Role.COORDINATOR, OutOfRange(self._place.key))

    def _result(
        self,
        finish: FinishJob,
        holdout_scores: FloatVector | None = None,
        evaluations: Sequence[EvaluationRecord] = (),
    ) -> Envelope:
        """Pass this party's part of the model to the process around the machine."""
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
        """Handle a message that only this role accepts."""
        raise ProtocolError(f"the {self.role} does not take a {type(message).__name__} from the {sender}")

    @abstractmethod
    def _remember(self, evaluations: Sequence[EvaluationRecord]) -> None:
        """Restore the evaluations of earlier sessions."""

    @abstractmethod
    def _round_ended(self, round_number: int, loss: float | None) -> None:
        """Take the mean loss of a round that is over from the coordinator; None if the round was void."""

    @abstractmethod
    def _work_on_holdout(self, begin: BeginRound) -> Iterator[Envelope]:
        """Do this role's part of the round's evaluation on the hold-out rows, if the round asks for one."""

    @abstractmethod
    def _finish(self, finish: FinishJob) -> Iterator[Envelope]:
        """Make this party's part of the model. The last step has been taken."""
