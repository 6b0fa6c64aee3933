"""Following a job on the console."""

import asyncio

from rich.console import Console

from trilateral.cli.progress import progress_view
from trilateral.client.asynchronous import AsyncRun, AsyncSession
from trilateral.client.progress import Progress
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig


class DetachedError(Exception):
    """The operator interrupted the view. The job continues."""


def follow_job(config: ProcessConfig, job: str | JobConfig, console: Console) -> Progress:
    """Show the progress of a job on `console` until the job has finished.

    Args:
        config: configuration of the organisation's own process.
        job: name of the job, or a job to start first.
        console: where to show the progress.

    Returns:
        The last snapshot.

    Raises:
        DetachedError: an interrupt arrived.
        TrilateralError: the job failed or was stopped, or the coordinator is gone.
    """
    try:
        return asyncio.run(_follow(config, job, console))
    except KeyboardInterrupt:
        raise DetachedError from None


async def _follow(config: ProcessConfig, job: str | JobConfig, console: Console) -> Progress:
    async with AsyncSession(config) as session:
        run = AsyncRun(session, job) if isinstance(job, str) else await session.train(job)
        with progress_view(console) as view:
            return await run.wait(on_progress=view.show)
