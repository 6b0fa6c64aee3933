"""`lbfgs` with whitening on the paper's data sets, encrypted, by three processes on this machine.

python -m benchmarks.credit credit1|credit2 --data FOLDER [--json]

FOLDER holds credit1.csv.gz or credit2.csv.gz, with columns `id`, the features as published and `label`. Credit 1 is
"default of credit card clients" of the UCI Machine Learning Repository (data set 350); Credit 2 is cs-training.csv
of the Kaggle competition GiveMeSomeCredit.

`excess_loss` is the training loss of the result above its optimum, which least squares on the joined
columns give; `rounds_to_1e-4` the first round that led to a point within 1e-4 of it.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.localhost import BETWEEN_PARTIES, TO_COORDINATOR, Setup, Training, scratch_folder
from common.config.job import JobConfig
from common.protocol.taylor import taylor_loss
from common.roles import PARTIES, Role

GUEST_FEATURES = {
    "credit1": [
        "LIMIT_BAL",
        "SEX",
        "EDUCATION",
        "MARRIAGE",
        "AGE",
        "PAY_0",
        "PAY_2",
        "PAY_3",
        "PAY_4",
        "PAY_5",
        "PAY_6",
    ],
    "credit2": ["age", "DebtRatio", "MonthlyIncome", "NumberOfDependents", "NumberRealEstateLoansOrLines"],
}
"""A bank's own view of its client; the other features are a payment processor's or a bureau's."""
KEY_BITS = 2048
TOLERANCE = 1e-6


def read_tables(name: str, folder: Path) -> dict[Role, pd.DataFrame]:
    """Split a data set between the two parties."""
    path = folder / f"{name}.csv.gz"
    if not path.exists():
        raise SystemExit(f"{path} is not there: fetch the data set from its publisher, see --help")
    table = pd.read_csv(path, dtype={"id": str})
    guest = ["id", *GUEST_FEATURES[name], "label"]
    host = ["id", *(column for column in table.columns if column not in guest)]
    return {Role.HOST: table[host], Role.GUEST: table[guest]}


def optimum(training: Training) -> float:
    """The least Taylor loss on the joined training columns."""
    X, y = joined(training)
    coef = np.linalg.lstsq(X, 2 * y, rcond=None)[0]
    return taylor_loss(X @ coef, y)


def joined(training: Training) -> tuple[np.ndarray, np.ndarray]:
    """The training columns of both parties and the labels: what nobody has in a real job."""
    labels = training.blocks[Role.GUEST].labels
    if labels is None:
        raise ValueError("the guest's block has no labels")
    return np.hstack([training.blocks[role].columns for role in PARTIES]), labels


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Train once and hold the result against the optimum."""
    job = JobConfig(name=name, dataset="benchmark", tolerance=TOLERANCE, key_bits=KEY_BITS)
    with scratch_folder() as scratch:
        (training,) = Setup(scratch, read_tables(name, folder)).train(job)
    X, y = joined(training)
    least = optimum(training)
    lines = training.histories[Role.COORDINATOR]
    metrics = training.models[Role.GUEST].metrics
    return {
        "rounds": len(lines),
        "rounds_to_1e-4": next((line["round"] for line in lines if line["loss"] - least <= 1e-4), None),
        "excess_loss": taylor_loss(X @ training.coef, y) - least,
        "auc": None if metrics is None or metrics.auc is None else round(metrics.auc, 4),
        "seconds": round(training.seconds, 1),
        "bytes": training.traffic(BETWEEN_PARTIES + TO_COORDINATOR, "bytes"),
        "seconds_per_round": round(math.fsum(line["seconds"]["all"] for line in lines) / len(lines), 2),
        "peak_rss_mb": training.peak_rss_mb,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(GUEST_FEATURES))
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.csv.gz")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    figures = measure(arguments.name, arguments.data)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
