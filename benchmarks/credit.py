"""`lbfgs` with whitening on the paper's data sets, encrypted, by three processes on this machine.

python benchmarks/credit.py credit1|credit2 --data FOLDER [--json]

FOLDER holds credit1.csv.gz or credit2.csv.gz, with columns `id`, the features as published and `label`;
docs/data-sets.md says where the data sets come from.

`excess_loss` is the training loss of the result above its optimum, which least squares on the joined
columns give; `rounds_to_1e-4` the first round that led to a point within 1e-4 of it. `condition` is the
condition number of the Hessian on the joined columns, and `condition_without_whitening` what it is on
standardised ones.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/credit.py` looks for modules in its own folder, and `python -m benchmarks.credit` in this one.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import BETWEEN_PARTIES, DATASET, TO_COORDINATOR, Setup, scratch_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.protocol.taylor import taylor_loss
from trilateral.common.trial.catalogue import PUBLISHED, PublishedName
from trilateral.common.trial.published import split
from trilateral.coordinator.plain import JoinedTable

KEY_BITS = 2048
TOLERANCE = 1e-6


def read_tables(name: PublishedName, folder: Path) -> dict[Role, pd.DataFrame]:
    """Read a data set and split it between the two parties."""
    path = folder / f"{name}.csv.gz"
    if not path.exists():
        raise SystemExit(f"{path} is not there: docs/data-sets.md says how to make it")
    table = pd.read_csv(path, dtype={"id": str})
    return split(table, PUBLISHED[name])


def optimum(joined: JoinedTable) -> float:
    """The least Taylor loss on the training columns."""
    coef = np.linalg.lstsq(joined.columns, 2 * joined.labels, rcond=None)[0]
    return taylor_loss(joined.columns @ coef, joined.labels)


def condition(joined: JoinedTable) -> float:
    """Condition number of X'X, hence of the Hessian X'X / 4n."""
    return round(float(np.linalg.cond(joined.columns)) ** 2, 1)


def measure(name: PublishedName, folder: Path) -> dict[str, Any]:
    """Train once and hold the result against the optimum."""
    job = JobConfig(name=name, dataset=DATASET, aligned=True, tolerance=TOLERANCE, key_bits=KEY_BITS)
    with scratch_folder() as scratch:
        setup = Setup(scratch, read_tables(name, folder))
        (training,) = setup.train(job)
        joined, standardised = setup.joined(job), setup.joined(job, whiten=False)
    least = optimum(joined)
    lines = training.histories[Role.COORDINATOR]
    close = (line["round"] for line in lines if line["loss"] is not None and line["loss"] - least <= 1e-4)
    metrics = training.models[Role.GUEST].metrics
    return {
        "path": arithmetic_path(),
        "rounds": len(lines),
        "rounds_to_1e-4": next(close, None),
        "excess_loss": taylor_loss(joined.columns @ training.coef, joined.labels) - least,
        "condition": condition(joined),
        "condition_without_whitening": condition(standardised),
        "auc": None if metrics is None or metrics.auc is None else round(metrics.auc, 4),
        "seconds": round(training.seconds, 1),
        "bytes": training.traffic(BETWEEN_PARTIES + TO_COORDINATOR, "bytes"),
        "seconds_per_round": round(math.fsum(line["seconds"]["all"] for line in lines) / len(lines), 2),
        "peak_rss_mb": training.peak_rss_mb,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.csv.gz")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    figures = measure(PublishedName(arguments.name), arguments.data)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
