"""The jobs of one process. Here each message is passed to its job."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from google.protobuf.message import Message as Request

from trilateral.common.base import tasks
from trilateral.common.base.errors import (
    ConfigError,
    PolicyError,
    ProtocolError,
    StoppedError,
    SuspendedError,
    TrilateralError,
    notes,
)
from trilateral.common.base.heap import trim_heap
from trilateral.common.base.outcome import Outcome, outcome_of
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.jobs.folder import move_old_folders
from trilateral.common.jobs.journal import NO_FACTS, Journal
from trilateral.common.jobs.runner import MachineRunner
from trilateral.common.jobs.sealing import load_sealer
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.events import Event, OnEvent
from trilateral.common.observe.logs import LogContext
from trilateral.common.observe.metrics import Metrics
from trilateral.common.observe.traces import open_traces
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest
from trilateral.common.protocol.messages import Failed, Machine, Message
from trilateral.common.rpc.access import calling_role
from trilateral.common.rpc.codec import JobKey, VectorStream, job_key
from trilateral.common.rpc.elements import ElementsRequest
from trilateral.common.rpc.errors import EndedError, StoppingError, UnknownJobError, public_error
from trilateral.common.rpc.routes import decode

log = logging.getLogger(__name__)

MAX_ENDED = 500
"""How many ended jobs a process remembers."""


class ProcessJobs:
    """The running jobs, and how the other jobs since the start of the process ended.

    Args:
        config: the configuration of this process.
        audit: records each decision.

    Attributes:
        config: as given. While the process runs, a changed configuration replaces it: read it anew for each decision.

    Raises:
        ConfigError: traces are configured, and OpenTelemetry is not installed.
    """

    def __init__(self, config: ProcessConfig, audit: Audit) -> None:
        self.config = config
        self.audit = audit
        self.role = config.role
        use_arithmetic(config.limits.threads)
        self.metrics = Metrics(self.role, config.state)
        self._traces = open_traces(config)
        self._running: dict[str, MachineRunner] = {}
        """The running jobs by name: two runs of a job never go on at the same time."""
        self._lingering: list[Future[None]] = []
        """The steps of ended jobs that are still being computed."""
        self._ended: dict[JobKey, TrilateralError | None] = {}
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._beginning = asyncio.Lock()
        """Held while a job is accepted, so that jobs are accepted one at a time, and none once the process stops."""
        self._closing = False

    def open(self) -> None:
        """Open the journal in the state folder, which this process must have locked, and move old job folders.

        Raises:
            ConfigError: the existing journal cannot be used, a new one cannot be created, or an old job folder cannot
                be moved.
        """
        move_old_folders(self.config.state, self.role)
        sealer = load_sealer(self.config.state_key)
        self.journal = Journal(self.config.state, self.role, self.config.limits.journal_days, sealer)

    async def deliver(self, request: Request) -> None:
        """Pass on the message that a servicer received; return once it may be acknowledged.

        Raises:
            TrilateralError: the message is not valid, so its job fails; for other errors see `dispatch`.
        """
        sender, key = calling_role(), job_key(request)
        runner = self._find_running(key)
        context = LogContext(key.name) if runner is None else runner.log_context
        with context.current():
            with self._blaming(sender, key):
                message = decode(request)
            await self.dispatch(sender, key, message, request.ByteSize())

    async def deliver_stream(self, requests: AsyncIterator[Any]) -> None:
        """Pass on the messages in a stream of requests as they arrive, each once there is room for it.

        A request is decoded only if its run is in progress and takes such messages. If the run has ended, the answer to
        the first request is the answer to the whole call, and the other requests are not read.

        Args:
            requests: of one method: each a `SendVectorRequest`, which form vectors one after the other, each an
                `ElementsRequest`, or each the request of a message. Ring elements of several vectors may come in one
                call: the state machine has the order of each.
        """
        stream, sender = VectorStream(), calling_role()
        # The call may be open while nothing arrives. It must not outlive the run that the requests belong to.
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as reading:
                async for request in requests:
                    key = job_key(request)
                    runner = self._find_running(key)
                    if runner is None:
                        self._check_ended_well(key)
                        return
                    runner.readings.add(reading)
                    with runner.log_context.current():
                        with self._blaming(sender, key):
                            if isinstance(request, SendVectorRequest | ElementsRequest):
                                _check_chunk(request, stream, runner)
                            message = decode(request)
                        await runner.deliver(sender, message, request.ByteSize())

    async def dispatch(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """Pass a message to its job.

        Args:
            sender: role of the process that sent the message.
            key: run of the job that the message belongs to.
            message: what was sent.
            n_bytes: size of the message as it travelled.

        Raises:
            UnknownJobError: this process does not have the job, or has another run of it.
            StoppedError: the job was stopped, and the sender does not know that yet.
            EndedError: the job failed here, and the sender does not know that yet.
        """
        runner = self._find_running(key)
        if runner is not None:
            await runner.deliver(sender, message, n_bytes)
        elif key not in self._ended or not isinstance(message, Failed):
            self._check_ended_well(key)

    async def close(self) -> None:
        """Suspend every job because the process stops. The jobs continue when the process is started again."""
        self._closing = True
        async with self._beginning:  # Once the lock is free, a job that was being accepted runs.
            for runner in self._running.values():
                runner.fail(SuspendedError(f"the {self.role} was stopped"))
        for task in self._background:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        self.journal.close()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def _observer_of(self, key: JobKey) -> OnEvent:
        """Return the function that a session calls with its events. It counts them, and traces them if configured."""
        count = self.metrics.session(key.name)
        if self._traces is None:
            return count
        trace = self._traces.session(key)

        def on_event(event: Event) -> None:
            count(event)
            trace(event)

        return on_event

    @contextmanager
    def _blaming(self, sender: Role, key: JobKey) -> Iterator[None]:
        """Within the block, end the job if its peer breaks the protocol, and tell both sides the same reason."""
        try:
            yield
        except (ProtocolError, ConfigError) as error:
            problem = type(error)(f"the {self.role}, about a message from the {sender}: {error}")
            runner = self._find_running(key)
            if runner is not None:
                runner.fail(problem)
            raise problem from None

    def _check_not_closing(self) -> None:
        """Raise if the process is being stopped. The caller then tries again and reaches the next process."""
        if self._closing:
            raise StoppingError(f"the {self.role} is being stopped")

    def _check_room(self) -> None:
        max_jobs = self.config.limits.max_jobs
        self._lingering = [step for step in self._lingering if not step.done()]
        if len(self._running) + len(self._lingering) >= max_jobs:
            raise PolicyError(
                f"the {self.role} already runs {max_jobs} jobs, the maximum in limits.max_jobs: wait until one has"
                " ended"
            )

    def _check_ended_well(self, key: JobKey) -> None:
        """Return if a message to a run that is not in progress is to be acknowledged; see `dispatch` for the errors."""
        if key not in self._ended:
            raise UnknownJobError(f"the {self.role} does not know this run of the job {key.name}")
        error = self._ended[key]
        if isinstance(error, SuspendedError):
            raise UnknownJobError(f"the {self.role} has ended this session of the job {key.name}: {error}")
        if error is not None:
            raise ended_error(error, self.role)

    def _find_running(self, key: JobKey) -> MachineRunner | None:
        runner = self._running.get(key.name)
        return runner if runner is not None and runner.key == key else None

    def _launch(
        self,
        runner: MachineRunner,
        begin: Callable[[], Awaitable[Machine]],
        on_end: Callable[[TrilateralError | None], Awaitable[None]],
    ) -> None:
        """Run a session in a new task; `on_end` is called with its error, or with None if the job has finished."""
        key = runner.key
        for peer in self.metrics.peers.values():  # The start takes longer than to connect.
            self._in_background(peer.connect_ahead())

        async def live() -> None:
            ended = None
            try:
                await runner.run(begin)
            except Exception as error:
                public = public_error(error, self.role)
                # Keep a copy without the traceback, which would keep the state machine and its key alive.
                ended = type(public)(str(public))
                if isinstance(error, TrilateralError):
                    for note in notes(error):
                        log.warning("job %s: %s", key.name, note)
                else:
                    log.error("job %s: unexpected error: %s", key.name, where(error))
            finally:
                outcome = outcome_of(ended)
                _log_end(key.name, outcome, ended)
                del self._running[key.name]
                runner.end_readings()
                self.metrics.ended(key.name, outcome)
                # A long step, such as making a large key, outlives its job. It counts as a job until done, so that
                # jobs that start and stop do not pile up. Everything else of the job is gone with the runner.
                if runner.last_step is not None:
                    self._lingering.append(runner.last_step)
                self._remember(key, ended)
                reason = {} if ended is None else {"reason": str(ended)}
                self.audit.ended(outcome, job=key.name, run=key.run_id.hex(), **reason, **runner.record())
                await on_end(ended)

        self._running[key.name] = runner
        self.metrics.begun(key.name)
        with runner.log_context.current():
            task = asyncio.create_task(live(), name=f"job {key.name}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._forget_session(key))

    def _forget_session(self, key: JobKey) -> None:
        del self._tasks[key]
        # The event loop itself refers to the task until its callbacks have run.
        asyncio.get_running_loop().call_soon(self._free_memory)

    def _free_memory(self) -> None:
        """Free what a session held, and give its memory back to the system."""
        # The parts of a session refer to each other, so only a collection frees them. Python might not collect them for
        # several jobs, and so much garbage leaves gaps in the heap.
        gc.collect()
        self._in_background(asyncio.to_thread(trim_heap))

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do what nothing waits for. It may be left out when the process stops."""
        task = tasks.start(work)
        self._background.add(task)  # The event loop alone would not keep the task alive.
        task.add_done_callback(self._background.discard)

    def _remember(self, key: JobKey, ended: TrilateralError | None) -> None:
        self._ended[key] = ended
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]  # the oldest entry

    async def _set_outcome(
        self, job_id: bytes, error: TrilateralError | None, facts: Mapping[str, bytes] = NO_FACTS
    ) -> None:
        """Record in the journal how a job ended. If that fails, the job has still ended."""
        reason = "" if error is None else str(error)
        try:
            await asyncio.to_thread(self.journal.set_outcome, job_id, outcome_of(error), reason, facts)
        except ConfigError as problem:
            log.error("the end of the job is not in the journal: %s", problem)


