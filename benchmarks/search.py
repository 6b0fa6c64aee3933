"""Choose a penalty by cross-validation on one of the paper's data sets, on shares in three local processes.

python benchmarks/search.py credit1|credit2 [--l1 L1] [--l2 L2] [--points N] [--folds K] [--auc] [--data FOLDER]

Prints the seconds from the request until both parties have written their part of the model, the seconds of the rounds,
their number, and the table of penalties. `credit.py` describes FOLDER.
"""

import argparse
import json
import sys
from pathlib import Path

# `python benchmarks/search.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import make_job, read_tables
from benchmarks.harness import Setup, scratch_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, PenaltyPath
from trilateral.common.trial.catalogue import PublishedName


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--l1", type=float, default=0.0, help="strongest L1 penalty (default: 0)")
    parser.add_argument("--l2", type=float, default=1.0, help="strongest L2 penalty (default: 1)")
    parser.add_argument("--points", type=int, default=10, help="penalties of the path (default: 10)")
    parser.add_argument("--folds", type=int, default=5, help="default: 5")
    parser.add_argument("--auc", action="store_true", help="choose by the AUC on the folds")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the job (default: 1e-5)")
    parser.add_argument("--data", type=Path, help="folder with NAME.csv.gz")
    arguments = parser.parse_args()
    plain = make_job(arguments.name, "shares", l2=arguments.l2, tolerance=arguments.tolerance)
    options = {
        "l1": arguments.l1,
        "folds": arguments.folds,
        "path": PenaltyPath(points=arguments.points),
        "choose": "auc" if arguments.auc else "log_loss",
    }
    job = JobConfig(**plain.model_dump(exclude={"path"}) | options)
    with scratch_folder() as scratch:
        (training,) = Setup(scratch, read_tables(PublishedName(arguments.name), arguments.data)).train(job)
    figures = {
        "rounds": len(training.histories[Role.COORDINATOR]),
        "seconds": round(training.seconds, 2),
        "seconds_rounds": round(training.seconds_rounds, 2),
        "processor_seconds": training.processor_seconds,
        "search": [each.model_dump() for each in training.models[Role.GUEST].search],
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
