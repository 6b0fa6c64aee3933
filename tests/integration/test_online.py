"""Online scores over real servers: as those of a prediction, counted, and only for a permitted caller."""

import asyncio
import contextlib
import io
import json
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.special import expit
from typer.testing import CliRunner, Result

import trilateral.host_party.server as host_server
from tests.support.json_fields import documented_fields
from tests.support.new_rows import NEW, REASON_LABELS, host_reasons, plain_scores, with_new_rows, write_new_rows
from tests.support.three_servers import DATASET, LENIENT, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import eventually
from trilateral.cli.main import app
from trilateral.client.asynchronous import AsyncSession, Score
from trilateral.client.online import score_rows
from trilateral.common.base.errors import DataError, PeerError, PolicyError, ProtocolError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import MetricsConfig, OnlineConfig, Policy, ProcessConfig
from trilateral.common.data.alignment.labelled_list import LabelledList, Query, answer
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.model.scoring import score_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.quota import IdQuota, ScoreQuota
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process import http
from trilateral.common.rpc.certificates import load_certificates
from trilateral.common.rpc.channel import new_peer
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import AccessError
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.ports import free_address
from trilateral.guest_party.online_http import TOKEN
from trilateral.host_party.online import ListRequest, OnlineLists

JOB = JobConfig(name="scores", aligned=True, dataset=DATASET, protocol="shares", l2=0.01)
N_COMMON, N_ONLY = 60, 15
COMMON, AT_GUEST, AT_HOST = "new-00003", "only-guest-0002", "only-host-0004"


@dataclass
class World:
    """A host and a guest after a training, with tables of new rows."""

    folder: Path
    configs: dict[Role, ProcessConfig]
    rows: dict[Role, pd.DataFrame]
    lists: list[OnlineLists] = field(default_factory=list)

    def change(self, role: Role, **settings: Any) -> None:
        self.configs[role] = self.configs[role].model_copy(update=settings)

    def set_policy(self, **settings: Any) -> None:
        policy = Policy(**{"min_key_bits": 256, "allow_prediction": True} | LENIENT | settings)
        self.change(Role.HOST, policy=policy)
        for lists in self.lists:
            lists.config = self.configs[Role.HOST]

    @property
    def given(self) -> tuple[int, int]:
        """Scores and IDs that the host has counted today."""
        host = self.configs[Role.HOST]
        return ScoreQuota.of(host).today().given, IdQuota.of(host).today().given

    def audit(self, method: str) -> list[dict[str, Any]]:
        path = self.configs[Role.HOST].state / "audit.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line.get("method") == method and line["decision"] == "allowed"]

    def rewrite(self, role: Role, table: pd.DataFrame) -> None:
        self.rows[role] = table
        table.to_csv(self.folder / f"new-{role}.csv", index=False)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[AsyncSession]:
        async with serving({role: self.configs[role] for role in (Role.HOST, Role.GUEST)}):
            await eventually(self.is_ready)
            async with AsyncSession(self.configs[Role.GUEST]) as session:
                yield session

    def is_ready(self) -> bool:
        wanted = len(self.configs[Role.HOST].online.precompute)
        return len(self.lists[-1]._lists) + len(self.lists[-1]._refused) == wanted


def configs_in(folder: Path) -> dict[Role, ProcessConfig]:
    configs = make_configs(folder)
    for role, column in ((Role.HOST, "branch"), (Role.GUEST, "town")):
        table = configs[role].datasets[DATASET].model_copy(update={"categorical": [column]})
        configs[role] = configs[role].model_copy(update={"datasets": {DATASET: table}})
    return configs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    tables, rng = write_tables(folder), np.random.default_rng(3)
    for role, column in ((Role.HOST, "branch"), (Role.GUEST, "town")):
        texts = rng.choice(["north", "south", "7"], p=[0.5, 0.3, 0.2], size=len(tables[role]))
        tables[role].assign(**{column: texts}).to_csv(folder / f"{role}.csv", index=False)

    async def train() -> None:
        async with serving(configs_in(folder)) as client:
            assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED

    asyncio.run(train())
    for counter in folder.glob("state/*/.*-given.json"):
        counter.unlink()
    return folder


