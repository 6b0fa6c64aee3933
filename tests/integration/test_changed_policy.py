"""A policy that is tightened while a process runs counts for new jobs, and for whatever would leave from then on."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes
from typing import Any

import pytest
import yaml

from tests.support.three_processes import write_configs
from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import eventually, eventually_in_thread
from trilateral.common.base.errors import PeerError, PolicyError
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.checks import running
from trilateral.common.checks.finding import Finding, Level, problem
from trilateral.common.checks.run import check_process
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.live import Difference
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import Limits, ProcessConfig
from trilateral.common.data.alignment import dealing
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs import crew
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.quota import IdQuota
from trilateral.common.pb.v1 import alignment_pb2, prediction_pb2
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JobStatus
from trilateral.common.process import live_settings
from trilateral.common.process.job_client import JobClient
from trilateral.common.process.live_settings import settings_of
from trilateral.common.process.state_folder import held_state
from trilateral.common.protocol.ids import NONCE_BYTES, id_digest
from trilateral.common.rpc.channel import Peer, open_channel
from trilateral.guest_party import alignment
from trilateral.guest_party.alignment import GuestAlignments
from trilateral.host_party.machine import HostMachine

QUICK = JobConfig(name="quick", dataset=DATASET, key_bits=512, aligned=True)
LONG = QUICK.model_copy(update={"name": "long", "algorithm": Sgd(), "batch": 40, "epochs": 100_000, "tolerance": 0.0})
FORM = ["spaces", "unicode", "decimals"]


@dataclass
class World:
    """Three organisations whose processes read their files again."""

    folder: Path
    paths: dict[Role, Path]
    is_read_again: bool = True

    @property
    def configs(self) -> dict[Role, ProcessConfig]:
        return {role: load_process_config(path, {}) for role, path in self.paths.items()}

    def set(self, role: Role, section: str, **values: Any) -> None:
        """Change a section of a file."""
        settings = yaml.safe_load(self.paths[role].read_text())
        settings[section] = settings.get(section, {}) | values
        write_whole(self.paths[role], yaml.safe_dump(settings))

    async def change(self, role: Role, section: str, **values: Any) -> None:
        """Change a section, and wait until the process has noticed."""
        self.set(role, section, **values)
        if self.is_read_again:
            wanted = [(f"{section}.{key}", value) for key, value in values.items()]
            await eventually(
                lambda: [(each["setting"], each["after"]) for each in self.changes(role)][-len(wanted) :] == wanted
            )

    def audit(self, role: Role) -> list[dict[str, Any]]:
        path = self.configs[role].state / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def changes(self, role: Role) -> list[dict[str, Any]]:
        return [each for each in self.audit(role) if each["decision"] == "changed"]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[JobClient]:
        async with serving(self.configs, self.paths if self.is_read_again else {}) as client:
            yield client


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(live_settings, "LOOK_SECONDS", 0.02)
    write_tables(tmp_path)
    return World(tmp_path, write_configs(make_configs(tmp_path), tmp_path))


class Guest:
    """Calls a host's methods one by one, as a guest does in a prediction of rows that both have."""

    def __init__(self, world: World, peer: Peer) -> None:
        quota = IdQuota(world.folder, 10**9)
        self._world = world
        self._calls = GuestAlignments(peer, Limits(), lambda: quota)
        self._name = token_bytes(16)

    async def open(self) -> None:
        model = load_model(JobFolder(self._world.configs[Role.GUEST].state, QUICK.name).model)
        request = prediction_pb2.OpenPredictionRequest(
            job=QUICK.name,
            run_id=bytes.fromhex(model.run_id),
            prediction=self._name,
            model=model.shared_digest,
            dataset=DATASET,
        )
        await self._calls.call("PredictionService/OpenPrediction", request, prediction_pb2.OpenPredictionResponse)

    async def settle(self, ids: list[str]) -> None:
        nonce = token_bytes(NONCE_BYTES)
        request = prediction_pb2.AlignPredictionRequest(
            prediction=self._name, nonce=nonce, n_rows=len(ids), form=FORM, aligned=True
        )
        begun = await self._calls.call(
            "PredictionService/AlignPrediction", request, prediction_pb2.AlignPredictionResponse
        )
        proof = id_digest(Ids.of(ids).digest(), nonce, begun.nonce, Role.GUEST)
        told = prediction_pb2.SettleShardRequest(prediction=self._name, shard=0, told=proof)
        await self._calls.call("PredictionService/SettleShard", told, prediction_pb2.SettleShardResponse)

    async def scores(self) -> int:
        request = prediction_pb2.GetScoresRequest(prediction=self._name, shard=0)
        answer = await self._calls.call("PredictionService/GetScores", request, prediction_pb2.GetScoresResponse)
        return len(answer.scores)


