"""Tasks on a cluster give the same results as in this process, whatever happens to the workers."""

import asyncio
import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.waiting import eventually_in_thread
from trilateral.common.base.errors import ConfigError, OutOfRangeError, SuspendedError
from trilateral.common.base.roles import Role
from trilateral.common.checks.engine import check_engine, judge
from trilateral.common.checks.finding import Level
from trilateral.common.compute import dask
from trilateral.common.compute.calls import TaskError
from trilateral.common.compute.dask import DaskCluster, DaskEngine, Worker
from trilateral.common.compute.worker import WorkerFacts, describe
from trilateral.common.config.engine import EngineConfig
from trilateral.common.config.process import ProcessConfig, TlsConfig
from trilateral.common.trial.cluster import TrialCluster, trial_cluster
from trilateral.common.trial.development import DevelopmentFiles, write_development_files

SECRET = 271828
PATIENCE = 60.0

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
"""If a worker dies while a connection to it is set up, CPython leaves the socket open: it has detached the socket from
the one that it was given, and finds no peer (`ssl.SSLSocket._create`). Dask drops the error, and tries again."""

Vector = NDArray[np.int64]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentFiles:
    return write_development_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(files: DevelopmentFiles) -> Iterator[TrialCluster]:
    with trial_cluster(2, files) as cluster:
        yield cluster
    gc.collect()  # What Dask dropped is then found here, and not in a test of another module.


@pytest.fixture(scope="module")
def connection(cluster: TrialCluster) -> Iterator[DaskCluster]:
    connection = connected(cluster)
    yield connection
    connection.close()


@pytest.fixture
def engine(connection: DaskCluster) -> Iterator[DaskEngine]:
    engine = connection.open_engine()
    yield engine
    engine.close()


def connected(cluster: TrialCluster, patience: float = PATIENCE) -> DaskCluster:
    return DaskCluster(EngineConfig(**cluster.settings), patience)


