"""Many trainings whose processes are killed at drawn moments, and a report: ``python -m tests.faults.chaos TRIALS``."""

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from coordinator.plain import train_plain
from tests.faults.killing import JOB, run_trial
from tests.support.three_servers import load_tables, make_configs, trained_coef, write_tables

N_FAULTS = 3


def main(n_trials: int) -> int:
    """Run so many trials, seeded by their number; return how many ended wrong."""
    killed: Counter[str] = Counter()
    n_sessions = n_again = n_wrong = 0
    for seed in range(n_trials):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_tables(folder)
            configs = make_configs(folder)
            try:
                trial = run_trial(configs, folder, JOB, random.Random(seed), N_FAULTS)
                assert trial.status.state == JOB_STATE_FINISHED, trial.status.detail
                joined = load_tables(configs, JOB).joined
                holdout = joined.holdout_columns, joined.holdout_labels
                plain = train_plain(JOB, joined.columns, joined.labels, joined.penalty, holdout)
                np.testing.assert_allclose(trained_coef(configs, JOB), plain.coef, rtol=0, atol=1e-6)
            except AssertionError as error:
                n_wrong += 1
                print(f"trial {seed}: {error}", flush=True)
                continue
            killed.update(" and ".join(sorted(roles)) for _, roles in trial.faults)
            n_sessions += sum("another session" in note for note in trial.status.notes)
            n_again += sum("begun again" in note for note in trial.status.notes)
            print(f"trial {seed}: right, killed {[(at, *roles) for at, roles in trial.faults]}", flush=True)
    print(f"{n_trials} trials, {killed.total()} faults: {dict(killed)}")
    print(f"{n_sessions} recoveries, {n_again} rounds begun again within a session")
    print(f"models right: {n_trials - n_wrong} of {n_trials}")
    return n_wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])) > 0)