@asynccontextmanager
async def settled(world: World) -> AsyncIterator[Guest]:
    """A prediction whose scores the guest could now fetch."""
    world.set(Role.HOST, "policy", allow_prediction=True)
    async with world.serving() as client, open_channel(world.configs[Role.HOST].listen, None) as channel:
        assert (await train_over_localhost(client, QUICK)).state == JOB_STATE_FINISHED
        guest = Guest(world, Peer(Role.HOST, "host", channel))
        await guest.open()
        ids = [line.split(",")[0] for line in (world.folder / "host.csv").read_text().splitlines()[1:]]
        await guest.settle(sorted(ids, key=lambda text: text.encode()))
        yield guest


def given(world: World) -> int:
    path = world.configs[Role.HOST].state / ".scores-given.json"
    return int(json.loads(path.read_text())["given"]) if path.exists() else 0


async def test_a_forbidden_prediction_gives_no_further_score(world: World) -> None:
    async with settled(world) as guest:
        before = given(world)
        await world.change(Role.HOST, "policy", allow_prediction=False)
        with pytest.raises(PolicyError, match=r"under policy\.allow_prediction"):
            await guest.scores()
        with pytest.raises(PeerError, match="does not know this prediction"):
            await guest.scores()
        with pytest.raises(PolicyError, match=r"under policy\.allow_prediction"):
            await guest.open()
        assert given(world) == before
    assert (
        world.changes(Role.HOST)[-1].items()
        >= {"setting": "policy.allow_prediction", "before": True, "after": False}.items()
    )
    assert [each["method"] for each in world.audit(Role.HOST) if each["decision"] == "refused"] == [
        "GetScores",
        "OpenPrediction",
    ]


async def test_without_reading_again_the_scores_leave(world: World) -> None:
    world.is_read_again = False
    async with settled(world) as guest:
        await world.change(Role.HOST, "policy", allow_prediction=False)
        assert await guest.scores() == 120


async def test_a_lower_limit_of_scores_stops_a_prediction_that_was_counted(world: World) -> None:
    async with settled(world) as guest:
        assert await guest.scores() == 120
        assert await guest.scores() == 120
        await world.change(Role.HOST, "policy", max_scores_a_day=given(world))
        assert await guest.scores() == 120
        await world.change(Role.HOST, "policy", max_scores_a_day=given(world) - 1)
        with pytest.raises(PolicyError, match=r"under policy\.max_scores_a_day: .* 0 left until"):
            await guest.scores()


async def test_a_dataset_closed_to_a_job_stops_its_prediction(world: World) -> None:
    async with settled(world) as guest:
        path = str(world.folder / "host.csv")
        world.set(Role.HOST, "datasets", **{DATASET: {"path": path, "jobs": ["churn-*"]}})
        await eventually(lambda: bool(world.changes(Role.HOST)))
        with pytest.raises(PolicyError, match=rf"under datasets\.{DATASET}\.jobs"):
            await guest.scores()


async def train_until(client: JobClient, job: JobConfig, n_rounds: int) -> None:
    await client.start(job)
    async for status in client.watch(job.name):
        if status.round >= n_rounds:
            return


async def end_of(client: JobClient, job: str) -> JobStatus:
    status = JobStatus()
    async for changed in client.watch(job):
        status = changed
    return status


@pytest.mark.parametrize(
    ("role", "policy"),
    [
        (Role.HOST, {"share_holdout_scores": False}),
        (Role.HOST, {"max_holdout": 0.1}),
        (Role.HOST, {"max_scores_a_day": 1}),
        (Role.HOST, {"min_batch": 41}),
        (Role.HOST, {"min_rows_per_feature": 30}),
        (Role.GUEST, {"min_rows_per_feature": 20}),
        (Role.GUEST, {"max_rounds": 100}),
        (Role.GUEST, {"min_key_bits": 1024}),
        (Role.GUEST, {"protocols": ["shares"]}),
    ],
)
async def test_a_running_training_obeys_a_tighter_policy(world: World, role: Role, policy: dict[str, Any]) -> None:
    async with world.serving() as client:
        await train_until(client, LONG, 3)
        await world.change(role, "policy", **policy)
        status = await end_of(client, LONG.name)
        assert status.state == JOB_STATE_FAILED
        assert f"the {role} refuses the job under policy.{next(iter(policy))}" in status.detail
        again = await train_over_localhost(client, LONG.model_copy(update={"name": "again"}))
        assert again.state == JOB_STATE_FAILED
    assert [each["method"] for each in world.audit(role) if each["decision"] == "refused"] == ["OpenJob", "OpenJob"]


