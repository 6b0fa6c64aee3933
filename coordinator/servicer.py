"""What the coordinator answers: the parties' messages to their job, the operator's wishes to the list of jobs."""

# Names and documentation of the methods are the contract's: protos/common/pb/v1.
# ruff: noqa: N802, D102

from collections.abc import AsyncIterator

from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.pb.v1 import coordinator_pb2, coordinator_pb2_grpc, jobs_pb2, jobs_pb2_grpc, rounds_pb2
from trilateral.common.rpc.access import Context
from trilateral.common.rpc.codec import parse_job
from trilateral.coordinator.jobs import CoordinatorJobs


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """The parties' calls."""

    def __init__(self, jobs: ProcessJobs) -> None:
        self._jobs = jobs

    async def ReportAlignment(
        self, request: coordinator_pb2.ReportAlignmentRequest, context: Context
    ) -> coordinator_pb2.ReportAlignmentResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportAlignmentResponse()

    async def ReportReady(
        self, request: coordinator_pb2.ReportReadyRequest, context: Context
    ) -> coordinator_pb2.ReportReadyResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportReadyResponse()

    async def SendVector(
        self, request_iterator: AsyncIterator[rounds_pb2.SendVectorRequest], context: Context
    ) -> rounds_pb2.SendVectorResponse:
        await self._jobs.deliver_vector(request_iterator)
        return rounds_pb2.SendVectorResponse()

    async def ReportOutOfRange(
        self, request: coordinator_pb2.ReportOutOfRangeRequest, context: Context
    ) -> coordinator_pb2.ReportOutOfRangeResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportOutOfRangeResponse()

    async def ReportEvaluation(
        self, request: coordinator_pb2.ReportEvaluationRequest, context: Context
    ) -> coordinator_pb2.ReportEvaluationResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportEvaluationResponse()

    async def ReportFinished(
        self, request: coordinator_pb2.ReportFinishedRequest, context: Context
    ) -> coordinator_pb2.ReportFinishedResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportFinishedResponse()

    async def ReportWaiting(
        self, request: coordinator_pb2.ReportWaitingRequest, context: Context
    ) -> coordinator_pb2.ReportWaitingResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportWaitingResponse()

    async def ReportFailure(
        self, request: coordinator_pb2.ReportFailureRequest, context: Context
    ) -> coordinator_pb2.ReportFailureResponse:
        await self._jobs.deliver(request)
        return coordinator_pb2.ReportFailureResponse()


class JobServicer(jobs_pb2_grpc.JobServiceServicer):
    """The operator's calls."""

    def __init__(self, jobs: CoordinatorJobs) -> None:
        self._jobs = jobs

    async def StartJob(self, request: jobs_pb2.StartJobRequest, context: Context) -> jobs_pb2.StartJobResponse:
        await self._jobs.start(parse_job(request.job_json))
        return jobs_pb2.StartJobResponse()

    async def GetJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.GetJobResponse:
        return jobs_pb2.GetJobResponse(status=self._jobs.find(request.job).status())

    async def ListJobs(self, request: jobs_pb2.ListJobsRequest, context: Context) -> jobs_pb2.ListJobsResponse:
        return jobs_pb2.ListJobsResponse(statuses=[job.status(n_known_notes=None) for job in self._jobs.all()])

    async def WatchJob(
        self, request: jobs_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        async for status in self._jobs.find(request.job).watch():
            yield jobs_pb2.WatchJobResponse(status=status)

    async def ResumeJob(self, request: jobs_pb2.ResumeJobRequest, context: Context) -> jobs_pb2.ResumeJobResponse:
        await self._jobs.resume(request.job)
        return jobs_pb2.ResumeJobResponse()

    async def StopJob(self, request: jobs_pb2.StopJobRequest, context: Context) -> jobs_pb2.StopJobResponse:
        await self._jobs.stop(request.job)
        return jobs_pb2.StopJobResponse()
