"""Commands for a process: ``trilateral serve``, ``check`` and ``healthcheck``."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import ConfigOption, ExitCode, public_errors
from trilateral.cli.json_output import JsonOption, print_json
from trilateral.common.base.errors import ConfigError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.observe.logs import LogFormat, set_up

# Each command imports what it needs, so that `trilateral healthcheck` and `--help` stay fast.
if TYPE_CHECKING:
    from trilateral.common.checks.finding import Finding
    from trilateral.common.config.process import ProcessConfig


SWITCH_SECONDS = 0.0005
"""How long a thread may run Python while another waits to. By default, which is 5 ms, a message would often wait longer
for the thread of a job than the message takes to arrive."""


class LogLevel(StrEnum):
    """How much a server logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def serve(
    role: Annotated[Role, typer.Argument(help="Role to serve.")],
    config: ConfigOption,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log on stderr.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help="Text lines for people, or JSON.")] = LogFormat.TEXT,
) -> None:
    """Serve one role until interrupted."""
    # numpy's BLAS reads it when it is loaded. Its threads spin while they wait for each other, and the encrypted
    # arithmetic needs the processors: with two threads, a dot product of a column took 100 times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from trilateral.common.config.load import load_process_config
    from trilateral.common.process.memory import lock_memory, refuse_core_dumps, reuse_freed_memory, share_heaps

    sys.setswitchinterval(SWITCH_SECONDS)
    share_heaps()
    reuse_freed_memory()
    refuse_core_dumps()
    with public_errors():
        settings = load_process_config(config)
        if settings.role is not role:
            raise ConfigError(f"{config}: role: is {settings.role}, not {role}: use the configuration of the {role}")
        set_up(role, log_level, log_format)
        if log_level is LogLevel.DEBUG:
            # These libraries log so much at this level that they would hide the project's own lines.
            for library in ("asyncio", "grpc"):
                logging.getLogger(library).setLevel(logging.WARNING)
        if role is Role.COORDINATOR:
            lock_memory()
        try:
            asyncio.run(_serve(settings, config))
        except ConfigError as error:
            raise ConfigError(f"{config}: {error}") from error


async def _serve(config: "ProcessConfig", source: Path) -> None:
    # Import the role that is served only: no organisation needs the code of the others.
    match config.role:
        case Role.HOST:
            from trilateral.host_party.server import serve
        case Role.GUEST:
            from trilateral.guest_party.server import serve
        case Role.COORDINATOR:
            from trilateral.coordinator.server import serve
    # What is loaded stays until the end. Collections that pass over it take a few milliseconds.
    gc.collect()
    gc.freeze()
    await serve(config, source=source)


def check(
    config: ConfigOption,
    job: Annotated[
        Path | None, typer.Option("--job", metavar="JOB.yaml", help="Also check tables and policy for this job.")
    ] = None,
    no_peers: Annotated[
        bool, typer.Option("--no-peers", help="Skip the other two processes, for example while they are not running.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for problems before a training: settings, tables, certificates, peers, clocks and disk."""
    # gRPC's own messages about a failed connection would appear between the findings.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from trilateral.common.checks.run import check_process

    logging.basicConfig(handlers=[logging.NullHandler()])
    with public_errors():
        show = _print_findings_as_json if as_json else _print_findings
        if not show(check_process(config, job, peers=not no_peers)):
            raise typer.Exit(ExitCode.FAILED)


def healthcheck(config: ConfigOption) -> None:
    """Check that a process is serving. The exit code is 0 if it is, and 1 with a reason if it is not."""
    from trilateral.common.config.load import load_process_config
    from trilateral.common.process.health import check_health

    with public_errors():
        try:
            asyncio.run(check_health(load_process_config(config)))
        except ConfigError as error:
            # Programs that run health checks may give exit code 2 another meaning.
            raise TrilateralError(str(error)) from error


def _print_findings_as_json(findings: "Iterable[Finding]") -> bool:
    """Print all findings, and return whether there is no problem."""
    from trilateral.common.checks.finding import Level

    found = list(findings)
    n_problems, n_warnings = (sum(each.level is level for each in found) for level in (Level.PROBLEM, Level.WARNING))
    print_json({"n_problems": n_problems, "n_warnings": n_warnings, "findings": found})
    return not n_problems


def _print_findings(findings: "Iterable[Finding]") -> bool:
    """Print each finding as it arrives, then a summary; return whether there is no problem."""
    from trilateral.common.checks.finding import Level

    marks = {Level.OK: "ok", Level.NOTE: "note", Level.WARNING: "warning", Level.PROBLEM: "PROBLEM"}
    colours = {Level.OK: typer.colors.GREEN, Level.WARNING: typer.colors.YELLOW, Level.PROBLEM: typer.colors.RED}
    width = max(map(len, marks.values()))
    count = dict.fromkeys(Level, 0)
    for finding in findings:
        count[finding.level] += 1
        mark = typer.style(marks[finding.level].ljust(width), fg=colours.get(finding.level))
        typer.echo(f"{mark}  {finding}")
    problems, warnings = count[Level.PROBLEM], count[Level.WARNING]
    typer.echo(f"{problems or 'no'} problem{'s' * (problems != 1)}, {warnings or 'no'} warning{'s' * (warnings != 1)}")
    return not problems
