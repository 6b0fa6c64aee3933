"""The jobs of one process: every message finds its job here."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from google.protobuf.message import Message as Request

from trilateral.common.base.errors import ConfigError, PolicyError, ProtocolError, SuspendedError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.jobs.journal import Journal, State
from trilateral.common.jobs.runner import MachineRunner
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.events import Event, Tell
from trilateral.common.observe.logs import Place
from trilateral.common.observe.metrics import Metrics, Result
from trilateral.common.observe.traces import open_traces
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest
from trilateral.common.protocol.messages import Failed, Machine, Message
from trilateral.common.rpc.access import calling_role
from trilateral.common.rpc.codec import JobKey, VectorStream, job_key
from trilateral.common.rpc.errors import EndedError, StoppingError, UnknownJobError, public_error
from trilateral.common.rpc.routes import decode

log = logging.getLogger(__name__)

MAX_ENDED = 500
"""Jobs whose end is remembered."""
STOPPED = "stopped by the operator"
"""Why a job ended that nothing was wrong with; the parties know it by these words."""


class ProcessJobs:
    """What runs, and what became of what has ended since the process started."""

    def __init__(self, config: ProcessConfig, audit: Audit) -> None:
        self.config = config
        self.audit = audit
        self.role = config.role
        use_arithmetic(config.limits.threads)
        self.metrics = Metrics(self.role, config.state)
        self._traces = open_traces(config)
        self._stopped = f"the {self.role} was stopped"
        self._running: dict[str, MachineRunner] = {}
        """By name: two runs of a name never go on at the same time."""
        self._lingering: list[Future[None]] = []
        self._ended: dict[JobKey, TrilateralError | None] = {}
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._beginning = asyncio.Lock()
        """Held while a job is taken in: one at a time, and none any more once the process stops."""
        self._closing = False

    def open(self) -> None:
        """Open the journal, in the state folder that this process holds by now.

        Raises:
            ConfigError: there is one that cannot be used, or none can be made.
        """
        self.journal = Journal(self.config.state, self.role, self.config.limits.journal_days)

    async def deliver(self, request: Request) -> None:
        """Take the message that a servicer was called with; returns once it may be acknowledged.

        Raises:
            TrilateralError: it is none that the protocol has. The job that it was for has failed by it.
        """
        sender, key = calling_role(), job_key(request)
        runner = self._find_running(key)
        place = Place(key.name) if runner is None else runner.place
        with place.current():
            with self._blaming(sender, key):
                message = decode(request)
            await self.take(sender, key, message, request.ByteSize())

    async def deliver_vector(self, chunks: AsyncIterator[SendVectorRequest]) -> None:
        """Take the chunks of a vector, each as it comes; as `deliver`.

        Numbers are made of a chunk only for a run that goes on, and of its width. Of one that has ended, the
        first chunk answers for the whole vector: nobody reads the others.
        """
        stream = VectorStream()
        async for chunk in chunks:
            key = job_key(chunk)
            runner = self._find_running(key)
            if runner is None:
                self._check_ended_well(key)
                return
            with self._blaming(calling_role(), key):
                stream.check(chunk)
                if chunk.width != runner.width:
                    raise ProtocolError(f"ciphertexts of {chunk.width} bytes came where {runner.width} are due")
            await self.deliver(chunk)

    async def take(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """Give a message to its job.

        Raises:
            UnknownJobError: there is no such job, or only another run of it.
            PeerError: it has failed here, and the sender has not heard of it yet.
        """
        runner = self._find_running(key)
        if runner is not None:
            await runner.deliver(sender, message, n_bytes)
        elif key not in self._ended or not isinstance(message, Failed):
            self._check_ended_well(key)

    async def close(self) -> None:
        """End every session, since the process stops: the jobs go on when it is started again."""
        self._closing = True
        async with self._beginning:  # What is being taken in runs by then.
            for runner in self._running.values():
                runner.fail(SuspendedError(self._stopped))
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        self.journal.close()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def _tell_of(self, key: JobKey) -> Tell:
        """What a session of a job tells of itself."""
        count = self.metrics.session(key.name)
        if self._traces is None:
            return count
        trace = self._traces.session(key)

        def tell(event: Event) -> None:
            count(event)
            trace(event)

        return tell

    @contextmanager
    def _blaming(self, sender: Role, key: JobKey) -> Iterator[None]:
        """Whoever speaks to a job against the protocol ends it, and both sides hear the same of it."""
        try:
            yield
        except (ProtocolError, ConfigError) as error:
            problem = type(error)(f"the {self.role}, of a message from the {sender}: {error}")
            runner = self._find_running(key)
            if runner is not None:
                runner.fail(problem)
            raise problem from None

    def _check_goes_on(self) -> None:
        """Raise if the process stops: whoever asks for a new session tries again, and finds the next process."""
        if self._closing:
            raise StoppingError(f"the {self.role} is being stopped")

    def _check_room(self) -> None:
        most = self.config.limits.max_jobs
        self._lingering = [step for step in self._lingering if not step.done()]
        if len(self._running) + len(self._lingering) >= most:
            raise PolicyError(f"the {self.role} runs {most} jobs, limits.max_jobs: wait until one has ended")

    def _check_ended_well(self, key: JobKey) -> None:
        """Raise what a message to a run that does not go on is answered with, unless it is acknowledged; see `take`."""
        if key not in self._ended:
            raise UnknownJobError(f"the {self.role} does not know this run of the job {key.name}")
        error = self._ended[key]
        if isinstance(error, SuspendedError):
            raise UnknownJobError(f"the {self.role} has ended this session of the job {key.name}: {error}")
        if error is not None:
            raise EndedError(f"the {self.role} has ended the job: {error}")

    def _find_running(self, key: JobKey) -> MachineRunner | None:
        runner = self._running.get(key.name)
        return runner if runner is not None and runner.key == key else None

    def _launch(
        self,
        runner: MachineRunner,
        begin: Callable[[], Awaitable[Machine]],
        on_end: Callable[[TrilateralError | None], Awaitable[None]],
    ) -> None:
        key = runner.key

        async def live() -> None:
            ended = None
            became: Result = "finished"
            try:
                await runner.run(begin)
                log.info("job %s: finished", key.name)
            except Exception as error:
                public = public_error(error, self.role)
                # A copy has no traceback, which would keep the state machine alive, and the key with it.
                ended = type(public)(str(public))
                if isinstance(ended, SuspendedError):
                    became = "suspended"
                    log.info("job %s: session ended, and the job goes on in another: %s", key.name, ended)
                elif str(ended) == STOPPED:
                    became = "stopped"
                    log.info("job %s: %s", key.name, ended)
                else:
                    became = "failed"
                    log.error("job %s: failed: %s", key.name, " ".join(str(ended).split()))
                    if not isinstance(error, TrilateralError):
                        log.error("job %s: by %s", key.name, where(error))
            finally:
                del self._running[key.name]
                self.metrics.ended(key.name, became)
                # A long step, such as making a large key, outlives its job: jobs that start and stop must not pile up.
                # Only the step is kept: what the job knew goes with the runner.
                if runner.last_step is not None:
                    self._lingering.append(runner.last_step)
                self._remember(key, ended)
                result = {"result": "finished"}
                if ended is not None:
                    how = "suspended" if isinstance(ended, SuspendedError) else "failed"
                    result = {"result": how, "reason": str(ended)}
                self.audit.ended(job=key.name, run=key.run_id.hex(), **result, **runner.record())
                await on_end(ended)

        self._running[key.name] = runner
        self.metrics.begun(key.name)
        with runner.place.current():
            task = asyncio.create_task(live(), name=f"job {key.name}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key))

    def _remember(self, key: JobKey, ended: TrilateralError | None) -> None:
        self._ended[key] = ended
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]  # the first that was put in

    async def _mark(self, job_id: bytes, state: State, reason: str = "") -> None:
        """Write down that a job has ended; that it cannot be is no reason to end otherwise."""
        try:
            await asyncio.to_thread(self.journal.mark, job_id, state, reason)
        except ConfigError as error:
            log.error("the end of a job is not written down: %s", error)
