"""Train on a cluster many times while a worker is killed at a random moment, and report.

python -m tests.faults.engine TRIALS [FIRST_SEED]
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from tests.support.three_machines import Outcome, Tables, Workshop, make_machines, make_tables, run_machines
from tests.support.waiting import eventually_in_thread
from trilateral.common.base.arrays import FloatVector
from trilateral.common.compute.dask import DaskCluster
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.engine import EngineConfig
from trilateral.common.config.job import JobConfig, Lbfgs
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.trial.cluster import TrialCluster, trial_cluster
from trilateral.common.trial.development import write_development_files

N_WORKERS = 2
N_ROWS = 3000
JOB = JobConfig(
    name="workers", dataset="made", algorithm=Lbfgs(), epochs=3, key_bits=512, slots=1, tolerance=0, aligned=True
)
"""One row in a ciphertext: no mask carries into the sums, so that two trainings agree to the last bit."""
PATIENCE = 120.0


class Trials:
    """Trainings of the same job, each with a worker that dies.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: TrialCluster) -> None:
        self._cluster = cluster
        self._connection = DaskCluster(EngineConfig(**cluster.settings), PATIENCE)
        self._key: PrivateKey = generate_private_key(JOB.key_bits)
        self._tables: Tables = make_tables(JOB, N_ROWS)
        self._expected: FloatVector = self._train(LocalEngine).coef
        begun = time.monotonic()
        assert np.array_equal(self._train(self._connection.open_engine).coef, self._expected)
        self._seconds = time.monotonic() - begun

    def run(self, seed: int) -> str:
        """Train once. Return what happened.

        Raises:
            AssertionError: a round was void, or the model is another.
        """
        rng = random.Random(seed)
        eventually_in_thread(lambda: self._connection.n_workers == N_WORKERS, PATIENCE)
        after, victim = rng.uniform(0, self._seconds), rng.randrange(N_WORKERS)
        before, begun = self._connection.n_losses, time.monotonic()
        killer = threading.Timer(after, lambda: self._cluster.kill_one(victim))
        killer.start()
        outcome = self._train(self._connection.open_engine)
        killer.join()
        n_void = sum(report.loss is None for report in outcome.reports)
        assert n_void == 0, f"{n_void} rounds were void"
        assert np.array_equal(outcome.coef, self._expected), "the model is another"
        n_losses = self._connection.n_losses - before
        return f"killed after {after:.1f} of {time.monotonic() - begun:.1f} s, {n_losses} tasks sent again"

    def close(self) -> None:
        """Close the connection, and check that nothing is left on the cluster."""
        self._connection.close()
        eventually_in_thread(lambda: self._cluster.n_keys == 0)

    def _train(self, open_engine: OpenEngine) -> Outcome:
        engines = [open_engine(), open_engine()]
        machines = make_machines(JOB, self._tables, self._key, Workshop(open_engine=iter(engines).__next__))
        try:
            return run_machines(machines)
        finally:
            for engine in engines:
                engine.close()


def main(n_trials: int, first_seed: int) -> int:
    """Run trials, each seeded by its number; return how many failed."""
    n_wrong, begun = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, trial_cluster(N_WORKERS, write_development_files(Path(folder))) as it:
        trials = Trials(it)
        for seed in range(first_seed, first_seed + n_trials):
            try:
                print(f"trial {seed}: {trials.run(seed)}", flush=True)
            except Exception as error:
                n_wrong += 1
                print(f"trial {seed}: FAILED: {type(error).__name__}: {error}", flush=True)
        trials.close()
    print(f"\n{n_trials} trials in {time.monotonic() - begun:.0f} s")
    print(f"trainings with the right model and no void round: {n_trials - n_wrong} of {n_trials}")
    return n_wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int)
    parser.add_argument("first_seed", type=int, nargs="?", default=1)
    arguments = parser.parse_args()
    sys.exit(main(arguments.trials, arguments.first_seed) > 0)
