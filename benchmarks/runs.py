"""Measured runs, of which `calibrate.py` makes constants and with which `estimates.py` compares estimates."""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.credit import Protocol
from benchmarks.harness import Setup, scratch_folder
from benchmarks.made_tables import DATASET, table_path, write_tables
from benchmarks.scale import job_of, train
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.cost.counting import Counting
from trilateral.common.cost.estimate import Machines
from trilateral.common.cost.workload import Workload


@dataclass(frozen=True)
class TrainingRun:
    """A training to measure, on tables that hold the same IDs, with all rows as training rows."""

    protocol: Protocol
    rows: int
    columns: tuple[int, int]
    """Features of the host and of the guest."""
    rounds: int
    """At most so many."""
    on_disk: bool = False
    """Whether the arrays of the parties lie in scratch space, however small they are."""

    @property
    def memory_mb(self) -> int:
        """How much of a party's arrays may lie in memory."""
        return 0 if self.on_disk else Machines.memory_mb

    def __str__(self) -> str:
        host, guest = self.columns
        where = ", on disk" if self.on_disk else ""
        return f"{self.protocol}, {self.rows:,} rows, {host} + {guest} columns{where}"


@dataclass(frozen=True)
class MeasuredTraining:
    """What a training took."""

    run: TrainingRun
    rounds: int
    seconds: float
    setup_seconds: float
    """Until the first round and after the last one."""
    round_seconds: float
    """Mean of the rounds."""
    processor_seconds: dict[Role, float]
    memory_mb: dict[Role, float]
    scratch_mb: dict[Role, float]
    bytes: int


@dataclass(frozen=True)
class CountingRun:
    """A bins job to measure, on such tables."""

    rows: int
    columns: tuple[int, int]
    """Features of the host and of the guest."""

    def __str__(self) -> str:
        host, guest = self.columns
        return f"bins, {self.rows:,} rows, {host} + {guest} columns"


@dataclass(frozen=True)
class MeasuredCounting:
    """What a bins job took."""

    run: CountingRun
    seconds: float
    processor_seconds: dict[Role, float]
    memory_mb: dict[Role, float]
    sent: dict[str, int]
    """See `harness.Run`."""


@dataclass(frozen=True)
class MeasuredAlignment:
    """What an alignment took."""

    ids: int
    """Of each party."""
    seconds: float
    processor_seconds: dict[Role, float]
    memory_mb: dict[Role, float]

    def __str__(self) -> str:
        return f"alignment, {self.ids:,} IDs on each side"


def work_of(run: TrainingRun, rounds: int | None = None) -> Workload:
    """Return the sizes of a run, for the cost model.

    Args:
        run: the run.
        rounds: how many rounds it had; by default as many as it may have.
    """
    host, guest = run.columns
    return Workload.of(
        job_of(run.protocol, run.rounds, 0), run.rows, {Role.HOST: host, Role.GUEST: guest + 1}, rounds or run.rounds
    )


def measure_training(run: TrainingRun, data: Path | None = None) -> MeasuredTraining:
    """Train once in new processes, on tables of the folder `data` or on new ones."""
    with scratch_folder() as folder:
        if data is None:
            data = folder / "tables"
            write_tables(data, run.rows, run.columns)
        tables = {role: table_path(data, role) for role in PARTIES}
        settings: dict[str, Any] = {"scratch": {"memory_mb": run.memory_mb}} if run.on_disk else {}
        _, training, scratch_mb = train(folder, tables, run.protocol, run.rounds, tolerance=0, party=settings)
    lines = training.histories[Role.COORDINATOR]
    return MeasuredTraining(
        run=run,
        rounds=len(lines),
        seconds=training.seconds,
        setup_seconds=training.seconds - training.seconds_rounds,
        round_seconds=statistics.fmean(line["seconds"]["all"] - line["seconds"].get("setup", 0) for line in lines),
        processor_seconds={role: training.processor_seconds[role] for role in Role},
        memory_mb={role: training.peak_rss_mb[role] for role in Role},
        scratch_mb={role: scratch_mb[role] for role in PARTIES},
        bytes=sum(training.sent.values()),
    )


def counting_of(run: CountingRun) -> Counting:
    """Return the sizes of a bins job, for the cost model."""
    return Counting.of(job_of_bins(), run.rows, dict(zip(PARTIES, run.columns, strict=True)))


def job_of_bins() -> JobConfig:
    """Return a bins job on all rows."""
    return JobConfig(name="bins", dataset=DATASET, aligned=True, protocol="shares", task="bins", holdout=0)


def measure_counting(run: CountingRun) -> MeasuredCounting:
    """Count once in new processes, on new tables."""
    with scratch_folder() as folder:
        write_tables(folder / "tables", run.rows, run.columns)
        setup = Setup(folder, {role: table_path(folder / "tables", role) for role in PARTIES})
        with setup.serving() as processes:
            found = setup.run_in(processes, job_of_bins())
    return MeasuredCounting(
        run=run,
        seconds=found.seconds,
        processor_seconds={role: found.processor_seconds[role] for role in Role},
        memory_mb={role: found.peak_rss_mb[role] for role in Role},
        sent=found.sent,
    )


def measure_alignment(ids: int) -> MeasuredAlignment:
    """Align once in new processes.

    The system counts the memory of a program that starts another as the other's. So a small program measures.
    """
    command = [sys.executable, str(Path(__file__).with_name("alignment.py")), "--ids", str(ids), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = json.loads(done.stdout)
    return MeasuredAlignment(
        ids=ids,
        seconds=found["seconds"]["all"],
        processor_seconds={role: found["cpu_seconds"][role] for role in PARTIES},
        memory_mb={role: found["peak_rss_mb"][role] for role in PARTIES},
    )
