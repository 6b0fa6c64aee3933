"""Show what takes the memory of the three processes.

python benchmarks/memory.py [--json]

loads      MB that importing each library, in this order, adds to a process: its own memory, and pages of files
processes  MB of each process after its start, at its peak in a job (see round.py), and after the job

Pages of files are the libraries' code and tables. All processes share them, and the system takes them back when it
needs memory.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

# `python benchmarks/memory.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATASET, Setup, memory_mb, peak_rss_mb, read_status, scratch_folder
from benchmarks.round import N_ROUNDS, make_tables
from trilateral.common.config.job import JobConfig, Sqn

SETTLE_SECONDS = 1.0
"""After a job, until the processes have given back what it took."""
COMMAND = ["typer", "trilateral.cli.main", "trilateral.common.config.load"]
LIBRARIES = ["numpy", "gmpy2", "cryptography.x509", "grpc.aio", "grpc_health.v1.health", "prometheus_client"]
TABLE_LIBRARIES = ["pyarrow.csv", "pyarrow.parquet", "pyarrow.compute", "nacl.bindings"]
NOT_LOADED = ["pandas", "scipy.optimize", "sklearn.linear_model"]
"""What no server loads for a job with default settings."""

IMPORT = """
import importlib, json, sys
def status():
    with open("/proc/self/status") as file:
        return file.read()
found = {"python": status()}
for name in sys.argv[1:]:
    importlib.import_module(name)
    found[name] = status()
print(json.dumps(found))
"""
FIELDS = {"own": "RssAnon", "files": "RssFile"}


def resident(status: str) -> dict[str, float]:
    """Return the MB that a process has in memory: its own, and pages of files."""
    return {name: memory_mb(status, field) for name, field in FIELDS.items()}


def loads(*names: str) -> dict[str, dict[str, float]]:
    """Return what each import adds in a new process; `python` is the interpreter itself."""
    command = [sys.executable, "-c", IMPORT, *names]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = {name: resident(status) for name, status in json.loads(done.stdout).items()}
    return {
        name: {field: round(mb - before[field], 1) for field, mb in after.items()}
        for (_, before), (name, after) in pairwise([("", dict.fromkeys(FIELDS, 0.0)), *found.items()])
    }


def processes() -> dict[str, dict[str, Any]]:
    """Return the memory of each process before, in and after a training."""
    job = JobConfig(
        name="memory", dataset=DATASET, aligned=True, algorithm=Sqn(), epochs=N_ROUNDS, holdout=0, tolerance=0
    )
    with scratch_folder() as folder:
        setup = Setup(folder, make_tables())
        with setup.serving() as running:
            started = {role: resident(read_status(pid)) for role, pid in running.pids.items()}
            setup.train_in(running, job)
            time.sleep(SETTLE_SECONDS)
            return {
                str(role): {
                    "started": started[role],
                    "peak": peak_rss_mb(pid),
                    "after a job": resident(read_status(pid)),
                }
                for role, pid in running.pids.items()
            }


def measure() -> dict[str, Any]:
    """Return all figures."""
    return {
        "loads": {
            "party": loads(*COMMAND, *LIBRARIES, *TABLE_LIBRARIES, "trilateral.guest_party.server"),
            "coordinator": loads(*COMMAND, *LIBRARIES, "trilateral.coordinator.server"),
            "not loaded": loads("numpy", "pyarrow.compute", *NOT_LOADED),
        },
        "processes": processes(),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    figures = measure()
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
