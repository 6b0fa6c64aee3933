"""Compare the workers of a cluster with one thread of this process, on rounds of a party under `paillier`.

python benchmarks/engine.py [--rows N] [--columns N] [--rounds N] [--party host|guest] [--json]

The party's own arithmetic computes whole rounds. It gets recorded pieces in place of those of the other party, each as
soon as the protocol allows. The ways take turns, and the sums of all rounds must agree. In the first round, workers get
the columns; the median of three rounds or more leaves it out. The scheduler has a process of its own.

On a machine that is busy with other things, compare the processor time: that of this process, of the scheduler and of
the workers together, against that of this process alone.
"""

import argparse
import json
import logging
import multiprocessing
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trilateral.common.base.roles import Role
from trilateral.common.compute.dask import DaskCluster
from trilateral.common.compute.engine import Engine
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.engine import EngineConfig
from trilateral.common.config.job import JobConfig, Lbfgs
from trilateral.common.paillier.ciphertexts import Ciphertexts, joined
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.protocol.arithmetic import PaillierArithmetic, PaillierSession
from trilateral.common.protocol.batches import WHOLE_SET
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.bounds import PIECE, window_pieces
from trilateral.common.protocol.intake import Expected
from trilateral.common.protocol.messages import BeginRound, Envelope, Kind, RoundKey, VectorPiece
from trilateral.common.protocol.phases import no_phase
from trilateral.common.protocol.scales import round_scale
from trilateral.common.trial.cluster import trial_cluster
from trilateral.common.trial.development import DevelopmentFiles, write_development_files
from trilateral.guest_party.arithmetic import GuestArithmetic
from trilateral.host_party.arithmetic import HostArithmetic

JOB = JobConfig(name="engine", dataset="made", algorithm=Lbfgs(), holdout=0.0, aligned=True)
PATIENCE = 60.0
N_RECORDED = 16
"""Different pieces of the other party. They come again and again."""


@dataclass(frozen=True)
class Cost:
    """What a round took, in seconds. The last three are processor time."""

    wall: float
    party: float
    scheduler: float
    workers: float

    @property
    def processor(self) -> float:
        """Processor time of all processes."""
        return self.party + self.scheduler + self.workers


class Work:
    """A party's table and key, and the recorded pieces of the other party.

    Args:
        role: the party.
        n_rows: rows of the table.
        n_columns: its columns.
    """

    def __init__(self, role: Role, n_rows: int, n_columns: int) -> None:
        rng = np.random.default_rng(0)
        labels = rng.choice([-1.0, 1.0], n_rows) if role is Role.GUEST else None
        columns = rng.uniform(-1, 1, (n_rows, n_columns))
        self._block = TrainingBlock(columns, columns[:0], labels, None, np.eye(n_columns))
        self._start = rng.normal(scale=0.1, size=n_columns)
        self._role = role
        self._key: PrivateKey = generate_private_key(JOB.key_bits)
        self._scale = round_scale(JOB, n_rows, n_rows)
        self._total = self._scale.layout.n_groups(n_rows)
        cipher = make_cipher(JOB.cipher, self._key.public_key)
        values = rng.integers(-1000, 1000, N_RECORDED * self._scale.piece_samples)
        recorded = cipher.encrypt(self._scale.layout.pack(values))
        self._recorded = [recorded[first : first + PIECE] for first in range(0, len(recorded), PIECE)]
        self._squares = cipher.encrypt(self._scale.layout.pack(values[:1]))

    def party(self, engine: Engine) -> "Party":
        """Make the arithmetic of the party on an engine."""
        session = PaillierSession(make_cipher(JOB.cipher, self._key.public_key), self._start, engine)
        make = GuestArithmetic if self._role is Role.GUEST else HostArithmetic
        return Party(make(JOB, self._block, session, no_phase), self)

    def asked(self, number: int) -> BeginRound:
        """Return the request for a round. All rounds are at the start, so that their sums agree."""
        return BeginRound(RoundKey(number, 1), np.zeros_like(self._start), WHOLE_SET, gradient=True)

    def pieces(self, key: RoundKey) -> Iterator[VectorPiece]:
        """Return what the other party sends in a round."""
        kind = Kind.SCORES if self._role is Role.GUEST else Kind.RESIDUAL
        if self._role is Role.GUEST:
            yield VectorPiece(key, Kind.SQUARES, 0, 1, self._squares)
        for number, offset in enumerate(range(0, self._total, PIECE)):
            ciphertexts = self._recorded[number % N_RECORDED][: self._total - offset]
            yield VectorPiece(key, kind, offset, self._total, ciphertexts)

    def read(self, sums: Ciphertexts) -> list[int]:
        """Decrypt what the party has sent to the coordinator. Masks may change each number by one."""
        return [self._scale.layout.read(plaintext) for plaintext in self._key.decrypt_all(sums)]


