"""Following a job on the console."""

import asyncio
from contextlib import suppress

from rich.console import Console

from trilateral.cli.progress import progress_view
from trilateral.cli.trace import Trace
from trilateral.client.asynchronous import AsyncSession
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.progress import duration
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.process.job_client import LostContactError
from trilateral.common.process.job_progress import Progress


class DetachedError(Exception):
    """The operator interrupted the view. The job continues."""


PATIENCE = 600.0
"""Seconds for which a command tries again if it has lost the coordinator."""


def follow_job(config: ProcessConfig, job: str | JobConfig, console: Console, *, patience: float) -> Progress:
    """Show the progress of a job on `console` until the job has finished.

    Args:
        config: configuration of the organisation's own process.
        job: name of the job, or a job to start first.
        console: where to show the progress.
        patience: seconds for which to try again if the coordinator is away.

    Returns:
        The last snapshot.

    Raises:
        DetachedError: an interrupt arrived.
        LostContactError: the coordinator was away for longer than `patience`. The job continues.
        TrilateralError: the job failed or was stopped, or the coordinator cannot be called.
    """
    try:
        return asyncio.run(_follow(config, job, console, patience))
    except KeyboardInterrupt:
        raise DetachedError from None


async def _follow(config: ProcessConfig, job: str | JobConfig, console: Console, patience: float) -> Progress:
    def report(lost: LostContactError) -> None:
        text = f"note: {lost}. The job continues, and this command tries again for {duration(patience)}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    async with AsyncSession(config) as session:
        # Only a coordinator that has answered once is waited for.
        run = await session.find(job) if isinstance(job, str) else await session.train(job)
        losses: dict[int, float] = {}
        if isinstance(job, str):
            with suppress(TrilateralError):  # The job is worth following without its earlier rounds.
                losses = await run.losses()
        trace = Trace(JobFolder(config.state, run.name), config.role, losses)
        with progress_view(console, trace) as view:
            return await run.wait(on_progress=view.show, patience=patience, on_lost=report)