def total(values: Vector, factor: int, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return factor * int(values.sum())


def process_id(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def out_of_range(values: Vector) -> None:
    raise OutOfRangeError("a value is out of range")


def bug(values: Vector) -> None:
    raise ValueError(f"cannot use {values}")


def unsendable(values: Vector) -> object:
    return [iter(values.tolist()), (value for value in values)]


class Source:
    """Counts how often its data is loaded."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.n_loads = 0

    def load(self) -> Vector:
        self.n_loads += 1
        return np.full(1000, self._number)


# --- results


def test_placed_data_moves_to_a_worker_once(engine: DaskEngine) -> None:
    sources = [Source(number) for number in range(3)]
    placed = [engine.place(number, source.load) for number, source in enumerate(sources)]
    tasks = [engine.submit(total, each, factor) for each in placed for factor in (1, 2)]
    assert [task.result() for task in tasks] == [0, 0, 1000, 2000, 2000, 4000]
    assert all(task.done() and task.wait(0) for task in tasks)
    assert [source.n_loads for source in sources] == [1, 1, 1]
    assert engine.n_slots == 2


def test_an_error_of_the_project_arrives_as_it_was_raised(engine: DaskEngine) -> None:
    task = engine.submit(out_of_range, np.zeros(1), urgent=True)
    with pytest.raises(OutOfRangeError, match="^a value is out of range$"):
        task.result()


def test_another_error_arrives_as_its_place_alone_and_no_log_has_a_value(
    engine: DaskEngine, cluster: TrialCluster, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.full(5, SECRET)
    with caplog.at_level(logging.DEBUG):
        for argument in (values, engine.place(0, lambda: values)):
            with pytest.raises(TaskError, match="ValueError") as raised:
                engine.submit(bug, argument).result()
            assert str(SECRET) not in str(raised.value)
        with pytest.raises(TypeError, match="serialize object of type Sealed") as unsent:
            engine.submit(unsendable, values).result()
        assert str(SECRET) not in str(unsent.value)
    assert str(SECRET) not in cluster.logs() + caplog.text


def test_data_that_cannot_be_loaded_fails_the_task(engine: DaskEngine) -> None:
    def load() -> Vector:
        raise OutOfRangeError("no such rows")

    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="no such rows"):
            engine.submit(total, engine.place(0, load), 1).result()


# --- the end


def test_nothing_is_left_on_the_cluster_after_the_session(connection: DaskCluster, cluster: TrialCluster) -> None:
    engine = connection.open_engine()
    placed = [engine.place(number, Source(number).load) for number in range(4)]
    assert engine.submit(total, placed[0], 1).result() == 0
    tasks = [engine.submit(total, each, 1, 1.0) for each in placed]
    engine.release(placed[0])
    tasks[0].cancel()
    engine.close()
    engine.close()
    for task in tasks:
        with pytest.raises(SuspendedError):
            task.result()
    with pytest.raises(SuspendedError, match="closed"):
        engine.submit(total, np.ones(1), 1).result()
    eventually_in_thread(lambda: cluster.n_keys == 0)
    assert connection.n_tasks == 0


def test_a_closed_connection_ends_every_task_that_is_waited_for(cluster: TrialCluster) -> None:
    connection = connected(cluster)
    task = connection.open_engine().submit(total, np.ones(1), 1, 5.0)
    assert not task.wait(0.3)
    connection.close()
    connection.close()
    with pytest.raises(SuspendedError):
        task.result()
    eventually_in_thread(lambda: cluster.n_keys == 0)


def test_data_may_be_released_after_the_connection_was_closed(cluster: TrialCluster) -> None:
    connection = connected(cluster)
    engine = connection.open_engine()
    placed = engine.place(0, Source(0).load)
    connection.close()
    engine.release(placed)
    engine.close()


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("    Error during deserialization of the task graph. This frequently\n    occurs if", False),
        ("Importing 'trilateral' is not allowed, please add it", False),
        ("Worker is shutting down", True),
    ],
)
def test_a_task_that_cannot_be_unpacked_fails_at_once_and_counts_no_lost_worker(
    text: str, is_lost: bool, engine: DaskEngine, connection: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    scatter, n_before, n_calls = dask._scatter, connection.n_losses, 0

    async def fail(*args: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise RuntimeError(text)
        return await scatter(*args)

    monkeypatch.setattr(dask, "_scatter", fail)
    task = engine.submit(total, np.ones(3), 1)
    if is_lost:
        assert task.result() == 3
    else:
        with pytest.raises((ConfigError, SuspendedError), match=r"engine\.scheduler: .* cannot unpack a task: install"):
            task.result()
    assert connection.n_losses - n_before == is_lost


# --- who may take part


def test_the_connection_describes_each_worker(connection: DaskCluster) -> None:
    workers = connection.inspect()
    assert len(workers) == connection.n_workers == 2
    assert all(address.startswith("tls://127.0.0.1:") for address in workers)
    assert not any(isinstance(facts, str) or facts.may_spill for facts in workers.values())


def process_config(tmp_path: Path, settings: dict[str, Any]) -> ProcessConfig:
    return ProcessConfig(
        role=Role.HOST,
        plaintext=True,
        listen="127.0.0.1:50051",
        peers={Role.GUEST: "127.0.0.1:50052", Role.COORDINATOR: "127.0.0.1:50050"},
        state=tmp_path,
        engine=EngineConfig(**settings),
    )


def test_the_check_finds_the_workers_and_what_they_are_like(cluster: TrialCluster, tmp_path: Path) -> None:
    (finding,) = check_engine(process_config(tmp_path, cluster.settings))
    assert finding.level is Level.OK
    assert "2 workers with this release, and runs 2 tasks at a time" in finding.text


def test_the_check_names_a_key_that_others_can_read(cluster: TrialCluster, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(Path(cluster.settings["key"]).read_bytes())
    key.chmod(0o644)
    (finding,) = check_engine(process_config(tmp_path, cluster.settings | {"key": str(key)}))
    assert finding.level is Level.PROBLEM
    assert finding.text.startswith(f"engine.key: {key} can be read by users other than its owner")


def test_an_authority_of_the_peers_is_refused(files: DevelopmentFiles, tmp_path: Path) -> None:
    settings = files.settings(Role.HOST)
    engine = EngineConfig(kind="dask", scheduler="tls://127.0.0.1:1", **settings)
    config = process_config(tmp_path, {}).model_copy(update={"tls": TlsConfig(**settings), "engine": engine})
    (finding,) = check_engine(config)
    assert finding.level is Level.PROBLEM
    assert "has an authority that `tls.authorities` has as well" in finding.text


def test_a_refused_worker_gets_no_task_even_if_it_is_idle(
    cluster: TrialCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet, refused = DaskCluster._judge, min(cluster.workers)

    def refuse_one(self: DaskCluster, worker: Worker, answer: object) -> None:
        facts = replace(describe(), version="0.0.1") if worker.address == refused else answer
        meet(self, worker, facts)

    monkeypatch.setattr(DaskCluster, "_judge", refuse_one)
    connection = connected(cluster)
    assert "0.0.1" in str(connection.inspect()[refused])
    engine = connection.open_engine()
    placed = [engine.place(number, lambda: 0.2) for number in range(4)]
    tasks = [engine.submit(process_id, argument) for argument in (*placed, *[0.2] * 8)]
    assert {task.result() for task in tasks} == {cluster.workers[each] for each in cluster.workers if each != refused}
    connection.close()


def test_workers_that_differ_are_reported() -> None:
    here = describe()
    other = replace(here, arithmetic="gmpy2", shares_level=0, may_spill=True)
    workers: dict[str, WorkerFacts | str] = {
        "tls://a:1": here,
        "tls://b:1": other,
        "tls://c:1": "the worker at tls://c:1 has trilateral 0.0.1",
    }
    found = list(judge("tls://s:1", workers, 2))
    assert [finding.level for finding in found] == [Level.PROBLEM, Level.OK, Level.WARNING, Level.WARNING]
    (none,) = judge("tls://s:1", {}, 0)
    assert none.text == "tls://s:1 has no worker: start one with `dask worker`"


def test_the_local_engine_needs_no_check(tmp_path: Path) -> None:
    assert list(check_engine(process_config(tmp_path, {}))) == []


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
def test_a_process_without_a_certificate_of_the_clusters_authority_is_refused(
    cluster: TrialCluster, tmp_path: Path, scheme: str
) -> None:
    settings = cluster.settings
    if scheme == "tls":
        other = write_development_files(tmp_path / "other")
        stranger = other.folder / "guest"
        settings |= {"certificate": str(stranger / "certificate.pem"), "key": str(stranger / "key.pem")}
    else:
        settings = {"kind": "dask", "scheduler": settings["scheduler"].replace("tls:", "tcp:")}
    connection = DaskCluster(EngineConfig(**settings), 1)
    with pytest.raises(ConfigError, match=r"^engine.scheduler: \S+ cannot be used: [^<]*: check that the"):
        connection.inspect()
    with pytest.raises(ConfigError, match=r"^engine.scheduler: .* cannot be used"):
        connection.open_engine().submit(total, np.ones(1), 1).result()
    connection.close()


def test_a_cluster_that_has_gone_ends_the_tasks_and_they_do_not_hang(files: DevelopmentFiles) -> None:
    with trial_cluster(1, files) as cluster:
        connection = connected(cluster, 1)
        engine = connection.open_engine()
        assert engine.submit(total, np.ones(1), 1).result() == 1
        task = engine.submit(total, np.ones(1), 1, 10.0)
        assert not task.wait(0.3)
    with pytest.raises(SuspendedError, match="engine.scheduler"):
        task.result()
    with pytest.raises(SuspendedError, match="engine.scheduler"):  # The session has had a cluster.
        engine.submit(total, np.ones(1), 1).result()
    with pytest.raises((SuspendedError, ConfigError), match="engine.scheduler"):
        connection.open_engine().submit(total, np.ones(1), 1).result()
    connection.close()


def test_a_scheduler_that_accepts_connections_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scheduler = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        connection = DaskCluster(EngineConfig(kind="dask", scheduler=scheduler), 0.3)
        with pytest.raises(
            ConfigError, match=rf"^engine.scheduler: {scheduler} cannot be used: it does not answer: check that"
        ):
            connection.inspect()
        connection.close()


def test_a_scheduler_that_stands_still_ends_the_tasks_until_it_goes_on(
    cluster: TrialCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connected(cluster, 2.0)
    engine = connection.open_engine()
    assert engine.submit(total, np.ones(1), 1).result() == 1
    look, goes_on = DaskCluster._look, threading.Event()

    async def stand_still(self: DaskCluster, client: Any) -> None:
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        await look(self, client)

    monkeypatch.setattr(DaskCluster, "_look", stand_still)
    with pytest.raises(SuspendedError, match=r"^engine.scheduler: \S+ cannot be used: it does not answer"):
        engine.submit(total, np.ones(1), 1, 60.0).result()
    with pytest.raises(SuspendedError, match=r"^engine.scheduler: \S+ cannot be used: it does not answer"):
        engine.submit(total, np.ones(1), 1).result()
    goes_on.set()
    for pid in cluster.pids:  # One of them still sleeps.
        cluster.kill(pid)
    assert engine.submit(total, np.ones(1), 2).result() == 2
    connection.close()


def test_a_scheduler_that_ends_while_the_connection_is_made_is_tried_again(
    cluster: TrialCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, n_looks = DaskCluster._look, 0

    async def lose_the_first(self: DaskCluster, client: Any) -> None:
        nonlocal n_looks
        n_looks += 1
        if n_looks == 1:
            raise OSError("in <a connection>: closed")
        await look(self, client)

    monkeypatch.setattr(DaskCluster, "_look", lose_the_first)
    connection = connected(cluster)
    assert connection.open_engine().submit(total, np.ones(1), 1).result() == 1
    connection.close()


# --- a worker dies


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_a_killed_worker_changes_no_result(
    engine: DaskEngine, cluster: TrialCluster, connection: DaskCluster, after: float
) -> None:
    eventually_in_thread(lambda: engine.n_slots == 2)
    sources = [Source(number) for number in range(6)]
    placed = [engine.place(number, source.load) for number, source in enumerate(sources)]
    assert [engine.submit(total, each, 1).result() for each in placed] == [1000 * number for number in range(6)]
    before = connection.n_losses
    tasks = [engine.submit(total, each, factor, 0.1) for factor in range(3) for each in placed]
    time.sleep(after)
    cluster.kill(cluster.pids[0])
    assert [task.result() for task in tasks] == [1000 * number * factor for factor in range(3) for number in range(6)]
    assert connection.n_losses > before
    assert sum(source.n_loads for source in sources) > 6


def test_a_worker_that_stands_still_changes_no_result(engine: DaskEngine, cluster: TrialCluster) -> None:
    eventually_in_thread(lambda: engine.n_slots == 2)
    placed = [engine.place(number, Source(number).load) for number in range(4)]
    assert [engine.submit(total, each, 1).result() for each in placed] == [0, 1000, 2000, 3000]
    pid = cluster.pids[0]
    tasks = [engine.submit(total, each, 2, 0.1) for each in placed]
    cluster.freeze(pid)
    try:
        assert [task.result() for task in tasks] == [0, 2000, 4000, 6000]
    finally:
        cluster.kill(pid)
