"""``trilateral``: the commands."""

import asyncio
import logging
import os
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli import certs, data, model
from trilateral.cli.errors import FAILED, INTERRUPTED, public_errors
from trilateral.cli.program import command_line
from trilateral.cli.wording import decimal, duration
from trilateral.common.base.errors import ConfigError, DataError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.observe.logs import LogFormat, set_up

# What a command needs it imports itself: a health check is run every few seconds and has no time for the others'.
if TYPE_CHECKING:
    from trilateral.common.config.process import ProcessConfig
    from trilateral.common.pb.v1.jobs_pb2 import JobStatus

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
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")


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


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"trilateral {version('trilateral')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version, and end.")
    ] = False,
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
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people, or JSON.")] = LogFormat.TEXT,
) -> None:
    """Serve one role until interrupted."""
    from trilateral.common.config.load import load_process_config
    from trilateral.common.process.memory import share_heaps

    share_heaps()
    with public_errors():
        settings = load_process_config(config)
        if settings.role is not role:
            raise ConfigError(f"{config}: role: is {settings.role}, and you asked to serve {role}: take the other file")
        set_up(role, log_level, log_format)
        if log_level is LogLevel.DEBUG:
            # Debugging these libraries is another matter, and they would drown what is said here.
            for library in ("asyncio", "grpc"):
                logging.getLogger(library).setLevel(logging.WARNING)
        try:
            asyncio.run(_serve(settings))
        except ConfigError as error:
            raise ConfigError(f"{config}: {error}") from error


async def _serve(config: "ProcessConfig") -> None:
    # Only the role that is served is imported: no organisation needs the others' code to run.
    match config.role:
        case Role.HOST:
            from trilateral.host_party.server import serve
        case Role.GUEST:
            from trilateral.guest_party.server import serve
        case Role.COORDINATOR:
            from trilateral.coordinator.server import serve
    await serve(config)


@app.command()
def train(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="What to train, and how.")],
    config: ConfigOption,
    detach: Annotated[bool, typer.Option("--detach", help="Start the job, and do not follow it.")] = False,
) -> None:
    """Start a job and follow it to its end; Ctrl-C leaves it running."""
    from trilateral.cli.follow import start_job
    from trilateral.common.config.load import load_job, load_process_config

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
    from trilateral.common.config.load import load_process_config

    with public_errors():
        _follow(load_process_config(config), job, config)


@app.command()
def status(
    config: ConfigOption,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="All about this job, with its notes.")] = None,
) -> None:
    """Show what the jobs are doing."""
    from trilateral.cli.client import JobClient
    from trilateral.cli.listing import detail_lines
    from trilateral.common.config.load import load_process_config

    async def ask(settings: "ProcessConfig") -> "list[JobStatus]":
        async with JobClient(settings) as client:
            return await client.statuses() if job is None else [await client.status(job)]

    with public_errors():
        statuses = asyncio.run(ask(load_process_config(config)))
        if not statuses:
            typer.echo("no jobs since the coordinator started")
            return
        if job is None:
            _print_table(statuses, config)
        else:
            for line in detail_lines(statuses[0]):
                typer.echo(line)


@app.command()
def stop(job: JobArgument, config: ConfigOption) -> None:
    """End a job without a model."""
    from trilateral.cli.client import JobClient
    from trilateral.common.config.load import load_process_config

    async def ask(settings: "ProcessConfig") -> None:
        async with JobClient(settings) as client:
            await client.stop(job)

    with public_errors():
        asyncio.run(ask(load_process_config(config)))
        typer.echo(f"stopped {job}")


@app.command()
def resume(
    job: JobArgument,
    config: ConfigOption,
    detach: Annotated[bool, typer.Option("--detach", help="Resume the job, and do not follow it.")] = False,
) -> None:
    """Take a job that was stopped or has failed up where it was, and follow it; Ctrl-C leaves it running."""
    from trilateral.cli.client import JobClient
    from trilateral.common.config.load import load_process_config

    async def ask(settings: "ProcessConfig") -> None:
        async with JobClient(settings) as client:
            await client.resume(job)

    with public_errors():
        settings = load_process_config(config)
        asyncio.run(ask(settings))
        if detach:
            typer.echo(f"resumed {job}; watch it with: {_watch_command(job, config)}")
        else:
            _follow(settings, job, config)


@app.command()
def align(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="A dataset of this name in both parties' configurations.")
    ],
    config: ConfigOption,
) -> None:
    """Count the rows of a dataset that both parties have, at the guest; neither sees the other's remaining IDs."""
    from rich.console import Console

    from trilateral.common.config.load import load_process_config
    from trilateral.common.data.tables.id_form import describe_changes

    with public_errors():
        settings = load_process_config(config)
        if settings.role is not Role.GUEST:
            raise ConfigError(f"{config}: role: is {settings.role}, and alignments are the guest's: take its file")
        # No other organisation has the guest's code.
        from trilateral.cli.with_host import run_with_host
        from trilateral.guest_party.dataset_alignment import align_dataset

        result = run_with_host(
            settings, lambda host, on_stage: align_dataset(settings, host, dataset, on_stage), Console(stderr=True)
        )
        typer.echo(f"{result.n_common:,} IDs are common")
        typer.echo(f"the guest has {result.n_guest:,}: {result.n_guest - result.n_common:,} are not at the host")
        typer.echo(f"the host has {result.n_host:,}: {result.n_host - result.n_common:,} are not at the guest")
        typer.echo(f"of the guest's IDs `id_form` has changed {describe_changes(result.changed) or 'none'}")


