"""Two trainings on the same rows but for one show the host the label of that row.

The weights of the second training are those of the first, minus what the row has added: H^-1 x (y - sigma(u)) / n. If
the host multiplies the difference of its own weights by its own part of x, it gets a number with the sign of the label.
The host follows the protocol. It chooses the rows by its split column, by leaving the row out of its table, or, if it
may start jobs, by a hold-out of two rows.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import PreprocessingConfig, SplitConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.model.bins_file import load_bins
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.batches import holdout_split

N_ROWS, N_TEST = 1500, 100
FEATURES = [f"x{column}" for column in range(8)]
SPLIT = SplitConfig(column="sample", train=["dev"], test=["test"])
JOB = JobConfig(name="base", dataset=DATASET, protocol="shares", holdout="column", aligned=True, tolerance=1e-9)
Configs = dict[Role, ProcessConfig]


class World:
    """Three organisations, whose host changes one row between two trainings."""

    def __init__(self, folder: Path, least: int) -> None:
        rng = np.random.default_rng(8)
        ids = [f"{number:06d}" for number in range(N_ROWS)]
        self.features = pd.DataFrame(rng.normal(size=(N_ROWS, len(FEATURES))), columns=FEATURES)
        score = self.features.to_numpy() @ rng.normal(size=len(FEATURES)) * 0.5
        self.labels = rng.random(N_ROWS) < 1 / (1 + np.exp(-score))
        self._path = folder / "host.csv"
        self._host = self.features.assign(id=ids, sample=["test"] * N_TEST + ["dev"] * (N_ROWS - N_TEST))
        self._host.to_csv(self._path, index=False)
        guest = pd.DataFrame({"id": ids, "z": rng.normal(size=N_ROWS), "label": np.where(self.labels, "yes", "no")})
        guest.to_csv(folder / "guest.csv", index=False)
        self.configs = make_configs(folder)
        lax: dict[str, Any] = {"max_scores_a_day": 10**6, "share_split": True}
        for role in PARTIES:
            config = self.configs[role]
            dataset = config.datasets[DATASET].model_copy(
                update={"preprocessing": PreprocessingConfig(clip=None), "split": SPLIT if role is Role.HOST else None}
            )
            policy = {"min_changed_rows": least} if role is Role.GUEST else lax
            self.configs[role] = config.model_copy(
                update={"datasets": {DATASET: dataset}, "policy": config.policy.model_copy(update=policy)}
            )

    async def train(self, client: JobClient, job: JobConfig, without: int | None = None) -> str:
        """Train without a row in the host's table or, if it has a split column, among its training rows."""
        table = self._host
        if without is not None and job.holdout == "column":
            table = table.assign(sample=table["sample"].where(table.index != without, "none"))
        elif without is not None:
            table = table.drop(index=without)
        table.to_csv(self._path, index=False)
        status = await train_over_localhost(client, job)
        assert status.state in (JOB_STATE_FINISHED, JOB_STATE_FAILED)
        return "" if status.state == JOB_STATE_FINISHED else status.detail

    def weights(self, job: JobConfig) -> "pd.Series[float]":
        """What the host has got."""
        return pd.Series(load_model(JobFolder(self.configs[Role.HOST].state, job.name).model).weights)

    def n_positive(self, job: JobConfig) -> int:
        """Return what the counts of a bins job add up to."""
        column = load_bins(JobFolder(self.configs[Role.HOST].state, job.name).bins).columns[0]
        return sum(each.n_positive or 0 for each in column.bins)

    def added(self, row: int, base: JobConfig, other: JobConfig) -> float:
        """Return how much the first training has, more than the second, raised the host's part of a row's score."""
        change = self.weights(base) - self.weights(other)
        centred = self.features.to_numpy() - self.features.to_numpy().mean(axis=0)
        return float(centred[row] @ change[FEATURES].to_numpy())


def named(job: JobConfig, name: str, **options: Any) -> JobConfig:
    return job.model_copy(update={"name": name, **options})


RANDOM = JOB.model_copy(update={"holdout": 0.0})
ROWS = (200, 333, 777, 1001, 1234, 1499)


