"""The command ``trilateral estimate``."""

import logging
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trilateral.cli.command import public_errors
from trilateral.cli.json_output import JsonOption, plain, print_json
from trilateral.common.base.errors import ConfigError, Counted
from trilateral.common.base.progress import duration
from trilateral.common.base.roles import Role

# The command imports what it needs, so that the others stay fast.
if TYPE_CHECKING:
    from trilateral.common.cost.estimate import Estimate, Machines


class Protocol(StrEnum):
    """The protocol of a job."""

    PAILLIER = "paillier"
    SHARES = "shares"


def estimate(
    *,
    rows: Annotated[int, typer.Option(help="Training rows of each party. For an alignment, also its IDs.")],
    columns: Annotated[tuple[int, int], typer.Option(metavar="HOST GUEST", help="Features of the host and the guest.")],
    protocol: Annotated[
        Protocol | None, typer.Option(help="Protocol of the job. By default `paillier`, and `shares` with --bins.")
    ] = None,
    bins: Annotated[bool, typer.Option("--bins", help="A job of `trilateral bins`, which does not train.")] = False,
    rounds: Annotated[int | None, typer.Option(help="Rounds. By default, as many as `lbfgs` usually needs.")] = None,
    key_bits: Annotated[int, typer.Option(help="Bits of the Paillier modulus.")] = 2048,
    aligned: Annotated[bool, typer.Option("--aligned", help="Both tables already hold the same IDs.")] = False,
    cores: Annotated[
        int | None, typer.Option(help="Processors of each machine. By default, as many as this machine has.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Machines of each party's cluster, with --cores processors each.")] = 0,
    one_machine: Annotated[bool, typer.Option("--one-machine", help="The three processes share one machine.")] = False,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="MBIT/S", help="Bandwidth of each line, in each direction.")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Constants that benchmarks/calibrate.py has written.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the seconds, bytes, memory and disk space of a job."""
    from trilateral.common.config.job import JobConfig
    from trilateral.common.cost.constants import MEASURED, load_constants
    from trilateral.common.cost.counting import Counting
    from trilateral.common.cost.estimate import Machines, estimate_counting, estimate_job
    from trilateral.common.cost.workload import Workload
    from trilateral.common.data.party_data import MIN_ROWS_PER_FEATURE

    logging.basicConfig(handlers=[logging.NullHandler()])
    with public_errors():
        for name, value in (("--columns", min(columns)), ("--rounds", rounds), ("--cores", cores)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: is {value}, and must be at least 1")
        if workers < 0:
            raise ConfigError(f"--workers: is {workers}, and must be 0 or more")
        if rows < MIN_ROWS_PER_FEATURE * max(columns):
            raise ConfigError(
                f"--rows: is {rows:,}, and a training with {max(columns):,} features at one party needs at least "
                f"{MIN_ROWS_PER_FEATURE * max(columns):,}"
            )
        if bandwidth is not None and not 0 < bandwidth < float("inf"):
            raise ConfigError(f"--bandwidth: is {bandwidth:g}, and must be a number of Mbit/s above 0")
        if one_machine and (workers or bandwidth is not None):
            raise ConfigError("--one-machine: has no lines and no cluster: leave out --bandwidth and --workers")
        if bins and (rounds is not None or workers or protocol is Protocol.PAILLIER):
            raise ConfigError("--bins: has no rounds and no cluster, and needs `shares`: leave out the other option")
        protocol = protocol or (Protocol.SHARES if bins else Protocol.PAILLIER)
        measured = load_constants(constants or MEASURED)
        job = JobConfig(
            name="estimate",
            dataset="estimate",
            task="bins" if bins else "train",
            aligned=aligned,
            protocol=protocol.value,
            key_bits=key_bits,
        )
        machines = Machines.like_this(measured, bandwidth, cores=cores or 0, shared=one_machine, workers=workers)
        host, guest = columns
        work: Workload | Counting
        if bins:
            work = Counting.of(job, rows, {Role.HOST: host, Role.GUEST: guest})
            found = estimate_counting(work, machines, measured)
        else:
            work = Workload.of(job, rows, {Role.HOST: host, Role.GUEST: guest + 1}, rounds)
            found = estimate_job(work, machines, measured)
    if as_json:
        print_json(plain(found))
        return
    what = f"bins job with {work.n_fine:,} fine bins" if isinstance(work, Counting) else f"protocol {protocol}"
    typer.echo(f"{rows:,} rows, {host} + {guest} features, {what}; {_where(machines)}\n")
    for line in (*_phases(found), "", *_processes(found)):
        typer.echo(line)
    typer.echo(f"\nconstants measured on {measured.machine}, {measured.measured}")


def _where(machines: "Machines") -> str:
    cores = f"{Counted(machines.cores):processor|processors}"
    if machines.shared:
        return f"three processes that share {cores}"
    line = "lines without a limit" if machines.mbit is None else f"lines of {machines.mbit:,g} Mbit/s"
    cluster = f", each party with a cluster of {machines.workers} more" if machines.workers else ""
    return f"three machines with {cores} each{cluster}, {line}"


def _phases(found: "Estimate") -> Iterator[str]:
    yield f"{'phase':<12}{'time':>14}{'vectors':>12}  limited by"
    for phase in found.phases:
        yield f"{phase.name:<12}{_time(phase.seconds):>14}{_size(phase.bytes / 1e6):>12}  {phase.limited_by}"
    yield f"{'in total':<12}{_time(found.seconds):>14}{_size(found.bytes / 1e6):>12}"


def _processes(found: "Estimate") -> Iterator[str]:
    yield f"{'process':<12}{'processor time':>14}{'sent':>12}{'received':>12}{'memory':>10}{'scratch':>10}"
    for role, cost in found.processes.items():
        yield (
            f"{role:<12}{_time(cost.processor_seconds):>14}{_size(cost.sent_bytes / 1e6):>12}"
            f"{_size(cost.received_bytes / 1e6):>12}{_size(cost.memory_mb):>10}{_size(cost.scratch_mb):>10}"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _size(mb: float) -> str:
    """Return a size of at least 0.1 MB in suitable units."""
    for unit in ("MB", "GB"):
        if mb < 1000:
            return f"{mb:.1f} {unit}" if mb < 10 else f"{mb:,.0f} {unit}"
        mb /= 1000
    return f"{mb:,.1f} TB"