async def test_the_scores_at_the_end_obey_a_policy_that_was_tightened_in_the_last_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host asks its policy when the scores leave, not only when a round begins."""
    give = HostMachine._give_scores

    def tightened(machine: HostMachine, key: Any, exact: Any, point: Any) -> Any:
        asyncio.run_coroutine_threadsafe(world.change(Role.HOST, "policy", share_holdout_scores=False), loop).result()
        yield from give(machine, key, exact, point)

    loop = asyncio.get_running_loop()
    model = JobFolder(world.configs[Role.GUEST].state, QUICK.name).model
    async with world.serving() as client:
        with monkeypatch.context() as patched:
            patched.setattr(HostMachine, "_give_scores", tightened)
            status = await train_over_localhost(client, QUICK)
        assert status.state == JOB_STATE_FAILED
        assert "the host refuses the job under policy.share_holdout_scores" in status.detail
        assert not model.exists()
        await world.change(Role.HOST, "policy", share_holdout_scores=True)
        await client.resume(QUICK.name)
        assert (await end_of(client, QUICK.name)).state == JOB_STATE_FINISHED
        assert model.exists()


async def test_a_looser_policy_counts_for_new_jobs_and_leaves_running_ones_alone(world: World) -> None:
    other = QUICK.model_copy(update={"name": "other", "epochs": 50})
    world.set(Role.HOST, "policy", max_epochs=49)
    async with world.serving() as client:
        assert (await train_over_localhost(client, other)).state == JOB_STATE_FAILED
        await world.change(Role.HOST, "policy", max_epochs=50)
        assert (await train_over_localhost(client, other)).state == JOB_STATE_FINISHED


async def test_an_alignment_gives_nothing_more_under_a_lower_limit_of_ids(world: World) -> None:
    async with world.serving(), open_channel(world.configs[Role.HOST].listen, None) as channel:
        calls = GuestAlignments(Peer(Role.HOST, "host", channel), Limits(), lambda: IdQuota(world.folder, 10**9))
        request = alignment_pb2.OpenAlignmentRequest(nonce=bytes(NONCE_BYTES), n_ids=10, form=FORM, dataset=DATASET)
        opened = await calls.call("AlignmentService/OpenAlignment", request, alignment_pb2.OpenAlignmentResponse)
        shard = alignment_pb2.IntersectShardRequest(session=opened.session, shard=0, points=b"")
        await world.change(Role.HOST, "policy", max_ids_a_day=5)
        with pytest.raises(PolicyError, match=r"under policy\.max_ids_a_day"):
            await calls.call("AlignmentService/IntersectShard", shard, alignment_pb2.IntersectShardResponse)


@pytest.mark.parametrize("role", PARTIES)
async def test_the_alignment_of_a_job_stops_when_the_job_is_forbidden(
    world: World, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    """The common rows of the shards that are left stay secret."""
    monkeypatch.setattr(dealing, "SHARD_IDS", 20)
    monkeypatch.setattr(crew, "MOST_AT_A_TIME", 1)
    find, n_found = alignment.GuestAlignment._intersect, 0

    async def find_slowly(own: Any, shard: int) -> Any:
        nonlocal n_found
        n_found += 1
        if n_found == 2:
            await world.change(role, "policy", max_epochs=1)
        return await find(own, shard)

    monkeypatch.setattr(alignment.GuestAlignment, "_intersect", find_slowly)
    async with world.serving() as client:
        status = await train_over_localhost(client, QUICK.model_copy(update={"aligned": False}))
    assert status.state == JOB_STATE_FAILED
    assert f"the {role} refuses the job under policy.max_epochs" in status.detail
    assert n_found == 2
    refusals = [each["method"] for each in world.audit(role) if each["decision"] == "refused"]
    assert refusals == (["OpenJob"] if role is Role.GUEST else ["OpenJob", "IntersectShard"])


async def test_operators_change_without_a_restart(world: World) -> None:
    async with world.serving() as client:
        await client.statuses()
        await world.change(Role.COORDINATOR, "operators", start=["guest"])
        with pytest.raises(Exception, match="may not start jobs"):
            await client.start(QUICK)


# --- what `trilateral check` says about the running process


def findings(path: Path) -> list[Finding]:
    return [each for each in check_process(path, peers=False) if each.level > Level.OK]


@contextmanager
def host_process(world: World, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run `trilateral serve host`; yield the process and its log."""
    path, log = world.paths[Role.HOST], world.folder / "host.log"
    command = [sys.executable, "-m", "trilateral.cli.main", "serve", "host", "--config", str(path)]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stderr=file, text=True, env=os.environ | environment) as process,
    ):
        try:
            eventually_in_thread(lambda: "listens on" in log.read_text())
            eventually_in_thread(lambda: settings_of(str(process.pid), world.configs[Role.HOST].state) is not None)
            yield process, log
        finally:
            process.terminate()


