"""A job that was stopped, or whose processes were restarted, resumes where it was, and only on the same data."""

import asyncio
import json
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.three_servers import (
    DATASET,
    PROTOCOLS,
    SERVE,
    Protocol,
    check_model,
    load_tables,
    make_configs,
    serving,
    under,
    write_tables,
)
from tests.support.waiting import SECONDS, eventually
from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import JOURNAL
from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.jobs.quota import COUNTER
from trilateral.common.observe.audit import LOG
from trilateral.common.observe.audit_chain import verify_chain
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING, JobStatus
from trilateral.common.process.backup import back_up, restore
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.messages import Envelope, OpenJob
from trilateral.coordinator.machine import CoordinatorMachine

JOB = JobConfig(
    name="resumed",
    dataset=DATASET,
    key_bits=512,
    algorithm=Sgd(),
    batch=24,
    epochs=12,
    tolerance=0.0,
    evaluate_every=4,
)
# Rounds on shares are short: some must be left when a test stops the job.
JOBS = {"paillier": JOB, "shares": under("shares", JOB.model_copy(update={"epochs": 40, "evaluate_every": 12}))}
Configs = dict[Role, ProcessConfig]


@pytest.fixture(params=PROTOCOLS)
def job(request: pytest.FixtureRequest) -> JobConfig:
    return JOBS[request.param]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    return make_configs(tmp_path, peer_timeout=60)


async def until(client: JobClient, condition: Callable[[JobStatus], bool]) -> JobStatus:
    async with asyncio.timeout(SECONDS):
        async for status in client.watch(JOB.name):
            if condition(status):
                return status
    raise AssertionError("the job ended before")


def has_ended(status: JobStatus) -> bool:
    return status.state in (JOB_STATE_FAILED, JOB_STATE_FINISHED)


async def stop_in_mid_training(client: JobClient, at_round: int = 20, job: JobConfig = JOB) -> int:
    await client.start(job)
    return await stop_in_round(client, at_round)


async def stop_in_round(client: JobClient, at_round: int) -> int:
    await until(client, lambda status: status.state == JOB_STATE_TRAINING and status.round >= at_round)
    await client.stop(JOB.name)
    return (await client.status(JOB.name)).round


async def test_a_stopped_job_resumes_where_it_was_and_ends_with_the_same_model(
    job: JobConfig, configs: Configs
) -> None:
    async with serving(configs) as client:
        stopped_in = await stop_in_mid_training(client, job=job)
    async with serving(configs) as client:  # all three restarted
        assert (await client.status(JOB.name)).round == stopped_in
        await client.resume(JOB.name)
        with pytest.raises(ProtocolError, match="the job resumed is still running: wait until it has ended"):
            await client.resume(JOB.name)
        status = await until(client, has_ended)
        assert status.state == JOB_STATE_FINISHED, status.detail
        with pytest.raises(ProtocolError, match="the job resumed has finished: start a job with another name"):
            await client.resume(JOB.name)
    check_model(configs, job)
    for role in Role:
        folder = JobFolder(configs[role].state, JOB.name)
        rounds = [json.loads(line)["round"] for line in folder.history.read_text().splitlines()]
        assert rounds == sorted(set(rounds))
        assert len(rounds) >= status.round - 1  # the round in which it stopped may lack its line
    # Scores are counted once, not once in each session. Evaluations on shares need none.
    given = json.loads((configs[Role.HOST].state / COUNTER).read_text())["given"]
    n_holdout = len(load_tables(configs, JOB).joined.holdout_labels)
    assert given == n_holdout * (3 if job.protocol == "paillier" else 1)
    model = load_model(JobFolder(configs[Role.GUEST].state, JOB.name).model)
    assert model.metrics is not None


@pytest.mark.parametrize(("protocol", "encrypted"), [("paillier", False), ("paillier", True), ("shares", True)])
@pytest.mark.parametrize("role", Role)
async def test_a_copy_of_a_running_process_is_restored_and_the_job_goes_on(
    role: Role, protocol: Protocol, encrypted: bool, configs: Configs, tmp_path: Path
) -> None:
    job = JOBS[protocol]
    if encrypted:
        (key := tmp_path / "state.key").write_text(secrets.token_hex(32))
        key.chmod(0o600)
        configs = {each: config.model_copy(update={"state_key": key}) for each, config in configs.items()}
    config, copy = configs[role], tmp_path / "copy.tar"
    async with serving(configs) as client:
        await client.start(job)
        await until(client, lambda status: status.state == JOB_STATE_TRAINING and status.round >= 8)
        await asyncio.to_thread(back_up, config, copy)
        await stop_in_round(client, 20)
    done = restore(config, copy)
    assert not done.undercounts
    assert JOB.name in done.forgotten
    async with serving(configs) as client:
        if role is not Role.COORDINATOR:  # which does not know any more that the job was stopped
            await client.resume(JOB.name)
        status = await until(client, has_ended)
    assert status.state == JOB_STATE_FINISHED, status.detail
    check_model(configs, job)
    verify_chain(config.state / LOG)


@pytest.mark.parametrize("role", Role)
async def test_a_process_with_a_restored_state_folder_is_brought_to_the_common_round(
    role: Role, job: JobConfig, configs: Configs, tmp_path: Path
) -> None:
    state, copy = configs[role].state, tmp_path / "copy"
    async with serving(configs) as client:
        copied_in = await stop_in_mid_training(client, at_round=8, job=job)
    shutil.copytree(state, copy)
    async with serving(configs) as client:
        await client.resume(JOB.name)
        stopped_in = await stop_in_round(client, copied_in + 8)
    shutil.rmtree(state)
    copy.rename(state)
    async with serving(configs) as client:
        assert (await client.status(JOB.name)).round == (copied_in if role is Role.COORDINATOR else stopped_in)
        await client.resume(JOB.name)
        await until(client, has_ended)
        status = await client.status(JOB.name)
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert any("a party's journal was behind" in note for note in status.notes) == (role is not Role.COORDINATOR)
    check_model(configs, job)


