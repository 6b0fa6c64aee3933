"""Runs one role's state machine in one job: an inbox, a thread for the arithmetic, a link to each peer.

The machine sees one message after the other, in one thread of its own. What it yields leaves at once,
so a peer works on the first piece of a vector while the next is made here. Between two yields a newer
round may overtake the work in hand, and a failure ends it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

import gmpy2

from trilateral.common.base.errors import PeerError, SuspendedError, TrilateralError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.base.tracebacks import where
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Limits
from trilateral.common.jobs.history import History
from trilateral.common.jobs.links import Link, OnWait
from trilateral.common.jobs.patience import Patience
from trilateral.common.observe.events import Prepared, RoundBegun, Taken, WorkedOff, subject_of
from trilateral.common.observe.logs import Place
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.messages import (
    Began,
    BeginRound,
    Envelope,
    EvaluationRecord,
    Failed,
    FinishJob,
    HoldoutScores,
    JobEnded,
    Machine,
    Message,
    ObservationRecord,
    OpenJob,
    Result,
    RoundKey,
    RoundReport,
    StepTaken,
    VectorPiece,
    Waiting,
)
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey, width_of
from trilateral.common.rpc.errors import public_error

log = logging.getLogger(__name__)

INBOX = 64
"""Messages that wait for the machine: 16 MiB of pieces under a 2048-bit key; then their senders wait."""
FAREWELL = 3.0
"""Seconds to tell the others of a failure."""

P = ParamSpec("P")
T = TypeVar("T")
Observe = Callable[[Message], Awaitable[None]]
"""Is told of what the machine says to its own process, and at the coordinator of each question that
it sends: of an OpenJob once the party has taken it; and of the job's failure, before the others are."""