class Party:
    """A party's arithmetic with recorded pieces of the other party.

    Args:
        arithmetic: the arithmetic.
        work: what it works on.
    """

    def __init__(self, arithmetic: PaillierArithmetic, work: Work) -> None:
        self._arithmetic = arithmetic
        self._work = work
        self._is_host = isinstance(arithmetic, HostArithmetic)

    def round(self, number: int) -> list[int]:
        """Compute a round, and return its sums in clear."""
        asked = self._work.asked(number)
        coming, sums = self._work.pieces(asked.key), dict[Kind, Ciphertexts]()
        expected, inbox = dict[Kind, Expected[VectorPiece]](), deque[VectorPiece]()

        def post(item: Envelope | Expected[VectorPiece]) -> None:
            match item:
                case Expected():
                    expected[item.kind] = item
                case Envelope(to=Role.COORDINATOR, message=VectorPiece() as piece):
                    sums[piece.kind] = piece.ciphertexts
                case Envelope(message=VectorPiece(kind=Kind.SCORES | Kind.RESIDUAL)):
                    inbox.extend(filter(None, [next(coming, None)]))  # It answers, or has room for a further one.

        for item in self._arithmetic.begin(asked):
            post(item)
        if not self._is_host:
            inbox.extend(islice(coming, 1 + window_pieces(JOB)))
        while inbox or self._arithmetic.tasks:
            if inbox:
                piece = inbox.popleft()
                is_last = piece.offset + len(piece.ciphertexts) == piece.total
                follows = expected[piece.kind].use(piece, is_last)
            else:
                follows = self._arithmetic.tasks.wait_a_moment()
            for envelope in follows:
                post(envelope)
        return self._work.read(joined([sums[kind] for kind in sorted(sums)]))


class ClusterProcess:
    """A cluster whose scheduler has a process of its own."""

    def __init__(self, settings: dict[str, Any], scheduler: int, workers: list[int]) -> None:
        self.settings = settings
        self._scheduler = scheduler
        self._workers = workers

    def seconds(self) -> tuple[float, float]:
        """Return the processor time of the scheduler, and that of all workers."""
        return _processor(self._scheduler), sum(map(_processor, self._workers))


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(n_workers: int, files: DevelopmentFiles, pipe: "Connection[Any, Any]") -> None:
    # The workers are new processes, which read these. The second stands in configs/cluster/dask.yaml, too.
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "error"
    os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with trial_cluster(n_workers, files) as cluster:
        pipe.send((cluster.settings, cluster.pids))
        pipe.recv()


