"""Runs one role's state machine in one job: an inbox, a thread for the arithmetic, a link to each peer.

The machine handles one message after another, in its own thread. Whatever it yields is sent at once, so a peer can work
on the first piece of a vector while this process computes the next. Between two yields, a newer round may overtake the
current work, or a failure may end it.

A machine whose peer or whose line is slow waits until there is room for what it makes; see `flow`.

To hand something from one thread to the other takes a tenth of a millisecond or more, so the machine's thread does not
wait for the event loop: it hands over what has to be sent and goes on. It writes to the journal itself, or lets a
second thread write while it goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakSet

from trilateral.common.base.errors import PeerError, ProtocolError, StoppedError, TrilateralError
from trilateral.common.base.outcome import Outcome, outcome_of
from trilateral.common.base.progress import Stage, reporting
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.base.tracebacks import where
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Limits
from trilateral.common.jobs.flow import waits_for_room
from trilateral.common.jobs.history import History
from trilateral.common.jobs.inbox import Inbox
from trilateral.common.jobs.job_thread import JobThread
from trilateral.common.jobs.links import Link, OnWait
from trilateral.common.jobs.patience import Patience
from trilateral.common.observe.events import (
    Handled,
    Handling,
    Prepared,
    RoundAdvanced,
    RoundBegun,
    StageAdvanced,
    subject_of,
)
from trilateral.common.observe.logs import LogContext
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.messages import (
    Began,
    BeginRound,
    BinsResult,
    CountsDue,
    ElementPiece,
    Envelope,
    EvaluationRecord,
    Failed,
    FinishJob,
    HoldoutScores,
    JobEnded,
    Kind,
    Machine,
    Message,
    ObservationRecord,
    OpenJob,
    Piece,
    Result,
    RoundKey,
    RoundProgress,
    RoundReport,
    RowsDone,
    ScoresDue,
    StageProgress,
    StepTaken,
    VectorPiece,
    Waiting,
)
from trilateral.common.protocol.row_roles import RoleExchange, RolePiece, RoleVector
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey, width_of
from trilateral.common.rpc.errors import public_error

log = logging.getLogger(__name__)

MAX_BATCH = 16
"""How many messages that wait the thread takes at once after one with ring elements. To hand over each by itself would
take as long as the work on a small one."""
QUIET_SECONDS = 0.05
"""How long a party waits before it prepares anything, once it has worked on what the other party sent. Then it is the
coordinator's turn, and on one machine both parties would take the processors from it."""
SINGLE = frozenset({Kind.SQUARES, Kind.LOSS})
"""Vectors of one ciphertext. Another vector follows them at once."""
_WAITED_FOR = OpenJob | HoldoutScores | Failed | Result | BinsResult | JobEnded
"""What the event loop has to do before the machine goes on. It may refuse hold-out scores, and then this party must
keep no result."""
FAREWELL = 3.0
"""Seconds to spend on telling the peers about a failure."""
PROGRESS_SECONDS = 1.0
"""Interval at which a party reports its progress."""

P = ParamSpec("P")
T = TypeVar("T")
OnMessage: TypeAlias = Callable[[Message], None]
"""Called in the event loop with each message from the machine to its own process that is not a `MachineRecord`, and at
the coordinator with each question that it sends (with an OpenJob once the party has accepted it). Called with a Failed
before the peers are told."""
MachineRecord: TypeAlias = (
    Began | ObservationRecord | StepTaken | ScoresDue | CountsDue | BinsResult | EvaluationRecord | Result
)
"""What the process has to count or to keep before anything that depends on it leaves."""
OnStage: TypeAlias = Callable[[Role, StageProgress], None]
"""Called at the coordinator when a party has come further before the first round."""
OnRecord: TypeAlias = Callable[[MachineRecord], Callable[[], None] | None]
"""Called in the job's own thread with each record. It may return a function for the part of the work that may go on
while the machine computes: until that part is done, nothing leaves but ciphertexts for the other party."""


def keep_nothing(record: MachineRecord) -> None:
    """Do nothing: for a job without a journal."""
    del record


