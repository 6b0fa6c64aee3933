"""Folds that a party decides, over three servers: the search has them, and both parties keep them."""

import logging
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.integration.test_split_column import Configs, changed, train
from tests.support.three_servers import (
    DATASET,
    load_tables,
    make_configs,
    serving,
    trained_coef,
    write_tables,
)
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import FoldConfig
from trilateral.common.config.job import JobConfig, PenaltyPath, Sgd
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import Journal
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.coordinator.numpy_training import train_plain

JOB = JobConfig(
    name="folds",
    dataset=DATASET,
    protocol="shares",
    l2=0.5,
    folds=3,
    path=PenaltyPath(points=4),
    holdout=0.0,
    aligned=True,
)
N_ROWS = 600


def by(fold_by: str, **options: Any) -> JobConfig:
    return JOB.model_copy(update={"fold_by": fold_by, **options})


def owned_by(owner: Role, fold_by: str, folder: Path, **policy: Any) -> Configs:
    """Write tables of which that of `owner` has a column of groups or times, and return the settings."""
    tables = write_tables(folder, n_rows=N_ROWS)
    keys = np.random.default_rng(5).integers(0, 40, N_ROWS)
    tables[owner].sort_values("id").assign(key=keys).to_csv(folder / f"{owner}.csv", index=False)
    configs = make_configs(folder)
    column = {} if fold_by == "label" else {"folds": FoldConfig.model_validate({fold_by: "key"})}
    configs[owner] = changed(configs[owner], {"share_folds": True, **policy}, **column)
    return configs


def kept(configs: Configs, role: Role, job: JobConfig) -> RoleVector:
    """Return the folds that a party's journal has for a job."""
    with closing(Journal(configs[role].state, role, 90)) as journal:
        (record,) = [each for each in journal.all() if each.job.name == job.name]
    return np.frombuffer(zlib.decompress(record.facts["row roles folds"]), np.uint8)


@pytest.mark.parametrize(
    ("owner", "fold_by"),
    [(Role.GUEST, "label"), (Role.HOST, "group"), (Role.GUEST, "group"), (Role.HOST, "time"), (Role.GUEST, "time")],
)
async def test_the_penalties_are_compared_on_the_folds_of_the_owner(owner: Role, fold_by: str, tmp_path: Path) -> None:
    job = by(fold_by)
    configs = owned_by(owner, fold_by, tmp_path)
    assert await train(configs, job) == ""
    folds = kept(configs, Role.HOST, job)
    assert np.array_equal(folds, kept(configs, Role.GUEST, job))

    tables = load_tables(configs, job)
    joined = tables.joined
    if fold_by == "label":
        counts = [np.bincount(folds[joined.labels == label], minlength=3) for label in (-1, 1)]
        assert max(np.ptp(each) for each in counts) <= 1
    else:
        keys = pd.read_csv(tmp_path / f"{owner}.csv", dtype={"id": str}).sort_values("id")["key"]
        assert pd.Series(folds).groupby(keys.to_numpy()).nunique().max() == 1

    plain = train_plain(job, joined.columns, joined.labels, joined.penalty, folds=folds)
    guest = load_model(JobFolder(configs[Role.GUEST].state, job.name).model)
    for seen, expected in zip(guest.search, plain.compared, strict=True):
        assert seen.loss == pytest.approx(expected.loss, abs=2e-4)
    np.testing.assert_allclose(trained_coef(configs, job), plain.coef, atol=0.03)


async def test_a_job_that_goes_on_has_the_folds_that_it_had(tmp_path: Path) -> None:
    job = by("group", epochs=200, tolerance=1e-9)
    configs = owned_by(Role.GUEST, "group", tmp_path)
    async with serving(configs) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            if status.state == JOB_STATE_TRAINING and status.round >= 3:
                break
        await client.stop(job.name)
    before = kept(configs, Role.GUEST, job)
    async with serving(configs) as client:
        await client.resume(job.name)
        async for status in client.watch(job.name):
            if status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED):
                break
    assert status.state == JOB_STATE_FINISHED, status.detail
    for role in PARTIES:
        assert np.array_equal(kept(configs, role, job), before)


@pytest.mark.parametrize(("owner", "fold_by"), [(Role.GUEST, "label"), (Role.HOST, "group"), (Role.GUEST, "time")])
async def test_without_its_policy_an_owner_tells_nothing(owner: Role, fold_by: str, tmp_path: Path) -> None:
    configs = owned_by(owner, fold_by, tmp_path, share_folds=False)
    assert (await train(configs, by(fold_by))).startswith(f"the {owner} refuses the job under policy.share_folds")


async def test_a_column_for_another_purpose_decides_no_folds(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, "time", tmp_path)
    detail = await train(configs, by("group"))
    assert "neither party's dataset has a column for the folds" in detail
    assert await train(configs, by("random", name="by-seed")) == ""


async def test_only_one_party_decides(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, "time", tmp_path)
    table = pd.read_csv(tmp_path / "guest.csv", dtype={"id": str})
    table.assign(key=np.arange(N_ROWS)).to_csv(tmp_path / "guest.csv", index=False)
    configs[Role.GUEST] = changed(configs[Role.GUEST], {"share_folds": True}, folds=FoldConfig(time="key"))
    assert "both parties' datasets have a column for the folds" in await train(configs, by("time"))


async def test_either_party_refuses_a_small_fold(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, "group", tmp_path)
    table = pd.read_csv(tmp_path / "host.csv", dtype={"id": str})
    table.assign(key=np.minimum(np.arange(N_ROWS) // 4, 2)).to_csv(tmp_path / "host.csv", index=False)
    for role in PARTIES:
        strict = {**configs, role: changed(configs[role], {"min_batch": 100})}
        detail = await train(strict, by("group"))
        assert detail == f"the {role} refuses the job under policy.min_batch: the minimum is 100; a fold has 4"


async def test_folds_that_are_the_batches_of_an_earlier_training_but_for_one_row_are_refused(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, "group", tmp_path)
    configs[Role.GUEST] = changed(configs[Role.GUEST], {"min_changed_rows": 100})
    in_batches = JobConfig(
        name="batches",
        dataset=DATASET,
        protocol="shares",
        algorithm=Sgd(),
        batch=100,
        epochs=1,
        holdout=0.0,
        aligned=True,
    )
    assert await train(configs, in_batches) == ""
    keys = Batches.of(in_batches, N_ROWS).part_of_rows()
    keys[0] = (keys[0] + 1) % 6
    table = pd.read_csv(tmp_path / "host.csv", dtype={"id": str}).sort_values("id")
    table.assign(key=keys).to_csv(tmp_path / "host.csv", index=False)
    detail = await train(configs, by("group", folds=6))
    assert detail.startswith("the guest refuses the job under policy.min_changed_rows: sums over the folds or batches")


async def test_no_fold_of_a_row_reaches_a_log_or_the_coordinator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configs = owned_by(Role.GUEST, "label", tmp_path)
    with caplog.at_level(logging.DEBUG):
        assert await train(configs, by("label")) == ""
    folds = kept(configs, Role.GUEST, by("label")).tobytes()
    assert repr(folds[:20])[2:-1] not in caplog.text
    files = [path for path in configs[Role.COORDINATOR].state.rglob("*") if path.is_file()]
    assert not any(folds[:20] in path.read_bytes() for path in files)
