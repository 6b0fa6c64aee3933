"""Compare `trilateral estimate` with measured runs on this machine.

python benchmarks/estimates.py [--constants FILE] [--json]

Ten trainings under both protocols, two bins jobs and two alignments run in three processes that share this machine's
processors. For each, the benchmark prints what was measured, the estimate, and their ratio: seconds of the whole job,
bytes of all vectors, and peak memory and scratch space in MB of the party that needs most. The exit code is 1 if an
estimate is more than 25% off. The trainings have 50,000 to 1,000,000 rows, and one has ten million. They need 5 GB of
disk space. Run it while the machine does nothing else, after `benchmarks/calibrate.py --write` if this is another
machine than that of the constants. It takes three to six minutes.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# `python benchmarks/estimates.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.runs import (
    CountingRun,
    TrainingRun,
    counting_of,
    measure_alignment,
    measure_counting,
    measure_training,
    work_of,
)
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.cost.constants import MEASURED, Constants, load_constants
from trilateral.common.cost.estimate import Machines, estimate_counting, estimate_job
from trilateral.common.cost.workload import Workload

TOLERANCE = 0.25
SMALL_MB = 1.0
"""What counts as the measured scratch space if there is none, but the estimate has some."""
TRAININGS = (
    TrainingRun("shares", 50_000, (5, 50), 7),
    TrainingRun("shares", 150_000, (50, 20), 6),
    TrainingRun("shares", 300_000, (8, 25), 6),
    TrainingRun("shares", 500_000, (20, 20), 6),
    TrainingRun("shares", 1_000_000, (6, 12), 6),
    TrainingRun("shares", 10_000_000, (10, 10), 6),
    TrainingRun("paillier", 50_000, (50, 10), 3),
    TrainingRun("paillier", 120_000, (12, 20), 3),
    TrainingRun("paillier", 300_000, (10, 10), 3),
    TrainingRun("paillier", 1_000_000, (5, 5), 2),
)
COUNTINGS = (CountingRun(50_000, (15, 10)), CountingRun(400_000, (6, 4)))
ALIGNMENTS = (50_000, 150_000)


def compare(name: str, found: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the figures of one run: of each quantity what was measured, the estimate, and their ratio."""
    figures = {
        quantity: {
            "measured": round(measured, 2),
            "estimate": round(estimated, 2),
            "ratio": round(estimated / measured, 3),
        }
        for quantity, (measured, estimated) in found.items()
    }
    return {"run": name, "figures": figures}


def training(run: TrainingRun, constants: Constants) -> dict[str, Any]:
    """Measure and estimate a training."""
    measured = measure_training(run)
    estimate = estimate_job(work_of(run, measured.rounds), Machines.like_this(constants, shared=True), constants)
    processes = estimate.processes
    found = {
        "seconds": (measured.seconds, estimate.seconds),
        "bytes": (measured.bytes, estimate.bytes),
        "memory": (
            max(measured.memory_mb[role] for role in PARTIES),
            max(processes[role].memory_mb for role in PARTIES),
        ),
        "coordinator's memory": (measured.memory_mb[Role.COORDINATOR], processes[Role.COORDINATOR].memory_mb),
    }
    scratch = max(measured.scratch_mb.values()), max(processes[role].scratch_mb for role in PARTIES)
    if max(scratch) > 0:
        found["scratch space"] = (max(scratch[0], SMALL_MB), scratch[1])
    return compare(f"{run}, {measured.rounds} rounds", found)


def counting(run: CountingRun, constants: Constants) -> dict[str, Any]:
    """Measure and estimate a bins job."""
    measured = measure_counting(run)
    estimate = estimate_counting(counting_of(run), Machines.like_this(constants, shared=True), constants)
    found = {
        "seconds": (measured.seconds, estimate.seconds),
        "bytes": (sum(measured.sent.values()), estimate.bytes),
        "memory": (
            max(measured.memory_mb[role] for role in PARTIES),
            max(estimate.processes[role].memory_mb for role in PARTIES),
        ),
        "processor seconds": (
            sum(measured.processor_seconds.values()),
            sum(cost.processor_seconds for cost in estimate.processes.values()),
        ),
    }
    return compare(str(run), found)


def alignment(ids: int, constants: Constants) -> dict[str, Any]:
    """Measure an alignment, and estimate that of a job."""
    measured = measure_alignment(ids)
    work = Workload.of(JobConfig(name="estimate", dataset="estimate"), ids, {Role.HOST: 1, Role.GUEST: 2})
    estimate = estimate_job(work, Machines.like_this(constants, shared=True), constants)
    return compare(f"alignment, {ids:,} IDs on each side", {"seconds": (measured.seconds, estimate.phases[0].seconds)})


def measure(constants: Constants) -> Iterator[dict[str, Any]]:
    """Yield the figures of each run."""
    for run in TRAININGS:
        yield training(run, constants)
    for counted in COUNTINGS:
        yield counting(counted, constants)
    for ids in ALIGNMENTS:
        yield alignment(ids, constants)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constants", type=Path, default=MEASURED, help="file that calibrate.py has written")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    found = []
    for each in measure(load_constants(arguments.constants)):
        found.append(each)
        if not arguments.json:
            print(each["run"])
            for name, of in each["figures"].items():
                print(f"    {name:<22}{of['measured']:>18,.2f}{of['estimate']:>18,.2f}{of['ratio']:>8.2f}", flush=True)
    is_within = all(abs(of["ratio"] - 1) <= TOLERANCE for each in found for of in each["figures"].values())
    if arguments.json:
        print(json.dumps({"runs": found, "within": is_within}))
    else:
        print(f"{'all' if is_within else 'not all'} estimates are within {TOLERANCE:.0%}")
    sys.exit(not is_within)


if __name__ == "__main__":
    main()