class MachineRunner:
    """One job of one process.

    Args:
        role: the role of this process.
        job: the job's settings.
        key: the run of the job.
        peers: the two other processes.
        limits: how long to wait.
        history: records times, counts and losses.
        on_message: see `OnMessage`. If it raises an error, the job fails.
        on_record: see `OnRecord`. If it raises an error, the job fails.
        on_wait: called while a peer does not answer; see `OnWait`.
        on_stage: see `OnStage`.
        on_disclosure: called before the work of each round, before each piece of hold-out scores or of the roles of
            rows leaves, and with shares before the other party's weights leave. If it raises an error, the job fails.
    """

    def __init__(
        self,
        role: Role,
        job: JobConfig,
        key: JobKey,
        peers: Mapping[Role, Peer],
        *,
        limits: Limits,
        history: History,
        on_message: OnMessage,
        on_record: OnRecord = keep_nothing,
        on_wait: OnWait | None = None,
        on_stage: OnStage = lambda sender, progress: None,
        on_disclosure: Callable[[], None] = lambda: None,
    ) -> None:
        self.key = key
        self.log_context = LogContext(job.name)
        """The job and round that each log line about the job names."""
        self.width = width_of(job)
        """Bytes of a ciphertext."""
        self.has_shares = job.protocol == "shares"
        """Whether the vectors of the job consist of ring elements, and not of ciphertexts."""
        self._role = role
        self._limits = limits
        self._history = history
        self._on_message = on_message
        self._on_record = on_record
        self._on_stage = on_stage
        self._on_disclosure = on_disclosure
        with self.log_context.current():  # The links' tasks inherit it.
            self._links = {
                peer.role: Link(
                    key,
                    role,
                    peer,
                    limits=limits,
                    on_sent=partial(history.sent.count, peer.role),
                    on_failure=self.fail,
                    on_wait=on_wait,
                    on_delivered=history.on_event,
                )
                for peer in peers.values()
            }
        # The peers that this process asks for a sign of life and tells about a failure. A party leaves the other party
        # to the coordinator.
        self._counterparts = frozenset(PARTIES if role is Role.COORDINATOR else [Role.COORDINATOR])
        self._inbox = Inbox()
        self._role_pieces = Inbox()
        """What the other party has sent about the roles of rows. It ends before there is a machine."""
        self._takes_roles = job.has_row_roles and role is not Role.COORDINATOR
        self._thread = JobThread(f"{role}-{job.name}")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"journal-{job.name}")
        self._written: Future[None] | None = None
        """What the second thread writes; only the job's own thread uses it, and what comes next."""
        self._to_write: Callable[[], None] | None = None
        """What the second thread has to write as soon as the machine has sent something, or has done its work: two
        threads that run Python hold each other up."""
        self._over = asyncio.Event()
        self._error: Exception | None = None
        self._told_by: Role | None = None
        self._newest = RoundKey(0, 0)  # of the rounds that were delivered
        self._current = RoundKey(0, 0)  # of the rounds that the machine was given
        self._clock = asyncio.get_running_loop().time
        self._patience = Patience(role, limits, self._clock)
        self._uninformed: set[Role] = set()
        """The peers that have not been told yet that the job progresses."""
        self._reported_at = self._clock()
        """When this party has reported its progress last, or has begun a round."""
        self._stage: StageProgress | None = None
        """How far this party has come before the first round, if it has not reported that yet."""
        self.takes_vectors = False
        """Whether there is a machine. Before that, no honest peer has a vector for it: rounds begin when both parties
        are ready."""
        self.readings: WeakSet[asyncio.Timeout] = WeakSet()
        """The calls that carry vectors of the job, each with the timeout that can end it."""
        self._done = False
        self._hurry = asyncio.Event()
        self.last_step: Future[None] | None = None
        """Set when the job has ended. It is done when the step that was running at that time is done."""

    async def run(self, begin: Callable[[], Awaitable[Machine]]) -> None:
        """Make the machine, run it to its end, and tell the peers if it fails.

        Args:
            begin: makes the machine.

        Raises:
            TrilateralError: why the session ended before the job finished, as a public text.
        """
        loop = asyncio.get_running_loop()
        with reporting(lambda stage, done: _call_soon(loop, self._advance_stage, stage, done)):
            work = asyncio.create_task(self._work(begin))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            work.cancel()
            self._inbox.close()
            self._role_pieces.close()
        (ended,) = await asyncio.gather(work, return_exceptions=True)
        # The thread completes the current step, although nothing waits for it, and begins no other.
        self.last_step = self._thread.close()
        self._writer.shutdown(wait=False)
        if self._error is None and isinstance(ended, Exception):
            self._error = ended
        self._over.set()
        if self._error is not None:
            await self._end_failed(self._error)
        closing = asyncio.create_task(self._close_links(self._limits.peer_timeout))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({closing, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.wait({closing}, timeout=FAREWELL)
        if not closing.done():
            closing.cancel()
            await self._close_links(0)

    def fail(self, error: Exception, told_by: Role | None = None) -> None:
        """End the session.

        If the result has already been saved, the job stays finished, and only the wait for its last messages is cut
        short.

        Args:
            error: why it ends. Its class gives the outcome; see `outcome_of`.
            told_by: the peer that reported the error. Only the other counterparts are told.
        """
        if not self._over.is_set():
            if not self._done:
                self._error, self._told_by = error, told_by
            self._over.set()
        self._hurry.set()

    async def deliver(self, sender: Role, message: Message, n_bytes: int = 0) -> None:
        """Put a message from a peer into the inbox, or act on it; wait while the inbox is full.

        Args:
            sender: role of the peer.
            message: what it sent.
            n_bytes: size of the message as it travelled.
        """
        match message:
            case Failed():
                self.fail(_error_of(message), told_by=sender)
                return
            case Waiting(has_progressed=has_progressed):
                if has_progressed and sender is Role.COORDINATOR:
                    self._progressed()
                return
            case AlignmentProgress():
                if self._patience.is_further(AlignmentProgress, message.done / message.n_shards):
                    self._progressed()
                self._on_message(message)
                return
            case StageProgress():
                if self._patience.is_further((sender, message.stage), message.done):
                    self._progressed()
                    self._on_stage(sender, message)
                return
            case RolePiece():
                if not self._takes_roles:
                    raise ProtocolError("received roles of rows in a job that draws them by its seed")
                self._history.received.count_roles(sender, len(message.roles))
                await self._role_pieces.put(sender, message, n_bytes)
                return
            case BeginRound():
                self._overtake(message.key)
            case FinishJob():
                self._overtake(RoundKey(message.round, 0))
            case VectorPiece() | ElementPiece():
                self._history.received.count(sender, message.key, message.kind, n_bytes, message.n_ciphertexts)
            case HoldoutScores():
                self._history.received.count_scores(sender, len(message.scores))
        await self._inbox.put(sender, message, n_bytes)

    def end_readings(self) -> None:
        """Acknowledge all calls that carry vectors of the job, because it has ended."""
        for reading in self.readings:
            with suppress(RuntimeError):  # The call has failed, and its error keeps the timeout alive for a while.
                reading.reschedule(0)

    def report_alignment(self, message: AlignmentProgress) -> None:
        """Send the progress of an alignment, which is not the machine's work, to the coordinator."""
        self._links[Role.COORDINATOR].send(message)

    async def exchange_roles(self, exchange: RoleExchange) -> RoleVector:
        """At a party that has no machine yet: learn what rows are for from the other party, or tell it.

        Args:
            exchange: this party's side. A job may exchange roles for several purposes, one after the other.

        Returns:
            One byte for each row, the same at both parties.

        Raises:
            DataError: neither party decides, both do, or they have different numbers of rows.
            ProtocolError: the other party does not follow the exchange.
            PeerError: the other party has sent nothing for too long.
        """
        await self._send_roles(exchange.start())
        while exchange.result is None:
            await self._send_roles(exchange.take(await self._next_roles()))
        return exchange.result

    async def _send_roles(self, pieces: Iterator[RolePiece]) -> None:
        peer = Role.GUEST if self._role is Role.HOST else Role.HOST
        link = self._links[peer]
        for piece in pieces:
            if piece.roles:
                self._on_disclosure()
                self._history.sent.count_roles(peer, len(piece.roles))
            await link.room()
            link.expect(piece)
            link.send(piece)

    async def _next_roles(self) -> RolePiece:
        self._patience.wait()
        while True:
            try:
                async with asyncio.timeout(self._patience.pause):
                    _, message = await self._role_pieces.get()
            except TimeoutError:
                if self._patience.is_over(self._clock()):
                    self._patience.give_up()
            else:
                if isinstance(message, RolePiece):  # `deliver` puts nothing else there.
                    return message

    def _advance_stage(self, stage: Stage, done: float) -> None:
        """At a party: learn how far the work before the first round has come."""
        if self._newest.round:  # The thread has reported it before the round came.
            return
        self._history.on_event(StageAdvanced(stage, done))
        self._stage = StageProgress(stage, done)
        if self.takes_vectors:  # Before that, `_ask_meanwhile` reports it.
            self._report_stage()

    def _report_stage(self) -> bool:
        """Report to the coordinator how far this party has come; return whether there was anything to report."""
        link = self._links[Role.COORDINATOR]
        if self._stage is None or not link.is_idle or not self._is_report_due():
            return False
        stage, self._stage = self._stage, None
        link.send(stage)
        return True

    def _is_report_due(self) -> bool:
        """Return whether to report progress. A short round needs no report."""
        now = self._clock()
        if now - self._reported_at < PROGRESS_SECONDS:
            return False
        self._reported_at = now
        return True

    def _progressed(self) -> None:
        """Wait on for everything, because the job progresses, and let the parties do so."""
        self._patience.wait_on()
        self._uninformed = set(self._links)
        for link in self._links.values():
            link.wait_on()

    def record(self) -> dict[str, Any]:
        """Return the counts that the audit log keeps of an ended job."""
        return {
            "rounds": self._history.rounds,
            "sent": self._history.sent.totals,
            "received": self._history.received.totals,
        }

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in the job's own thread, and wait for its result."""
        return await self._thread.call(function, *args, **kwargs)

    def beside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Task[T]":
        """Call `function` in a second thread, while the job's own thread works.

        Returns:
            A task with its result. An error of the function ends the session at once.
        """

        def check(done: "asyncio.Task[T]") -> None:
            if not done.cancelled() and isinstance(error := done.exception(), Exception):
                self.fail(error)

        task = asyncio.create_task(self._thread.call_beside(function, *args, **kwargs))
        task.add_done_callback(check)
        return task

    # --- work

    async def _work(self, begin: Callable[[], Awaitable[Machine]]) -> None:
        asking = asyncio.create_task(self._ask_meanwhile())
        try:
            machine = await begin()
        finally:
            asking.cancel()
        self.takes_vectors = True
        self._role_pieces.close()  # What comes now has come before.
        await self._play(machine.start())
        sender: Role | None = None
        while not self._done:
            if machine.under_way and self._inbox.empty():
                await self._play(self._settle(machine))
                continue
            sender, message = await self._next_message(machine, sender)
            log.debug("job %s: %s from the %s", self.key.name, _described(message), sender)
            batch = deque([(sender, message)])
            match message:
                case BeginRound():
                    self._current = max(self._current, message.key)
                    self._on_disclosure()
                    self._history.stopwatch.end_setup()
                    self._history.begin_round(message)
                    self._begun(message.key)
                case FinishJob():
                    self._current = max(self._current, RoundKey(message.round, 0))
                    if self.has_shares:  # What follows gives the other party its weights, which no round has shown.
                        self._on_disclosure()
                    self._history.finish(message)
                case ElementPiece() | RowsDone():
                    batch.extend(self._inbox.take((ElementPiece, RowsDone), MAX_BATCH))
            self._uninformed = set(self._links)
            subject = subject_of(message)
            if subject is not None:
                self._history.on_event(Handling(sender, *subject))
            while batch:  # A round that overtakes the work on one of them leaves the others, whose first step must run.
                await self._play(_handle(machine, batch))
            self._history.on_event(Handled())

    def _begun(self, key: RoundKey) -> None:
        self._reported_at = self._clock()
        self.log_context.round = key.round
        self._history.on_event(RoundBegun(key))

    async def _ask_meanwhile(self) -> None:
        """At a party, whose start may take long, report its progress now and then.

        If there is none, ask whether the coordinator still has the job.
        """
        while self._role is not Role.COORDINATOR:
            await asyncio.sleep(self._patience.pause)
            if not self._report_stage():
                self._ask_whether_there()

    def _ask_whether_there(self) -> None:
        self._patience.asked_peers()
        for role, link in self._links.items():
            # A link that is at work learns by itself whether the peer still has the job, and the peer has its messages.
            if role in self._counterparts and link.is_idle:
                link.send(Waiting(role in self._uninformed and self._role is Role.COORDINATOR))
                self._uninformed.discard(role)

    async def _next_message(self, machine: Machine, last: Role | None) -> tuple[Role, Message]:
        """Wait for the next message; meanwhile, do the work that needs no input.

        Args:
            machine: the machine.
            last: who sent the last message.
        """
        if not self.has_shares and self._inbox.empty():  # With shares there is nothing to do meanwhile.
            if last in PARTIES and self._role is not Role.COORDINATOR:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_SECONDS):
                        return await self._inbox.get()
            await self.in_thread(self._prepare, machine)
            self._history.on_event(Prepared(machine.prepared))
        self._patience.wait()
        if not self._inbox.empty():
            return await self._inbox.get()
        while True:
            alarm = self._patience.alarm()
            try:
                async with asyncio.timeout_at(alarm):
                    return await self._inbox.get()
            except TimeoutError:
                if self._patience.is_over(alarm):
                    timed_out = self._patience.give_up()
                    log.warning(
                        "job %s: round %d, attempt %d timed out",
                        self.key.name,
                        timed_out.key.round,
                        timed_out.key.attempt,
                    )
                    return self._role, timed_out
                self._ask_whether_there()

    def _settle(self, machine: Machine) -> Iterator[Envelope]:
        """Until a message waits, yield what follows from the tasks that are under way."""
        while self._inbox.empty() and not self._over.is_set() and machine.under_way:
            yield from machine.settle()

    def _prepare(self, machine: Machine) -> None:
        """In the job's thread, do work that needs no input until a message waits."""
        while self._inbox.empty() and not self._over.is_set() and machine.prepare():
            pass

    async def _play(self, envelopes: Iterator[Envelope]) -> None:
        """Send what the machine yields, until a newer round overtakes it.

        The first step always runs. Otherwise a message that only changes the machine's state would be lost.
        """
        loop, stopped = asyncio.get_running_loop(), False
        made: list[Envelope] = []

        def post(envelopes: Sequence[Envelope]) -> None:
            nonlocal stopped
            try:
                for envelope in envelopes:
                    if not stopped:
                        self._post(envelope.to, envelope.message)
            except Exception as error:
                stopped = True
                self.fail(error)

        def hand_over() -> None:
            if made:
                loop.call_soon_threadsafe(post, tuple(made))
                made.clear()

        def step() -> Envelope | None:
            """Compute until the end, or until the event loop has to do something before the machine goes on.

            Each time that the event loop is woken, it takes the interpreter's lock from this thread. So what is not
            a vector, or is a `SINGLE` ciphertext, leaves with the next piece of a vector, or at the end.
            """
            while (envelope := next(envelopes, None)) is not None:
                to, message = envelope.to, envelope.message
                if isinstance(message, MachineRecord):
                    self._record(message)
                elif not isinstance(message, VectorPiece) or to is Role.COORDINATOR:
                    self._finish_writing()
                if isinstance(message, _WAITED_FOR) or (waits_for_room(message) and self._links[to].is_full):
                    hand_over()
                    return envelope
                if isinstance(message, Piece):
                    self._links[to].expect(message)
                made.append(envelope)
                if self._leaves_at_once(to, message):
                    hand_over()
                    self._begin_writing()
                if stopped or self._is_overtaken():
                    break
            hand_over()
            self._begin_writing()
            return None

        try:
            while (envelope := await self.in_thread(step)) is not None:
                await self._post_and_wait(envelope.to, envelope.message)
                if self._is_overtaken():
                    return
        finally:
            stopped = True
            self._thread.close_iterator(envelopes)

    def _leaves_at_once(self, to: Role, message: Message) -> bool:
        """Return whether the event loop is woken for a message, because its receiver goes on to work."""
        return self._goes_on_from(to, message) or (isinstance(message, Piece) and message.kind not in SINGLE)

    def _goes_on_from(self, to: Role, message: Message) -> bool:
        """Return whether the receiver sends further rows for a message. Otherwise `RowsDone` only shows progress."""
        return isinstance(message, RowsDone) and (self.has_shares or to is not Role.COORDINATOR)

    def _record(self, record: MachineRecord) -> None:
        """In the job's thread, keep a record, or begin to."""
        self._finish_writing()
        self._to_write = self._on_record(record)

    def _begin_writing(self) -> None:
        """In the job's thread, let the second thread write."""
        rest, self._to_write = self._to_write, None
        if rest is not None:
            self._written = self._writer.submit(rest)

    def _finish_writing(self) -> None:
        """In the job's thread, wait until everything is written; raise what went wrong."""
        self._begin_writing()
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _is_overtaken(self) -> bool:
        """Return whether a round that is newer than the machine's has been delivered."""
        if self._newest <= self._current:
            return False
        log.debug("job %s: work overtaken by round %d", self.key.name, self._newest.round)
        return True

    async def _post_and_wait(self, to: Role, message: Message) -> None:
        """Post a message for which the machine has to wait."""
        match message:
            case (
                Failed() | JobEnded(loss=None, counted=False)
            ):  # The machine gives up; the runner ends the job and tells the peers.
                raise PeerError(message.reason)
            case OpenJob():
                # The guest calls the host as soon as it has the job, so the host must have the job first.
                await self._links[to].call(message)
                self._patience.ask(message)
                self._on_message(message)
            case ElementPiece() | HoldoutScores():
                await self._links[to].room()
                self._links[to].expect(message)
                self._post(to, message)
            case Result() | BinsResult() | JobEnded():
                if isinstance(message, JobEnded):
                    self._on_message(message)
                self._history.complete()
                self._done = True
            case _:
                self._post(to, message)

    def _post(self, to: Role, message: Message) -> None:
        """Send a message, or do what this process has to do about it."""
        match message:
            case BeginRound() | FinishJob():
                if isinstance(message, BeginRound):
                    self._history.stopwatch.end_setup()
                    self._begun(message.key)
                self._links[to].send(message)
                self._patience.ask(message)
                self._on_message(message)
            case HoldoutScores():
                self._on_disclosure()
                self._links[to].send(message)
                self._history.sent.count_scores(to, len(message.scores))
            case RoundReport():
                self._history.report(message)
                self._on_message(message)
            case RoundProgress(key=key, rows_done=rows_done, n_rows=n_rows):
                self._progressed()
                self._history.on_event(RoundAdvanced(key, rows_done, n_rows))
                self._on_message(message)
            case RowsDone(key=key, n_rows=n_rows):
                self._history.on_event(RoundAdvanced(key, n_rows))
                if self._goes_on_from(to, message) or self._is_report_due():
                    self._links[to].send(message)
            case EvaluationRecord():
                self._history.evaluate(message)
            case Began() | ObservationRecord() | StepTaken() | ScoresDue() | CountsDue():
                pass  # kept
            case _:
                self._links[to].send(message)

    # --- the end

    def _overtake(self, key: RoundKey) -> None:
        self._newest = max(self._newest, key)
        for link in self._links.values():
            link.overtake(key)

    async def _end_failed(self, error: Exception) -> None:
        if not isinstance(error, TrilateralError):
            log.error("job %s: unexpected error: %s", self.key.name, where(error))
        public = public_error(error, self._role)
        last_word = None
        outcome = outcome_of(public)
        if outcome is not Outcome.SUSPENDED:  # The peers learn of a new session when it begins.
            last_word = Failed(str(public), outcome)
            self._on_message(last_word)
        for role, link in self._links.items():
            link.clear()
            if last_word is not None and role in self._counterparts and role is not self._told_by:
                link.send(last_word)
        await self._close_links(FAREWELL)
        raise public from (None if public is error else error)

    async def _close_links(self, grace: float) -> None:
        await asyncio.gather(*(link.close(grace) for link in self._links.values()))


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
    """Call a function in the event loop, from any thread. It is not called once the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(partial(function, *args))


def _handle(machine: Machine, batch: deque[tuple[Role, Message]]) -> Iterator[Envelope]:
    """Remove one message after the other, and yield what the machine does with each."""
    while batch:
        yield from machine.handle(*batch.popleft())


def _error_of(message: Failed) -> TrilateralError:
    return StoppedError(message.reason) if message.outcome is Outcome.STOPPED else PeerError(message.reason)


def _described(message: Message) -> str:
    """Return the kind of a message and its round, without its content."""
    key = getattr(message, "key", None)
    at = f" of round {key.round}, attempt {key.attempt}" if isinstance(key, RoundKey) else ""
    return f"{type(message).__name__}{at}"