@contextmanager
def cluster_process(n_workers: int, files: DevelopmentFiles) -> Iterator[ClusterProcess]:
    """Run a cluster within the block."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(n_workers, files, there))
    process.start()
    settings, workers = here.recv()
    assert process.pid is not None
    try:
        yield ClusterProcess(settings, process.pid, workers)
    finally:
        here.send(None)
        process.join()


class Way:
    """One way to compute: here, or on a cluster.

    Args:
        party: computes.
        cluster: where; None for this process.
    """

    def __init__(self, party: Party, cluster: ClusterProcess | None) -> None:
        self._party = party
        self._cluster = cluster
        self.costs: list[Cost] = []

    def round(self, number: int) -> list[int]:
        """Compute a round, and note its cost; return the sums."""
        wall, own, (scheduler, workers) = time.perf_counter(), time.process_time(), self._seconds()
        sums = self._party.round(number)
        wall, own = time.perf_counter() - wall, time.process_time() - own
        scheduler_end, workers_end = self._seconds()
        self.costs.append(Cost(wall, own, scheduler_end - scheduler, workers_end - workers))
        return sums

    def _seconds(self) -> tuple[float, float]:
        return (0.0, 0.0) if self._cluster is None else self._cluster.seconds()

    @property
    def median(self) -> Cost:
        """The median of each cost."""
        names = Cost.__dataclass_fields__
        return Cost(**{name: median(getattr(cost, name) for cost in self.costs) for name in names})


def measure(work: Work, n_rounds: int, clusters: dict[str, ClusterProcess]) -> dict[str, Way]:
    """Compute rounds of one party in all ways, which take turns."""
    with ExitStack() as stack:
        ways = {"local": Way(work.party(LocalEngine()), None)}
        for name, cluster in clusters.items():
            connection = DaskCluster(EngineConfig(**cluster.settings), PATIENCE)
            stack.callback(connection.close)
            connection.inspect()  # It waits for the workers.
            ways[name] = Way(work.party(connection.open_engine()), cluster)
        expected: list[int] | None = None
        for number in range(1, n_rounds + 1):
            for name, way in ways.items():
                sums = way.round(number)
                expected = expected or sums
                if len(sums) != len(expected) or np.abs(np.subtract(sums, expected)).max() > 2:
                    raise RuntimeError(f"{name} gives other sums")
        return ways


def report_of(ways: dict[str, Way]) -> dict[str, Any]:
    """Return the figures of a party."""
    local, one, two = (ways[name].median for name in ("local", "workers_1", "workers_2"))
    return {
        "costs": {name: vars(way.median) for name, way in ways.items()},
        "one_worker_against_local": one.wall / local.wall,
        "efficiency_of_two_workers": one.wall / (2 * two.wall),
        "processor_one_worker_against_local": one.processor / local.processor,
        "processor_two_workers_against_local": two.processor / local.processor,
    }


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--party", type=Role, choices=[Role.HOST, Role.GUEST], help="one party alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    reports: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = write_development_files(Path(folder))
        clusters = {f"workers_{n}": stack.enter_context(cluster_process(n, files)) for n in (1, 2)}
        for role in [arguments.party] if arguments.party else [Role.HOST, Role.GUEST]:
            work = Work(role, arguments.rows, arguments.columns)
            reports[role] = report_of(measure(work, arguments.rounds, clusters))
    if arguments.json:
        print(json.dumps(reports))
        return
    for role, report in reports.items():
        print(f"{role:10}      wall  processor: party  scheduler  workers      all")
        for name, cost in report["costs"].items():
            processor = cost["party"] + cost["scheduler"] + cost["workers"]
            print(
                f"{name:10} {cost['wall']:7.2f} s {cost['party']:14.2f} s {cost['scheduler']:8.2f} s"
                f" {cost['workers']:6.2f} s {processor:6.2f} s"
            )
        print(
            f"one worker takes {report['one_worker_against_local']:.3f} times as long as one thread of this process,"
            f" and {report['processor_one_worker_against_local']:.3f} times the processor time"
        )
        print(
            f"two workers are {report['efficiency_of_two_workers']:.0%} efficient; all processes take"
            f" {report['processor_two_workers_against_local']:.3f} times the processor time"
        )


if __name__ == "__main__":
    main()