@pytest.mark.parametrize("role", PARTIES)
async def test_a_job_does_not_resume_on_another_table(role: Role, configs: Configs, tmp_path: Path) -> None:
    path = tmp_path / f"{role}.csv"
    async with serving(configs) as client:
        await stop_in_mid_training(client)
        right = path.read_text()
        lines = right.splitlines()
        cells = lines[1].split(",")
        cells[1] = "0.123"
        path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
        await client.resume(JOB.name)
        status = await until(client, has_ended)
        assert status.detail.startswith(f"the {role}: the table has changed since the job began")
        path.write_text(right)
        await client.resume(JOB.name)
        assert (await until(client, has_ended)).state == JOB_STATE_FINISHED


async def test_a_job_does_not_resume_with_other_settings_of_its_dataset(configs: Configs) -> None:
    async with serving(configs) as client:
        await stop_in_mid_training(client)
    dataset = configs[Role.HOST].datasets[DATASET]
    changed = dataset.model_copy(update={"preprocessing": dataset.preprocessing.model_copy(update={"whiten": False})})
    configs[Role.HOST] = configs[Role.HOST].model_copy(update={"datasets": {DATASET: changed}})
    async with serving(configs) as client:
        await client.resume(JOB.name)
        status = await until(client, has_ended)
    assert status.detail.startswith("the host: the settings of the dataset have changed since the job began")


async def test_a_party_without_its_journal_refuses_to_resume(configs: Configs) -> None:
    async with serving(configs) as client:
        await stop_in_mid_training(client)
    for path in configs[Role.GUEST].state.glob(f"{JOURNAL}*"):
        path.unlink()
    async with serving(configs) as client:
        await client.resume(JOB.name)
        status = await until(client, has_ended)
    assert status.detail == "the guest has no record of the job resumed in its journal: start the job again"


@pytest.mark.parametrize("role", Role)
async def test_no_process_starts_on_a_journal_of_another_program(role: Role, configs: Configs) -> None:
    config = configs[role]
    config.state.mkdir(parents=True)
    with sqlite3.connect(config.state / JOURNAL) as foreign:
        foreign.execute("CREATE TABLE tunes (name TEXT)")
    foreign.close()
    with pytest.raises(ConfigError, match="belongs to another program"):
        await SERVE[role](config, stop=asyncio.Event())


async def test_a_party_that_was_away_when_a_job_stopped_learns_of_it_when_it_starts(configs: Configs) -> None:
    others = {role: configs[role] for role in (Role.COORDINATOR, Role.GUEST)}
    async with serving(others) as client:
        async with serving({Role.HOST: configs[Role.HOST]}):
            await client.start(JOB)
            await until(client, lambda status: status.round >= 5)
        await client.stop(JOB.name)
        assert states(configs[Role.HOST]) == [("running", "")]
        async with serving({Role.HOST: configs[Role.HOST]}):
            await eventually(lambda: states(configs[Role.HOST]) != [("running", "")])
            assert states(configs[Role.HOST]) == [
                ("stopped", "the coordinator has ended the job: stopped by the operator")
            ]
            await client.resume(JOB.name)
            await until(client, lambda status: status.state == JOB_STATE_TRAINING and status.round >= 8)
            assert {states(configs[party])[0] for party in PARTIES} == {("running", "")}
            await client.stop(JOB.name)


def states(config: ProcessConfig) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(config.state / JOURNAL)) as database:
        return database.execute("SELECT state, reason FROM job").fetchall()


async def test_scores_are_counted_whatever_the_coordinator_claims_about_earlier_sessions(
    configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = configs[Role.HOST]
    configs[Role.HOST] = host.model_copy(update={"policy": host.policy.model_copy(update={"max_scores_a_day": 1})})
    start = CoordinatorMachine.start

    def say_that_both_were_ready(machine: CoordinatorMachine) -> Iterator[Envelope]:
        for envelope in start(machine):
            offer = envelope.message
            assert isinstance(offer, OpenJob)
            yield replace(envelope, message=replace(offer, was_ready=True) if offer.job_id else offer)

    monkeypatch.setattr(CoordinatorMachine, "start", say_that_both_were_ready)
    async with serving(configs) as client:
        await client.start(JOB)
        for _ in range(2):
            refused = await until(client, has_ended)
            assert refused.state == JOB_STATE_FAILED
            assert "policy.max_scores_a_day" in refused.detail
            await client.resume(JOB.name)
        await until(client, has_ended)


@pytest.mark.parametrize("role", PARTIES)
async def test_a_session_offered_to_a_stopping_process_is_offered_to_the_next_one(
    role: Role, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = ProcessJobs.close

    async def close_slowly(jobs: ProcessJobs) -> None:
        await close(jobs)
        if jobs.role is role:
            await asyncio.sleep(1)

    monkeypatch.setattr(ProcessJobs, "close", close_slowly)
    others = {each: config for each, config in configs.items() if each is not role}
    async with serving(others) as client:
        async with serving({role: configs[role]}):
            await client.start(JOB)
            await until(client, lambda status: status.round >= 5)
        async with serving({role: configs[role]}):
            status = await until(client, has_ended)
    assert status.state == JOB_STATE_FINISHED, status.detail
    check_model(configs, JOB)
