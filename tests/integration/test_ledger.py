"""Three servers count over all jobs what each party gives the other, before it leaves, and nothing twice."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.three_servers import DATASET, check_model, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import SECONDS
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.ledger import LEDGER, Entry, Ledger, point_of
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobStatus,
)
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.messages import Envelope, OpenJob
from trilateral.common.rpc.channel import Peer, new_channel
from trilateral.coordinator.machine import CoordinatorMachine
from trilateral.guest_party.prediction import PredictionPlan, predict

N_HOST, N_GUEST = 4, 3
"""Training columns, with the guest's intercept: two points are allowed."""
JOB = JobConfig(name="counted", dataset=DATASET, aligned=True, key_bits=512, algorithm=Lbfgs(), epochs=4, tolerance=0.0)
LONG = JOB.model_copy(update={"name": "long", "algorithm": Sgd(), "batch": 24, "epochs": 12, "evaluate_every": 4})
"""Has 48 rounds, two evaluations and the result."""
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path, n_host=N_HOST, n_guest=N_GUEST - 1)
    return make_configs(tmp_path, peer_timeout=60)


def set_policy(configs: Configs, role: Role, **settings: Any) -> None:
    policy = configs[role].policy.model_copy(update=settings)
    configs[role] = configs[role].model_copy(update={"policy": policy})


def entry(configs: Configs, role: Role) -> Entry:
    return Ledger(configs[role].state, role).entry(DATASET)


async def until(client: JobClient, job: JobConfig, condition: Callable[[JobStatus], bool]) -> JobStatus:
    async with asyncio.timeout(SECONDS):
        async for status in client.watch(job.name):
            if condition(status):
                return status
    return await client.status(job.name)


async def stop_in_round(client: JobClient, job: JobConfig, number: int) -> None:
    await until(client, job, lambda status: status.state == JOB_STATE_TRAINING and status.round >= number)
    await client.stop(job.name)


def refusals(configs: Configs, role: Role) -> list[str]:
    lines = map(json.loads, (configs[role].state / "audit.jsonl").read_text().splitlines())
    return [line["reason"] for line in lines if line["decision"] == "refused"]


# --- what is counted


async def test_a_training_counts_once_at_both_parties_and_its_model_is_one_point(configs: Configs) -> None:
    set_policy(configs, Role.HOST, allow_prediction=True, min_columns_per_point=N_HOST)
    host, guest = configs[Role.HOST], configs[Role.GUEST]
    async with serving(configs) as client, new_channel(host.listen, None, "") as channel:
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
        for number in range(2):
            out = guest.state / f"{number}.csv"
            plan = PredictionPlan(job=JOB.name, dataset=DATASET, out=out, missing=out.with_stem("no"), aligned=True)
            await predict(guest, Peer(Role.HOST, host.listen, channel), plan)
    assert (guest.state / "0.csv").read_text() == (guest.state / "1.csv").read_text()
    model = load_model(JobFolder(host.state, JOB.name).model)
    point = point_of(model.steps, np.array(model.training_weights))
    assert entry(configs, Role.HOST) == Entry(trainings=1, equations=N_GUEST, points=(point,))
    assert entry(configs, Role.GUEST) == Entry(trainings=1, equations=N_HOST)


async def test_a_job_without_hold_out_rows_makes_no_point_until_its_model_predicts(configs: Configs) -> None:
    set_policy(configs, Role.HOST, allow_prediction=True, min_columns_per_point=N_HOST)
    host, guest = configs[Role.HOST], configs[Role.GUEST]
    async with serving(configs) as client, new_channel(host.listen, None, "") as channel:
        for name in ("first", "second"):
            job = JOB.model_copy(update={"name": name, "holdout": 0.0, "l2": len(name) / 100})
            assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
        assert entry(configs, Role.HOST).points == ()
        peer, out = Peer(Role.HOST, host.listen, channel), guest.state / "scores.csv"
        plan = PredictionPlan(job="first", dataset=DATASET, out=out, missing=out.with_stem("no"), aligned=True)
        await predict(guest, peer, plan)
        out.unlink()
        with pytest.raises(PolicyError, match="the host refuses the prediction under policy.min_columns_per_point"):
            await predict(guest, peer, replace(plan, job="second"))
    assert not out.exists()
    assert len(entry(configs, Role.HOST).points) == 1


@pytest.mark.parametrize("line", ["min_label_bits", "min_batch"])
async def test_a_job_that_the_other_party_refuses_has_given_nothing(line: str, configs: Configs) -> None:
    set_policy(configs, Role.GUEST, **{line: 1000})
    async with serving(configs) as client:
        assert f"the guest refuses the job under policy.{line}" in (await train_over_localhost(client, JOB)).detail
    assert [entry(configs, role) for role in PARTIES] == [Entry(), Entry()]


