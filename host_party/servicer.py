"""What the host answers: each call hands its message to the job that it belongs to."""

# Names and documentation of the methods are the contract's: protos/common/pb/v1.
# ruff: noqa: N802, D102

from collections.abc import AsyncIterator

from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.pb.v1 import host_pb2, host_pb2_grpc, rounds_pb2
from trilateral.common.rpc.access import Context


class HostServicer(host_pb2_grpc.HostServiceServicer):
    """The guest's calls."""

    def __init__(self, jobs: ProcessJobs) -> None:
        self._jobs = jobs

    async def ChallengeIds(
        self, request: host_pb2.ChallengeIdsRequest, context: Context
    ) -> host_pb2.ChallengeIdsResponse:
        await self._jobs.deliver(request)
        return host_pb2.ChallengeIdsResponse()

    async def ConfirmIds(self, request: host_pb2.ConfirmIdsRequest, context: Context) -> host_pb2.ConfirmIdsResponse:
        await self._jobs.deliver(request)
        return host_pb2.ConfirmIdsResponse()

    async def SendVector(
        self, request_iterator: AsyncIterator[rounds_pb2.SendVectorRequest], context: Context
    ) -> rounds_pb2.SendVectorResponse:
        await self._jobs.deliver_vector(request_iterator)
        return rounds_pb2.SendVectorResponse()