@pytest.fixture
def world(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    types = {"id": str, "branch": str, "town": str}
    tables = {role: pd.read_csv(tmp_path / f"{role}.csv", dtype=types) for role in (Role.HOST, Role.GUEST)}
    rows = write_new_rows(tmp_path, tables, n_common=N_COMMON, n_only=N_ONLY)
    configs = configs_in(tmp_path)
    world = World(tmp_path, {role: with_new_rows(configs[role], tmp_path) for role in rows}, rows)
    world.set_policy()
    online = {"precompute": [{"job": JOB.name, "dataset": NEW}]}
    world.change(Role.HOST, online=OnlineConfig.model_validate(online))

    class Kept(OnlineLists):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            world.lists.append(self)

    monkeypatch.setattr(host_server, "OnlineLists", Kept)
    monkeypatch.setattr("trilateral.host_party.online.LOOK_SECONDS", 0.05)
    return world


def expected(world: World) -> "pd.Series[float]":
    scores: pd.Series[float] = plain_scores(world.configs, JOB.name, world.rows)
    return scores


async def refused(session: AsyncSession, kind: type[TrilateralError], said: str, ids: list[str], **more: Any) -> None:
    with pytest.raises(kind, match=said):
        await session.score(JOB.name, NEW, ids, **more)


# --- what is right


async def test_scores_are_those_of_plain_numpy_on_the_joined_rows(world: World) -> None:
    scores = expected(world)
    async with world.serving() as session:
        got = await session.score(JOB.name, NEW, [*scores.index])
    np.testing.assert_allclose([row.score or np.nan for row in got], scores, rtol=0, atol=1e-9)
    calibration = load_model(JobFolder(world.configs[Role.GUEST].state, JOB.name).model).calibration
    assert calibration is not None
    assert calibration.method == "platt"
    probabilities = expit(calibration.a * scores + calibration.b)
    np.testing.assert_allclose([row.probability or np.nan for row in got], probabilities, atol=1e-9)
    assert world.given == (N_COMMON, N_COMMON)


async def test_an_id_that_a_party_lacks_is_named_as_such_and_the_host_counts_what_it_is_asked(world: World) -> None:
    async with world.serving() as session:
        got = await session.score(JOB.name, NEW, [AT_GUEST, f" {COMMON} ", AT_HOST, "nobody"])
    assert [row.lacking for row in got] == [Role.HOST, None, Role.GUEST, Role.GUEST]
    assert got[0] == Score(AT_GUEST, None, None, Role.HOST)
    assert got[1].score == pytest.approx(expected(world)[COMMON])
    assert world.given == (2, 2)
    (line,) = world.audit("AnswerPoints")
    assert (line["n_scores"], line["job"], line["dataset"], line["role"]) == (2, JOB.name, NEW, "guest")


async def test_features_may_come_with_the_request(world: World) -> None:
    """In the types of JSON: a number as text, and a category as a number, count as in a table."""
    table = world.rows[Role.GUEST].set_index("id")
    ids = [f"new-{number:05d}" for number in range(20)]
    features = [table.loc[one].to_dict() for one in ids]
    features[0] |= {"town": 7, "x3": str(features[0]["x3"])}
    table.loc[ids[0], "town"] = "7"
    world.rewrite(Role.GUEST, table.reset_index())
    scores = expected(world)
    async with world.serving() as session:
        world.rewrite(Role.GUEST, table.reset_index().assign(id="not these"))
        got = await session.score(JOB.name, NEW, ids, features=features)
        (new,) = await session.score(JOB.name, NEW, [AT_HOST], features=[features[3] | {"other": "ignored"}])
    np.testing.assert_allclose([row.score or np.nan for row in got], scores[ids], rtol=0, atol=1e-9)
    assert new.score is not None


def with_host_reasons(world: World, n_reasons: int) -> None:
    """Let the host prepare reasons."""
    host = world.configs[Role.HOST]
    labelled = host.datasets[NEW].model_copy(update={"reason_labels": REASON_LABELS})
    online = {"precompute": [{"job": JOB.name, "dataset": NEW, "reasons": n_reasons}]}
    datasets = host.datasets | {NEW: labelled}
    world.change(Role.HOST, datasets=datasets, online=OnlineConfig.model_validate(online))
    world.set_policy(max_reasons=n_reasons)


async def test_reasons_are_those_of_a_prediction_and_the_hosts_count_as_scores(world: World) -> None:
    with_host_reasons(world, 2)
    ids = [f"new-{number:05d}" for number in range(20)]
    named = host_reasons(world.configs[Role.HOST], JOB.name, world.rows[Role.HOST])
    features = world.rows[Role.GUEST].set_index("id").loc[ids].replace({np.nan: None}).to_dict("records")
    async with world.serving() as session:
        plain = await session.score(JOB.name, NEW, ids)
        few = await session.score(JOB.name, NEW, ids, reasons=1)
        got = await session.score(JOB.name, NEW, ids, reasons=3, host_reasons=2)
        given = await session.score(JOB.name, NEW, ids, features=features, reasons=3)
        (first,) = await session.score(JOB.name, NEW, ids[:1], host_reasons=1)
        await refused(session, DataError, "the host prepares 2 reasons of each row, and 3 are", ids, host_reasons=3)
        with pytest.raises(ValueError, match="host_reasons: expected 0 to 10, not 11"):
            await session.score(JOB.name, NEW, ids, host_reasons=11)
        predicted = await session.predict(JOB.name, NEW, reasons=3, host_reasons=2)
    assert world.given == (3 * (4 * 20 + 1) + 3 * N_COMMON, 4 * 20 + 1 + N_COMMON + N_ONLY)
    assert [row.host_reasons for row in got] == [tuple(named[one]) for one in ids]
    assert first.host_reasons == tuple(named[ids[0]][:1])
    assert {row.reasons + row.host_reasons for row in plain} == {()}
    assert [row.reasons for row in few] == [row.reasons[:1] for row in got]
    assert [row.reasons for row in given] == [row.reasons for row in got]
    table = predicted.scores.set_index("id").loc[ids]
    for column, each in (("reason", [row.reasons for row in got]), ("host_reason", [row.host_reasons for row in got])):
        rows = table[[name for name in table.columns if name.startswith(column)]].to_numpy()
        assert [tuple(name for name in row if isinstance(name, str)) for row in rows] == each
    assert len(Ledger(world.configs[Role.HOST].state, Role.HOST).entry(NEW).points) == 3


async def test_reasons_of_the_host_end_with_its_permission(world: World) -> None:
    with_host_reasons(world, 1)
    async with world.serving() as session:
        await session.score(JOB.name, NEW, [COMMON], host_reasons=1)
        world.set_policy(max_reasons=0)
        await refused(session, PolicyError, "policy.max_reasons: the maximum is 0", [COMMON])
    assert world.given == (2, 1)


async def test_reasons_that_the_host_adds_later_are_found_at_the_next_request_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []

    def take(data: bytes, n_reasons: int = 0) -> LabelledList:
        fetched.append(n_reasons)
        return LabelledList(data, n_reasons)

    monkeypatch.setattr("trilateral.guest_party.online.LabelledList", take)
    async with world.serving() as session:
        await session.score(JOB.name, NEW, [COMMON])
        for _ in range(2):
            await refused(session, DataError, "the host prepares 0 reasons", [COMMON], host_reasons=1)
        assert (fetched, world.given) == ([0], (1, 1))
        with_host_reasons(world, 1)
        await eventually(lambda: [each.reasons for each in world.lists[0]._lists] == [1])
        (row,) = await session.score(JOB.name, NEW, [COMMON], host_reasons=1)
    named = host_reasons(world.configs[Role.HOST], JOB.name, world.rows[Role.HOST])
    assert row.host_reasons == tuple(named[COMMON][:1])
    assert (fetched, world.given) == ([0, 1], (3, 2))


async def test_a_changed_table_changes_the_scores(world: World) -> None:
    async with world.serving() as session:
        (before,) = await session.score(JOB.name, NEW, [COMMON])
        first = world.lists[0]._lists.copy()
        for role in (Role.HOST, Role.GUEST):
            numbers = world.rows[role].select_dtypes("number").columns
            world.rewrite(role, world.rows[role].assign(**{name: -world.rows[role][name] for name in numbers}))
        await eventually(lambda: bool(world.lists[0]._lists) and world.lists[0]._lists != first)
        (after,) = await session.score(JOB.name, NEW, [COMMON])
    assert before.score != after.score
    assert after.score == pytest.approx(expected(world)[COMMON])
    assert first[next(iter(first))].key != world.lists[0]._lists[next(iter(first))].key
    assert len(world.audit("GetList")) == 2


async def test_the_same_model_is_one_point_however_often_its_list_leaves(world: World) -> None:
    host = world.configs[Role.HOST]
    for _ in range(2):
        async with world.serving() as session:
            await session.score(JOB.name, NEW, [COMMON])
    assert len(Ledger(host.state, Role.HOST).entry(NEW).points) == 1
    assert world.given == (2, 2)


async def test_no_score_or_id_or_key_is_in_a_file(world: World) -> None:
    async with world.serving() as session:
        (row,) = await session.score(JOB.name, NEW, [COMMON])
        key = next(iter(world.lists[0]._lists.values())).key
        written = b"".join(
            path.read_bytes() for path in world.folder.glob("state/**/*") if path.is_file() and "jobs" not in path.parts
        )
    assert row.score is not None
    for secret in (key, key.hex().encode(), COMMON.encode(), str(row.score).encode()):
        assert secret not in written


# --- what is refused


async def test_the_daily_limits_count_answers_and_nothing_leaves_beyond_them(world: World) -> None:
    ids = [f"new-{number:05d}" for number in range(6)]
    async with world.serving() as session:
        world.set_policy(max_scores_a_day=8)
        await session.score(JOB.name, NEW, ids)
        await refused(session, PolicyError, "max_scores_a_day: .* 2 left", ids)
        assert world.given == (6, 6)
        world.set_policy(max_ids_a_day=8)
        await refused(session, PolicyError, "max_ids_a_day: .* 2 left", ids)
        assert world.given == (6, 6)
        await session.score(JOB.name, NEW, ids[:2])
    assert world.given == (8, 8)


async def test_a_withdrawn_permission_counts_at_the_next_answer_and_drops_the_key(world: World) -> None:
    async with world.serving() as session:
        await session.score(JOB.name, NEW, [COMMON])
        world.set_policy(allow_prediction=False)
        await refused(session, PolicyError, "allow_prediction", [COMMON])
        await eventually(lambda: not world.lists[0]._lists)
        world.set_policy()
        await eventually(lambda: bool(world.lists[0]._lists))
        await session.score(JOB.name, NEW, [COMMON])
        world.change(Role.HOST, online=OnlineConfig())
        world.set_policy()
        await refused(session, PolicyError, "online.precompute", [COMMON])
        await eventually(lambda: not world.lists[0]._lists)
    assert world.given == (2, 2)


async def test_a_model_too_many_is_refused_before_its_list_leaves(world: World) -> None:
    async with world.serving() as session:
        host = world.configs[Role.HOST]
        for number in range(3):
            assert Ledger(host.state, Role.HOST).add_point(NEW, f"earlier {number}", 1000)
        world.set_policy(min_columns_per_point=4)
        await refused(session, (PolicyError, DataError), "min_columns_per_point", [COMMON])  # type: ignore[arg-type]
    assert not world.audit("GetList")


async def test_nothing_leaves_if_the_counts_or_the_audit_log_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving() as session:
        await session.score(JOB.name, NEW, [COMMON])

        def fail(*args: object, **more: object) -> None:
            raise OSError(28, "No space left on device")

        for name in ("trilateral.common.jobs.quota.write_whole", "trilateral.common.observe.audit.os.write"):
            with monkeypatch.context() as patch:
                patch.setattr(name, fail)
                with pytest.raises(TrilateralError, match="No space left"):
                    await session.score(JOB.name, NEW, [COMMON])
        await session.score(JOB.name, NEW, [COMMON])


@pytest.mark.parametrize(
    ("ids", "features", "said"),
    [
        ([], None, "asks for 0 rows"),
        (["a"] * 101, None, "asks for 101 rows"),
        ([COMMON, f"{COMMON} "], None, "the same ID twice"),
        ([" "], None, "empty ID"),
        ([("a", "b")], None, "ID of 2 parts: expected 1"),
        (["a\x1fb"], None, "control character"),
        (["a" * 1001], None, "1000 characters"),
        ([COMMON], [{"x3": 1.0}], "row 1 lacks 'x4', 'town'"),
        ([COMMON], [{"x3": "secret text", "x4": 2.0, "town": None}], "not a number"),
        ([COMMON], [{"x3": [1.0], "x4": 2.0, "town": None}], "not text, a finite number"),
        ([COMMON], [{"x3": 1e300, "x4": 2**70, "town": None}], "not text, a finite number"),
    ],
)
async def test_what_cannot_be_scored_is_refused_without_quoting_it_and_costs_nothing(
    ids: list[Any], features: list[dict[str, Any]] | None, said: str, world: World
) -> None:
    async with world.serving() as session:
        with pytest.raises((DataError, ProtocolError), match=said) as error:
            await session.score(JOB.name, NEW, ids, features=features)
        assert COMMON not in str(error.value)
        assert "secret" not in str(error.value)
    assert world.given == (0, 0)


async def test_a_model_of_another_run_is_refused(world: World) -> None:
    path = JobFolder(world.configs[Role.GUEST].state, JOB.name).model
    async with world.serving() as session:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "0" * 32}))
        await refused(session, DataError, "both parties need their parts of the same run", [COMMON])
        path.write_text(json.dumps(json.loads(path.read_text()) | {"loss": 0.5}))
        await refused(session, DataError, "same run|do not belong together", [COMMON])


