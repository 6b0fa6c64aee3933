"""Calls to the coordinator's JobService, in the types of the wire."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import takewhile
from types import TracebackType
from typing import Any, Self

import grpc

from trilateral.client.errors import LostContactError
from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1 import jobs_pb2, jobs_pb2_grpc
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.process.health import own_address
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import RUN_IT, TRY_AGAIN, StoppingError, from_rpc_error, raised_by_peer, way_out
from trilateral.common.rpc.versions import check_answer

CALL_SECONDS = 15.0
"""Deadline of a call that needs the coordinator alone."""
WATCH_SECONDS = 3600.0
"""Deadline of one WatchJob call. A longer watch calls again."""
RETRY_SECONDS = 1.0
"""Time between two attempts to reach a coordinator that is away."""

OnLost = Callable[["LostContactError"], None]
"""Called when a watch has lost contact and begins to try again."""


def coordinator_address(config: ProcessConfig) -> str:
    """Return the coordinator's address, from the configuration of any of the three processes.

    Raises:
        ConfigError: this is the coordinator's own configuration, and it has no fixed port.
    """
    if config.role is not Role.COORDINATOR:
        return config.peers[Role.COORDINATOR].address
    return own_address(config)


class JobClient:
    """The coordinator's JobService as plain calls. Use it in ``async with``.

    The client presents the certificate of `config`, which determines what the coordinator lets it do.

    Each method raises PeerError if the coordinator cannot be reached, or the error with which the coordinator
    refuses the call.
    """

    def __init__(self, config: ProcessConfig) -> None:
        self._config = config
        self._address = coordinator_address(config)
        self._metadata = call_metadata(config.role)
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        certificates = load_certificates(self._config)
        identity = certificates.current() if certificates else None
        peer = self._config.peers.get(Role.COORDINATOR)
        # At the coordinator itself, any name in its certificate will do.
        name = peer.certificate_name if peer else identity.host_name if identity else ""
        channel = await self._resources.enter_async_context(
            open_channel(self._address, identity, name, peer_timeout=self._config.limits.peer_timeout)
        )
        self._stub = jobs_pb2_grpc.JobServiceStub(channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._resources.aclose()

    async def start(self, job: JobConfig) -> None:
        """Start a job. Its status tells later whether both parties accept it."""
        request = jobs_pb2.StartJobRequest(job_json=job.model_dump_json())
        await self._call(self._stub.StartJob, request)

    async def status(self, job: str) -> JobStatus:
        """Return the current status of a job, with all its notes."""
        response = await self._call(self._stub.GetJob, jobs_pb2.GetJobRequest(job=job))
        status: JobStatus = response.status
        return status

    async def statuses(self) -> list[JobStatus]:
        """Return the current status of each job, without notes."""
        response = await self._call(self._stub.ListJobs, jobs_pb2.ListJobsRequest())
        return list(response.statuses)

    async def stop(self, job: str) -> None:
        """End a job without a model."""
        await self._call(self._stub.StopJob, jobs_pb2.StopJobRequest(job=job))

    async def resume(self, job: str) -> None:
        """Resume a job that failed or was stopped. Its status tells later whether both parties accept it."""
        await self._call(self._stub.ResumeJob, jobs_pb2.ResumeJobRequest(job=job))

    async def watch(
        self, job: str, *, patience: float = 0.0, on_lost: OnLost = lambda _: None
    ) -> AsyncIterator[JobStatus]:
        """Yield the status of a job now and after each change, until the job ends. Each note comes once.

        Args:
            job: name of the job.
            patience: seconds for which to try again if the coordinator cannot be reached or stops reporting.
            on_lost: called when that begins, with the reason.

        Raises:
            LostContactError: the coordinator was away for longer than `patience`.
        """
        request = jobs_pb2.WatchJobRequest(job=job)
        notes: list[str] = []
        lost_at: float | None = None
        while True:
            is_first = True
            lost = LostContactError(f"the coordinator at {self._address} stopped reporting on job {job}")
            try:
                call = self._stub.WatchJob(request, timeout=WATCH_SECONDS, metadata=self._metadata)
                async for response in call:
                    check_answer(f"the coordinator at {self._address}", await call.initial_metadata())
                    status = response.status
                    # The first message of each call repeats all notes. A coordinator that was restarted may have lost
                    # the last ones.
                    new = list(status.notes)
                    if is_first:
                        n_known = _common_start(notes, new)
                        del notes[n_known:], new[:n_known], status.notes[:n_known]
                    notes += new
                    is_first, lost_at = False, None
                    yield status
                    if status.state in ENDED:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                problem = self._public_error(error)
                if error.code() not in TRY_AGAIN or raised_by_peer(error) not in (None, StoppingError):
                    raise problem from error
                lost = LostContactError(str(problem))
            now = time.monotonic()
            if lost_at is None:
                lost_at = now
                if patience > 0:
                    on_lost(lost)
            if now - lost_at >= patience:
                raise lost
            await asyncio.sleep(min(RETRY_SECONDS, patience))

    async def _call(self, method: Any, request: Any) -> Any:
        """Make a call with a single answer, and check the protocol version of the server."""
        call = method(request, timeout=CALL_SECONDS, metadata=self._metadata)
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            raise self._public_error(error) from error
        check_answer(f"the coordinator at {self._address}", await call.trailing_metadata())
        return response

    def _public_error(self, error: grpc.aio.AioRpcError) -> TrilateralError:
        match error.code():
            case grpc.StatusCode.UNAVAILABLE if way_out(error) != RUN_IT:
                return PeerError(f"cannot call the coordinator at {self._address}: {way_out(error)}")
            case grpc.StatusCode.UNAVAILABLE:
                return PeerError(
                    f"cannot reach the coordinator at {self._address}: start it with `trilateral serve coordinator "
                    "--config FILE`, or correct its address in your configuration"
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                return PeerError(
                    f"the program at {self._address} is not a coordinator, or is one of another release: correct the "
                    "address in your configuration, or install the same release of trilateral everywhere"
                )
            case _:
                return from_rpc_error(error, f"the coordinator at {self._address}")


def _common_start(known: Sequence[str], told: Sequence[str]) -> int:
    """Return how many notes at the start of both lists are the same."""
    same = (one == other for one, other in zip(known, told, strict=False))
    return sum(1 for _ in takewhile(bool, same))
