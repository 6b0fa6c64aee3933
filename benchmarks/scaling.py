"""Write the estimates of docs/scaling.md anew, after a change of the cost model or of its constants.

python benchmarks/scaling.py [--runs FILE]

The tables of estimates and the example of `trilateral estimate` are replaced; all other text stays. FILE is the output
of `benchmarks/estimates.py --json`: with it, the table of measured runs is replaced too. It takes a few seconds.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# `python benchmarks/scaling.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import Protocol
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.cost.constants import load_constants
from trilateral.common.cost.estimate import Estimate, Machines, estimate_job
from trilateral.common.cost.workload import Workload

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
COMMAND = "    trilateral estimate --rows 10000000 --columns 10 10 --protocol shares --cores 16 --bandwidth 1000"
PROTOCOLS: tuple[Protocol, ...] = ("shares", "paillier")


def estimate(
    rows: int,
    columns: int,
    protocol: Protocol,
    machines: Machines,
    rounds: int | None = None,
    *,
    aligned: bool = False,
) -> Estimate:
    """Estimate a job with as many features at both parties, on processors like those of the constants."""
    job = JobConfig(name="estimate", dataset="estimate", protocol=protocol, aligned=aligned)
    work = Workload.of(job, rows, {Role.HOST: columns, Role.GUEST: columns + 1}, rounds)
    return estimate_job(work, machines, load_constants())


def of_a_round(rows: int, columns: int, protocol: Protocol, machines: Machines) -> float:
    """Return the seconds of a round that is not the first."""
    one, two = (estimate(rows, columns, protocol, machines, n, aligned=True).seconds for n in (1, 2))
    return two - one


def growth() -> Iterator[str]:
    """Yield the rows of the table of jobs on three machines."""
    yield "| rows | protocol | alignment | setup | rounds | bytes | memory of a party | scratch space of a party |"
    for rows in (10**6, 10**7, 10**8, 10**9):
        for protocol in PROTOCOLS:
            found = estimate(rows, 10, protocol, Machines(16, 1000))
            yield f"| {rows:,} | `{protocol}` | {_phases_and_space(found)} |"


def one_machine() -> Iterator[str]:
    """Yield the rows of the table of jobs on two processors."""
    yield "| | setup | a round | whole job | memory: party, coordinator | scratch space of a party |"
    shared = Machines(2, shared=True)
    jobs: tuple[tuple[int, Protocol, int], ...] = (
        (10**6, "shares", 7),
        (10**7, "shares", 7),
        (10**6, "paillier", 6),
        (10**7, "paillier", 2),
    )
    for rows, protocol, rounds in jobs:
        found = estimate(rows, 10, protocol, shared, rounds, aligned=True)
        guest, coordinator = found.processes[Role.GUEST], found.processes[Role.COORDINATOR]
        yield (
            f"| {rows:,} rows, `{protocol}`, {rounds} rounds | {_time(found.phases[0].seconds)} | "
            f"{_time(of_a_round(rows, 10, protocol, shared))} | {_time(found.seconds)} | "
            f"{_size(guest.memory_mb)}, {_size(coordinator.memory_mb)} | {_size(guest.scratch_mb)} |"
        )


def cluster() -> Iterator[str]:
    """Yield the rows of the table of clusters."""
    job = "100,000,000 rows, 50 + 50 columns, `paillier`, 10,000 Mbit/s, 16 processors a machine"
    yield f"| {job} | alignment | a round |"
    for workers in (0, 2, 4, 8, 16):
        machines = Machines(16, 10_000, workers=workers)
        alignment = estimate(10**8, 50, "paillier", machines, 1).phases[0].seconds
        a_round = of_a_round(10**8, 50, "paillier", machines)
        yield f"| {workers or 'no'} workers | {_time(alignment)} | {_time(a_round)} |"


def billion() -> Iterator[str]:
    """Yield the rows of the table of a billion rows."""
    yield (
        "| 1,000,000,000 rows, 10 + 10 columns | alignment | setup | rounds | bytes | memory of a party | "
        "scratch space of a party |"
    )
    cases: tuple[tuple[Protocol, int, int], ...] = (
        ("shares", 1000, 0),
        ("shares", 10_000, 0),
        ("paillier", 10_000, 0),
        ("paillier", 10_000, 4),
    )
    for protocol, mbit, workers in cases:
        found = estimate(10**9, 10, protocol, Machines(64, mbit, workers=workers))
        with_workers = f" and {workers} workers" if workers else ""
        yield f"| `{protocol}`, 64 processors{with_workers}, {mbit:,} Mbit/s | {_phases_and_space(found)} |"


def measured(runs: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rows of the table of measured runs."""
    yield "| run | seconds | estimate | MB of a party | estimate | GB of vectors | estimate |"
    for run in runs:
        figures = run["figures"]
        cells = []
        for name, unit, digits in (("seconds", 1, 1), ("memory", 1, 0), ("bytes", 10**9, 2)):
            of = figures.get(name)
            cells += [f"{of[each] / unit:,.{digits}f}" if of else "" for each in ("measured", "estimate")]
        yield f"| {run['run']} | {' | '.join(cells)} |"


def example() -> list[str]:
    """Return what the command of the example prints."""
    program = "from trilateral.cli.main import main; main()"
    printed = subprocess.run(
        [sys.executable, "-c", program, *COMMAND.split()[1:]], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [f"    {line}".rstrip() for line in printed.rstrip().splitlines()]


def _phases_and_space(found: Estimate) -> str:
    guest = found.processes[Role.GUEST]
    seconds = " | ".join(_time(phase.seconds) for phase in found.phases)
    return f"{seconds} | {_size(found.bytes / 1e6)} | {_size(guest.memory_mb)} | {_size(guest.scratch_mb)}"


def _time(seconds: float) -> str:
    """Return seconds with as many digits as an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(mb: float) -> str:
    for unit in ("MB", "GB"):
        if mb < 1000:
            return f"{mb:.1f} {unit}" if mb < 10 else f"{mb:.0f} {unit}"
        mb /= 1000
    return f"{mb:.1f} TB"


def _replace_table(lines: list[str], rows: list[str]) -> None:
    """Replace the table that has the same header as `rows`."""
    start = lines.index(rows[0])
    end = lines.index("", start)
    lines[start:end] = [rows[0], "| " + " | ".join(["---"] * (rows[0].count("|") - 1)) + " |", *rows[1:]]


def main() -> None:
    """Replace the estimates of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, metavar="FILE", help="output of benchmarks/estimates.py --json")
    arguments = parser.parse_args()
    lines = PAGE.read_text().splitlines()
    tables = [growth(), one_machine(), cluster(), billion()]
    if arguments.runs is not None:
        tables.append(measured(json.loads(arguments.runs.read_text())["runs"]))
    for table in tables:
        _replace_table(lines, list(table))
    start = next(n for n in range(lines.index(COMMAND), len(lines)) if lines[n].startswith("    10,000,000 rows"))
    end = next(n for n in range(start, len(lines)) if lines[n].startswith("    constants measured")) + 1
    lines[start:end] = example()
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