async def test_ids_of_another_form_are_refused(world: World) -> None:
    guest = world.configs[Role.GUEST]
    table = guest.datasets[NEW]
    other = table.model_copy(update={"id_form": table.id_form.model_copy(update={"case": True})})
    world.change(Role.GUEST, datasets=guest.datasets | {NEW: other})
    async with world.serving() as session:
        with pytest.raises(TrilateralError, match="id_form"):
            await session.score(JOB.name, NEW, [COMMON])


async def test_a_table_with_repeated_ids_is_not_scored(world: World) -> None:
    table = world.rows[Role.HOST]
    world.rewrite(Role.HOST, pd.concat([table, table.tail(2)]))
    async with world.serving() as session:
        await refused(session, DataError, "the host: .*repeats an earlier ID in 2 of 77", [COMMON])


async def test_the_guests_own_limit_protects_the_hosts_count(world: World) -> None:
    world.change(Role.GUEST, online=OnlineConfig(max_per_second=0.001))
    async with world.serving() as session:
        await session.score(JOB.name, NEW, [COMMON, AT_GUEST])
        await refused(session, PolicyError, "online.max_per_second", [COMMON])
    assert world.given == (2, 2)


# --- faults


async def test_a_host_that_is_away_is_reported_soon_and_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trilateral.guest_party.online.PATIENCE_SECONDS", 0.5)
    async with serving({Role.GUEST: world.configs[Role.GUEST]}), AsyncSession(world.configs[Role.GUEST]) as session:
        async with serving({Role.HOST: world.configs[Role.HOST]}):
            await eventually(world.is_ready)
            await session.score(JOB.name, NEW, [COMMON])
        await refused(session, PeerError, "the host at .* has not answered", [COMMON])
        async with serving({Role.HOST: world.configs[Role.HOST]}):
            await eventually(world.is_ready)
            (row,) = await session.score(JOB.name, NEW, [COMMON])
    assert row.score == pytest.approx(expected(world)[COMMON])


