"""Show how `lbfgs` comes down to the minimum of the logistic loss on the paper's data, without running a protocol.

python benchmarks/optimiser.py credit1|credit2 [--data FOLDER] [--l2 L2] [--tolerance T] [--no-whiten] [--seeds N]
    [--warm SHARE]

The observations have errors of about the size that they have under protocol `shares`, drawn anew for each seed: normal,
with a standard deviation of 1e-6 in each component of a gradient and of 4e-6 in each loss. --data is as for credit.py.

rounds      how many the training takes
excess      loss of the result, minus the minimum
error       loss that the coordinator reports for the result, minus its true loss
path        excess of the point of each round

With --warm, a training on all rows but a share of them gives a model. A training on all rows but another such share
starts from it: with 0.5, the two have no row in common. A line each for a training from zero and for one from that
model.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

# `python benchmarks/optimiser.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import make_job, read_tables
from benchmarks.harness import Setup, scratch_folder
from benchmarks.optimum import Objective, derivatives
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import TrilateralError
from trilateral.common.config.job import JobConfig
from trilateral.common.trial.catalogue import PublishedName
from trilateral.coordinator.numpy_training import JoinedTable
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.training import Training

GRADIENT_ERROR = 1e-6
LOSS_ERROR = 4e-6


def show(objective: Objective, seed: int, start: FloatVector | None = None) -> tuple[str, FloatVector]:
    """Train once and return one line about it, and the result."""
    job = objective.job
    random = np.random.default_rng(seed)
    training = Training(job, len(objective.penalty), 1, start=start)
    path: list[float] = []

    def observe(coef: FloatVector) -> Observation:
        loss, gradient, _ = derivatives(objective.blocks, job.l2 * objective.penalty, coef)
        path.append(loss - objective.least)
        if not coef.any():
            return Observation(loss, gradient)
        noise = GRADIENT_ERROR * random.standard_normal(len(coef))
        return Observation(loss + LOSS_ERROR * random.standard_normal(), gradient + noise)

    following: RoundPlan | Conclusion | GivenUp = training.begin()
    while isinstance(following, RoundPlan):
        following = training.observe(observe(following.point))
    if not isinstance(following, Conclusion):
        raise TrilateralError(following.reason)
    loss = objective.loss(following.point)
    steps = " ".join(f"{excess:.0e}" for excess in path)
    line = f"{len(path):6}  {loss - objective.least:.1e}  {following.loss - loss:8.0e}  {steps}  ({following.reason})"
    return line, following.point


def months(job: JobConfig, table: JoinedTable, share: float) -> tuple[Objective, Objective]:
    """Return the objectives of two sets of rows, drawn at random, of which each lacks a share of all rows."""
    rows = np.random.default_rng(0).permutation(len(table.labels))
    n = round(share * len(rows))
    parts = rows[n:], rows[: len(rows) - n]
    first, second = (replace(table, columns=table.columns[part], labels=table.labels[part]) for part in parts)
    return Objective.of(job, first), Objective.of(job, second)


def main() -> None:
    """Print one line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--data", type=Path, help="folder with NAME.csv.gz")
    parser.add_argument("--l2", type=float, default=0.0)
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--no-whiten", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm", type=float, metavar="SHARE")
    arguments = parser.parse_args()
    name = PublishedName(arguments.name)
    job = make_job(name, "shares", l2=arguments.l2, tolerance=arguments.tolerance)
    with scratch_folder() as scratch:
        setup = Setup(scratch, read_tables(name, arguments.data))
        table = setup.joined(job, whiten=not arguments.no_whiten)
        whole = Objective.of(job, table)
        first, second = months(job, table, arguments.warm) if arguments.warm else (whole, whole)
    print("rounds   excess     error  path")
    for seed in range(arguments.seeds):
        if not arguments.warm:
            print(show(first, seed)[0])
            continue
        _, start = show(first, seed)
        print(show(second, seed)[0])
        print(show(second, seed, start)[0])


if __name__ == "__main__":
    main()
