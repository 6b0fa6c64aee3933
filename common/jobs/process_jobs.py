"""The jobs of one process: every message finds its job here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from google.protobuf.message import Message as Request

from common.config.process import ProcessConfig
from common.errors import PeerError, TrilateralError
from common.jobs.runner import MachineRunner
from common.protocol.messages import Failed, Machine, Message
from common.roles import Role
from common.rpc.access import Context, calling_role
from common.rpc.codec import decode
from common.rpc.errors import UnknownJobError, public_error

log = logging.getLogger(__name__)


class ProcessJobs:
    """What runs, and what became of what has ended since the process started."""

    def __init__(self, config: ProcessConfig) -> None:
        self.config = config
        self.role = config.role
        self._running: dict[str, MachineRunner] = {}
        self._ended: dict[str, TrilateralError | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def deliver(self, request: Request, context: Context) -> None:
        """Take the message that a servicer was called with; returns once it may be acknowledged."""
        job: str = request.job  # type: ignore[attr-defined]  # every request of the protocol has one
        await self.take(calling_role(context), job, decode(request), request.ByteSize())

    async def take(self, sender: Role, job: str, message: Message, n_bytes: int) -> None:
        """Give a message to its job.

        Raises:
            UnknownJobError: there is no such job.
            PeerError: it has failed here, and the sender has not heard of it yet.
        """
        if job in self._running:
            await self._running[job].deliver(sender, message, n_bytes)
        elif job not in self._ended:
            raise UnknownJobError(f"the {self.role} does not know the job {job}")
        elif (error := self._ended[job]) is not None and not isinstance(message, Failed):
            raise PeerError(f"the {self.role} has ended the job: {error}")

    async def close(self) -> None:
        """End every job, since the process stops."""
        for runner in self._running.values():
            runner.fail(PeerError(f"the {self.role} was stopped"))
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _launch(
        self,
        job: str,
        runner: MachineRunner,
        begin: Callable[[], Awaitable[Machine]],
        on_end: Callable[[TrilateralError | None], None] | None = None,
    ) -> None:
        async def live() -> None:
            ended = None
            try:
                await runner.run(begin)
                log.info("job %s: finished", job)
            except Exception as error:
                public = public_error(error, self.role)
                # A copy has no traceback, which would keep the state machine alive, and the key with it.
                ended = type(public)(str(public))
                is_bug = not isinstance(error, TrilateralError)
                log.error("job %s: failed: %s", job, " ".join(str(ended).split()), exc_info=is_bug)
            finally:
                del self._running[job]
                self._ended[job] = ended
                if on_end:
                    on_end(ended)

        self._running[job] = runner
        self._ended.pop(job, None)
        task = asyncio.create_task(live(), name=f"job {job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
