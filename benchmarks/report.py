"""Make the guest's report of a model on many scored rows with labels, and measure its time and its size.

python benchmarks/report.py [ROWS] [--json]

The model has ten terms and 100,000 hold-out rows. The scored rows and their labels are Parquet files, as `predict` and
a data warehouse write them. The time includes reading both files, all figures with their intervals, and the charts.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/report.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import peak_rss_mb, scratch_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import PartyModel, save_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.protocol.messages import Result
from trilateral.common.report.job_files import read_path
from trilateral.common.report.later_rows import LaterRows
from trilateral.common.report.page import html_of

N_TERMS = 10
N_TRAIN = 200_000
RATE = 0.067


def make_table(n_rows: int, seed: int) -> pd.DataFrame:
    """Return rows with labels that depend on the columns."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(n_rows, N_TERMS)), columns=[f"x{number}" for number in range(N_TERMS)])
    score = table.sum(axis=1) / 2 + np.log(RATE / (1 - RATE)) - 0.5
    table["label"] = (rng.random(n_rows) < 1 / (1 + np.exp(-score))).astype(int)
    table.insert(0, "id", [f"c{number:09}" for number in rng.permutation(n_rows)])
    return table


def write_files(folder: Path, n_rows: int) -> tuple[Path, LaterRows]:
    """Write a model, scores and labels; return the path of the model and the scored rows."""
    train, job = folder / "train.parquet", JobConfig(name="job", dataset="rows", holdout=0.5, protocol="shares")
    make_table(N_TRAIN, 1).to_parquet(train)
    dataset = DatasetConfig(path=train, label=LabelConfig())
    data = load_party_data(dataset, job, labelled=True)
    assert data.preprocessing.directions is not None
    coef = np.append(np.linalg.solve(data.preprocessing.directions, np.full(N_TERMS, 0.5)), -3.1)
    scores = np.asarray(data.block.holdout_columns) @ coef
    model = PartyModel.of(Role.GUEST, job, data, dataset, Result(coef, 0.2, 7, 7, "done", scores), run_id="ab" * 16)
    save_model(folder / "model.json", model)
    later = make_table(n_rows, 2)
    scored = pd.DataFrame({"id": later["id"], "score": later.filter(like="x").sum(axis=1) / 2 - 3.1})
    scored["probability"] = 1 / (1 + np.exp(-scored["score"]))
    scored.to_parquet(folder / "scores.parquet")
    later[["id", "label"]].sample(frac=1, random_state=3).to_parquet(folder / "labels.parquet")
    labels = DatasetConfig(path=folder / "labels.parquet", label=LabelConfig())
    return folder / "model.json", LaterRows(scores=folder / "scores.parquet", labels=("later", labels))


def main() -> None:
    """Make the files, then the report, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000, help="number of scored rows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with scratch_folder() as folder:
        path, later = write_files(folder, arguments.rows)
        start, processor = time.perf_counter(), time.process_time()
        page = html_of(read_path(path), later)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
    figures: dict[str, Any] = {
        "rows": arguments.rows,
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "megabytes": round(len(page.encode()) / 1e6, 2),
        "peak_rss_mb": round(peak_rss_mb(os.getpid())),
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:12} {value:,}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