def _check_chunk(chunk: Any, stream: VectorStream, runner: MachineRunner) -> None:
    """Check that a chunk fits its call and its job, before it is decoded.

    Raises:
        ProtocolError: it does not.
    """
    if isinstance(chunk, ElementsRequest) is not runner.has_shares:
        raise ProtocolError("received a vector that is not part of the job's protocol")
    if not runner.has_shares:
        stream.check(chunk)
        if chunk.width != runner.width:
            raise ProtocolError(
                f"received ciphertexts of {chunk.width} bytes, expected ciphertexts of {runner.width} bytes"
            )
    if not runner.takes_vectors:
        what = "ring elements" if runner.has_shares else "ciphertexts"
        raise ProtocolError(f"received {what} before the first round, which begins when both are ready")


def ended_error(error: TrilateralError, role: Role) -> TrilateralError:
    """Return the error for a call about a job that has ended at `role` with `error`."""
    kind = StoppedError if outcome_of(error) is Outcome.STOPPED else EndedError
    return kind(f"the {role} has ended the job: {error}")


def _log_end(job: str, outcome: Outcome, error: TrilateralError | None) -> None:
    reason = " ".join(str(error).split())  # on one line
    match outcome:
        case Outcome.FINISHED:
            log.info("job %s: finished", job)
        case Outcome.STOPPED:
            log.info("job %s: %s", job, reason)
        case Outcome.SUSPENDED:
            log.info("job %s: this session has ended, and the job continues in another: %s", job, reason)
        case Outcome.FAILED:
            log.error("job %s: failed: %s", job, reason)
