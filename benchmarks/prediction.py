"""Score rows with two processes on this machine, and measure what it costs.

python benchmarks/prediction.py ROWS [--aligned | --local] [--json]

Each party has a Parquet file with ROWS rows of ten features. The parties share nine tenths of the IDs, or all of them
with --aligned. With --local, this process does the work of one party alone: it reads, scores, and deals rows to shards
on disk.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml
from pyarrow import parquet

# `python benchmarks/prediction.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import peak_rss_mb, scratch_folder
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.data.party_data import load_party_data
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.protocol.messages import Result
from trilateral.common.trial.localhost import LocalProcesses, free_addresses, process_settings

N_FEATURES = 10
PIECE = 1_000_000
TRAINED = 1000
"""Number of rows that the model is made from. Its weights are random, since their values do not matter here."""
JOB = JobConfig(name="benchmark", dataset="trained")
NEW = "new"


def write_table(path: Path, role: Role, n_rows: int, first: int = 0) -> None:
    """Write rows with the IDs `first` to `first + n_rows - 1` in random order, a piece at a time."""
    rng = np.random.default_rng([first, n_rows, list(Role).index(role)])
    numbers = first + rng.permutation(n_rows)
    writer = None
    for start in range(0, n_rows, PIECE):
        ids = [f"customer-{number:09d}" for number in numbers[start : start + PIECE]]
        table = pd.DataFrame(rng.normal(size=(len(ids), N_FEATURES)), columns=[f"x{j}" for j in range(N_FEATURES)])
        table.insert(0, "id", ids)
        if role is Role.GUEST:
            table["label"] = rng.integers(2, size=len(ids))
        piece = pa.Table.from_pandas(table, preserve_index=False)
        writer = writer or parquet.ParquetWriter(path, piece.schema)
        writer.write_table(piece)
    if writer:
        writer.close()


def set_up(folder: Path, n_rows: int, *, aligned: bool) -> dict[Role, Path]:
    """Write tables, configurations, and both parts of a model; return the configuration files."""
    addresses = free_addresses()
    paths = {role: folder / f"{role}.yaml" for role in Role}
    for role in Role:
        config: dict[str, Any] = process_settings(role, addresses)
        if role in PARTIES:
            dataset: dict[str, Any] = {"label": {"positive": "1", "negative": "0"}} if role is Role.GUEST else {}
            config["datasets"] = {name: dataset | {"path": f"{name}-{role}.parquet"} for name in ("trained", NEW)}
            write_table(folder / f"trained-{role}.parquet", role, TRAINED)
            write_table(
                folder / f"new-{role}.parquet", role, n_rows, first=0 if aligned or role is Role.HOST else n_rows // 10
            )
        if role is Role.HOST:
            config["policy"] = {"allow_prediction": True, "max_scores_a_day": 10**9}
        paths[role].write_text(yaml.safe_dump(config))
        if role in PARTIES:
            make_part(load_process_config(paths[role], {}))
    return paths


def make_part(config: ProcessConfig) -> None:
    """Write a party's part of a model into its state folder."""
    table = config.datasets[JOB.dataset]
    data = load_party_data(table, JOB, labelled=config.role is Role.GUEST)
    rng = np.random.default_rng(7)
    scores = rng.normal(size=len(data.block.holdout_columns)) if config.role is Role.GUEST else None
    result = Result(rng.normal(size=(data.preprocessing.n_columns,)), 0.5, 5, 5, "made up", scores)
    save_model(
        JobFolder(config.state, JOB.name).model,
        PartyModel.of(config.role, JOB, data, table, result, run_id="0" * 32),
    )


def measure_whole(n_rows: int, *, aligned: bool) -> dict[str, Any]:
    """Measure a prediction over localhost."""
    with scratch_folder() as folder:
        paths = set_up(folder, n_rows, aligned=aligned)
        out = folder / "scores.parquet"
        command = [sys.executable, "-m", "trilateral.cli.main", "predict", JOB.name, "--config", str(paths[Role.GUEST])]
        command += ["--dataset", NEW, "--out", str(out), *(["--aligned"] if aligned else [])]
        with LocalProcesses(paths, {role: folder / f"{role}.log" for role in Role}) as processes:
            started = time.perf_counter()
            guest = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[1])
            _, status, usage = os.wait4(guest.pid, 0)
            seconds = time.perf_counter() - started
            host_mb = peak_rss_mb(processes.pids[Role.HOST])
            if status != 0:
                raise SystemExit(f"the prediction failed\n{processes.log_tails()}")
        n_scored = parquet.read_metadata(out).num_rows
    return {
        "rows": n_rows,
        "scored": n_scored,
        "seconds": round(seconds, 1),
        "peak_rss_mb": {"host": host_mb, "guest": round(usage.ru_maxrss / 1024, 1)},
        "guest_cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def measure_local(n_rows: int) -> dict[str, Any]:
    """Measure the host's work alone, in this process."""
    with scratch_folder() as folder:
        paths = set_up(folder, 1000, aligned=True)
        config = load_process_config(paths[Role.HOST], {})
        # In another process, so that its memory does not count.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(write_table, config.datasets[NEW].path, Role.HOST, n_rows).result()
        model = load_model(JobFolder(config.state, JOB.name).model)
        spool = folder / "spool"
        spool.mkdir()
        times, cpu = [time.perf_counter()], time.process_time()
        rows = ScoredRows(spool, ["id"])
        score_table(model, config.datasets[NEW], rows, lambda _: None)
        times.append(time.perf_counter())
        dealing = Dealing(bytes(32), n_rows, n_rows)
        shards = rows.deal(dealing)
        times.append(time.perf_counter())
        n_read = sum(len(shards.read(shard).ids) for shard in range(dealing.n_shards))
        times.append(time.perf_counter())
        disk = sum(path.stat().st_size for path in spool.iterdir())
    read, dealt, read_back = np.diff(times).round(1).tolist()
    return {
        "rows": n_read,
        "shards": dealing.n_shards,
        "seconds": {"read and score": read, "deal": dealt, "read shards": read_back},
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "disk_mb": round(disk / 1e6),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, help="number of rows of each party")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--aligned", action="store_true", help="give both parties the same IDs, and skip the alignment")
    how.add_argument("--local", action="store_true", help="measure the work of one party alone")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if arguments.local:
        figures = measure_local(arguments.rows)
    else:
        figures = measure_whole(arguments.rows, aligned=arguments.aligned)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