@app.command()
def predict(
    job: JobArgument,
    config: ConfigOption,
    *,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="The rows: a dataset of this name in both parties' configurations.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="For the scores: .csv or .parquet.")],
    missing: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For the IDs that the host does not hold; beside --out by default."),
    ] = None,
    aligned: Annotated[
        bool, typer.Option("--aligned", help="Both tables hold the same IDs: compare them, and intersect nothing.")
    ] = False,
) -> None:
    """Score rows with the model of a job, at the guest; the host must permit it."""
    from rich.console import Console

    from trilateral.common.config.load import load_process_config

    with public_errors():
        settings = load_process_config(config)
        if settings.role is not Role.GUEST:
            raise ConfigError(f"{config}: role: is {settings.role}, and scores are the guest's: take the guest's file")
        # No other organisation has the guest's code.
        from trilateral.cli.with_host import run_with_host
        from trilateral.guest_party.prediction import Wanted, predict

        wanted = Wanted(job, dataset, out, missing or out.with_suffix(f".missing{out.suffix}"), aligned)
        counts = run_with_host(
            settings, lambda host, on_stage: predict(settings, host, wanted, on_stage), Console(stderr=True)
        )
        for warning in counts.warnings:
            typer.echo(f"warning: {warning}", err=True)
        typer.echo(f"scored {counts.n_scored:,} rows: {out}")
        if not aligned:
            typer.echo(f"not at the host: {counts.n_guest - counts.n_scored:,} of the guest's rows: {wanted.missing}")
            typer.echo(f"not at the guest: {counts.n_host - counts.n_scored:,} of the host's rows")


@app.command()
def check(
    config: ConfigOption,
    job: Annotated[
        Path | None, typer.Option("--job", metavar="JOB.yaml", help="Also hold tables and policy against this job.")
    ] = None,
    no_peers: Annotated[
        bool, typer.Option("--no-peers", help="Leave the two others out, as long as they do not run.")
    ] = False,
) -> None:
    """Tell what would go wrong with a training, before it: settings, tables, certificates, peers, clocks, disk."""
    # The library's own words on a connection that fails would stand between the findings.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from trilateral.cli.check import print_findings
    from trilateral.common.checks.run import check_process

    logging.basicConfig(handlers=[logging.NullHandler()])
    with public_errors():
        if not print_findings(check_process(config, job, peers=not no_peers)):
            raise typer.Exit(FAILED)


@app.command()
def healthcheck(config: ConfigOption) -> None:
    """Ask the process of a configuration whether it serves: exit code 0 if so, or else 1 with a line that says why."""
    from trilateral.common.config.load import load_process_config
    from trilateral.common.process.health import check_health

    with public_errors():
        try:
            asyncio.run(check_health(load_process_config(config)))
        except ConfigError as error:
            # To whoever runs health checks, 2 for a wrong configuration would mean something else.
            raise TrilateralError(str(error)) from error


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables, configurations, logs and models go.")] = Path(
        "demo-result"
    ),
    key_bits: Annotated[int, typer.Option(help="Bits of the Paillier modulus.")] = 2048,
    algorithm: Annotated[DemoAlgorithm, typer.Option(help="How to train.")] = DemoAlgorithm.LBFGS,
) -> None:
    """Train on this machine: three processes, embedded data, a result to look at."""
    from trilateral.cli.demo.run import run_demo

    with public_errors():
        run_demo(out, key_bits, algorithm.value)


# --- what the commands have in common


def _follow(settings: "ProcessConfig", job: str, config: Path) -> None:
    from rich.console import Console

    from trilateral.cli.follow import DetachedError, follow_job

    try:
        final = follow_job(settings, job, Console(stderr=True))
    except DetachedError:
        typer.echo(f"still training; watch again with: {_watch_command(job, config)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(
        f"finished {job}: loss {decimal(final.loss, 6)} after {final.round} rounds in {duration(final.seconds)};"
        f" {final.detail}"
    )
    if settings.role is not Role.COORDINATOR:
        # It takes as long to import as the rest of this command line, and most commands do without.
        from trilateral.cli.results import print_model

        try:
            print_model(settings, job, Console())
        except DataError as error:
            # The job has finished all the same, maybe for another process than that of --config.
            typer.echo(f"note: {error}", err=True)


def _watch_command(job: str, config: Path) -> str:
    return command_line("watch", job, "--config", config)


def _print_table(statuses: "list[JobStatus]", config: Path) -> None:
    from rich.console import Console

    from trilateral.cli.listing import shorten, table_lines

    lines = table_lines(statuses)
    console = Console()
    # What reads a pipe gets whole lines.
    shown = [shorten(line, console.width) for line in lines] if console.is_terminal else lines
    for line in shown:
        typer.echo(line)
    if shown != lines:
        typer.echo(f"all about one: {command_line('status', 'JOB', '--config', config)}")


if __name__ == "__main__":
    main()
