"""Commands for jobs: ``trilateral train``, ``watch``, ``status``, ``stop`` and ``resume``."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from trilateral.cli.command import ConfigOption, ExitCode, JobArgument, public_errors
from trilateral.cli.json_output import JsonOption, print_json
from trilateral.cli.wording import command_line, decimal
from trilateral.common.base.errors import DataError
from trilateral.common.base.progress import duration
from trilateral.common.base.roles import Role

# Each command imports what it needs, so that `trilateral healthcheck` and `--help` stay fast.
if TYPE_CHECKING:
    from trilateral.client.asynchronous import AsyncSession
    from trilateral.common.config.job import JobConfig
    from trilateral.common.config.process import ProcessConfig
    from trilateral.common.process.job_progress import Progress

T = TypeVar("T")


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="File with the options of the job.")],
    config: ConfigOption,
    detach: Annotated[bool, typer.Option("--detach", help="Start the job without following it.")] = False,
) -> None:
    """Start a job and follow it until it ends. Ctrl-C leaves the job running."""
    from trilateral.common.config.load import load_job, load_process_config

    with public_errors():
        settings, job_settings = load_process_config(config), load_job(job)
        if detach:
            _ask(settings, lambda session: session.train(job_settings))
            typer.echo(f"started {job_settings.name}; to watch it, run: {_watch_command(job_settings.name, config)}")
        else:
            _follow(settings, job_settings, config)


def bins(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="File with the options of the job.")],
    config: ConfigOption,
) -> None:
    """Count the labels in the bins of the host's columns, with the rows and the split of a job, without training."""
    from trilateral.common.config.load import load_job, load_process_config

    with public_errors():
        _follow(load_process_config(config), load_job(job, task="bins"), config)


def watch(job: JobArgument, config: ConfigOption) -> None:
    """Follow a job until it ends. Ctrl-C leaves the job running."""
    from trilateral.common.config.load import load_process_config

    with public_errors():
        _follow(load_process_config(config), job, config)


def status(
    config: ConfigOption,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Show this job only, in full.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the jobs are doing."""
    from trilateral.cli.listing import detail_lines
    from trilateral.client.asynchronous import AsyncRun
    from trilateral.common.config.load import load_process_config

    async def look(session: "AsyncSession") -> "list[Progress]":
        return await session.jobs() if job is None else [await AsyncRun(session, job).progress()]

    with public_errors():
        jobs = _ask(load_process_config(config), look)
        if as_json:
            print_json({"jobs": jobs})
        elif not jobs:
            typer.echo("the coordinator knows no jobs")
        elif job is None:
            _print_table(jobs, config)
        else:
            for line in detail_lines(jobs[0]):
                typer.echo(line)


def stop(job: JobArgument, config: ConfigOption) -> None:
    """End a job without a model."""
    from trilateral.client.asynchronous import AsyncRun
    from trilateral.common.config.load import load_process_config

    with public_errors():
        _ask(load_process_config(config), lambda session: AsyncRun(session, job).stop())
        typer.echo(f"stopped {job}")


def resume(
    job: JobArgument,
    config: ConfigOption,
    detach: Annotated[bool, typer.Option("--detach", help="Resume the job without following it.")] = False,
) -> None:
    """Continue a job that failed or was stopped, and follow it. Ctrl-C leaves the job running."""
    from trilateral.client.asynchronous import AsyncRun
    from trilateral.common.config.load import load_process_config

    with public_errors():
        settings = load_process_config(config)
        _ask(settings, lambda session: AsyncRun(session, job).resume())
        if detach:
            typer.echo(f"resumed {job}; to watch it, run: {_watch_command(job, config)}")
        else:
            _follow(settings, job, config)


# --- what the commands share


def _ask(config: "ProcessConfig", question: "Callable[[AsyncSession], Awaitable[T]]") -> T:
    from trilateral.client.asynchronous import AsyncSession

    async def ask() -> T:
        async with AsyncSession(config) as session:
            return await question(session)

    return asyncio.run(ask())


def _follow(settings: "ProcessConfig", job: "str | JobConfig", config: Path) -> None:
    from rich.console import Console

    from trilateral.cli.follow import PATIENCE, DetachedError, follow_job
    from trilateral.common.process.job_client import LostContactError

    name = job if isinstance(job, str) else job.name
    on_again = f"to watch it again, run: {_watch_command(name, config)}"
    try:
        final = follow_job(settings, job, Console(stderr=True), patience=PATIENCE)
    except DetachedError:
        typer.echo(f"the job continues; {on_again}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except LostContactError as error:
        typer.echo(f"error: {error}", err=True)
        typer.echo(on_again, err=True)
        raise typer.Exit(ExitCode.LOST_CONTACT) from None
    if final.loss is None and final.round == 0:  # A bins job trains nothing.
        typer.echo(f"finished {name} in {duration(final.seconds)}; {final.detail}")
        if settings.role is not Role.COORDINATOR:
            typer.echo(f"to see the bins, run: {command_line('model', 'bins', name, '--config', config)}")
        return
    loss = "unknown" if final.loss is None else decimal(final.loss, 6)
    typer.echo(f"finished {name}: loss {loss} after {final.round} rounds in {duration(final.seconds)}; {final.detail}")
    if settings.role is not Role.COORDINATOR:
        # This module takes as long to import as the rest of the command line.
        from trilateral.cli.results import print_model

        try:
            print_model(settings, name, Console(), show=command_line("model", "show", name, "--config", config))
        except DataError as error:
            # The job has finished all the same. Perhaps --config belongs to another process.
            typer.echo(f"note: {error}", err=True)


def _watch_command(job: str, config: Path) -> str:
    return command_line("watch", job, "--config", config)


def _print_table(jobs: "list[Progress]", config: Path) -> None:
    from rich.console import Console

    from trilateral.cli.listing import shorten, table_lines

    lines = table_lines(jobs)
    console = Console()
    # A pipe gets whole lines.
    shown = [shorten(line, console.width) for line in lines] if console.is_terminal else lines
    for line in shown:
        typer.echo(line)
    if shown != lines:
        typer.echo(f"to see all about one job, run: {command_line('status', 'JOB', '--config', config)}")