@pytest.mark.parametrize(
    "job", [JOB, RANDOM.model_copy(update={"aligned": False})], ids=["by the split column", "by the table"]
)
async def test_the_host_reads_labels_from_rows_that_it_leaves_out_unless_the_guest_compares_them(
    job: JobConfig, tmp_path: Path
) -> None:
    for least in (0, Policy().min_changed_rows):
        (folder := tmp_path / str(least)).mkdir()
        world = World(folder, least)
        async with serving(world.configs) as client:
            assert await world.train(client, job) == ""
            found = {}
            for row in ROWS:
                second = named(job, f"without-{row}")
                refusal = await world.train(client, second, row)
                if refusal:
                    assert refusal.startswith("the guest refuses the job under policy.min_changed_rows")
                    assert str(row) not in refusal
                else:
                    found[row] = world.added(row, job, second) > 0
            # The same rows again tell nothing new about one of them.
            assert await world.train(client, named(job, "again")) == ""
        assert found == ({} if least else {row: bool(world.labels[row]) for row in ROWS})


async def test_the_host_tells_the_labels_of_a_hold_out_of_two_rows_apart_unless_the_guest_compares_them(
    tmp_path: Path,
) -> None:
    """A hold-out needs a row of each label, so the host tries seeds until the guest accepts one."""
    share = 2 / N_ROWS
    for least in (0, Policy().min_changed_rows):
        (folder := tmp_path / str(least)).mkdir()
        world = World(folder, least)
        pairs = {seed: holdout_split(N_ROWS, share, seed)[1] for seed in range(20)}
        accepted = {seed: rows for seed, rows in pairs.items() if world.labels[rows].sum() == 1}
        found, expected = [], []
        async with serving(world.configs) as client:
            assert await world.train(client, RANDOM) == ""
            for seed, rows in list(accepted.items())[:4]:
                job = named(RANDOM, f"seed-{seed}", holdout=share, seed=seed)
                expected.append(int(rows[world.labels[rows]][0]))
                if not await world.train(client, job):
                    found.append(max(rows.tolist(), key=lambda row, job=job: world.added(row, RANDOM, job)))  # type: ignore[misc]
        assert found == ([] if least else expected)


@pytest.mark.parametrize(
    "job", [JOB, RANDOM.model_copy(update={"aligned": False})], ids=["by the split column", "by the table"]
)
async def test_the_host_reads_a_label_from_two_bins_jobs_unless_the_guest_compares_their_rows(
    job: JobConfig, tmp_path: Path
) -> None:
    """The numbers of positive rows of all bins of a column add up to that of all rows."""
    bins = job.model_copy(update={"task": "bins"})
    for least in (0, Policy().min_changed_rows):
        (folder := tmp_path / str(least)).mkdir()
        world = World(folder, least)
        for role, policy in ((Role.HOST, {"share_bins": "guest"}), (Role.GUEST, {"share_bin_counts": "host"})):
            config = world.configs[role]
            world.configs[role] = config.model_copy(update={"policy": config.policy.model_copy(update=policy)})
        found = {}
        async with serving(world.configs) as client:
            assert await world.train(client, bins) == ""
            for row in ROWS[:4]:
                refusal = await world.train(client, other := named(bins, f"without-{row}"), row)
                if refusal:
                    assert refusal.startswith("the guest refuses the job under policy.min_changed_rows")
                else:
                    found[row] = bool(world.n_positive(bins) - world.n_positive(other))
            # The same rule compares a training with bins jobs.
            training = named(bins, "training", task="train")
            refusal = await world.train(client, training, ROWS[4])
            assert bool(refusal) is bool(least)
        assert found == ({} if least else {row: bool(world.labels[row]) for row in ROWS[:4]})


async def test_the_rows_of_an_evaluation_are_compared_as_well(tmp_path: Path) -> None:
    """Its loss is a mean over labels. The training rows of both jobs are the same."""
    world = World(tmp_path, Policy().min_changed_rows)
    evaluated = named(JOB, "evaluated", evaluate_every=10)
    async with serving(world.configs) as client:
        assert await world.train(client, evaluated) == ""
        refusal = await world.train(client, named(evaluated, "one-less"), 7)
        assert refusal.startswith(
            "the guest refuses the job under policy.min_changed_rows: fewer than about 4 evaluated rows differ"
        )
        assert await world.train(client, named(JOB, "without-evaluations"), 7) == ""