@contextmanager
def slow_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[object]]]:
    """Let the guest read its table only after an event, and note each time that it begins."""
    may_read, begun = threading.Event(), list[object]()

    def wait_and_score(*args: Any, **more: Any) -> Any:
        begun.append(args[0])
        assert may_read.wait(60)
        return score_table(*args, **more)

    monkeypatch.setattr("trilateral.guest_party.online.score_table", wait_and_score)
    try:
        yield may_read, begun
    finally:
        may_read.set()


async def test_a_table_is_read_once_however_soon_the_callers_give_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_table(monkeypatch) as (may_read, begun):
        async with world.serving() as session:
            for _ in range(3):
                asked = asyncio.create_task(session.score(JOB.name, NEW, [COMMON]))
                await eventually(lambda: bool(begun))
                await asyncio.wait([asked], timeout=0.2)
                asked.cancel()
                await asyncio.wait([asked])
            may_read.set()
            (row,) = await session.score(JOB.name, NEW, [COMMON])
    assert row.score == pytest.approx(expected(world)[COMMON])
    assert len(begun) == 1


async def test_a_request_for_a_new_model_gets_nothing_of_the_old_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest's new part comes while a request for the old model waits, and the host still has the old one."""
    path = JobFolder(world.configs[Role.GUEST].state, JOB.name).model
    with slow_table(monkeypatch) as (may_read, begun):
        async with world.serving() as session:
            before = asyncio.create_task(session.score(JOB.name, NEW, [COMMON]))
            await eventually(lambda: bool(begun))
            path.write_text(json.dumps(json.loads(path.read_text()) | {"run_id": "0" * 32}))
            after = asyncio.create_task(session.score(JOB.name, NEW, [COMMON]))
            await asyncio.wait([after], timeout=0.2)
            may_read.set()
            (row,) = await before
            with pytest.raises(DataError, match="both parties need their parts of the same run"):
                await after
    assert row.score == pytest.approx(expected(world)[COMMON])


