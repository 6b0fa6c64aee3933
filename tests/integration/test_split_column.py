"""A split column over three servers: either party may have it, and the model, its figures and its counts follow it."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.support.three_machines import Tables
from tests.support.three_servers import (
    DATASET,
    PROTOCOLS,
    Protocol,
    check_model,
    make_configs,
    serving,
    train_over_localhost,
    trained_coef,
    under,
    write_tables,
)
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import SplitConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED

JOB = JobConfig(name="split", dataset=DATASET, key_bits=256, holdout="column", aligned=True)
SPLIT = SplitConfig(column="sample", train=["dev"], valid=["val"], test=["test"], out_of_time=["oot"])
N_ROWS = 400
Configs = dict[Role, ProcessConfig]


def changed(config: ProcessConfig, policy: dict[str, Any], **dataset: Any) -> ProcessConfig:
    datasets = {DATASET: config.datasets[DATASET].model_copy(update=dataset)}
    return config.model_copy(update={"datasets": datasets, "policy": config.policy.model_copy(update=policy)})


def owned_by(owner: Role, folder: Path, **policy: Any) -> Configs:
    """Write tables of which that of `owner` has the column, and return the settings."""
    tables = write_tables(folder, n_rows=N_ROWS)
    samples = np.random.default_rng(5).choice(
        ["dev", "val", "test", "oot", "none"], N_ROWS, p=[0.5, 0.2, 0.1, 0.1, 0.1]
    )
    table = tables[owner].sort_values("id").assign(sample=samples)
    table.to_csv(folder / f"{owner}.csv", index=False)
    configs = make_configs(folder)
    configs[owner] = changed(configs[owner], {"share_split": True, **policy}, split=SPLIT)
    return configs


def load(configs: Configs, owner: Role, job: JobConfig) -> Tables:
    roles = read_table(configs[owner].datasets[DATASET]).split
    parts = {
        role: load_party_data(configs[role].datasets[DATASET], job, labelled=role is Role.GUEST, roles=roles)
        for role in PARTIES
    }
    return Tables(parts[Role.HOST], parts[Role.GUEST])


async def train(configs: Configs, job: JobConfig) -> str:
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
    assert status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED)
    return "" if status.state == JOB_STATE_FINISHED else status.detail


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("owner", PARTIES)
async def test_the_model_is_that_of_the_training_rows_and_each_set_has_its_figures(
    owner: Role, protocol: Protocol, aligned: bool, tmp_path: Path
) -> None:
    job = under(protocol, JOB.model_copy(update={"aligned": aligned}))
    configs = owned_by(owner, tmp_path)
    assert await train(configs, job) == ""
    tables = load(configs, owner, job)
    check_model(configs, job, tables)

    guest, host = (load_model(JobFolder(configs[role].state, job.name).model) for role in (Role.GUEST, Role.HOST))
    sets = {each.name: each for each in guest.evaluation_sets}
    assert list(sets) == ["valid", "test", "out_of_time"]
    assert guest.data.sets == host.data.sets == {name: each.metrics.n_rows for name, each in sets.items()}
    assert sets["valid"].metrics == guest.metrics
    assert not host.evaluation_sets
    coef = trained_coef(configs, job)
    parts = [tables.host.block, tables.guest.block]
    later = np.hstack([np.asarray(part.test_columns) for part in parts]) @ coef
    scores = np.concatenate([np.hstack([np.asarray(part.holdout_columns) for part in parts]) @ coef, later])
    assert tables.guest.block.test_labels is not None
    assert tables.guest.block.holdout_labels is not None
    labels = np.concatenate([tables.guest.block.holdout_labels, tables.guest.block.test_labels])
    first = 0
    for name, n_rows in guest.data.sets.items():
        of_set = slice(first, first + n_rows)
        auc = sets[name].metrics.auc
        assert auc == pytest.approx(roc_auc_score(labels[of_set], scores[of_set]), abs=0.005)
        interval = sets[name].intervals.auc
        assert interval is not None
        assert auc is not None
        assert interval[0] <= auc <= interval[1]
        first += n_rows

    given = json.loads((configs[Role.HOST].state / ".scores-given.json").read_text())["given"]
    assert given == sum(guest.data.sets.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_only_the_first_set_stops_a_training(protocol: Protocol, tmp_path: Path) -> None:
    job = under(protocol, JOB.model_copy(update={"evaluate_every": 2, "patience": 1, "epochs": 8}))
    configs = owned_by(Role.HOST, tmp_path)
    assert await train(configs, job) == ""
    guest = load_model(JobFolder(configs[Role.GUEST].state, job.name).model)
    assert len(guest.evaluation_sets) == 3
    assert {each.metrics.n_rows for each in guest.evaluations} <= {guest.data.n_holdout}


async def test_without_its_policy_an_owner_tells_nothing(tmp_path: Path) -> None:
    for owner in PARTIES:
        (tmp_path / owner).mkdir()
        configs = owned_by(owner, tmp_path / owner, share_split=False)
        refusal = await train(configs, JOB)
        assert refusal.startswith(f"the {owner} refuses the job under policy.share_split")


@pytest.mark.parametrize(
    ("owners", "who"), [((), "neither party's dataset has"), (PARTIES, "both parties' datasets have")]
)
async def test_exactly_one_party_has_a_split_column(owners: tuple[Role, ...], who: str, tmp_path: Path) -> None:
    tables = write_tables(tmp_path)
    configs = make_configs(tmp_path)
    for role in owners:
        tables[role].assign(sample="dev").to_csv(tmp_path / f"{role}.csv", index=False)
        configs[role] = changed(configs[role], {"share_split": True}, split=SPLIT)
    assert who in await train(configs, JOB)


async def test_the_host_limits_how_many_rows_a_column_holds_out(tmp_path: Path) -> None:
    configs = owned_by(Role.GUEST, tmp_path)
    configs[Role.HOST] = changed(configs[Role.HOST], {"max_holdout": 0.3})
    detail = await train(configs, JOB)
    assert detail.startswith("the host refuses the job under policy.max_holdout: the maximum is 0.3")


async def test_a_job_with_a_random_hold_out_ignores_the_column(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, tmp_path, share_split=False)
    assert await train(configs, JOB.model_copy(update={"holdout": 0.2})) == ""
    guest = load_model(JobFolder(configs[Role.GUEST].state, JOB.name).model)
    assert [each.name for each in guest.evaluation_sets] == ["holdout"]
    assert guest.data.sets == {"holdout": round(0.2 * N_ROWS)}
    host = load_model(JobFolder(configs[Role.HOST].state, JOB.name).model)
    assert "sample" not in host.weights


async def test_no_role_of_a_row_reaches_a_log_or_the_coordinator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configs = owned_by(Role.HOST, tmp_path)
    roles = read_table(configs[Role.HOST].datasets[DATASET]).split
    assert roles is not None
    with caplog.at_level(logging.DEBUG):
        assert await train(configs, JOB) == ""
    assert repr(roles.tobytes()[:20])[2:-1] not in caplog.text
    files = [path for path in configs[Role.COORDINATOR].state.rglob("*") if path.is_file()]
    assert not any(roles.tobytes()[:20] in path.read_bytes() for path in files)
