"""Reproduce the paper's Table 1 under encryption, and further rows, with three processes on this machine.

python benchmarks/table1.py --data FOLDER [--cell NAME ...] [--results FILE] [--json]
python benchmarks/table1.py --data FOLDER --seeds N

FOLDER is as in credit.py. A cell is a data set and a batch size, such as credit1-1000. Each cell trains SGD at its best
learning rate, and the proposed method. `credit1-beyond` and `credit2-beyond` are the further rows. Without the native
kernel, the whole table takes hours. With `--results FILE`, the benchmark appends each finished row to FILE as a line of
JSON, and does not run it again.

table1.yaml has all settings.

plain_loss     loss of the same training in plain numpy, which also chooses the learning rate of SGD; the loss under
               encryption must agree to 1e-6, or the benchmark fails
sensitivity    change of that loss if every number in the columns changes by 3e-9 of its value, which is about the
               effect of fixed point on a gradient; where it is large, the method itself is unstable
checks         whether the proposed method needs fewer epochs than SGD, with a loss at most 1e-3 above SGD's, and an
               AUC at most 0.01 below

A training stops when two epochs differ by less than 1e-5. With noisy batches that is partly chance, and so is the
number of epochs. With `--seeds N`, the benchmark trains the cells in plain numpy on N other splits and batches, and
counts how often each check holds.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.metrics import roc_auc_score

# `python benchmarks/table1.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import read_tables
from benchmarks.harness import BETWEEN_PARTIES, DATASET, TO_COORDINATOR, Setup, scratch_folder
from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.coordinator.numpy_training import JoinedTable, train_plain

SETTINGS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
DATA_SETS = ("credit1", "credit2")
CELLS = [f"{name}-{batch}" for name in DATA_SETS for batch in SETTINGS["batches"]]
BEYOND = [f"{name}-beyond" for name in DATA_SETS]
TOLERANCE = 1e-6
"""Largest accepted difference between the loss under encryption and the loss in plain numpy."""
PERTURBATION = 3e-9


def algorithm(method: str, rate: float | None = None) -> dict[str, Any]:
    """Return the `algorithm` setting of a job for a method."""
    if method == "sgd":
        return {"name": "sgd", "learning_rate": rate}
    return {"name": "sqn", **SETTINGS["proposed"]} if method == "proposed" else {"name": method}


def best_sgd(job: JobConfig, joined: JoinedTable) -> JobConfig:
    """Return the job at the learning rate that ends at the lowest loss in plain numpy."""
    jobs = [job.model_copy(update={"algorithm": _parsed(algorithm("sgd", rate))}) for rate in SETTINGS["sgd"]["rates"]]
    return min(jobs, key=lambda one: train_plain(one, joined.columns, joined.labels, joined.penalty).loss)


def _parsed(settings: dict[str, Any]) -> Any:
    return JobConfig.model_validate({"name": "a", "dataset": DATASET, "algorithm": settings}).algorithm


def rows_of(cell: str) -> list[dict[str, Any]]:
    """Return the trainings of a cell: row name, data set, method, batch, and preprocessing."""
    data_set, _, what = cell.partition("-")
    if what != "beyond":
        shared = {"cell": cell, "data_set": data_set, "batch": int(what), "preprocessing": SETTINGS["preprocessing"]}
        return [{"row": method, "method": method} | shared for method in ("sgd", "proposed")]
    return [
        {
            "cell": cell,
            "row": row["name"],
            "data_set": data_set,
            "method": row["algorithm"],
            "batch": row.get("batch", "all"),
            "preprocessing": row["preprocessing"],
            "tolerance": row.get("tolerance"),
        }
        for row in SETTINGS["beyond"]
    ]


def perturbed(columns: FloatMatrix) -> FloatMatrix:
    """Return the columns with a relative error of `PERTURBATION` in each number."""
    noise = np.random.default_rng(0).standard_normal(columns.shape)
    return columns * (1 + PERTURBATION * noise)


def job_of(row: dict[str, Any], seed: int) -> JobConfig:
    """Return the job of a row; for SGD, at the first of its learning rates."""
    settings = SETTINGS["job"] | ({"tolerance": row["tolerance"]} if row.get("tolerance") else {}) | {"seed": seed}
    first = algorithm(row["method"], SETTINGS["sgd"]["rates"][0])
    shared = {"name": "table1", "dataset": DATASET, "aligned": True, "batch": row["batch"], "algorithm": first}
    return JobConfig.model_validate(shared | settings)


def measure(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train one row under encryption, and in plain numpy."""
    job = job_of(row, SETTINGS["job"]["seed"])
    with scratch_folder() as scratch:
        setup = Setup(scratch, read_tables(row["data_set"], folder), row["preprocessing"])
        joined = setup.joined(job, whiten=row["preprocessing"].get("whiten", True))
        if row["method"] == "sgd":
            job = best_sgd(job, joined)
        (training,) = setup.train(job)
        start = training.start
        plain = train_plain(job, joined.columns, joined.labels, joined.penalty, start=start)
        changed = train_plain(job, perturbed(joined.columns), joined.labels, joined.penalty, start=start)
    model = training.models[Role.GUEST]
    metrics = model.metrics
    lines = training.histories[Role.COORDINATOR]
    return {
        "cell": row["cell"],
        "row": row["row"],
        "rate": job.algorithm.learning_rate if job.algorithm.name == "sgd" else None,
        "epochs": model.epochs,
        "rounds": len(lines),
        "loss": model.loss,
        "plain_loss": plain.loss,
        "difference": abs(model.loss - plain.loss),
        "sensitivity": abs(changed.loss - plain.loss),
        "auc": None if metrics is None or metrics.auc is None else round(metrics.auc, 4),
        "bytes": training.traffic(BETWEEN_PARTIES + TO_COORDINATOR, "bytes"),
        "seconds": round(math.fsum(line["seconds"]["all"] for line in lines), 1),
    }


