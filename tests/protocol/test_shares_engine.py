"""Trainings on shares give the same numbers, to the last bit, wherever tables lie and tasks run."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tests.attacks.test_shares_views import JOBS, WEIGHTED, WHOLE, LostSums, tables_of
from tests.support.late_engine import LateEngine
from tests.support.share_views import Randomness, Transcript, run_session
from tests.support.shares_rounds import cut_small
from tests.support.three_machines import REAL, Workshop, make_machines, run_machines
from trilateral.common.base.roles import PARTIES
from trilateral.common.compute.engine import Placed, Task
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.messages import ElementPiece
from trilateral.common.protocol.shares import arithmetic
from trilateral.common.protocol.shares import tables as tables_module
from trilateral.common.scratch.space import ScratchSpace

T = TypeVar("T")


class TravellingEngine(LateEngine):
    """Runs each task on copies of its arguments, late and twice, as if a worker had died."""

    def __init__(self) -> None:
        super().__init__(n_slots=1)
        self.n_loaded = 0

    def place(self, number: int, load: Callable[[], T], *, keep: bool = True) -> Placed[T]:
        def travel() -> T:
            self.n_loaded += 1
            return travelled(load())

        return super().place(number, travel, keep=keep)

    def submit(self, function: Callable[..., T], *args: object, urgent: bool = False) -> Task[T]:
        copies = [arg if isinstance(arg, Placed) else travelled(arg) for arg in args]
        super().submit(travelled(function), *copies, urgent=urgent).result()
        return super().submit(travelled(function), *copies, urgent=urgent)


def travelled(thing: T) -> T:
    """A copy whose arrays cannot be written to and begin anywhere, as in a message."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    moved = [memoryview(b"x" + each.raw().tobytes())[1:] for each in buffers]
    copy: T = pickle.loads(pickled, buffers=moved)
    return copy


def pieces(transcript: Transcript) -> dict[tuple[object, ...], tuple[bytes, bytes]]:
    """All elements that travelled, by what they are."""
    return {
        (sender, to, message.key, message.kind, message.offset): (message.elements.tobytes(), message.digest)
        for sender, to, message in transcript.outcome.traffic
        if isinstance(message, ElementPiece)
    }


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, window=6)


@JOBS
@WEIGHTED
@pytest.mark.parametrize("make_engine", [LateEngine, TravellingEngine])
def test_an_engine_changes_no_bit(
    job: JobConfig, weighted: bool, make_engine: Callable[[], LateEngine], private_key: PrivateKey
) -> None:
    tables = tables_of(job, weighted=weighted, seed=1)
    engines = [make_engine(), make_engine()]
    away = replace(REAL, open_engine=iter(engines).__next__)

    here, there = (run_session(job, tables, private_key, Randomness(3), LostSums, each) for each in (REAL, away))

    assert pieces(here) == pieces(there)
    for party in PARTIES:
        assert np.array_equal(here.outcome.results[party].coef, there.outcome.results[party].coef)
    assert all(engine.n_run for engine in engines)


def test_a_worker_gets_the_tables_of_a_partition_once(private_key: PrivateKey) -> None:
    engines = [TravellingEngine(), TravellingEngine()]
    tables = replace(tables_of(WHOLE, weighted=False, seed=1), start=None)

    outcome = run_machines(make_machines(WHOLE, tables, private_key, Workshop(open_engine=iter(engines).__next__)))

    assert len(outcome.reports) > 2
    n_rows = len(tables.host.block.columns) + len(tables.host.block.holdout_columns)
    assert {engine.n_loaded for engine in engines} <= set(range(1, n_rows // 32 + 2))


@JOBS
@WEIGHTED
@pytest.mark.parametrize("encrypt", [False, True])
def test_tables_on_disk_change_no_bit(
    job: JobConfig,
    weighted: bool,
    encrypt: bool,
    private_key: PrivateKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables_module, "SHUFFLE_BYTES", 1000)
    tables = tables_of(job, weighted=weighted, seed=1)
    space = ScratchSpace(tmp_path, max_bytes=None, memory_bytes=0, encrypt=encrypt)

    with space.open() as scratch:
        files = replace(REAL, scratch=scratch)
        here, there = (run_session(job, tables, private_key, Randomness(3), workshop=each) for each in (REAL, files))
        assert scratch.peak_bytes > 0

    assert pieces(here) == pieces(there)


def test_tasks_on_few_columns_do_not_travel(private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "MIN_AWAY_COLUMNS", 7)  # The parties have 3 + 2 columns, and an intercept.
    engines = [LateEngine(), LateEngine()]
    tables = replace(tables_of(WHOLE, weighted=False, seed=1), start=None)
    run_machines(make_machines(WHOLE, tables, private_key, Workshop(open_engine=iter(engines).__next__)))
    assert [engine.n_submitted for engine in engines] == [0, 0]
