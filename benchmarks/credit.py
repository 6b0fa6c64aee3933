"""Train on one of the paper's data sets under encryption, with `lbfgs` and whitening, in three local processes.

python benchmarks/credit.py credit1|credit2 --data FOLDER [--json]

FOLDER contains credit1.csv.gz or credit2.csv.gz with the columns `id`, the features as published, and `label`.
docs/data-sets.md describes how to make these files.

excess_loss                    training loss of the result, minus the minimum found by least squares on joined columns
rounds_to_1e-4                 first round that led to a point within 1e-4 of the minimum
condition                      condition number of the Hessian on the joined columns
condition_without_whitening    the same on columns that are standardised and not whitened
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/credit.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import BETWEEN_PARTIES, DATASET, TO_COORDINATOR, Setup, scratch_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.protocol.taylor import taylor_loss
from trilateral.common.trial.catalogue import PUBLISHED, PublishedName
from trilateral.common.trial.published import split
from trilateral.coordinator.numpy_training import JoinedTable

KEY_BITS = 2048
TOLERANCE = 1e-6


def read_tables(name: PublishedName, folder: Path) -> dict[Role, pd.DataFrame]:
    """Read a data set and split it between the two parties."""
    path = folder / f"{name}.csv.gz"
    if not path.exists():
        raise SystemExit(f"{path} does not exist: docs/data-sets.md describes how to make it")
    table = pd.read_csv(path, dtype={"id": str})
    return split(table, PUBLISHED[name])


def optimum(joined: JoinedTable) -> float:
    """Return the minimum of the Taylor loss on the training columns."""
    coef = np.linalg.lstsq(joined.columns, 2 * joined.labels, rcond=None)[0]
    return taylor_loss(joined.columns @ coef, joined.labels)


def condition(joined: JoinedTable) -> float:
    """Return the condition number of X'X, which is also that of the Hessian X'X / 4n."""
    return round(float(np.linalg.cond(joined.columns)) ** 2, 1)


def measure(name: PublishedName, folder: Path) -> dict[str, Any]:
    """Train once and compare the result with the minimum."""
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
        "path": use_arithmetic(),
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
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    figures = measure(PublishedName(arguments.name), arguments.data)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