def measure_plain(cell: str, folder: Path, seed: int) -> list[dict[str, Any]]:
    """Train both rows of a cell in plain numpy, with another seed."""
    results = []
    for row in rows_of(cell):
        job = job_of(row, seed)
        with scratch_folder() as scratch:
            joined = Setup(scratch, read_tables(row["data_set"], folder), row["preprocessing"]).joined(
                job, whiten=False
            )
        if row["method"] == "sgd":
            job = best_sgd(job, joined)
        plain = train_plain(job, joined.columns, joined.labels, joined.penalty)
        auc = roc_auc_score(joined.holdout_labels, joined.holdout_columns @ plain.coef)
        results.append({"cell": cell, "row": row["row"], "epochs": plain.epochs, "loss": plain.loss, "auc": auc})
    return results


def print_seeds(folder: Path, cells: list[str], n_seeds: int) -> None:
    """Print how often each check holds over seeds 1 to `n_seeds`."""
    held: Counter[str] = Counter()
    for seed in range(1, n_seeds + 1):
        for cell in cells:
            results = measure_plain(cell, folder, seed)
            epochs = ", ".join(f"{result['row']} {result['epochs']}" for result in results)
            print(f"seed {seed}, {cell}: epochs of {epochs}")
            held.update(name for name, holds in checks(results)[cell].items() if holds)
    for name, count in held.items():
        print(f"{name}: {count} of {n_seeds * len(cells)}")


def checks(results: list[dict[str, Any]]) -> dict[str, dict[str, bool]]:
    """Return the outcome of each check, for every finished cell."""
    found = {}
    for cell in CELLS:
        rows = {result["row"]: result for result in results if result["cell"] == cell}
        if rows.keys() >= {"sgd", "proposed"}:
            sgd, proposed = rows["sgd"], rows["proposed"]
            found[cell] = {
                "fewer epochs": proposed["epochs"] < sgd["epochs"],
                "half or fewer": 2 * proposed["epochs"] <= sgd["epochs"],
                "loss": proposed["loss"] <= sgd["loss"] + 1e-3,
                "auc": proposed["auc"] >= sgd["auc"] - 0.01,
            }
    return found


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with these results beside those of the paper."""
    yield "| cell | method | epochs | Taylor loss | AUC | paper: epochs | loss | AUC | rounds | MB | seconds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for result in results:
        printed = SETTINGS["paper"].get(result["cell"], {}).get(result["row"])
        theirs = [str(printed[0]), f"{printed[1]:.6f}", f"{printed[2]:.4f}"] if printed else ["", "", ""]
        name = result["row"] if result["rate"] is None else f"{result['row']}, rate {result['rate']}"
        ours = [str(result["epochs"]), f"{result['loss']:.6f}", f"{result['auc']:.4f}"]
        cost = [str(result["rounds"]), f"{result['bytes'] / 1e6:.1f}", f"{result['seconds']:.0f}"]
        yield f"| {' | '.join([result['cell'], name, *ours, *theirs, *cost])} |"


def main() -> None:
    """Print the table, or its rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with credit1.csv.gz and credit2.csv.gz")
    parser.add_argument(
        "--cell", action="append", choices=[*CELLS, *BEYOND], help="run only this cell; repeat the option for more"
    )
    parser.add_argument("--results", type=Path, help="file of finished rows, which do not run again")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="train in plain numpy on N other splits, and count the checks that hold"
    )
    arguments = parser.parse_args()
    if arguments.seeds:
        print_seeds(arguments.data, [cell for cell in arguments.cell or CELLS if cell in CELLS], arguments.seeds)
        return

    kept: list[dict[str, Any]] = []
    if arguments.results and arguments.results.exists():
        kept = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    results = []
    for row in (row for cell in arguments.cell or [*CELLS, *BEYOND] for row in rows_of(cell)):
        known = (one for one in kept if (one["cell"], one["row"]) == (row["cell"], row["row"]))
        result = next(known, None)
        if result is None:
            print(f"{row['cell']}: {row['row']} ...", file=sys.stderr)
            result = measure(row, arguments.data)
            if arguments.results:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
        results.append(result)

    found = checks(results)
    if arguments.json:
        print(json.dumps({"results": results, "checks": found}))
    else:
        print("\n".join(table(results)))
        for cell, outcome in found.items():
            print(f"{cell}:", ", ".join(f"{name}: {'yes' if holds else 'NO'}" for name, holds in outcome.items()))
    wrong = [f"{result['cell']} {result['row']}" for result in results if result["difference"] > TOLERANCE]
    if wrong:
        raise SystemExit(f"the loss under encryption differs from the loss in plain numpy: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