async def test_many_requests_at_a_time_get_their_own_scores(world: World) -> None:
    scores = expected(world)
    ids = [*scores.index][:40]
    async with world.serving() as session:
        got = await asyncio.gather(*(session.score(JOB.name, NEW, [one]) for one in ids))
    np.testing.assert_allclose([row.score or np.nan for (row,) in got], scores[ids], rtol=0, atol=1e-9)
    assert world.given == (40, 40)
    assert len(world.audit("GetList")) == 1


async def test_requests_at_the_limit_get_exactly_what_is_left(world: World) -> None:
    """Answers that come at the same time are counted together."""
    ids = [*expected(world).index][:20]
    async with world.serving() as session:
        await session.score(JOB.name, NEW, ids[:1])
        world.set_policy(max_scores_a_day=12)
        asked = (session.score(JOB.name, NEW, [one]) for one in ids)
        got = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, PolicyError) for each in got) == 9
    assert sum(isinstance(each, list) for each in got) == 11
    assert world.given == (12, 12)


# --- HTTP


@asynccontextmanager
async def over_http(world: World) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    address = free_address()
    world.change(Role.GUEST, online=OnlineConfig.model_validate({"listen": address}))
    async with world.serving(), aiohttp.ClientSession() as session:
        yield session, f"http://{address}"


