"""Measure one round over localhost: three processes, a 2048-bit key, 1000 rows.

python benchmarks/round.py [--json] [--profile]

13 host columns, 10 guest columns, and the intercept; the loss is computed too.

seconds              median over rounds without curvature
seconds_curvature    median over rounds with curvature
bytes_*              bytes on the wire in one round without curvature
ciphertexts_*        ciphertexts in one round without curvature
phases               median seconds for each kind of work in each process

With --profile, it prints instead where the time of the critical path of a round without curvature goes, from one
`BeginRound` of the coordinator to the next: the median milliseconds of each kind of work in each process, and of each
message on the path, between the moments that `recorder.py` describes. `recorder.py` records, `critical_path.py` finds
the path. `recorded_seconds` beside `seconds` shows what the recording costs.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/round.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.critical_path import critical_path, profile, read_processes, table
from benchmarks.harness import BETWEEN_PARTIES, DATASET, TO_COORDINATOR, Setup, Training, scratch_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd, Sqn
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.protocol.messages import Kind
from trilateral.common.trial.localhost import LocalProcesses

N_ROWS, N_HOST, N_GUEST = 1000, 13, 10
N_ROUNDS = 16
WARM_UP = 2
"""Rounds left out: in the first, the tables of randomness are cold, and all scores are zero."""


def make_tables() -> dict[Role, pd.DataFrame]:
    """Return normal columns, and labels that depend on the columns of both parties."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_HOST + N_GUEST))
    y = (X @ rng.normal(size=X.shape[1]) + 2 * rng.normal(size=N_ROWS) > 0).astype(int)
    ids = [f"{row:04d}" for row in range(N_ROWS)]
    host = pd.DataFrame(X[:, :N_HOST], columns=[f"a{j}" for j in range(N_HOST)]).assign(id=ids)
    guest = pd.DataFrame(X[:, N_HOST:], columns=[f"b{j}" for j in range(N_GUEST)]).assign(id=ids, label=y)
    return {Role.HOST: host, Role.GUEST: guest}


def rounds_with(training: Training, *, curvature: bool) -> set[int]:
    """Return the numbers of the rounds that took a gradient, either with or without curvature."""
    return {
        line["round"]
        for line in training.histories[Role.HOST][WARM_UP:]
        if Kind.GRADIENT in line["sent"] and (Kind.CURVATURE in line["sent"]) is curvature
    }


def median_seconds(training: Training, rounds: set[int]) -> float:
    """Return the median time from the end of one round to the end of the next, at the coordinator."""
    lines = training.histories[Role.COORDINATOR]
    seconds: list[float] = [line["seconds"]["all"] for line in lines if line["round"] in rounds]
    return statistics.median(seconds)


def phases(training: Training, rounds: set[int]) -> dict[str, dict[str, float]]:
    """Return the median seconds for each kind of work in each process."""
    found: dict[str, dict[str, float]] = {}
    for role, lines in training.histories.items():
        seconds = [line["seconds"] for line in lines if line["round"] in rounds]
        names = sorted({name for each in seconds for name in each if name != "all"})
        found[str(role)] = {
            name: round(statistics.median(each.get(name, 0.0) for each in seconds), 4) for name in names
        }
    return found


COMMON: dict[str, Any] = {
    "dataset": DATASET,
    "aligned": True,
    "batch": "all",
    "epochs": N_ROUNDS,
    "holdout": 0,
    "tolerance": 0,
}


class RecordedProcesses(LocalProcesses):
    """Three servers that record what their threads do, and write it to files beside their logs when they stop."""

    def _open_process(self, role: Role, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        python, arguments = command[0], command[command.index("serve") :]
        recorder = Path(__file__).with_name("recorder.py")
        return super()._open_process(role, [python, str(recorder), str(self.notes(role)), *arguments], **options)

    def notes(self, role: Role) -> Path:
        """Return the file of a process."""
        return self._logs[role].with_suffix(".json")


def measure_path() -> dict[str, Any]:
    """Return the profile of the critical path of a round; see `critical_path.profile`."""
    plain = JobConfig(name="plain", algorithm=Sgd(), **COMMON)
    with scratch_folder() as folder:
        (silent,) = Setup(folder / "silent", make_tables()).train(plain)
        (recorded,) = Setup(folder / "recorded", make_tables(), processes=RecordedProcesses).train(plain)
        processes = read_processes({role: folder / "recorded" / f"{role}.json" for role in Role})
    rounds = rounds_with(recorded, curvature=False)
    paths = [critical_path(processes, number) for number in sorted(rounds)[:-1]]
    return {
        "path": use_arithmetic(),
        "seconds": round(median_seconds(silent, rounds_with(silent, curvature=False)), 4),
        "recorded_seconds": round(median_seconds(recorded, rounds), 4),
        **profile(paths),
    }


def measure() -> dict[str, Any]:
    """Train twice in the same three processes: without curvature, and with curvature in every second round."""
    plain = JobConfig(name="plain", algorithm=Sgd(), **COMMON)
    curved = JobConfig(name="curved", algorithm=Sqn(interval=2), **COMMON | {"epochs": 2 * N_ROUNDS})
    with scratch_folder() as folder:
        without, with_curvature = Setup(folder, make_tables()).train(plain, curved)
    rounds = rounds_with(without, curvature=False)
    curvature_rounds = rounds_with(with_curvature, curvature=True)
    one = {min(rounds)}
    return {
        "path": use_arithmetic(),
        "seconds": round(median_seconds(without, rounds), 4),
        "seconds_curvature": round(median_seconds(with_curvature, curvature_rounds), 4),
        "bytes_between_parties": without.traffic(BETWEEN_PARTIES, "bytes", one),
        "bytes_to_coordinator": without.traffic(TO_COORDINATOR, "bytes", one),
        "ciphertexts_between_parties": without.traffic(BETWEEN_PARTIES, "ciphertexts", one),
        "peak_rss_mb": with_curvature.peak_rss_mb,
        "rounds": len(rounds),
        "rounds_curvature": len(curvature_rounds),
        "phases": phases(without, rounds),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--profile", action="store_true", help="print where the time of the critical path goes")
    arguments = parser.parse_args()
    if arguments.profile and not arguments.json:
        found = measure_path()
        print(table(found))
        print(json.dumps({name: found[name] for name in ("path", "seconds", "recorded_seconds")}))
        return
    figures = measure_path() if arguments.profile else measure()
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
