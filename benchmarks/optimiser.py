"""Show how `lbfgs` comes down to the minimum of the logistic loss on the paper's data, without running a protocol.

python benchmarks/optimiser.py credit1|credit2 [--data FOLDER] [--l2 L2] [--tolerance T] [--no-whiten] [--seeds N]

The observations have errors of about the size that they have under protocol `shares`, drawn anew for each seed: normal,
with a standard deviation of 1e-6 in each component of a gradient and of 4e-6 in each loss. --data is as for credit.py.

rounds      how many the training takes
excess      loss of the result, minus the minimum
error       loss that the coordinator reports for the result, minus its true loss
path        excess of the point of each round
"""

import argparse
import sys
from pathlib import Path

import numpy as np

# `python benchmarks/optimiser.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import make_job, read_tables
from benchmarks.harness import Setup, scratch_folder
from benchmarks.optimum import Objective, derivatives
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import TrilateralError
from trilateral.common.trial.catalogue import PublishedName
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.training import Training

GRADIENT_ERROR = 1e-6
LOSS_ERROR = 4e-6


def show(objective: Objective, seed: int) -> str:
    """Train once and return one line about it."""
    job = objective.job
    random = np.random.default_rng(seed)
    training = Training(job, len(objective.penalty), 1)
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
    return f"{len(path):6}  {loss - objective.least:.1e}  {following.loss - loss:8.0e}  {steps}  ({following.reason})"


def main() -> None:
    """Print one line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--data", type=Path, help="folder with NAME.csv.gz")
    parser.add_argument("--l2", type=float, default=0.0)
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--no-whiten", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    name = PublishedName(arguments.name)
    job = make_job(name, "shares", l2=arguments.l2, tolerance=arguments.tolerance)
    with scratch_folder() as scratch:
        setup = Setup(scratch, read_tables(name, arguments.data))
        objective = Objective.of(job, setup.joined(job, whiten=not arguments.no_whiten))
    print("rounds   excess     error  path")
    for seed in range(arguments.seeds):
        print(show(objective, seed))


if __name__ == "__main__":
    main()