def without_lock(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` so that its big products leave the interpreter's lock to other threads."""
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return function(*args, **kwargs)


def _do_nothing() -> None:
    """The last step of a thread: when it is done, so are all others."""


class MachineRunner:
    """One job of one process.

    Args:
        role: of this process.
        job: the job's settings.
        key: which run of it.
        peers: the two other processes.
        limits: how long to wait.
        history: times, counts and losses go there.
        observe: see `Observe`. If it fails, so does the job.
        on_wait: is told of a peer that does not answer.
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
        observe: Observe,
        on_wait: OnWait | None = None,
    ) -> None:
        self.key = key
        self.place = Place(job.name)
        """Where what is logged of the job belongs."""
        self.width = width_of(job)
        """Bytes of a ciphertext."""
        self._role = role
        self._limits = limits
        self._history = history
        self._observe = observe
        with self.place.current():  # in which the links' tasks begin
            self._links = {
                peer.role: Link(
                    key,
                    role,
                    peer,
                    width=self.width,
                    limits=limits,
                    on_sent=partial(history.sent.count, peer.role),
                    on_failure=self.fail,
                    on_wait=on_wait,
                    on_delivered=history.tell,
                )
                for peer in peers.values()
            }
        # Who is asked whether they are there, and told of a failure: the parties leave each other to the coordinator.
        self._counterparts = frozenset(PARTIES if role is Role.COORDINATOR else [Role.COORDINATOR])
        self._inbox: asyncio.Queue[tuple[Role, Message]] = asyncio.Queue(INBOX)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{role}-{job.name}")
        self._over = asyncio.Event()
        self._error: Exception | None = None
        self._told_by: Role | None = None
        self._newest = RoundKey(0, 0)  # of the rounds that were delivered
        self._current = RoundKey(0, 0)  # of those that the machine was given
        self._patience = Patience(role, limits, asyncio.get_running_loop().time)
        self._done = False
        self._hurry = asyncio.Event()
        self.last_step: Future[None] | None = None
        """Once the job has ended: done when the step that was under way then has come to its end."""

    async def run(self, begin: Callable[[], Awaitable[Machine]]) -> None:
        """Make the machine, run it to its end, tell the others if it fails.

        Raises:
            TrilateralError: the public reason for which the job failed.
        """
        work = asyncio.create_task(self._work(begin))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            work.cancel()
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        # A step under way goes on to its end in the thread, which nobody waits for; no other follows.
        self.last_step = self._thread.submit(_do_nothing)
        self._thread.shutdown(wait=False)
        if self._error is None and isinstance(outcome, Exception):
            self._error = outcome
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
        """End the job; the others are told, except who told this process.

        A job whose result is kept stays finished: only its last messages are then cut short.
        """
        if not self._over.is_set():
            if not self._done:
                self._error, self._told_by = error, told_by
            self._over.set()
        self._hurry.set()

    async def deliver(self, sender: Role, message: Message, n_bytes: int = 0) -> None:
        """Take a message from a peer; waits while the inbox is full."""
        match message:
            case Failed():
                self.fail(PeerError(message.reason), told_by=sender)
                return
            case Waiting():
                return
            case AlignmentProgress():
                self._patience.progress(message.done)
                await self._observe(message)
                return
            case BeginRound():
                self._overtake(message.key)
            case FinishJob():
                self._overtake(RoundKey(message.round, 0))
            case VectorPiece():
                self._history.received.count(sender, message.key, message.kind, n_bytes, len(message.ciphertexts))
            case HoldoutScores():
                self._history.received.count_scores(sender, len(message.scores))
        if not self._inbox.full():
            self._inbox.put_nowait((sender, message))
            return
        put = asyncio.create_task(self._inbox.put((sender, message)))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({put, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            put.cancel()
            over.cancel()

    def tell_coordinator(self, message: AlignmentProgress) -> None:
        """Send a message that no state machine makes."""
        self._links[Role.COORDINATOR].send(message)

    def record(self) -> dict[str, Any]:
        """What the audit log says of the job when it has ended."""
        return {
            "rounds": self._history.rounds,
            "sent": self._history.sent.totals,
            "received": self._history.received.totals,
        }

    async def in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in the job's own thread."""
        loop = asyncio.get_running_loop()
        context = copy_context()  # so that what is logged in the thread belongs to the job
        work = partial(without_lock, function, *args, **kwargs)
        return await loop.run_in_executor(self._thread, context.run, work)

    # --- the machine's life

    async def _work(self, begin: Callable[[], Awaitable[Machine]]) -> None:
        asking = asyncio.create_task(self._ask_meanwhile())
        try:
            machine = await begin()
        finally:
            asking.cancel()
        await self._play(machine.start())
        while not self._done:
            sender, message = await self._take(machine)
            log.debug("job %s: %s from the %s", self.key.name, _described(message), sender)
            match message:
                case BeginRound():
                    self._current = max(self._current, message.key)
                    self._history.begin_round(message)
                    self._begun(message.key)
                case FinishJob():
                    self._current = max(self._current, RoundKey(message.round, 0))
                    self._history.finish(message)
            subject = subject_of(message)
            if subject is not None:
                self._history.tell(Taken(sender, *subject))
            await self._play(machine.handle(sender, message))
            self._history.tell(WorkedOff())

    def _begun(self, key: RoundKey) -> None:
        self.place.round = key.round
        self._history.tell(RoundBegun(key))

    async def _ask_meanwhile(self) -> None:
        """As a party that begins, which may take long, ask whether the coordinator still has the job."""
        while self._role is not Role.COORDINATOR:
            await asyncio.sleep(self._patience.pause)
            self._ask_whether_there()

    def _ask_whether_there(self) -> None:
        for role, link in self._links.items():
            if role in self._counterparts:
                link.send(Waiting())

    async def _take(self, machine: Machine) -> tuple[Role, Message]:
        """The next message; until there is one, work that needs none."""
        self._history.tell(Prepared(machine.prepared))
        while self._inbox.empty() and await self.in_thread(machine.prepare):
            self._history.tell(Prepared(machine.prepared))
        self._patience.wait()
        while True:
            alarm = self._patience.alarm()
            try:
                async with asyncio.timeout_at(alarm):
                    return await self._inbox.get()
            except TimeoutError:
                if self._patience.is_over(alarm):
                    timed_out = self._patience.give_up()
                    log.warning("job %s: round %d timed out", self.key.name, timed_out.key.round)
                    return self._role, timed_out
                self._ask_whether_there()

    async def _play(self, envelopes: Iterator[Envelope]) -> None:
        """Send what the machine yields, unless a newer round overtakes it.

        The first step is always taken: a message that only changes the machine's state must not be lost.
        """
        try:
            while (envelope := await self.in_thread(next, envelopes, None)) is not None:
                await self._post(envelope)
                if self._newest > self._current:
                    log.debug("job %s: overtaken by round %d", self.key.name, self._newest.round)
                    return
        finally:
            if isinstance(envelopes, Generator):
                self._thread.submit(envelopes.close)

    async def _post(self, envelope: Envelope) -> None:
        to, message = envelope.to, envelope.message
        match message:
            case Failed() | JobEnded(loss=None):  # What the machine gives up, the runner ends, and tells everyone.
                raise PeerError(message.reason)
            case OpenJob():
                # The guest calls the host as soon as it has the job, so the host must have it before.
                await self._links[to].call(message)
                self._patience.ask(message)
                await self._observe(message)
            case BeginRound() | FinishJob():
                if isinstance(message, BeginRound):
                    self._begun(message.key)
                self._links[to].send(message)
                self._patience.ask(message)
                await self._observe(message)
            case HoldoutScores():
                self._links[to].send(message)
                self._history.sent.count_scores(to, len(message.scores))
            case RoundReport():
                self._history.report(message)
                await self._observe(message)
            case Began() | ObservationRecord() | StepTaken():
                await self._observe(message)
            case EvaluationRecord():
                await self._observe(message)
                self._history.evaluate(message)
            case Result() | JobEnded():
                await self._observe(message)
                self._history.complete()
                self._done = True
            case _:
                self._links[to].send(message)

    # --- what ends work

    def _overtake(self, key: RoundKey) -> None:
        self._newest = max(self._newest, key)
        for link in self._links.values():
            link.overtake(key)

    async def _end_failed(self, error: Exception) -> None:
        if not isinstance(error, TrilateralError):
            log.error("job %s: an unexpected error: %s", self.key.name, where(error))
        public = public_error(error, self._role)
        goes_on = isinstance(public, SuspendedError)  # The others learn of the next session by its beginning.
        if not goes_on:
            await self._observe(Failed(str(public)))
        for role, link in self._links.items():
            link.clear()
            if role in self._counterparts and role is not self._told_by and not goes_on:
                link.send(Failed(str(public)))
        await self._close_links(FAREWELL)
        raise public from (None if public is error else error)

    async def _close_links(self, grace: float) -> None:
        await asyncio.gather(*(link.close(grace) for link in self._links.values()))


def _described(message: Message) -> str:
    """What a message is, without what is in it."""
    key = getattr(message, "key", None)
    at = f" of round {key.round}, attempt {key.attempt}" if isinstance(key, RoundKey) else ""
    return f"{type(message).__name__}{at}"
