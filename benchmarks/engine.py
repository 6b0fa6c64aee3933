"""Compare the workers of a cluster with one thread of this process, on the encrypted products of a table.

python benchmarks/engine.py [--rows N] [--columns N] [--repeats N] [--json]

Each way computes the same products of one encrypted vector with all columns, in the tasks in which a party's state
machine submits them. The ways take turns. All results must be the same.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.compute.dask import DaskCluster
from trilateral.common.compute.engine import Engine, Task
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.engine import EngineConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.cipher import PartyCipher
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.inner_products import GROUP
from trilateral.common.protocol.paillier_tasks import multiplied
from trilateral.common.protocol.scales import RoundScale, round_scale
from trilateral.common.trial.cluster import trial_cluster
from trilateral.common.trial.development import write_development_files

JOB = JobConfig(name="engine", dataset="made")
PATIENCE = 60.0


class Work:
    """One encrypted vector, and the columns to multiply it with.

    Args:
        n_rows: rows of the table.
        n_columns: its columns.
    """

    def __init__(self, n_rows: int, n_columns: int) -> None:
        rng = np.random.default_rng(0)
        self._key: PrivateKey = generate_private_key(JOB.key_bits)
        self._cipher: PartyCipher = make_cipher(JOB.cipher, self._key.public_key)
        self._scale: RoundScale = round_scale(JOB, n_rows, n_rows)
        rows = GROUP * PIECE * self._scale.layout.slots
        self._columns: list[FloatMatrix] = [
            rng.uniform(-1, 1, (min(rows, n_rows - first), n_columns)) for first in range(0, n_rows, rows)
        ]
        plaintexts = self._scale.layout.pack(rng.integers(-1000, 1000, len(self._columns[0])))
        self._vector: Ciphertexts = self._cipher.encrypt(plaintexts)

    def run(self, engine: Engine) -> tuple[float, list[int]]:
        """Compute all products; return the seconds, and the sums in clear."""
        placed = [
            engine.place(number, partial(self._columns.__getitem__, number)) for number in range(len(self._columns))
        ]
        for _ in range(1 + engine.n_slots):  # Each worker makes its own cipher when it first needs it.
            engine.submit(multiplied, self._cipher, self._scale, self._vector[:1], self._columns[0][:1], None).result()
        begun, done, under_way = time.perf_counter(), [], list[Task[Ciphertexts]]()
        for number, each in enumerate(placed):
            n_groups = self._scale.layout.n_groups(len(self._columns[number]))
            vector = self._vector[:n_groups]
            under_way.append(engine.submit(multiplied, self._cipher, self._scale, vector, each, None))
            while len(under_way) > 2 * engine.n_slots + 1:
                done.append(under_way.pop(0).result())
        done += [task.result() for task in under_way]
        seconds = time.perf_counter() - begun
        for each in placed:
            engine.release(each)
        sums = [number for part in done for number in self._key.decrypt_all(part)]
        return seconds, [int(number) for number in sums]


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    work = Work(arguments.rows, arguments.columns)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = write_development_files(Path(folder))
        engines: dict[str, Engine] = {"local": LocalEngine()}
        for n_workers in (1, 2):
            cluster = stack.enter_context(trial_cluster(n_workers, files))
            connection = DaskCluster(EngineConfig(**cluster.settings), PATIENCE)
            stack.callback(connection.close)
            engines[f"workers_{n_workers}"] = connection.open_engine()
        expected: list[int] | None = None
        for _ in range(arguments.repeats):
            for name, engine in engines.items():
                took, sums = work.run(engine)
                expected = expected or sums
                if sums != expected:
                    raise RuntimeError(f"{name} gives other sums")
                seconds.setdefault(name, []).append(took)
    medians = {name: median(each) for name, each in seconds.items()}
    report: dict[str, Any] = {
        "seconds": medians,
        "one_worker_against_local": medians["workers_1"] / medians["local"],
        "efficiency_of_two_workers": medians["workers_1"] / (2 * medians["workers_2"]),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    for name, value in medians.items():
        print(f"{name:10} {value:8.2f} s")
    print(f"one worker takes {report['one_worker_against_local']:.2f} times as long as one thread of this process")
    print(f"two workers are {report['efficiency_of_two_workers']:.0%} efficient")


if __name__ == "__main__":
    main()
