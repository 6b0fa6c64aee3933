"""Measure a private alignment over localhost: the host's server, and `trilateral align` at the guest.

python benchmarks/alignment.py [--ids N] [--json]

Each party has a Parquet file with N IDs of twelve digits in an order of its own. Half of the IDs are common.

seconds        the whole of `trilateral align`, including its start and reading the file
cpu_seconds    processor time of that process and of the host's server, which hardly depends on other programs
peak_rss_mb    peak memory of the same two processes
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATASET, Setup, peak_rss_mb, scratch_folder
from trilateral.common.base.roles import PARTIES, Role


def make_tables(n_ids: int) -> dict[Role, pd.DataFrame]:
    """Return tables with the IDs of both parties, half of them common."""
    rng = np.random.default_rng(0)
    numbers = rng.permutation(3 * n_ids // 2)
    ids = {Role.HOST: numbers[:n_ids], Role.GUEST: numbers[len(numbers) - n_ids :]}
    return {
        role: pd.DataFrame({"id": [f"{number:012d}" for number in rng.permutation(ids[role])], "x": 1.0})
        for role in PARTIES
    }


def measure(n_ids: int) -> dict[str, Any]:
    """Align once."""
    with scratch_folder() as folder:
        tables = make_tables(n_ids)
        tables[Role.GUEST]["label"] = 0
        setup = Setup(folder, tables)
        del tables
        with setup.serving() as processes:
            command = [
                sys.executable,
                "-m",
                "trilateral.cli.main",
                "align",
                DATASET,
                "--config",
                str(folder / "guest.yaml"),
            ]
            started = time.perf_counter()
            guest = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert guest.stdout is not None
            said = guest.stdout.read()
            _, status, usage = os.wait4(guest.pid, 0)
            seconds = time.perf_counter() - started
            if status:
                sys.exit(f"trilateral align failed\n{processes.log_tails()}")
            return {
                "ids": n_ids,
                "common": int(said.split()[0].replace(",", "")),
                "seconds": round(seconds, 1),
                "cpu_seconds": {
                    "guest": round(usage.ru_utime + usage.ru_stime, 1),
                    "host": _cpu_seconds(processes.pids[Role.HOST]),
                },
                "peak_rss_mb": {
                    "guest": round(usage.ru_maxrss / 1024, 1),
                    "host": peak_rss_mb(processes.pids[Role.HOST]),
                },
            }


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and all its threads have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=100_000, help="number of IDs of each party (default: 100000)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    figures = measure(arguments.ids)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
