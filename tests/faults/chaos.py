"""Run many trainings with random faults, and report.

python -m tests.faults.chaos TRIALS [FIRST_SEED] [--protocol paillier|shares]
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.faults.killing import run_trial
from tests.support.three_servers import PROTOCOLS, Protocol

LANES = 2
"""Number of trials that run at once; each spends most of its time waiting."""
Report = tuple[list[str], int, int]
"""The faults, the number of repeated rounds, and the number of recoveries."""


def report_trial(seed: int, protocol: Protocol) -> Report | str:
    """Run one trial; return what happened in it, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            trial = run_trial(seed, Path(folder), protocol)
        except AssertionError as error:
            return str(error)
        return [str(fault) for fault in trial.faults], trial.n_repeated, trial.n_recoveries


def main(n_trials: int, first_seed: int, protocol: Protocol) -> int:
    """Run trials, each seeded by its number; return how many failed."""
    faults: Counter[str] = Counter()
    n_repeated = n_recoveries = n_wrong = 0
    begun = time.monotonic()
    seeds = range(first_seed, first_seed + n_trials)
    with ProcessPoolExecutor(LANES, mp_context=multiprocessing.get_context("spawn")) as lanes:
        for seed, report in zip(seeds, lanes.map(partial(report_trial, protocol=protocol), seeds), strict=True):
            if isinstance(report, str):
                n_wrong += 1
                print(f"trial {seed}: FAILED: {report}", flush=True)
                continue
            faults.update(report[0])
            n_repeated, n_recoveries = n_repeated + report[1], n_recoveries + report[2]
            print(f"trial {seed}: passed after {', '.join(report[0])}", flush=True)
    print(f"\n{n_trials} trials in {time.monotonic() - begun:.0f} s, {faults.total()} faults:")
    for fault, count in sorted(faults.items()):
        print(f"  {count:4} {fault}")
    print(f"{n_repeated} rounds repeated, {n_recoveries} recoveries")
    print(f"trainings with the right model: {n_trials - n_wrong} of {n_trials}")
    return n_wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int)
    parser.add_argument("first_seed", type=int, nargs="?", default=0)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paillier", help="default: paillier")
    arguments = parser.parse_args()
    sys.exit(main(arguments.trials, arguments.first_seed, arguments.protocol) > 0)
