"""The jobs of one process: every message finds its job here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from google.protobuf.message import Message as Request

from common.config.process import ProcessConfig
from common.errors import PeerError, PolicyError, TrilateralError
from common.jobs.runner import MachineRunner
from common.protocol.messages import Failed, Machine, Message
from common.roles import Role
from common.rpc.access import Context, calling_role
from common.rpc.codec import JobKey, decode, job_key
from common.rpc.errors import UnknownJobError, public_error

log = logging.getLogger(__name__)

MOST_ENDED = 500
"""Jobs whose end is remembered."""
STOPPED = "stopped by the operator"
"""Why a job ended that nothing was wrong with; the parties know it by these words."""


class ProcessJobs:
    """What runs, and what became of what has ended since the process started."""

    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self.role = config.role
        self._stopped = f"the {self.role} was stopped"
        self._running: dict[str, MachineRunner] = {}
        """By name: two runs of a name never go on at the same time."""
        self._ended: dict[JobKey, TrilateralError | None] = {}
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}

    async def deliver(self, request: Request, context: Context) -> None:
        """Take the message that a servicer was called with; returns once it may be acknowledged."""
        await self.take(calling_role(), job_key(request), decode(request), request.ByteSize())

    async def take(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """Give a message to its job.

        Raises:
            UnknownJobError: there is no such job, or only another run of it.
            PeerError: it has failed here, and the sender has not heard of it yet.
        """
        runner = self._find_running(key)
        if runner is not None:
            await runner.deliver(sender, message, n_bytes)
        elif key not in self._ended:
            raise UnknownJobError(f"the {self.role} does not know this run of the job {key.name}")
        elif (error := self._ended[key]) is not None and not isinstance(message, Failed):
            raise PeerError(f"the {self.role} has ended the job: {error}")

    async def close(self) -> None:
        """End every job, since the process stops."""
        for runner in self._running.values():
            runner.fail(PeerError(self._stopped))
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _check_room(self) -> None:
        most = self.config.limits.max_jobs
        if len(self._running) >= most:
            raise PolicyError(f"the {self.role} runs {most} jobs, limits.max_jobs: wait until one has ended")

    def _find_running(self, key: JobKey) -> MachineRunner | None:
        runner = self._running.get(key.name)
        return runner if runner is not None and runner.key == key else None

    def _launch(
        self,
        runner: MachineRunner,
        begin: Callable[[], Awaitable[Machine]],
        on_end: Callable[[TrilateralError | None], None] | None = None,
    ) -> None:
        key = runner.key

        async def live() -> None:
            ended = None
            try:
                await runner.run(begin)
                log.info("job %s: finished", key.name)
            except Exception as error:
                public = public_error(error, self.role)
                # A copy has no traceback, which would keep the state machine alive, and the key with it.
                ended = type(public)(str(public))
                if str(ended) in (STOPPED, self._stopped):
                    log.info("job %s: %s", key.name, ended)
                else:
                    is_bug = not isinstance(error, TrilateralError)
                    log.error("job %s: failed: %s", key.name, " ".join(str(ended).split()), exc_info=is_bug)
            finally:
                del self._running[key.name]
                self._remember(key, ended)
                if on_end:
                    on_end(ended)

        self._running[key.name] = runner
        task = asyncio.create_task(live(), name=f"job {key.name}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key))

    def _remember(self, key: JobKey, ended: TrilateralError | None) -> None:
        self._ended[key] = ended
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]  # the first that was put in
