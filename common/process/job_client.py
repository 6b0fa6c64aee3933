"""Calls to the coordinator's JobService, in the types of the wire."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from types import TracebackType
from typing import Any, Self

import grpc

from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import PeerConfig, ProcessConfig
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1 import jobs_pb2, jobs_pb2_grpc
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.process.health import own_address
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import Peer, new_peer
from trilateral.common.rpc.errors import RUN_IT, TRY_AGAIN, StoppingError, from_rpc_error, raised_by_peer, way_out
from trilateral.common.rpc.versions import check_answer

CALL_SECONDS = 15.0
"""Deadline of a call that needs the coordinator alone."""
WATCH_SECONDS = 3600.0
"""Deadline of one WatchJob call. A longer watch calls again."""
RETRY_SECONDS = 1.0
"""Time between two attempts to reach a coordinator that is away."""


class LostContactError(PeerError):
    """The coordinator no longer reports on a job. The job continues: watch it again once the coordinator is back."""


OnLost = Callable[[LostContactError], None]
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

    Args:
        config: the configuration of the caller's process.
        peer: the coordinator, if the caller has a channel to it already; the client leaves it open.

    Raises:
        ConfigError: this is the coordinator's own configuration, and it has no fixed port.
    """

    def __init__(self, config: ProcessConfig, peer: Peer | None = None) -> None:
        self._config = config
        self._address = coordinator_address(config)
        self._metadata = call_metadata(config.role)
        self._given = peer

    async def __aenter__(self) -> Self:
        if self._given is not None:
            self._peer = self._given
            return self
        config, certificates = self._config, load_certificates(self._config)
        settings = config.peers.get(Role.COORDINATOR)
        if settings is None:
            # At the coordinator itself, any name in its certificate will do.
            name = certificates.current().host_name if certificates else None
            settings = PeerConfig(address=self._address, name=name)
        self._peer = new_peer(Role.COORDINATOR, settings, config, certificates)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._given is None:
            await self._peer.close()

    async def start(self, job: JobConfig) -> None:
        """Start a job. Its status tells later whether both parties accept it."""
        request = jobs_pb2.StartJobRequest(job_json=job.model_dump_json())
        await self._call("StartJob", request)

    async def status(self, job: str) -> JobStatus:
        """Return the current status of a job, with all its notes."""
        response = await self._call("GetJob", jobs_pb2.GetJobRequest(job=job))
        status: JobStatus = response.status
        return status

    async def statuses(self) -> list[JobStatus]:
        """Return the current status of each job, without notes."""
        response = await self._call("ListJobs", jobs_pb2.ListJobsRequest())
        return list(response.statuses)

    async def rounds(self, job: str, place: int = 0) -> jobs_pb2.ListRoundsResponse:
        """Return the rounds of a job that are over.

        Args:
            job: name of the job.
            place: the place of the last answer; 0 for the first rounds.
        """
        response: jobs_pb2.ListRoundsResponse = await self._call(
            "ListRounds", jobs_pb2.ListRoundsRequest(job=job, place=place)
        )
        return response

    async def stop(self, job: str) -> None:
        """End a job without a model."""
        await self._call("StopJob", jobs_pb2.StopJobRequest(job=job))

    async def resume(self, job: str) -> None:
        """Resume a job that failed or was stopped. Its status tells later whether both parties accept it."""
        await self._call("ResumeJob", jobs_pb2.ResumeJobRequest(job=job))

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
        is_second_try = False
        while True:
            is_first = True
            lost = LostContactError(f"the coordinator at {self._address} stopped reporting on job {job}")
            try:
                stub = jobs_pb2_grpc.JobServiceStub(await self._peer.connected())
                call = stub.WatchJob(request, timeout=WATCH_SECONDS, metadata=self._metadata)
                async for response in call:
                    is_second_try = False
                    check_answer(f"the coordinator at {self._address}", await call.initial_metadata())
                    status = response.status
                    # The first message of each call repeats all notes. A coordinator that was restarted may have lost
                    # the last ones.
                    new = list(status.notes)
                    if is_first:
                        n_known = _common_start(notes, new)
                        del notes[n_known:], new[:n_known], status.notes[:n_known]
                    notes += new
                    is_first, is_second_try, lost_at = False, False, None
                    yield status
                    if status.state in ENDED:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                # The coordinator may have renewed its certificate since the last call.
                if self._peer.doubt(error) and not is_second_try:
                    is_second_try = True
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

    async def _call(self, method: str, request: Any, *, is_second_try: bool = False) -> Any:
        """Make a call with a single answer, and check the protocol version of the server."""
        stub = jobs_pb2_grpc.JobServiceStub(await self._peer.connected())
        call = getattr(stub, method)(request, timeout=CALL_SECONDS, metadata=self._metadata)
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            # The coordinator may have renewed its certificate since the last call.
            if not is_second_try and self._peer.doubt(error):
                return await self._call(method, request, is_second_try=True)
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
