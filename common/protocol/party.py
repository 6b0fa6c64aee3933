"""A party's state machine: messages in, messages out.

It has three parts. The `Place` keeps track of the rounds and limits what the coordinator may ask for. An `Intake` for
each sender of vectors takes them and checks their sizes. The `Arithmetic` computes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, OutOfRangeError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.arithmetic import Arithmetic, Introduction
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.bounds import max_rounds
from trilateral.common.protocol.intake import Expected, Intake
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    Envelope,
    EvaluationRecord,
    FinishJob,
    Message,
    OutOfRange,
    Piece,
    Ready,
    Result,
    RoundKey,
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
        self._n_rows = data.n_rows
        self._list_digest = data.list_digest
        n_train, n_columns = data.block.columns.shape
        self._sizes = n_train, n_columns
        self._check_peer = check_peer
        self._peer_columns: int | None = None
        n_batches = Batches.of(job, n_train).count
        self._max_rounds = max_rounds(job, n_batches)
        self._arithmetic = arithmetic
        on_shares = job.protocol == "shares"
        self._place = Place(self.role, job, n_batches, 0 if on_shares else n_columns, arithmetic)
        self._piece: type[Piece] = ElementPiece if on_shares else VectorPiece
        unit = "rows" if on_shares else "ciphertexts"
        self._intakes: dict[Role, Intake[Any]] = {
            sender: Intake(sender, self._max_rounds, bounds, unit) for sender, bounds in arithmetic.bounds.items()
        }
        self._sender = {kind: sender for sender, bounds in arithmetic.bounds.items() for kind in bounds.longest}
        self._met: Introduction | None = None
        self._is_ready = False
        self._last: FinishJob | None = None
        """The coordinator's last request, while the result waits for the other party."""

    @property
    def coef(self) -> FloatVector:
        """This party's part of w, shape (n_columns,), in training units."""
        return self._arithmetic.coef

    @property
    def ready(self) -> Ready:
        """The message to the coordinator once the proof of the IDs is complete."""
        return Ready(*self._sizes, self._place.key.round, self._arithmetic.shares_ready)

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
            case VectorPiece() | ElementPiece() if sender in self._intakes and isinstance(message, self._piece):
                yield from self._unless_out_of_range(self._intakes[sender].take(message))
                yield from self._go_on()
            case FinishJob() if sender is Role.COORDINATOR:
                yield from self._begin_end(message)
            case _:
                yield from self._handle_own(sender, message)

    @property
    def under_way(self) -> bool:
        """See `Machine.under_way`."""
        return len(self._arithmetic.tasks) > 0

    def settle(self) -> Iterator[Envelope]:
        """See `Machine.settle`."""
        yield from self._unless_out_of_range(self._arithmetic.tasks.wait_a_moment())
        yield from self._go_on()

    def prepare(self) -> bool:
        """See `Machine.prepare`."""
        return self._place.state is not State.FINISHED and self._arithmetic.prepare()

    @property
    def prepared(self) -> int:
        """See `Machine.prepared`."""
        return self._arithmetic.prepared

    # --- before the first round

    def _meet(self, peer: Introduction) -> Iterator[Envelope]:
        """Exchange what the rounds need, once the parties know that they hold the same IDs. Then report readiness."""
        if self._met is None:
            self._met = peer
            yield from self._start(self._arithmetic.meet(peer))
        elif peer != self._met:
            raise ProtocolError(
                f"the {self.peer} proved its IDs a second time and brought another seed or other sample weights: start"
                " the job again"
            )
        elif self._is_ready:
            yield Envelope(Role.COORDINATOR, self.ready)
        yield from self._go_on()

    def _go_on(self) -> Iterator[Envelope]:
        """Do what waited for the other party outside the rounds."""
        if self._met is not None and not self._is_ready and self._arithmetic.may_begin:
            self._is_ready = True
            yield Envelope(Role.COORDINATOR, self.ready)
        if self._last is not None and self._arithmetic.has_coef:
            last, self._last = self._last, None
            yield from self._finish(last)

    def _start(self, work: Iterator[Envelope | Expected[Any]], early: Sequence[Piece] = ()) -> Iterator[Envelope]:
        """Do the first part of some work, and use the pieces that have already come for it."""
        for item in work:
            if isinstance(item, Expected):
                self._intakes[self._sender[item.kind]].expect(item)
            else:
                yield item
        for piece in early:
            yield from self._intakes[self._sender[piece.kind]].receive(piece)

    def _open(self, key: RoundKey) -> list[Piece]:
        """Let all intakes take the vectors of an attempt; return those that came early. Tasks of earlier ones end."""
        self._arithmetic.tasks.forget()
        return [piece for intake in self._intakes.values() for piece in intake.open(key)]

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
        early = self._open(begin.key)
        self._round_ended(begin.key.round - 1, begin.loss)
        # Shares of a point are of no use in another session, and belong in no file.
        yield Envelope(self.role, StepTaken(begin if begin.shares is None else replace(begin, shares=None)))
        if begin.over:
            return
        yield from self._unless_out_of_range(self._work(begin, early))

    def _work(self, begin: BeginRound, early: Sequence[Piece]) -> Iterator[Envelope]:
        """Start an attempt, and use the pieces that have already come for it."""
        yield from self._start(self._arithmetic.begin(begin))
        yield from self._work_on_holdout(begin)
        yield from self._start(iter(()), early)

    def _begin_end(self, finish: FinishJob) -> Iterator[Envelope]:
        """Take the last step, and begin what makes this party's weights known."""
        if not self._place.finish(finish):
            return
        early = self._open(RoundKey(finish.round, 1))
        self._round_ended(finish.round - 1, finish.round_loss)
        # Neither shares nor what follows from an observation of the coordinator belongs in a journal.
        yield Envelope(self.role, StepTaken(replace(finish, share=None, inference=None)))
        self._last = finish
        yield from self._start(self._arithmetic.finish(finish), early)
        yield from self._go_on()

    def _unless_out_of_range(self, work: Iterator[Envelope]) -> Iterator[Envelope]:
        try:
            yield from work
        except OutOfRangeError:
            yield from self._declare_void()

    def _declare_void(self) -> Iterator[Envelope]:
        """End the attempt for this party, which ignores all further pieces for it."""
        self._place.declare_void()
        self._arithmetic.tasks.forget()
        for intake in self._intakes.values():
            intake.close()
        yield Envelope(Role.COORDINATOR, OutOfRange(self._place.key))

    def _result(
        self,
        finish: FinishJob,
        holdout_scores: FloatVector | None = None,
        evaluations: Sequence[EvaluationRecord] = (),
    ) -> Envelope:
        """Pass this party's part of the model to the process around the machine."""
        for intake in self._intakes.values():
            intake.end()
        result = Result(
            coef=self.coef,
            loss=finish.loss,
            rounds=finish.round - 1,
            epochs=finish.epochs,
            reason=finish.reason,
            holdout_scores=holdout_scores,
            evaluations=evaluations,
            compared=finish.compared,
            inference=finish.inference,
            n_peer_columns=self._peer_columns or 0,
            signs=self._arithmetic.signs,
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
        """Make this party's part of the model. The last step has been taken, and `coef` is known."""
