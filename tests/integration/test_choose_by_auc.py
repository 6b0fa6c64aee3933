"""A cross-validation that chooses by AUC, over three servers: whose policy permits it, and what is counted."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.integration.test_split_column import Configs, changed, train
from tests.support.three_servers import (
    DATASET,
    load_tables,
    make_configs,
    serving,
    trained_coef,
    write_tables,
)
from trilateral.cli.results import print_part
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Penalty
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING
from trilateral.coordinator.numpy_training import train_plain

N_ROWS = 600
SEARCH = [Penalty(l2=l2) for l2 in (1.0, 0.1, 0.001)]
JOB = JobConfig(
    name="by-auc",
    dataset=DATASET,
    protocol="shares",
    folds=3,
    search=SEARCH,
    choose="auc",
    holdout=0.0,
    aligned=True,
)


def configs_in(folder: Path, n_rows: int = N_ROWS, **of_host: Any) -> Configs:
    write_tables(folder, n_rows=n_rows, n_host=6)
    configs = make_configs(folder)
    configs[Role.HOST] = changed(configs[Role.HOST], {"share_fold_scores": True, **of_host})
    return configs


async def test_the_penalty_of_the_highest_auc_is_chosen_and_each_penalty_counts_once(tmp_path: Path) -> None:
    configs = configs_in(tmp_path)
    assert await train(configs, JOB) == ""
    joined = load_tables(configs, JOB).joined
    plain = train_plain(JOB, joined.columns, joined.labels, joined.penalty)
    guest = load_model(JobFolder(configs[Role.GUEST].state, JOB.name).model)
    assert [each.chosen for each in guest.search] == [each.is_chosen for each in plain.compared]
    for seen, expected in zip(guest.search, plain.compared, strict=True):
        assert seen.auc == pytest.approx(expected.auc, abs=1e-3)
        assert seen.auc_error == pytest.approx(expected.auc_error, abs=1e-3)
    np.testing.assert_allclose(trained_coef(configs, JOB), plain.coef, atol=0.03)
    shown = StringIO()
    print_part(guest, Console(file=shown, width=200))
    assert all(f"{each.auc:.6f}" in shown.getvalue() for each in guest.search)
    assert not load_model(JobFolder(configs[Role.HOST].state, JOB.name).model).search
    assert len(Ledger(configs[Role.HOST].state, Role.HOST).entry(DATASET).points) == len(SEARCH)
    assert ScoreQuota.of(configs[Role.HOST]).today().given == len(SEARCH) * N_ROWS


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"share_fold_scores": False}, "policy.share_fold_scores: the host does not let the guest learn the scores of"),
        ({"min_columns_per_point": 3}, "policy.min_columns_per_point: rows of .* at most 2 .*; 0 given so far, 3 more"),
        ({"max_scores_a_day": 1799}, "policy.max_scores_a_day: the maximum is 1799 scores a day; .*, 1800 needed"),
    ],
)
async def test_the_host_refuses_what_its_policy_does_not_permit(
    policy: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    configs = configs_in(tmp_path, **policy)
    detail = await train(configs, JOB)
    assert detail.startswith("the host refuses the job under policy.")
    assert re.search(problem, detail)
    assert not Ledger(configs[Role.HOST].state, Role.HOST).entry(DATASET).points


async def test_a_job_that_goes_on_counts_each_penalty_once(tmp_path: Path) -> None:
    job = JOB.model_copy(update={"epochs": 200, "tolerance": 1e-9})
    configs = configs_in(tmp_path, min_columns_per_point=2)
    async with serving(configs) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            if status.state == JOB_STATE_TRAINING and status.round >= 12:
                break
        await client.stop(job.name)
    async with serving(configs) as client:
        await client.resume(job.name)
        async for status in client.watch(job.name):
            if status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED):
                break
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert len(Ledger(configs[Role.HOST].state, Role.HOST).entry(DATASET).points) == len(SEARCH)
    assert ScoreQuota.of(configs[Role.HOST]).today().given == len(SEARCH) * N_ROWS
