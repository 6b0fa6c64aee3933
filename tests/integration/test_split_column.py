"""A split column over three servers: either party may have it, and the model, its figures and its counts follow it."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
from trilateral.common.checks.tables import check_tables
from trilateral.common.config.dataset import SplitConfig
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING
from trilateral.common.process.job_client import JobClient

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
    # All sets are scored with the same weights, and each row lies in one of them.
    assert len(Ledger(configs[Role.HOST].state, Role.HOST).entry(DATASET).points) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_only_the_first_set_stops_a_training(protocol: Protocol, tmp_path: Path) -> None:
    job = under(protocol, JOB.model_copy(update={"evaluate_every": 2, "patience": 1, "epochs": 8}))
    configs = owned_by(Role.GUEST, tmp_path)
    assert await train(configs, job) == ""
    guest = load_model(JobFolder(configs[Role.GUEST].state, job.name).model)
    assert len(guest.evaluation_sets) == 3
    assert {each.metrics.n_rows for each in guest.evaluations} <= {guest.data.n_holdout}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_host_chooses_no_rows_of_an_evaluation_whose_loss_it_sees(protocol: Protocol, tmp_path: Path) -> None:
    job = under(protocol, JOB.model_copy(update={"evaluate_every": 2, "epochs": 8}))
    refusal = await train(owned_by(Role.HOST, tmp_path), job)
    assert ("the host's split column chooses the rows whose log loss" in refusal) is (protocol == "paillier")
    assert bool(refusal) is (protocol == "paillier")


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


async def test_a_host_does_not_learn_from_a_refusal_that_its_rows_have_one_label(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, tmp_path)
    guest = pd.read_csv(tmp_path / "guest.csv", dtype={"id": str}).sort_values("id")
    host = pd.read_csv(tmp_path / "host.csv", dtype={"id": str}).sort_values("id")
    negative = (guest["label"] == "no").to_numpy()
    few = negative & (negative.cumsum() <= 3)
    host.assign(sample=np.where(few, "val", "dev")).to_csv(tmp_path / "host.csv", index=False)
    for protocol in PROTOCOLS:
        job = under(protocol, JOB.model_copy(update={"name": protocol}))
        assert await train(configs, job) == ""
        (valid,) = load_model(JobFolder(configs[Role.GUEST].state, job.name).model).evaluation_sets
        assert (valid.metrics.n_rows, valid.metrics.auc, valid.intervals.auc) == (3, None, None)


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


@pytest.mark.parametrize("owner", PARTIES)
async def test_a_resumed_job_keeps_the_roles_of_its_rows(owner: Role, tmp_path: Path) -> None:
    job = JOB.model_copy(update={"algorithm": Sgd(), "batch": 40, "epochs": 30, "tolerance": 0.0, "aligned": False})
    configs = owned_by(owner, tmp_path)
    path = tmp_path / f"{owner}.csv"
    content = path.read_text()
    async with serving(configs) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            if status.state == JOB_STATE_TRAINING and status.round >= 8:
                break
        await client.stop(job.name)
    path.write_text(content.replace(",oot\n", ",dev\n"))
    async with serving(configs) as client:
        await client.resume(job.name)
        assert "the table has changed since the job began" in await end_of(client, job)
    path.write_text(content)
    async with serving(configs) as client:
        await client.resume(job.name)
        assert await end_of(client, job) == ""
    check_model(configs, job, load(configs, owner, job))


async def end_of(client: JobClient, job: JobConfig) -> str:
    async for status in client.watch(job.name):
        if status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED):
            return "" if status.state == JOB_STATE_FINISHED else status.detail
    raise AssertionError("the job has not ended")


def test_a_check_counts_the_sets_at_the_owner_alone(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, tmp_path)
    counts = pd.read_csv(tmp_path / "host.csv")["sample"].value_counts()
    texts = {role: "\n".join(each.text for each in check_tables(configs[role], JOB)) for role in PARTIES}
    sets = f"{counts['val']} rows of valid, {counts['test']} rows of test, {counts['oot']} rows of out_of_time"
    assert f"{counts['dev']} training rows, {sets}, {counts['none']} unused rows and" in texts[Role.HOST]
    assert "a column of the other party decides which rows train" in texts[Role.GUEST]
    assert f"{N_ROWS} training rows, 0 hold-out rows and" in texts[Role.GUEST]


async def test_folds_are_drawn_among_the_training_rows_of_the_column(tmp_path: Path) -> None:
    search = [{"l2": 0.01}, {"l2": 1.0}]
    job = JobConfig(
        name="folds", dataset=DATASET, protocol="shares", holdout="column", aligned=True, folds=3, search=search
    )
    configs = owned_by(Role.HOST, tmp_path)
    assert await train(configs, job) == ""
    guest = load_model(JobFolder(configs[Role.GUEST].state, job.name).model)
    assert list(guest.data.sets) == ["valid", "test", "out_of_time"]
