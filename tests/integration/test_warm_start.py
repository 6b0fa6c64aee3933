"""Trainings over three servers that start from an earlier model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.three_servers import DATASET, check_model, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import SECONDS
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.checks.finding import Level
from trilateral.common.checks.tables import check_tables
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model, save_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED, JOB_STATE_TRAINING

MAY = JobConfig(name="may", dataset=DATASET, protocol="shares", l2=0.01, holdout=0.0)
JUNE = MAY.model_copy(update={"name": "june", "dataset": "june", "start_from": "may"})
COLD = JUNE.model_copy(update={"name": "cold", "start_from": None})
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    """Two tables with the same columns: in June 2,000 of 4,000 rows are new."""
    tables = write_tables(tmp_path, n_rows=6000)
    ids = sorted(tables[Role.HOST]["id"])
    configs = make_configs(tmp_path)
    for role, table in tables.items():
        configs[role] = _with_months(configs[role], table, ids)
    return configs


def _with_months(config: ProcessConfig, table: pd.DataFrame, ids: list[str]) -> ProcessConfig:
    dataset = config.datasets[DATASET]
    june = dataset.model_copy(update={"path": dataset.path.with_stem(f"june-{config.role}")})
    table[table["id"].isin(ids[:4000])].to_csv(dataset.path, index=False)
    table[table["id"].isin(ids[2000:])].to_csv(june.path, index=False)
    return config.model_copy(update={"datasets": {DATASET: dataset, "june": june}})


def set_policy(configs: Configs, role: Role, **settings: Any) -> None:
    policy = configs[role].policy.model_copy(update=settings)
    configs[role] = configs[role].model_copy(update={"policy": policy})


def rounds(configs: Configs, job: JobConfig) -> int:
    return load_model(JobFolder(configs[Role.HOST].state, job.name).model).rounds


async def test_a_warm_start_needs_fewer_rounds_for_the_same_model(configs: Configs) -> None:
    async with serving(configs) as client:
        for job in (MAY, JUNE, COLD):
            status = await train_over_localhost(client, job)
            assert status.state == JOB_STATE_FINISHED, status
    assert rounds(configs, JUNE) < rounds(configs, COLD)
    for job in (JUNE, COLD):
        check_model(configs, job)


async def test_on_the_same_rows_one_round_is_enough(configs: Configs) -> None:
    again = JUNE.model_copy(update={"name": "again", "dataset": DATASET, "tolerance": 1e-4})
    async with serving(configs) as client:
        for job in (MAY, again):
            assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
    assert rounds(configs, again) == 1
    check_model(configs, again)


@pytest.mark.parametrize("role", PARTIES)
async def test_a_partys_policy_refuses_a_warm_start(configs: Configs, role: Role) -> None:
    set_policy(configs, role, share_earlier_weights=False)
    async with serving(configs) as client:
        assert (await train_over_localhost(client, MAY)).state == JOB_STATE_FINISHED
        status = await train_over_localhost(client, JUNE)
    assert status.state == JOB_STATE_FAILED
    assert f"the {role} refuses the job under policy.share_earlier_weights" in status.detail


def problems(config: ProcessConfig, job: JobConfig) -> list[str]:
    """What `trilateral check --job` finds wrong with the table and the policy of a party."""
    return [each.text for each in check_tables(config, job) if each.level is Level.PROBLEM]


async def test_a_party_without_the_earlier_model_says_so_and_so_does_its_check(configs: Configs) -> None:
    async with serving(configs) as client:
        status = await train_over_localhost(client, JUNE)
    assert status.state == JOB_STATE_FAILED
    for said in ([status.detail], *(problems(configs[role], JUNE) for role in PARTIES)):
        assert ["there is no model of job may to start from" in each for each in said] == [True]


async def test_a_model_under_paillier_is_no_start(configs: Configs) -> None:
    async with serving(configs) as client:
        assert (await train_over_localhost(client, MAY)).state == JOB_STATE_FINISHED
        assert not problems(configs[Role.GUEST], JUNE)
        path = JobFolder(configs[Role.GUEST].state, MAY.name).model
        model = load_model(path)
        save_model(path, model.model_copy(update={"job": model.job.model_copy(update={"protocol": "paillier"})}))
        status = await train_over_localhost(client, JUNE)
    assert not problems(configs[Role.HOST], JUNE)
    for said in ([status.detail], problems(configs[Role.GUEST], JUNE)):
        assert ["hides the guest's weights from the coordinator" in each for each in said] == [True]


async def test_a_stopped_job_continues_from_its_first_start_even_if_the_earlier_model_is_gone(
    configs: Configs,
) -> None:
    slow = JUNE.model_copy(update={"name": "slow", "tolerance": 0.0, "epochs": 300})
    async with serving(configs) as client:
        assert (await train_over_localhost(client, MAY)).state == JOB_STATE_FINISHED
        await client.start(slow)
        async with asyncio.timeout(SECONDS):
            async for status in client.watch(slow.name):
                if status.state == JOB_STATE_TRAINING and status.round >= 2:
                    await client.stop(slow.name)
                    break
        async with asyncio.timeout(SECONDS):
            async for status in client.watch(slow.name):
                last = status
        if last.state == JOB_STATE_FINISHED:
            pytest.fail("the training was over before it was stopped")
        assert last.state == JOB_STATE_STOPPED
    for role in PARTIES:
        JobFolder(configs[role].state, MAY.name).model.unlink()
    async with serving(configs) as client:
        await client.resume(slow.name)
        async with asyncio.timeout(SECONDS):
            async for status in client.watch(slow.name):
                last = status
    assert last.state == JOB_STATE_FINISHED, last.detail
    check_model(configs, slow.model_copy(update={"tolerance": 1e-5}))


async def test_the_ledger_counts_a_warm_start_as_any_training(configs: Configs) -> None:
    async with serving(configs) as client:
        for job in (MAY, JUNE):
            assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
    entries = json.loads((configs[Role.GUEST].state / ".ledger.json").read_text())["datasets"]
    n_host = len(load_model(JobFolder(configs[Role.HOST].state, MAY.name).model).training_weights)
    assert [each["equations"] for each in entries.values()] == [n_host + 1, n_host + 1]
    assert np.isfinite(n_host)
