"""Train on one of the paper's data sets, with `lbfgs` and whitening, in three local processes.

python benchmarks/credit.py credit1|credit2 [--protocol paillier|shares] [--l2 L2] [--tolerance T] [--data FOLDER]
    [--inference] [--json] [--profile]

FOLDER contains credit1.csv.gz or credit2.csv.gz with the columns `id`, the features as published, and `label`.
docs/data-sets.md describes how to make these files. Without --data, the folder is that of the environment variable
TRILATERAL_DATA, or `data` or `shared/data` in the working directory or in a folder above this repository.

excess_loss                    training loss of the result, minus the minimum on joined columns: by least squares under
                               `paillier`, by Newton's method for the logistic loss under `shares`
rounds_to_1e-4                 first round that led to a point within 1e-4 of the minimum
condition                      condition number of X'X on the joined columns
condition_without_whitening    the same on columns that are standardised and not whitened
seconds                        from the request until both parties have written their part of the model
seconds_rounds                 the part of these seconds in which the rounds ran
bytes                          all vectors that any process has sent, in total and by kind
inference                      with --inference, the seconds of each of its steps at the coordinator, and the largest
                               relative error of a standard error, against the inverse of X'WX on the joined columns
scikit_learn                   the model, compared with scikit-learn's on the same rows: see benchmarks/optimum.py

With --profile, it prints instead when each step before the first round and after the last one began and how long it
took, in each process, and the seconds from the client's request to the first round, of the rounds, and from there to
the end. `recorder.py` records; `recorded_seconds` beside `seconds` shows what the recording costs.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

# `python benchmarks/credit.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATASET, Setup, Training, scratch_folder
from benchmarks.optimum import AgainstScikitLearn, Objective, find_data
from benchmarks.round import RecordedProcesses
from benchmarks.timeline import Timeline, read_timeline
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.inference import infer
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.protocol.logistic import slope
from trilateral.common.shares.information import pack
from trilateral.common.trial.catalogue import PUBLISHED, PublishedName
from trilateral.common.trial.published import split
from trilateral.coordinator.numpy_training import JoinedTable

KEY_BITS = 2048
Protocol = Literal["paillier", "shares"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
TOLERANCE = 1e-6


def read_tables(name: PublishedName, folder: Path | None) -> dict[Role, pd.DataFrame]:
    """Read a data set from a folder, or from the one that `find_data` finds, and split it between the two parties."""
    table = pd.read_csv(find_data(name, folder) / f"{name}.csv.gz", dtype={"id": str})
    return split(table, PUBLISHED[name])


def make_job(
    name: PublishedName,
    protocol: Protocol,
    *,
    l2: float = 0.0,
    tolerance: float = TOLERANCE,
    dataset: str = DATASET,
    aligned: bool = True,
) -> JobConfig:
    """Return the job of this benchmark and of `wan.py`."""
    return JobConfig(
        name=name,
        dataset=dataset,
        aligned=aligned,
        protocol=protocol,
        l2=l2,
        tolerance=tolerance,
        key_bits=KEY_BITS,
    )


def condition(joined: JoinedTable) -> float:
    """Return the condition number of X'X, which is also that of the Hessian of the Taylor loss, X'X / 4n."""
    return round(float(np.linalg.cond(joined.columns)) ** 2, 1)


def measure(job: JobConfig, folder: Path | None) -> dict[str, Any]:
    """Train once and compare the result with the minimum."""
    with scratch_folder() as scratch:
        setup = Setup(scratch, read_tables(PublishedName(job.name), folder))
        (training,) = setup.train(job)
        joined, standardised = setup.joined(job), setup.joined(job, whiten=False)
    objective = Objective.of(job, joined)
    lines = training.histories[Role.COORDINATOR]
    # A round shows the loss of the point to which it led; on shares, that of the point to which the one before led.
    first = 1 if job.protocol == "shares" else 0
    rounds = [line["round"] - first for line in lines if _is_close(line["loss"], objective)]
    if not rounds and _is_close(objective.loss(training.coef), objective):
        rounds.append(len(lines))
    metrics = training.models[Role.GUEST].metrics
    return {
        "path": use_arithmetic(),
        "protocol": job.protocol,
        "rounds": len(lines),
        "rounds_to_1e-4": min(rounds, default=None),
        "excess_loss": objective.loss(training.coef) - objective.least,
        "condition": condition(joined),
        "condition_without_whitening": condition(standardised),
        "auc": None if metrics is None or metrics.auc is None else round(metrics.auc, 4),
        "log_loss": None if metrics is None else round(metrics.log_loss, 4),
        "seconds": round(training.seconds, 2),
        "seconds_rounds": round(training.seconds_rounds, 2),
        "seconds_per_round": round(training.seconds_rounds / len(lines), 3),
        "processor_seconds": training.processor_seconds,
        "bytes": sum(training.sent.values()),
        "bytes_by_pair": training.sent,
        "peak_rss_mb": training.peak_rss_mb,
        "inference": _inference(training, joined) if job.inference else None,
        "scikit_learn": asdict(AgainstScikitLearn.of(job, standardised, joined, training.coef)),
    }


def _inference(training: Training, joined: JoinedTable) -> dict[str, Any]:
    """Return how long the steps of inference took, and how exact they are."""
    X = joined.columns
    information = X.T @ (X * slope(X @ training.coef)[:, np.newaxis])
    exact = np.asarray(np.linalg.inv(information), dtype=np.float64)
    errors = []
    for role, part in ((Role.HOST, slice(joined.n_host)), (Role.GUEST, slice(joined.n_host, None))):
        steps, found = training.models[role].steps, training.models[role].inference
        wanted = infer(steps, training.coef[part], pack(exact[part, part]), [])
        assert found is not None
        errors += [found.terms[name].std_error / each.std_error - 1 for name, each in wanted.terms.items()]
    lines = training.histories[Role.COORDINATOR]
    seconds = [line["seconds"]["all"] for line in lines]
    # Each round of lbfgs is an epoch of its own, and a step is none.
    n_steps = len(lines) - max(line["epoch"] for line in lines)
    return {
        "seconds_of_steps": seconds[-n_steps:],
        "seconds_of_another_round": float(np.median(seconds[1:-n_steps])),
        "largest_error": float(np.abs(errors).max()),
    }


def measure_steps(job: JobConfig, folder: Path | None) -> tuple[Timeline, dict[str, Any]]:
    """Train twice, without and with a recording; return the timeline of the second job, and the seconds of both."""
    with scratch_folder() as scratch:
        tables = read_tables(PublishedName(job.name), folder)
        (silent,) = Setup(scratch / "silent", dict(tables)).train(job)
        (recorded,) = Setup(scratch / "recorded", dict(tables), processes=RecordedProcesses).train(job)
        timeline = read_timeline({role: scratch / "recorded" / f"{role}.json" for role in Role}, *recorded.span)
    seconds = {
        "path": use_arithmetic(),
        "seconds": round(silent.seconds, 2),
        "seconds_rounds": round(silent.seconds_rounds, 2),
        "recorded_seconds": round(recorded.seconds, 2),
        "processor_seconds": silent.processor_seconds,
    }
    return timeline, seconds


def _is_close(loss: float | None, objective: Objective) -> bool:
    return loss is not None and loss - objective.least <= 1e-4


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paillier", help="default: paillier")
    parser.add_argument("--l2", type=float, default=0.0, help="strength of the L2 penalty (default: 0)")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of the job (default: 1e-6)")
    parser.add_argument("--data", type=Path, help="folder with NAME.csv.gz (default: see above)")
    parser.add_argument("--inference", action="store_true", help="ask for standard errors (`shares` only)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--profile", action="store_true", help="print the timeline of the start and the end of the job")
    arguments = parser.parse_args()
    job = make_job(arguments.name, arguments.protocol, l2=arguments.l2, tolerance=arguments.tolerance)
    if arguments.inference:
        job = JobConfig(**job.model_dump() | {"inference": True})
    if arguments.profile:
        timeline, seconds = measure_steps(job, arguments.data)
        print(json.dumps(seconds | timeline.to_json()) if arguments.json else f"{timeline}\n{json.dumps(seconds)}")
        return
    figures = measure(job, arguments.data)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
