"""An operator's calls to the coordinator."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import grpc

from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1 import jobs_pb2, jobs_pb2_grpc
from trilateral.common.pb.v1.jobs_pb2 import JobStatus
from trilateral.common.process.health import own_address
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import RUN_IT, from_rpc_error, way_out
from trilateral.common.rpc.versions import check_answer

CALL_SECONDS = 15.0
"""Deadline of a call that the coordinator answers by itself."""
WATCH_SECONDS = 3600.0
"""Deadline of one call of WatchJob; a watch that lasts longer calls again."""


def coordinator_address(config: ProcessConfig) -> str:
    """Return where the coordinator listens, according to any of the three processes' configuration.

    Raises:
        ConfigError: the coordinator's own configuration leaves its port open.
    """
    if config.role is not Role.COORDINATOR:
        return config.peers[Role.COORDINATOR].address
    return own_address(config)


class JobClient:
    """The coordinator's JobService as plain calls; use it in ``async with``.

    It shows the certificate of `config`, by which the coordinator knows whether it may.

    Each method raises PeerError when the coordinator cannot be reached, or the error with which it refuses.
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
        # To itself, the coordinator is known by any name of its certificate.
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
        """Start a job; its status tells whether both parties take it."""
        request = jobs_pb2.StartJobRequest(job_json=job.model_dump_json())
        await self._call(self._stub.StartJob, request)

    async def status(self, job: str) -> JobStatus:
        """Return what a job is doing now, with all its notes."""
        response = await self._call(self._stub.GetJob, jobs_pb2.GetJobRequest(job=job))
        status: JobStatus = response.status
        return status

    async def statuses(self) -> list[JobStatus]:
        """Return what each job is doing now."""
        response = await self._call(self._stub.ListJobs, jobs_pb2.ListJobsRequest())
        return list(response.statuses)

    async def stop(self, job: str) -> None:
        """End a job without a model."""
        await self._call(self._stub.StopJob, jobs_pb2.StopJobRequest(job=job))

    async def resume(self, job: str) -> None:
        """Take a job that was stopped or has failed up where it was; its status tells whether both parties do."""
        await self._call(self._stub.ResumeJob, jobs_pb2.ResumeJobRequest(job=job))

    async def watch(self, job: str) -> AsyncIterator[JobStatus]:
        """Yield a job's status now and at each change, until it ends; each note comes once."""
        request = jobs_pb2.WatchJobRequest(job=job)
        n_notes = 0
        while True:
            # A call's first message has all notes: those that the call before it brought are known.
            n_known = n_notes
            try:
                call = self._stub.WatchJob(request, timeout=WATCH_SECONDS, metadata=self._metadata)
                async for response in call:
                    check_answer(f"the coordinator at {self._address}", await call.initial_metadata())
                    status = response.status
                    del status.notes[:n_known]
                    n_known = 0
                    n_notes += len(status.notes)
                    yield status
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise self._public_error(error) from error

    async def _call(self, method: Any, request: Any) -> Any:
        """Call a method that answers once, and see that whoever answers knows of versions."""
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
                return PeerError(f"the coordinator at {self._address} cannot be called: {way_out(error)}")
            case grpc.StatusCode.UNAVAILABLE:
                return PeerError(
                    f"the coordinator at {self._address} cannot be reached: start it with `trilateral serve "
                    "coordinator --config FILE`, or correct its address in --config"
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                return PeerError(
                    f"what listens at {self._address} is not a coordinator, or is one of another release: correct its "
                    "address in --config, or install the same release of trilateral at all three"
                )
            case _:
                return from_rpc_error(error, f"the coordinator at {self._address}")
