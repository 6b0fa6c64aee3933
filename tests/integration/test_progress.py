"""An operator sees how far a round has come, and what the parties do before the first one."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.three_servers import DATASET, PROTOCOLS, Protocol, make_configs, serving, write_tables
from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs import runner
from trilateral.common.jobs.patience import Patience
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED, JobStatus
from trilateral.common.protocol.shares import arithmetic as shares
from trilateral.common.protocol.shares import counting, information
from trilateral.coordinator import job as coordinator_job

N_ROWS = 20_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_status_shows_the_progress_of_a_round_and_of_the_work_before_it(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(coordinator_job, "SHOW_SECONDS", 0.0)
    monkeypatch.setattr(shares, "REPORTS_PER_WINDOW", 1000)
    monkeypatch.setattr(Patience, "pause", 0.001)
    write_tables(tmp_path, n_rows=N_ROWS)
    configs = make_configs(tmp_path)
    options = {"key_bits": 256, "slots": 1} if protocol == "paillier" else {}
    job = JobConfig.model_validate({"name": "shown", "dataset": DATASET, "protocol": protocol, "epochs": 2, **options})
    shown: list[JobStatus] = []
    async with serving(configs) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            shown.append(status)
    assert shown[-1].state == JOB_STATE_FINISHED, shown[-1].detail
    assert not shown[-1].n_rows
    before = "; ".join(status.detail for status in shown)
    assert f"the host is {Stage.READING}" in before
    within = [status for status in shown if status.n_rows]
    assert within
    assert all(0 < status.rows_done <= status.n_rows for status in within)
    assert {status.n_rows >= 0.8 * N_ROWS for status in within} == {True}


async def watched(job: JobConfig, folder: Path, policies: dict[Role, dict[str, Any]]) -> list[JobStatus]:
    """Run a job on shares with blocks of few rows, and return every status of it."""
    write_tables(folder, n_rows=N_ROWS)
    configs = make_configs(folder)
    for role, policy in policies.items():
        configs[role] = configs[role].model_copy(update={"policy": configs[role].policy.model_copy(update=policy)})
    shown: list[JobStatus] = []
    async with serving(configs) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            shown.append(status)
    assert shown[-1].state == JOB_STATE_FINISHED, shown[-1].detail
    return shown


async def test_the_status_names_the_step_of_inference_and_shows_how_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(coordinator_job, "SHOW_SECONDS", 0.0)
    monkeypatch.setattr(information, "REPORTS_PER_WINDOW", 1000)
    job = JobConfig(name="shown", dataset=DATASET, protocol="shares", inference=True, tolerance=1e-6)
    shown = await watched(job, tmp_path, {role: {"share_inference": True} for role in PARTIES})
    named = [status for status in shown if status.step]
    assert {status.step for status in named} == {"standard errors"}
    assert {status.round for status in named} <= {shown[-1].round - 1, shown[-1].round}
    assert any(0 < status.rows_done < status.n_rows for status in named)
    assert not shown[-1].step


async def test_the_status_shows_how_far_a_bins_job_has_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(coordinator_job, "SHOW_SECONDS", 0.0)
    monkeypatch.setattr(counting, "_PIECE_ELEMENTS", 2**14)
    job = JobConfig(name="shown", dataset=DATASET, protocol="shares", task="bins")
    shown = await watched(job, tmp_path, {Role.HOST: {"share_bins": "guest"}})
    details = "; ".join(status.detail for status in shown)
    for party in PARTIES:
        assert re.search(rf"the {party} is {Stage.COUNTING} \([1-9][0-9]?%", details), details