def test_a_process_reads_its_file_on_sighup_and_check_agrees(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.paths[Role.HOST]
    with host_process(world) as (process, log):
        assert not [each for each in findings(path) if each.subject == "settings"]
        world.set(Role.HOST, "policy", allow_prediction=True)
        process.send_signal(signal.SIGHUP)
        eventually_in_thread(lambda: bool(world.changes(Role.HOST)))
        assert world.changes(Role.HOST)[-1]["setting"] == "policy.allow_prediction"
        assert not [each for each in findings(path) if each.level > Level.WARNING]
        good = path.read_text()
        path.write_text(good.replace("min_batch: 1", "min_batch: none"))
        process.send_signal(signal.SIGHUP)
        eventually_in_thread(lambda: "policy.min_batch: expected a whole number, not none (line " in log.read_text())
        said = [str(each) for each in findings(path)]
        assert "policy.min_batch: expected a whole number" in said[0]
        assert "the process keeps the settings that it has read last" in said[1]
        path.write_text(good)
        process.send_signal(signal.SIGHUP)
        assert process.poll() is None


def test_check_names_each_setting_that_the_process_does_not_use_and_the_command_that_mends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_SECONDS", 0.1)
    path = world.paths[Role.HOST]
    with host_process(world) as (process, _):
        process.send_signal(signal.SIGSTOP)  # It notices nothing.
        try:
            world.set(Role.HOST, "policy", max_epochs=7)
            world.set(Role.HOST, "limits", max_jobs=3)
            found = {each.subject: each for each in findings(path)}
        finally:
            process.send_signal(signal.SIGCONT)
    live, other = found["policy.max_epochs"], found["limits.max_jobs"]
    assert live.level is Level.PROBLEM
    assert live.text.startswith(
        "the running host uses 100000, but the file says 7: run `systemctl reload trilateral` or"
    )
    assert f"`kill -HUP {process.pid}`" in live.text
    assert other.level is Level.WARNING
    assert "uses 8, but the file says 3, which counts only after a restart: run `systemctl restart" in other.text


def test_many_settings_that_the_process_does_not_use_share_a_finding() -> None:
    """As if the process had been started with another file."""
    found = [Difference(f"datasets.d{number}.id", "id", "customer") for number in range(30)]
    few = [*running._listed(found[:5], Role.HOST, ": reload", problem)]
    assert [each.subject for each in few] == [each.setting for each in found[:5]]
    assert few[0].text == 'the running host uses "id", but the file says "customer": reload'
    (many,) = running._listed(found, Role.HOST, ": reload", problem)
    assert many.level is Level.PROBLEM
    assert many.text.startswith("the running host uses other values of 30 settings than the file, datasets.d0.id, ")
    assert many.text.endswith("datasets.d19.id and 10 more: reload")


def test_a_setting_from_a_variable_of_the_server_alone_is_no_problem(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the unit of systemd, whose variables the shell of an administrator does not have."""
    monkeypatch.setattr(running, "LOOK_SECONDS", 0.1)
    path, key = world.paths[Role.HOST], world.folder / "state.key"
    key.write_text("0f" * 32)
    key.chmod(0o600)
    with host_process(world, TRILATERAL_POLICY__MAX_EPOCHS="7", TRILATERAL_STATE_KEY=str(key)):
        found = [each for each in check_process(path, peers=False) if each.subject != "arithmetic"]
        assert [each for each in found if each.level is Level.PROBLEM] == []
        by_subject = {each.subject: each for each in found}
        policy = by_subject["policy.max_epochs"]
        assert policy.level is by_subject["state_key"].level is Level.NOTE
        assert policy.text == (
            "the running host uses 7, which comes from TRILATERAL_POLICY__MAX_EPOCHS of the server; this shell does "
            "not set it, so this check uses 100000"
        )
        assert any(each.text == "journal.sqlite is intact and encrypted" for each in found)
        key.unlink()
        unread = [str(each) for each in check_process(path, peers=False) if "which this user cannot check" in each.text]
        assert len(unread) == 1


def test_a_variable_of_this_shell_alone_is_not_taken_for_the_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_SECONDS", 0.1)
    with host_process(world):
        monkeypatch.setenv("TRILATERAL_POLICY__MAX_EPOCHS", "9")
        found = {each.subject: each for each in findings(world.paths[Role.HOST])}
    policy = found["policy.max_epochs"]
    assert policy.level is Level.WARNING
    assert policy.text.startswith(
        "the running host uses 100000, but the variable TRILATERAL_POLICY__MAX_EPOCHS of this shell says 9: unset it"
    )


def test_a_process_that_notes_nothing_is_no_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LOOK_SECONDS", 0.01)
    path = world.paths[Role.HOST]
    with held_state(world.configs[Role.HOST].state, Role.HOST):
        (unknown,) = [each for each in findings(path) if each.subject == "settings"]
    assert unknown.level is Level.NOTE
