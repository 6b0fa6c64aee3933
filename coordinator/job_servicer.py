"""The coordinator's answers to operators."""

# The contract in protos/trilateral/common/pb/v1 names and documents the methods.
# ruff: noqa: N802, D102

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history_file import read_history
from trilateral.common.pb.v1 import jobs_pb2, jobs_pb2_grpc
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.codec import parse_job
from trilateral.common.rpc.interceptor import Context
from trilateral.coordinator.job import told_evaluation
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

    async def ListRounds(self, request: jobs_pb2.ListRoundsRequest, context: Context) -> jobs_pb2.ListRoundsResponse:
        job, viewer = self._jobs.find(request.job), calling().role
        folder = JobFolder(self._jobs.config.state, job.name)
        piece = await asyncio.to_thread(read_history, folder, request.place)
        shows_loss = job.shows_losses(viewer)
        return jobs_pb2.ListRoundsResponse(
            rounds=[_summary(line, shows_loss=shows_loss) for line in piece.lines],
            place=piece.place,
            is_from_start=piece.is_from_start,
            is_more=piece.is_more,
        )

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


def _summary(line: dict[str, Any], *, shows_loss: bool) -> jobs_pb2.RoundSummary:
    summary = jobs_pb2.RoundSummary(
        round=line["round"],
        attempt=line["attempt"],
        epoch=line["epoch"],
        batch=line["batch"],
        seconds=line["seconds"]["all"] - line["seconds"].get("setup", 0),
    )
    if shows_loss:
        if line["loss"] is not None:
            summary.loss = line["loss"]
        if "evaluation" in line:
            summary.log_loss, auc = told_evaluation(**line["evaluation"])
            if auc is not None:
                summary.auc = auc
    return summary
