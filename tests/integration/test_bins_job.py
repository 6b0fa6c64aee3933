"""A bins job over three servers, and a training on weights of evidence of both parties."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from trilateral import aio
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Level
from trilateral.common.checks.tables import check_tables
from trilateral.common.config.dataset import BinningConfig, ColumnBinning, SplitConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.bins_file import BinsFile, load_bins
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.preprocessing.bins import BinnedColumn, BinnedNumber
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.protocol.batches import holdout_split

BINS = JobConfig(name="bins-1", dataset=DATASET, protocol="shares", task="bins", seed=3)
TRAINING = JobConfig(name="scorecard", dataset=DATASET, protocol="shares", seed=3)
PERMITTED: dict[Role, dict[str, Any]] = {
    Role.HOST: {"share_bins": "guest"},
    Role.GUEST: {"share_bin_counts": "host", "min_bin_label_count": 5},
}


def configured(
    configs: dict[Role, ProcessConfig], policies: dict[Role, dict[str, Any]], *, job: str | None = None
) -> dict[Role, ProcessConfig]:
    """Return configurations with other policies, and with bins from a bins job."""
    changed = dict(configs)
    for role, policy in policies.items():
        config = configs[role]
        dataset = config.datasets[DATASET]
        binning = BinningConfig(max_bins=4, job=job if role is Role.HOST else None)
        preprocessing = dataset.preprocessing.model_copy(update={"binning": binning})
        dataset = dataset.model_copy(update={"preprocessing": preprocessing})
        new_policy = config.policy.model_copy(update=policy)
        changed[role] = config.model_copy(update={"policy": new_policy, "datasets": {DATASET: dataset}})
    return changed


def bins_of(configs: dict[Role, ProcessConfig], role: Role) -> BinsFile:
    return load_bins(JobFolder(configs[role].state, BINS.name).bins)


def joined(tables: dict[Role, pd.DataFrame]) -> pd.DataFrame:
    """The training rows of the bins job, in canonical order."""
    table = tables[Role.HOST].merge(tables[Role.GUEST], on="id").sort_values("id").reset_index(drop=True)
    train, _ = holdout_split(len(table), 0.2, 3)
    return table.iloc[train]


def check_counts(column: BinnedColumn, train: pd.DataFrame) -> None:
    assert isinstance(column, BinnedNumber)
    values, positive = train[column.name].to_numpy(), train["label"] == "yes"
    place = np.searchsorted(column.bounds, values, side="right")
    if column.missing is not None:
        place[np.isnan(values)] = column.missing
    assert [each.n_rows for each in column.bins] == np.bincount(place).tolist()
    assert [each.n_positive for each in column.bins] == np.bincount(place, weights=positive).astype(int).tolist()


async def test_a_bins_job_counts_and_a_training_uses_the_weights_of_evidence(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, n_rows=900)
    before = make_configs(tmp_path)
    configs = configured(before, PERMITTED)

    async with serving(configs) as client:
        status = await train_over_localhost(client, BINS)

    assert status.state == JOB_STATE_FINISHED, status.detail
    assert status.detail == "the labels in the host's bins are counted"
    host, guest = bins_of(configs, Role.HOST), bins_of(configs, Role.GUEST)
    train = joined(tables)
    assert host.n_train == guest.n_train == len(train)
    assert host.columns
    assert guest.columns
    for column in (*host.columns, *guest.columns):
        check_counts(column, train)
        assert all(min(each.n_positive or 0, each.n_rows - (each.n_positive or 0)) >= 1 for each in column.bins)
    # The guest sees the host's columns without names and bounds.
    assert len(guest.host_columns) == 3
    content = JobFolder(configs[Role.GUEST].state, BINS.name).bins.read_text()
    assert not any(f'"{column.name}"' in json.dumps(json.loads(content)["host_columns"]) for column in host.columns)
    # The Python API has the same figures.
    of_guest, of_host = (aio.connect(configs[role]).bins(BINS.name) for role in (Role.GUEST, Role.HOST))
    assert of_host["column"].unique().tolist() == [column.name for column in host.columns]
    assert set(of_host["column"].unique()).isdisjoint(of_guest["column"])
    numbered = of_guest[of_guest["column"] == "column 1 of the host"]
    assert numbered["n_rows"].tolist() == [each.n_rows for each in guest.host_columns[0].bins]
    assert numbered["iv"].sum() > 0
    with pytest.raises(ConfigError, match="the coordinator has no bins"):
        aio.connect(configs[Role.COORDINATOR]).bins(BINS.name)
    # Both ledgers have counted, and no training.
    for role in (Role.HOST, Role.GUEST):
        entry = Ledger(configs[role].state, role).entry(DATASET)
        assert entry.equations > 0
        assert entry.trainings == 0

    configs = configured(before, PERMITTED, job=BINS.name)
    async with serving(configs) as client:
        status = await train_over_localhost(client, TRAINING)
        assert status.state == JOB_STATE_FINISHED, status.detail
        # Bins that know the labels of hold-out rows are refused.
        other = await train_over_localhost(client, TRAINING.model_copy(update={"name": "other", "seed": 4}))
    assert other.state == JOB_STATE_FAILED
    assert "`seed: 3`, not 4" in other.detail
    model = load_model(JobFolder(configs[Role.HOST].state, TRAINING.name).model)
    assert list(model.weights) == [f"{column.name} WOE" for column in host.columns]
    own = aio.connect(configs[Role.HOST]).model(TRAINING.name)
    points, bins = own.scorecard(), own.bins()
    assert points["woe"].tolist() == bins["woe"].tolist()
    # Twice the points to double the odds are twice the points, but for the base.
    assert own.scorecard(pdo=40)["points"].tolist() == (2 * points["points"]).tolist()
    with pytest.raises(ConfigError, match="must be above 0"):
        own.scorecard(pdo=0)
    # Weights of evidence of columns that say something have positive weights.
    assert max(model.weights.values()) > 0


async def test_a_split_column_chooses_the_rows_that_a_bins_job_counts(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, n_rows=900)
    guest_table = tables[Role.GUEST]
    samples = np.random.default_rng(5).choice(["dev", "val", "none"], len(guest_table), p=[0.6, 0.3, 0.1])
    tables[Role.GUEST] = guest_table.assign(sample=samples)
    tables[Role.GUEST].to_csv(tmp_path / "guest.csv", index=False)
    permitted = PERMITTED | {Role.GUEST: PERMITTED[Role.GUEST] | {"share_split": True}}
    split = SplitConfig(column="sample", train=["dev"], valid=["val"])

    def with_split(configs: dict[Role, ProcessConfig], **changes: Any) -> dict[Role, ProcessConfig]:
        guest = configs[Role.GUEST]
        datasets = {DATASET: guest.datasets[DATASET].model_copy(update={"split": split.model_copy(update=changes)})}
        return configs | {Role.GUEST: guest.model_copy(update={"datasets": datasets})}

    bins_job, training = (job.model_copy(update={"holdout": "column"}) for job in (BINS, TRAINING))
    before = make_configs(tmp_path)
    counting = with_split(configured(before, permitted))
    async with serving(counting) as client:
        status = await train_over_localhost(client, bins_job)
    assert status.state == JOB_STATE_FINISHED, status.detail
    both = tables[Role.HOST].merge(tables[Role.GUEST], on="id")
    train = both[both["sample"] == "dev"]
    for role in (Role.HOST, Role.GUEST):
        bins = bins_of(counting, role)
        assert bins.n_train == len(train)
        for column in bins.columns:
            check_counts(column, train)

    of_job = configured(before, permitted, job=BINS.name)
    async with serving(with_split(of_job)) as client:
        # The seed has no effect on the rows.
        status = await train_over_localhost(client, training.model_copy(update={"seed": 4}))
        assert status.state == JOB_STATE_FINISHED, status.detail
    async with serving(with_split(of_job, train=["dev", "none"])) as client:
        other = await train_over_localhost(client, training.model_copy(update={"name": "other"}))
    assert other.state == JOB_STATE_FAILED
    assert "other training rows" in other.detail


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ({Role.HOST: {}, Role.GUEST: {}}, "policy.share_bins"),
        (
            {Role.HOST: {"share_bins": "guest"}, Role.GUEST: {"share_bin_counts": "host", "min_label_bits": 10_000}},
            "policy.min_label_bits",
        ),
        ({Role.HOST: {"share_bins": "guest", "min_rows_per_equation": 100}, Role.GUEST: {}}, "min_rows_per_equation"),
    ],
)
async def test_a_policy_refuses_a_bins_job(tmp_path: Path, policies: dict[Role, dict[str, Any]], text: str) -> None:
    write_tables(tmp_path, n_rows=300)
    configs = configured(make_configs(tmp_path), policies)
    async with serving(configs) as client:
        status = await train_over_localhost(client, BINS)
    assert status.state == JOB_STATE_FAILED
    assert text in status.detail
    for role in (Role.HOST, Role.GUEST):
        assert not JobFolder(configs[role].state, BINS.name).bins.exists()


async def test_each_bin_that_is_told_has_the_fewest_rows_of_each_label_that_the_guest_asks_for(tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=900)
    fewest = 100
    strict = {Role.GUEST: PERMITTED[Role.GUEST] | {"min_bin_label_count": fewest}}
    configs = configured(make_configs(tmp_path), PERMITTED | strict)
    async with serving(configs) as client:
        status = await train_over_localhost(client, BINS)
    assert status.state == JOB_STATE_FINISHED, status.detail
    columns = bins_of(configs, Role.HOST).columns
    assert any(len(column.bins) > 1 for column in columns)
    for bins in (each.bins for each in columns):
        assert all(min(each.n_positive or 0, each.n_rows - (each.n_positive or 0)) >= fewest for each in bins)


@pytest.mark.parametrize(("method", "whose"), [("supervised", "guest"), ("width", "host")])
async def test_the_host_is_told_why_a_column_has_no_bins(tmp_path: Path, method: str, whose: str) -> None:
    write_tables(tmp_path, n_rows=300)
    policies = PERMITTED | {Role.GUEST: PERMITTED[Role.GUEST] | {"min_bin_label_count": 100}}
    configs = configured(make_configs(tmp_path), policies)
    dataset = configs[Role.HOST].datasets[DATASET]
    binning = BinningConfig.model_validate({"method": method})
    preprocessing = dataset.preprocessing.model_copy(update={"binning": binning})
    datasets = {DATASET: dataset.model_copy(update={"preprocessing": preprocessing})}
    configs[Role.HOST] = configs[Role.HOST].model_copy(update={"datasets": datasets})
    async with serving(configs) as client:
        status = await train_over_localhost(client, BINS)
    assert status.state == JOB_STATE_FINISHED, status.detail
    host = bins_of(configs, Role.HOST)
    assert not host.columns
    assert set(host.left_out.values()) == {
        f"too few rows for two bins, by the {whose}'s `min_share` and the guest's policy.min_bin_label_count"
    }


async def test_the_host_may_keep_its_own_bins(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, n_rows=900)
    configs = configured(make_configs(tmp_path), PERMITTED, job=BINS.name)
    host = configs[Role.HOST]
    dataset = host.datasets[DATASET]
    names = [name for name in tables[Role.HOST].columns if name != "id"]
    of_columns = {
        names[0]: ColumnBinning(method=[-2.0, -0.5, 0.0, 1.5]),
        names[1]: ColumnBinning(method="width", max_bins=6, min_share=0.02),
        names[2]: ColumnBinning(method="quantile", max_bins=7),
    }
    binning = BinningConfig(job=BINS.name, columns=of_columns)
    preprocessing = dataset.preprocessing.model_copy(update={"binning": binning})
    datasets = {DATASET: dataset.model_copy(update={"preprocessing": preprocessing})}
    configs[Role.HOST] = host.model_copy(update={"datasets": datasets})

    async with serving(configs) as client:
        status = await train_over_localhost(client, BINS)
        assert status.state == JOB_STATE_FINISHED, status.detail
        status = await train_over_localhost(client, TRAINING)
        assert status.state == JOB_STATE_FINISHED, status.detail

    train = joined(tables)
    columns = bins_of(configs, Role.HOST).columns
    for column in columns:
        check_counts(column, train)
    own, equal, quantiles = columns
    assert isinstance(own, BinnedNumber)
    assert isinstance(equal, BinnedNumber)
    assert own.bounds == [-2.0, -0.5, 0.0, 1.5]
    low, high = train[names[1]].min(), train[names[1]].max()
    assert {*np.round(equal.bounds, 9)} <= {*np.round(np.linspace(low, high, 7)[1:-1], 9)}
    # The guest, which merges its own columns to four bins, leaves these alone.
    assert min(len(equal.bounds), len(quantiles.bins)) > 3
    assert len(quantiles.bins) in (7, 8)


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (TRAINING, "names bins-1, and this party has no bins of a job with that name"),
        (BINS.model_copy(update={"task": "train"}), "names bins-1, the job itself: if the file is for"),
        (BINS, ""),
    ],
)
def test_a_check_says_which_bins_are_lacking(tmp_path: Path, job: JobConfig, text: str) -> None:
    write_tables(tmp_path, n_rows=900)
    config = configured(make_configs(tmp_path), PERMITTED, job=BINS.name)[Role.HOST]
    problems = [each.text for each in check_tables(config, job) if each.level is Level.PROBLEM]
    assert len(problems) == bool(text)
    assert all(text in each and str(tmp_path) not in each for each in problems)


async def test_a_guest_that_keeps_its_counts_still_sees_the_hosts_columns(tmp_path: Path) -> None:
    write_tables(tmp_path, n_rows=300)
    configs = configured(make_configs(tmp_path), {Role.HOST: {"share_bins": "guest"}, Role.GUEST: {}})
    async with serving(configs) as client:
        status = await train_over_localhost(client, BINS)
    assert status.state == JOB_STATE_FINISHED, status.detail
    host, guest = bins_of(configs, Role.HOST), bins_of(configs, Role.GUEST)
    assert not host.columns
    assert set(host.left_out.values()) == {"no counts, which the guest's policy.share_bin_counts keeps"}
    assert len(guest.host_columns) == 3
