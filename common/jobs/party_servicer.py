"""What both parties answer to the coordinator."""

# Names and documentation of the methods are the contract's: protos/common/pb/v1.
# ruff: noqa: N802, D102

from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.pb.v1 import party_pb2, party_pb2_grpc
from trilateral.common.rpc.access import Context


class PartyServicer(party_pb2_grpc.PartyServiceServicer):
    """The coordinator's calls."""

    def __init__(self, jobs: ProcessJobs) -> None:
        self._jobs = jobs

    async def OpenJob(self, request: party_pb2.OpenJobRequest, context: Context) -> party_pb2.OpenJobResponse:
        await self._jobs.deliver(request)
        return party_pb2.OpenJobResponse()

    async def BeginRound(self, request: party_pb2.BeginRoundRequest, context: Context) -> party_pb2.BeginRoundResponse:
        await self._jobs.deliver(request)
        return party_pb2.BeginRoundResponse()

    async def FinishJob(self, request: party_pb2.FinishJobRequest, context: Context) -> party_pb2.FinishJobResponse:
        await self._jobs.deliver(request)
        return party_pb2.FinishJobResponse()

    async def CheckJob(self, request: party_pb2.CheckJobRequest, context: Context) -> party_pb2.CheckJobResponse:
        await self._jobs.deliver(request)
        return party_pb2.CheckJobResponse()

    async def FailJob(self, request: party_pb2.FailJobRequest, context: Context) -> party_pb2.FailJobResponse:
        await self._jobs.deliver(request)
        return party_pb2.FailJobResponse()
