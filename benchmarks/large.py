"""Train on large random tables with `lbfgs`, in three local processes.

python benchmarks/large.py [--rows 1000000] [--columns 10 10] [--protocol paillier|shares] [--tolerance T] [--json]

--columns are those of the host and of the guest, to which the intercept is added. All rows are training rows, and the
tables hold the same IDs (`aligned: true`).

seconds                    from the request until both parties have written their part of the model
seconds_rounds             the part of these seconds in which the rounds ran
seconds_round              median of the rounds, without the first, which has no scores under `shares`
processor_us_row_round     processor time of all three processes together for a row and round, in microseconds: the
                           difference between two further jobs of many and of few rounds, so without the setup
peak_rss_mb                peak memory of each process up to the end of the first job
excess_loss                training loss of the result, minus the minimum on joined columns
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

# `python benchmarks/large.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import PROTOCOLS, TOLERANCE, Protocol
from benchmarks.harness import DATASET, Setup, scratch_folder
from benchmarks.optimum import Objective
from benchmarks.sizing import tables
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic

FEW_ROUNDS = 2


def measure(rows: int, columns: tuple[int, int], protocol: Protocol, tolerance: float) -> dict[str, Any]:
    """Train three times. The first job has new processes, and the other two differ in their rounds alone."""
    job = JobConfig(
        name="large",
        dataset=DATASET,
        aligned=True,
        protocol=protocol,
        holdout=0,
        tolerance=tolerance,
    )
    short = job.model_copy(update={"name": "short", "epochs": FEW_ROUNDS})
    again = job.model_copy(update={"name": "again"})
    again = job.model_copy(update={"name": "again"})
    with scratch_folder() as folder:
        setup = Setup(folder, tables(rows, *columns))
        training, few, more = setup.train(job, short, again)
        objective = Objective.of(job, setup.joined(job))
    lines = training.histories[Role.COORDINATOR]
    more_rounds = len(more.histories[Role.COORDINATOR]) - len(few.histories[Role.COORDINATOR])
    used = sum(more.processor_seconds.values()) - sum(few.processor_seconds.values())
    return {
        "path": use_arithmetic(),
        "protocol": protocol,
        "rows": rows,
        "columns": list(columns),
        "rounds": len(lines),
        "seconds": round(training.seconds, 2),
        "seconds_setup": round(lines[0]["seconds"]["setup"], 2),
        "seconds_rounds": round(training.seconds_rounds, 2),
        "seconds_round": round(statistics.median(line["seconds"]["all"] for line in lines[1:]), 3),
        "processor_seconds": training.processor_seconds,
        "processor_us_row_round": round(used / more_rounds / rows * 1e6, 3) if more_rounds > 0 else None,
        "peak_rss_mb": training.peak_rss_mb,
        "bytes": sum(training.sent.values()),
        "excess_loss": objective.loss(training.coef) - objective.least,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="training rows (default: 1000000)")
    parser.add_argument(
        "--columns", type=int, nargs=2, default=(10, 10), metavar=("HOST", "GUEST"), help="columns (default: 10 10)"
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="shares", help="default: shares")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of the job (default: 1e-6)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    figures = measure(arguments.rows, tuple(arguments.columns), arguments.protocol, arguments.tolerance)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