def token(world: World) -> dict[str, str]:
    path = world.configs[Role.GUEST].state / TOKEN
    assert path.stat().st_mode & 0o777 == 0o600
    return {"Authorization": f"Bearer {path.read_text().strip()}"}


BODY: dict[str, Any] = {"job": JOB.name, "dataset": NEW, "rows": [COMMON, {"id": AT_GUEST}]}


async def test_http_answers_as_grpc_does(world: World) -> None:
    async with over_http(world) as (session, url):
        async with session.post(f"{url}/score", json=BODY, headers=token(world)) as answer:
            assert answer.status == 200
            assert answer.headers["Cache-Control"] == "no-store"
            content = await answer.json()
        async with session.get(f"{url}/health") as answer:
            assert await answer.json() == {"status": "serving"}
    first, second = content["scores"]
    assert first["score"] == pytest.approx(expected(world)[COMMON])
    assert 0 < first["probability"] < 1
    assert second == {"id": AT_GUEST, "score": None, "probability": None, "lacking": "host"}
    assert "Platt" in content["calibration"]
    assert "reasons" not in first


async def test_http_and_the_command_name_reasons(world: World) -> None:
    with_host_reasons(world, 2)
    named = host_reasons(world.configs[Role.HOST], JOB.name, world.rows[Role.HOST])[COMMON]
    async with over_http(world) as (session, url):
        body = BODY | {"reasons": 3, "host_reasons": 2}
        async with session.post(f"{url}/score", json=body, headers=token(world)) as answer:
            first, second = (await answer.json())["scores"]
        result = await run_score(world, COMMON, AT_GUEST, "--reasons", "3", "--host-reasons", "2")
    assert first["host_reasons"] == named
    assert "reasons" not in second
    header, *lines = result.stdout.splitlines()
    assert header == "id,score,probability,reason_1,reason_2,reason_3,host_reason_1,host_reason_2"
    fields = lines[0].split(",")[3:]
    assert [[name for name in part if name] for part in (fields[:3], fields[3:])] == [first["reasons"], named]
    assert lines[1] == f"{AT_GUEST},,,,,,,"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"headers": {"Authorization": ""}}, 401),
        ({"headers": {"Authorization": "Bearer guessed"}}, 401),
        ({"headers": {"Origin": "http://evil.example"}}, 403),
        ({"headers": {"Origin": "null"}}, 403),
        ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
        ({"headers": {"Host": "evil.example"}}, 421),
        ({"headers": {"Host": "127.0.0.1.evil.example:80"}}, 421),
        ({"headers": {"Content-Type": "text/plain"}}, 415),
        ({"headers": {"Content-Type": "application/x-www-form-urlencoded"}}, 415),
        ({"data": "{"}, 400),
        ({"data": '{"job": NaN}'}, 400),
        ({"data": "[" * 100_000}, 400),
        ({"data": "[]"}, 400),
        ({"data": json.dumps(BODY | {"more": 1})}, 400),
        ({"data": json.dumps(BODY | {"rows": []})}, 400),
        ({"data": json.dumps(BODY | {"reasons": "3"})}, 400),
        ({"data": json.dumps(BODY | {"reasons": 11})}, 400),
        ({"data": json.dumps(BODY | {"host_reasons": -1})}, 400),
        ({"data": json.dumps(BODY | {"rows": [{"no": "ID"}]})}, 400),
        ({"data": json.dumps(BODY | {"rows": [1.5]})}, 400),
        ({"data": json.dumps(BODY | {"rows": [{"id": "a", "features": "text"}]})}, 400),
        ({"data": json.dumps(BODY | {"rows": [" "]})}, 422),
        ({"data": json.dumps(BODY | {"job": "other"})}, 422),
        ({"data": json.dumps(BODY | {"job": "a\0b"})}, 400),
        ({"data": json.dumps(BODY | {"job": "../scores"})}, 400),
        ({"data": json.dumps(BODY | {"dataset": "other"})}, 403),
        ({"data": io.BytesIO(b" " * 1_100_000)}, 413),
        ({"path": "/"}, 404),
        ({"path": "/../../etc/passwd"}, 404),
        ({"method": "GET"}, 405),
        ({"method": "OPTIONS"}, 405),
    ],
)
async def test_http_refuses_what_is_not_a_request_of_a_program_with_the_token(
    change: dict[str, Any], status: int, world: World
) -> None:
    async with over_http(world) as (session, url):
        headers = {"Content-Type": "application/json"} | token(world) | change.get("headers", {})
        data, path = change.get("data", json.dumps(BODY)), change.get("path", "/score")
        async with session.request(change.get("method", "POST"), url + path, data=data, headers=headers) as answer:
            assert answer.status == status
            text = await answer.text()
            assert json.loads(text).keys() == {"error"}
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in answer.headers
        assert COMMON not in text
    assert world.given == (0, 0)


