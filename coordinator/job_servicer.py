"""The coordinator's answers to operators."""

# The contract in protos/trilateral/common/pb/v1 names and documents the methods.
# ruff: noqa: N802, D102

from collections.abc import AsyncIterator

from trilateral.common.pb.v1 import jobs_pb2, jobs_pb2_grpc
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.codec import parse_job
from trilateral.common.rpc.interceptor import Context
from trilateral.coordinator.jobs import CoordinatorJobs


class JobServicer(jobs_pb2_grpc.JobServiceServicer):
    """Answers the operators' calls.

    Args:
        jobs: the jobs of this process.
    """

    def __init__(self, jobs: CoordinatorJobs) -> None:
        self._jobs = jobs

    async def StartJob(self, request: jobs_pb2.StartJobRequest, context: Context) -> jobs_pb2.StartJobResponse:
        await self._jobs.start(parse_job(request.job_json))
        return jobs_pb2.StartJobResponse()

    async def GetJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.GetJobResponse:
        return jobs_pb2.GetJobResponse(status=self._jobs.find(request.job).status(viewer=calling().role))

    async def ListJobs(self, request: jobs_pb2.ListJobsRequest, context: Context) -> jobs_pb2.ListJobsResponse:
        viewer = calling().role
        return jobs_pb2.ListJobsResponse(statuses=[job.status(None, viewer) for job in self._jobs.all()])

    async def WatchJob(
        self, request: jobs_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        async for status in self._jobs.find(request.job).watch(calling().role):
            yield jobs_pb2.WatchJobResponse(status=status)

    async def ResumeJob(self, request: jobs_pb2.ResumeJobRequest, context: Context) -> jobs_pb2.ResumeJobResponse:
        await self._jobs.resume(request.job)
        return jobs_pb2.ResumeJobResponse()

    async def StopJob(self, request: jobs_pb2.StopJobRequest, context: Context) -> jobs_pb2.StopJobResponse:
        await self._jobs.stop(request.job)
        return jobs_pb2.StopJobResponse()
