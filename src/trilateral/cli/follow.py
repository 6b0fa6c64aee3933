"""Starting a job and following it to its end."""

import asyncio

from rich.console import Console

from trilateral.cli.client import JobClient
from trilateral.cli.progress import progress_view
from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_STOPPED, JobStatus


class DetachedError(Exception):
    """The operator has stopped watching; the job goes on."""


def start_job(config: ProcessConfig, job: JobConfig) -> None:
    """Start a job at the coordinator; following it tells whether both parties take it."""

    async def start() -> None:
        async with JobClient(config) as client:
            await client.start(job)

    asyncio.run(start())


def follow_job(config: ProcessConfig, job: str, console: Console) -> JobStatus:
    """Show a job's progress on `console` until it has finished.

    Raises:
        DetachedError: on an interrupt.
        TrilateralError: the job has failed or was stopped, or the coordinator is gone.
    """
    try:
        status = asyncio.run(_watch(config, job, console))
    except KeyboardInterrupt:
        raise DetachedError from None
    if status.state == JOB_STATE_FAILED:
        raise TrilateralError(f"job {job} has failed: {status.detail}")
    if status.state == JOB_STATE_STOPPED:
        raise TrilateralError(f"job {job}: {status.detail}")
    return status


async def _watch(config: ProcessConfig, job: str, console: Console) -> JobStatus:
    seen = False
    async with JobClient(config) as client:
        try:
            with progress_view(console) as view:
                async for status in client.watch(job):
                    seen = True
                    view.show(status)
                    if status.state in ENDED:
                        return status
        except PeerError as error:
            if not seen:
                raise
            raise PeerError(
                f"lost sight of {job}, since the coordinator no longer answers: start it if it has ended, and watch the"
                " job again, which goes on where it was"
            ) from error
    raise PeerError(f"the coordinator has ended the watch of {job} while the job goes on: watch it again")