async def test_a_token_that_is_not_text_is_a_wrong_one(world: World) -> None:
    async with over_http(world) as (_, url):
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(b"POST /score HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_the_token_stays_the_same_over_restarts(world: World) -> None:
    seen = set()
    for _ in range(2):
        async with over_http(world):
            seen.add(token(world)["Authorization"])
    assert len(seen) == 1


# --- attacks


FEATURES = {"x3": 0.5, "x4": -0.25, "town": "north"}


@pytest.mark.parametrize("protected", [True, False])
async def test_a_guest_that_tries_out_ids_learns_no_more_than_the_host_has_counted(
    protected: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own file is as lax as it can be, and its features are invented, so that it may ask for any ID."""
    world.change(Role.GUEST, online=OnlineConfig(max_per_second=1e9))
    if not protected:
        monkeypatch.setattr("trilateral.host_party.online_counts.check_scores", lambda *_: None)
        monkeypatch.setattr("trilateral.host_party.online_counts.spend_scores", lambda *_: 0)
    tried = [f"new-{number:05d}" for number in range(0, 200)]
    found: list[str] = []
    async with world.serving() as session:
        world.set_policy(max_scores_a_day=30)
        for start in range(0, len(tried), 10):
            ids = tried[start : start + 10]
            with contextlib.suppress(PolicyError):
                got = await session.score(JOB.name, NEW, ids, features=[FEATURES] * 10)
                found += [one for one, row in zip(ids, got, strict=True) if row.lacking is None]
    assert len(found) == (30 if protected else N_COMMON)


@pytest.mark.parametrize("protected", [True, False])
async def test_a_guest_replays_points_to_a_new_list_or_after_the_permission_has_ended(
    protected: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the old list and the query. An old key would open the list of today's table, or one without consent."""
    if not protected:
        monkeypatch.setattr("trilateral.host_party.online.new_key", lambda: b"\x01" * 32)
    query = Query.of([COMMON])
    async with world.serving() as session:
        await session.score(JOB.name, NEW, [COMMON])
        (before,) = world.lists[0]._lists.values()
        opened = query.read(answer(before.key, query.points))
        world.set_policy(allow_prediction=False)
        with pytest.raises(PolicyError, match="allow_prediction"):
            await world.lists[0].open(ListRequest(JobKey(JOB.name, bytes(16)), bytes(32), NEW, []))
        await eventually(lambda: not world.lists[0]._lists)
        assert await world.lists[0].answer(before.id, query.points, 1) is None
        world.set_policy()
        await eventually(lambda: bool(world.lists[0]._lists))
        (after,) = world.lists[0]._lists.values()
    assert LabelledList(before.data).open(opened[0]) is not None
    assert (LabelledList(after.data).open(opened[0]) is None) is protected


@pytest.mark.parametrize(
    ("without", "status"), [((), 421), (("origin",), 401), (("token",), 421), (("origin", "token"), 200)]
)
async def test_a_page_in_a_browser_reaches_loopback_under_its_own_name(
    without: tuple[str, ...], status: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name resolves to 127.0.0.1 by now, so for the browser the request goes to where the page came from."""
    if "origin" in without:
        guard = http._guard
        monkeypatch.setattr(http, "_guard", lambda role, admit: guard(role, lambda request: None))
    if "token" in without:
        monkeypatch.setattr("trilateral.guest_party.online_http.hmac.compare_digest", lambda one, other: True)
    headers = {"Host": "evil.example:8081", "Origin": "http://evil.example:8081", "Sec-Fetch-Site": "same-origin"}
    async with over_http(world) as (session, url), session.post(f"{url}/score", json=BODY, headers=headers) as reply:
        assert reply.status == status


async def test_no_log_record_or_metric_has_an_id_a_feature_or_a_score(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    metrics = free_address()
    world.change(Role.GUEST, metrics=MetricsConfig(listen=metrics))
    features = {"x3": 0.123456789, "x4": -7.654321, "town": "Tewkesbury"}
    async with over_http(world) as (session, url):
        row = {"id": COMMON, "features": features}
        async with session.post(f"{url}/score", json=BODY | {"rows": [row]}, headers=token(world)) as reply:
            (scored,) = (await reply.json())["scores"]
        bad = row | {"features": features | {"x3": "Tewkesbury"}}
        async with session.post(f"{url}/score", json=BODY | {"rows": [bad]}, headers=token(world)) as reply:
            assert reply.status == 422
            refusal = await reply.text()
        async with session.post(
            f"{url}/score", data=b"\x00Tewkesbury\r\n", headers={"Transfer-Encoding": "x"}
        ) as reply:
            assert reply.status in {400, 401}
        async with session.get(f"http://{metrics}/metrics") as reply:
            page = await reply.text()
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            writer.write(f"POST /score/{COMMON} Tewkesbury\r\n\r\n".encode())
            await reader.read()
            writer.close()
    assert 'trilateral_online_rows_total{result="scored"} 1.0' in page
    records = [path.read_text() for path in world.folder.glob("state/*/audit.jsonl")]
    kept = token(world)["Authorization"].removeprefix("Bearer ")
    for secret in (COMMON, "0.123456789", "7.654321", "Tewkesbury", str(scored["score"]), kept):
        assert not [text for text in (caplog.text, refusal, page, *records) if secret in text], secret


# --- certificates and the command


async def test_under_tls_the_guests_own_certificate_gets_scores_and_the_hosts_does_not(world: World) -> None:
    write_development_files(world.folder / "certs")
    secured = make_configs(world.folder, certificates=world.folder / "certs")
    for role, config in world.configs.items():
        ours = {name: getattr(config, name) for name in ("datasets", "policy", "online")}
        world.configs[role] = secured[role].model_copy(update=ours)
    async with world.serving() as session:
        (row,) = await session.score(JOB.name, NEW, [COMMON])
        host = world.configs[Role.HOST]
        guest = new_peer(Role.GUEST, host.peers[Role.GUEST], host, load_certificates(host))
        with pytest.raises(AccessError, match="the host may not call Score here"):
            await score_rows(guest, host.limits, job=JOB.name, dataset=NEW, ids=[COMMON], features=None)
        await guest.close()
    assert row.score == pytest.approx(expected(world)[COMMON])


async def run_score(world: World, *words: str) -> Result:
    path = world.folder / "guest.yaml"
    path.write_text(yaml.safe_dump(world.configs[Role.GUEST].model_dump(mode="json", exclude_defaults=True)))
    words = ("score", JOB.name, *words, "--dataset", NEW, "--config", str(path))
    return await asyncio.to_thread(CliRunner().invoke, app, words)


async def test_the_command_prints_scores_as_csv(world: World) -> None:
    async with world.serving():
        result = await run_score(world, COMMON, AT_GUEST)
        nothing = await run_score(world, AT_HOST)
        as_json = await run_score(world, COMMON, AT_GUEST, "--json")
    assert result.exit_code == 0, result.output
    header, first, second = result.stdout.splitlines()
    assert header == "id,score,probability"
    assert float(first.split(",")[1]) == pytest.approx(expected(world)[COMMON])
    assert second == f"{AT_GUEST},,"
    assert result.stderr == "not at the host: 1 of the IDs\n"
    assert (nothing.exit_code, nothing.stderr) == (4, "not at the guest: 1 of the IDs\n")
    scored, lacking = json.loads(as_json.stdout)["scores"]
    assert set(scored) == documented_fields()["score"] - {"scores"}
    assert f"{scored['score']}" == first.split(",")[1]
    assert (lacking["score"], lacking["lacking"]) == (None, "host")