async def test_a_job_that_stops_early_has_given_only_the_points_that_it_reached(configs: Configs) -> None:
    set_policy(configs, Role.HOST, min_columns_per_point=N_HOST / 3)  # exactly the points of this job
    async with serving(configs) as client:
        await client.start(LONG)
        await stop_in_round(client, LONG, 22)
        assert (await client.status(LONG.name)).state == JOB_STATE_STOPPED
        assert len(entry(configs, Role.HOST).points) == 1
    async with serving(configs) as client:  # all three restarted
        await client.resume(LONG.name)
        ended = await until(client, LONG, lambda status: status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED))
        assert ended.state == JOB_STATE_FINISHED, ended.detail
    check_model(configs, LONG)
    found = entry(configs, Role.HOST)
    assert (found.trainings, found.equations, len(found.points)) == (1, 4 * N_GUEST, 3)
    assert entry(configs, Role.GUEST) == Entry(trainings=1, equations=4 * N_HOST)


# --- what is refused


async def test_the_points_of_a_running_job_are_not_given_to_another(configs: Configs) -> None:
    set_policy(configs, Role.HOST, min_columns_per_point=1)  # four points, three of them for the first job
    async with serving(configs) as client:
        await client.start(LONG)
        await until(client, LONG, lambda status: status.state == JOB_STATE_TRAINING)
        other = LONG.model_copy(update={"name": "other"})
        refused = await train_over_localhost(client, other)
        assert "may be scored with at most 4 different sets of weights" in refused.detail
        assert "3 more needed" in refused.detail
        assert refused.round == 0
        await until(client, LONG, lambda status: status.state == JOB_STATE_FINISHED)
    assert len(entry(configs, Role.HOST).points) == 3
    assert refusals(configs, Role.HOST) == [refused.detail]


@pytest.mark.parametrize(
    ("role", "line", "limit"),
    # There are 96 training rows, with some 95 bits of labels. Each training gives four equations about the labels.
    [(Role.HOST, "min_rows_per_equation", 96 / N_GUEST), (Role.GUEST, "min_label_bits", 94 / (2 * N_HOST - 1))],
)
async def test_a_second_training_is_refused_before_its_first_round_and_the_audit_log_says_why(
    role: Role, line: str, limit: float, configs: Configs
) -> None:
    set_policy(configs, role, **{line: limit})
    async with serving(configs) as client:
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
        refused = await train_over_localhost(client, JOB.model_copy(update={"name": "again", "seed": 1}))
    assert f"the {role} refuses the job under policy.{line}: all trainings on {DATASET} together" in refused.detail
    assert ("given so far (trainings: 1)" in refused.detail) == (role is Role.HOST)
    assert refused.round == 0
    assert refusals(configs, role) == [refused.detail]
    assert [entry(configs, each).trainings for each in PARTIES] == [1, 1]


@pytest.mark.parametrize("role", PARTIES)
async def test_a_job_does_not_continue_with_another_number_of_columns_than_was_counted(
    role: Role, configs: Configs
) -> None:
    async with serving(configs) as client:
        await client.start(LONG)
        await stop_in_round(client, LONG, 2)
    journal = Journal(configs[role].state, role, kept_days=1)
    with journal._changing() as database:
        database.execute("UPDATE fact SET content = ? WHERE name = 'training counted'", (b"2",))
    journal.close()
    async with serving(configs) as client:
        await client.resume(LONG.name)
        ended = await until(client, LONG, lambda status: status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED))
    n_peer = {Role.HOST: N_GUEST, Role.GUEST: N_HOST}[role]
    assert f"has {n_peer} training columns, and the {role} has counted 2 when the job began" in ended.detail
    assert ended.state == JOB_STATE_FAILED


async def test_a_damaged_ledger_stops_every_job_before_it_gives_anything(configs: Configs) -> None:
    state = configs[Role.GUEST].state
    state.mkdir(parents=True)
    (state / LEDGER).write_text("{}")
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
    assert "the guest accepts no job and gives no scores, because the ledger is damaged" in status.detail
    assert entry(configs, Role.HOST) == Entry()


@pytest.mark.parametrize("was_ready", [False, True])
async def test_nothing_that_the_coordinator_claims_about_earlier_sessions_takes_a_count_back(
    was_ready: bool, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(configs) as client:
        await client.start(LONG)
        await stop_in_round(client, LONG, 22)
        before = {role: entry(configs, role) for role in PARTIES}
        start = CoordinatorMachine.start

        def claim(machine: CoordinatorMachine) -> Iterator[Envelope]:
            for envelope in start(machine):
                offer = envelope.message
                assert isinstance(offer, OpenJob)
                yield replace(envelope, message=replace(offer, was_ready=was_ready))

        monkeypatch.setattr(CoordinatorMachine, "start", claim)
        await client.resume(LONG.name)
        await until(client, LONG, lambda status: status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED))
    for role in PARTIES:
        after = entry(configs, role)
        assert after.trainings >= before[role].trainings
        assert after.equations >= before[role].equations
        assert set(after.points) >= set(before[role].points)
