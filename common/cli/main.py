"""``trilateral``: the commands."""

import asyncio
import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from common.cli import certs
from common.cli.client import JobClient
from common.cli.errors import INTERRUPTED, public_errors
from common.cli.follow import DetachedError, follow_job, start_job
from common.cli.program import command_line
from common.cli.progress import STATE_NAMES, facts
from common.cli.wording import decimal, duration
from common.config.load import load_job, load_process_config
from common.config.process import ProcessConfig
from common.errors import ConfigError
from common.pb.v1.jobs_pb2 import JobStatus
from common.roles import Role

app = typer.Typer(
    help="Two organisations train one logistic regression on joint columns without showing them to each other.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="Configuration of your own organisation's process.")
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]


app.add_typer(certs.app, name="certs")


class LogLevel(StrEnum):
    """How much a server logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class DemoAlgorithm(StrEnum):
    """What the demo trains with."""

    LBFGS = "lbfgs"
    SQN = "sqn"
    SGD = "sgd"


def main() -> None:
    """Run the command line."""
    app(prog_name="trilateral")


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="TRILATERAL_DEBUG", help="Show where in the code an error came from.")
    ] = False,
) -> None:
    # Kept in the environment so that it reaches the processes that the demo starts.
    if debug:
        os.environ["TRILATERAL_DEBUG"] = "1"


@app.command()
def serve(
    role: Annotated[Role, typer.Argument(help="Which of the three to be.")],
    config: ConfigOption,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log, on stderr.")] = LogLevel.INFO,
) -> None:
    """Serve one role until interrupted."""
    with public_errors():
        settings = load_process_config(config)
        if settings.role is not role:
            raise ConfigError(f"{config}: role: is {settings.role}, and you asked to serve {role}: take the other file")
        logging.basicConfig(
            level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        asyncio.run(_serve(settings))


async def _serve(config: ProcessConfig) -> None:
    # Only the role that is served is imported: no organisation needs the others' code to run.
    match config.role:
        case Role.HOST:
            from host_party.server import serve
        case Role.GUEST:
            from guest_party.server import serve
        case Role.COORDINATOR:
            from coordinator.server import serve
    await serve(config)


@app.command()
def train(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="What to train, and how.")],
    config: ConfigOption,
    detach: Annotated[bool, typer.Option("--detach", help="Start the job, and do not follow it.")] = False,
) -> None:
    """Start a job and follow it to its end; Ctrl-C leaves it running."""
    with public_errors():
        settings = load_process_config(config)
        job_settings = load_job(job)
        start_job(settings, job_settings)
        if detach:
            typer.echo(f"started {job_settings.name}; watch it with: {_watch_command(job_settings.name, config)}")
        else:
            _follow(settings, job_settings.name, config)


@app.command()
def watch(job: JobArgument, config: ConfigOption) -> None:
    """Follow a job to its end; Ctrl-C leaves it running."""
    with public_errors():
        _follow(load_process_config(config), job, config)


@app.command()
def status(
    config: ConfigOption,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job, with its notes.")] = None,
) -> None:
    """Show what the jobs are doing."""

    async def ask(settings: ProcessConfig) -> list[JobStatus]:
        async with JobClient(settings) as client:
            return await client.statuses() if job is None else [await client.status(job)]

    with public_errors():
        statuses = asyncio.run(ask(load_process_config(config)))
        if not statuses:
            typer.echo("no jobs since the coordinator started")
            return
        _print_statuses(statuses)
        if job is not None:
            for note in statuses[0].notes:
                typer.echo(f"note: {note}")


@app.command()
def stop(job: JobArgument, config: ConfigOption) -> None:
    """End a job without a model."""

    async def ask(settings: ProcessConfig) -> None:
        async with JobClient(settings) as client:
            await client.stop(job)

    with public_errors():
        asyncio.run(ask(load_process_config(config)))
        typer.echo(f"stopped {job}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables, configurations, logs and models go.")] = Path(
        "demo-result"
    ),
    key_bits: Annotated[int, typer.Option(help="Bits of the Paillier modulus.")] = 2048,
    algorithm: Annotated[DemoAlgorithm, typer.Option(help="How to train.")] = DemoAlgorithm.LBFGS,
) -> None:
    """Train on this machine: three processes, embedded data, a result to look at."""
    from common.cli.demo.run import run_demo

    with public_errors():
        run_demo(out, key_bits, algorithm.value)


# --- what the commands have in common


def _follow(settings: ProcessConfig, job: str, config: Path) -> None:
    try:
        final = follow_job(settings, job, Console(stderr=True))
    except DetachedError:
        typer.echo(f"still training; watch again with: {_watch_command(job, config)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"finished {job}: loss {decimal(final.loss, 6)} after {final.round} rounds in {duration(final.seconds)}")
    if settings.role is not Role.COORDINATOR:
        # It takes as long to import as the rest of this command line, and most commands do without.
        from common.cli.results import print_model

        print_model(settings, job, Console())


def _watch_command(job: str, config: Path) -> str:
    return command_line("watch", job, "--config", config)


def _print_statuses(statuses: list[JobStatus]) -> None:
    table = Table("job", "state", "progress", "detail")
    for each in statuses:
        table.add_row(each.job, STATE_NAMES.get(each.state, "unknown"), "  ".join(facts(each)), each.detail)
    Console().print(table, markup=False)


if __name__ == "__main__":
    main()
