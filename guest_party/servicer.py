"""What the guest answers: each call hands its message to the job that it belongs to."""

# Names and documentation of the methods are the contract's: protos/common/pb/v1.
# ruff: noqa: N802, D102

from collections.abc import AsyncIterator

from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.pb.v1 import guest_pb2, guest_pb2_grpc, rounds_pb2
from trilateral.common.rpc.access import Context


class GuestServicer(guest_pb2_grpc.GuestServiceServicer):
    """The host's calls."""

    def __init__(self, jobs: ProcessJobs) -> None:
        self._jobs = jobs

    async def ProveIds(self, request: guest_pb2.ProveIdsRequest, context: Context) -> guest_pb2.ProveIdsResponse:
        await self._jobs.deliver(request)
        return guest_pb2.ProveIdsResponse()

    async def SendVector(
        self, request_iterator: AsyncIterator[rounds_pb2.SendVectorRequest], context: Context
    ) -> rounds_pb2.SendVectorResponse:
        await self._jobs.deliver_vector(request_iterator)
        return rounds_pb2.SendVectorResponse()

    async def SendHoldoutScores(
        self, request: guest_pb2.SendHoldoutScoresRequest, context: Context
    ) -> guest_pb2.SendHoldoutScoresResponse:
        await self._jobs.deliver(request)
        return guest_pb2.SendHoldoutScoresResponse()
