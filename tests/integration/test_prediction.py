"""Predictions over real servers: the scores are right, and only a permitted caller gets them."""

import asyncio
import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy.special import expit

from tests.support.new_rows import NEW, REASON_LABELS, host_reasons, plain_scores, with_new_rows, write_new_rows
from tests.support.three_servers import (
    DATASET,
    LENIENT,
    make_configs,
    serving,
    train_over_localhost,
    under,
    write_tables,
)
from tests.support.waiting import SECONDS, eventually
from trilateral.client.asynchronous import AsyncSession
from trilateral.common.base.errors import ConfigError, DataError, PeerError, PolicyError, ProtocolError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Limits, Policy, ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.model import distributions
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.model.spool import ScoredRows, ScoredShards
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.drift_file import DRIFT, newest_shifts
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.quota import COUNTER, IDS_COUNTER, IdQuota
from trilateral.common.pb.v1 import prediction_pb2
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.ids import NONCE_BYTES, id_digest
from trilateral.common.rpc import calls
from trilateral.common.rpc.channel import Peer, new_channel
from trilateral.common.scratch.folders import SCRATCH
from trilateral.guest_party.alignment import GuestAlignments
from trilateral.guest_party.dataset_alignment import align_dataset
from trilateral.guest_party.prediction import PredictionCounts, PredictionPlan, predict
from trilateral.guest_party.score_file import ScoreFiles
from trilateral.host_party.predictions import OpenAnswer, PredictionRequest, Predictions
from trilateral.host_party.score_release import ReleasedScores, ScoreRelease

JOB = JobConfig(name="scores", aligned=True, dataset=DATASET, key_bits=512)
OTHER = JOB.model_copy(update={"name": "other", "holdout": 0.0})
ON_SHARES = under("shares", JOB.model_copy(update={"name": "on-shares", "l2": 0.01}))
N_COMMON, N_ONLY = 60, 15


@dataclass
class World:
    """Three processes after a training, with tables of new rows."""

    folder: Path
    configs: dict[Role, ProcessConfig]
    rows: dict[Role, pd.DataFrame]

    def change(self, role: Role, **settings: Any) -> None:
        self.configs[role] = self.configs[role].model_copy(update=settings)

    def set_policy(self, **settings: Any) -> None:
        self.change(Role.HOST, policy=Policy(**{"min_key_bits": 256, "allow_prediction": True} | LENIENT | settings))

    def rewrite(self, role: Role, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
        self.rows[role] = change(self.rows[role])
        self.rows[role].to_csv(self.folder / f"new-{role}.csv", index=False)

    def change_table(self, role: Role, **settings: Any) -> None:
        datasets = self.configs[role].datasets
        self.change(role, datasets=datasets | {NEW: datasets[NEW].model_copy(update=settings)})

    def split_ids(self, role: Role, names: list[str]) -> None:
        """Write the IDs of a party's new rows in two columns, the last three digits in the second."""
        self.rewrite(
            role, lambda table: table.assign(**{names[0]: table["id"].str[:-3] + " ", names[1]: table["id"].str[-3:]})
        )
        self.rewrite(role, lambda table: table.drop(columns="id"))
        self.change_table(role, id=names)

    def model_path(self, role: Role, job: str = JOB.name) -> Path:
        return JobFolder(self.configs[role].state, job).model

    def audit(self, method: str) -> list[dict[str, Any]]:
        path = self.configs[Role.HOST].state / "audit.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line.get("method") == method]

    @property
    def given(self) -> int:
        path = self.configs[Role.HOST].state / COUNTER
        return int(json.loads(path.read_text())["given"]) if path.exists() else 0

    def nothing_is_left(self) -> bool:
        """Return whether no scratch folder and no part of a result exists."""
        scratch = [self.configs[role].state / SCRATCH for role in (Role.HOST, Role.GUEST)]
        return not any(path.is_dir() for folder in scratch if folder.exists() for path in folder.iterdir()) and not any(
            self.folder.glob(".scores*")
        )

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Peer]:
        address = self.configs[Role.HOST].listen
        async with serving({Role.HOST: self.configs[Role.HOST]}), new_channel(address, None, "") as channel:
            yield Peer(Role.HOST, address, channel)

    async def predict(self, peer: Peer, out: str = "scores.csv", **settings: Any) -> PredictionCounts:
        path = self.folder / out
        wanted: dict[str, Any] = {
            "job": JOB.name,
            "dataset": NEW,
            "out": path,
            "missing": path.with_stem("missing"),
        } | settings
        return await predict(self.configs[Role.GUEST], peer, PredictionPlan(**wanted))

    async def refused(self, kind: type[TrilateralError], said: str, **settings: Any) -> None:
        """Check that a prediction is refused, that no score leaves, and that no file remains."""
        before = self.given
        async with self.host() as peer:
            with pytest.raises(kind, match=said):
                await self.predict(peer, **settings)
        assert self.given == before
        assert not (self.folder / "scores.csv").exists()
        assert self.nothing_is_left()


def configs_in(folder: Path) -> dict[Role, ProcessConfig]:
    configs = make_configs(folder)
    host = configs[Role.HOST]
    table = host.datasets[DATASET].model_copy(update={"categorical": ["branch"]})
    return configs | {Role.HOST: host.model_copy(update={"datasets": {DATASET: table}})}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train twice, and return the state folders."""
    folder = tmp_path_factory.mktemp("trained")
    host = write_tables(folder)[Role.HOST]
    branches = np.random.default_rng(3).choice(["north", "south", "east"], p=[0.5, 0.3, 0.2], size=len(host))
    host.assign(branch=branches).to_csv(folder / "host.csv", index=False)

    async def train() -> None:
        async with serving(configs_in(folder)) as client:
            for job in (JOB, OTHER, ON_SHARES):
                assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED

    asyncio.run(train())
    for counter in folder.glob(f"state/*/{COUNTER}"):
        counter.unlink()
    return folder


@pytest.fixture
def world(trained: Path, tmp_path: Path) -> World:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    tables = {role: pd.read_csv(tmp_path / f"{role}.csv", dtype={"id": str}) for role in (Role.HOST, Role.GUEST)}
    rows = write_new_rows(tmp_path, tables, n_common=N_COMMON, n_only=N_ONLY)
    configs = configs_in(tmp_path)
    world = World(tmp_path, configs, rows)
    for role in rows:
        world.configs[role] = with_new_rows(configs[role], tmp_path)
    world.set_policy()
    return world


# --- what is right


def rows_of(counts: PredictionCounts) -> tuple[int, int, int]:
    return counts.n_scored, counts.n_guest, counts.n_host


@pytest.mark.parametrize("job", [JOB, ON_SHARES], ids=lambda job: job.protocol)
async def test_scores_match_plain_numpy_on_the_joined_rows_in_the_guests_order(job: JobConfig, world: World) -> None:
    async with world.host() as peer:
        counts = await world.predict(peer, job=job.name)
    assert rows_of(counts) == (N_COMMON, N_COMMON + N_ONLY, N_COMMON + N_ONLY)
    assert counts.calibration.startswith("calibrated by Platt scaling on the hold-out rows; 10 to 99 of the model's")
    table = pd.read_csv(world.folder / "scores.csv")
    expected = plain_scores(world.configs, job.name, world.rows)
    assert table["id"].tolist() == expected.index.tolist()
    np.testing.assert_allclose(table["score"], expected, rtol=0, atol=1e-9)
    calibration = load_model(world.model_path(Role.GUEST, job.name)).calibration
    assert calibration is not None
    assert calibration.method == "platt"
    np.testing.assert_allclose(table["probability"], expit(calibration.a * expected + calibration.b), atol=1e-9)
    guests = world.rows[Role.GUEST]["id"]
    assert pd.read_csv(world.folder / "missing.csv")["id"].tolist() == [one for one in guests if one.startswith("only")]
    assert world.nothing_is_left()


async def test_each_party_reports_how_far_its_rows_have_shifted_and_nothing_of_few_rows(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world.host() as peer:
        counts = await world.predict(peer)
        assert not any(note.startswith("shift") for note in counts.notes)
        assert not any(newest_shifts(world.configs[role].state, 10) for role in world.rows)
        monkeypatch.setattr(distributions, "MIN_REPORTED_ROWS", N_COMMON)
        counts = await world.predict(peer, "again.csv")
    (note,) = (note for note in counts.notes if note.startswith("shift"))
    assert note.startswith("shift since the training: PSI of the score ")
    (line,) = (record.getMessage() for record in caplog.records if "shift since" in record.getMessage())
    assert line.startswith(f"job {JOB.name}: dataset {NEW}: shift since the training: CSI of")
    for role, table in world.rows.items():
        (shift,) = newest_shifts(world.configs[role].state, 10).values()
        assert shift.n_rows == len(table)
        assert set(shift.csi) == set(load_model(world.model_path(role)).steps.features)
        assert (shift.psi is None) == (role is Role.HOST)
        assert (world.model_path(role).parent / DRIFT).stat().st_mode & 0o777 == 0o600


async def test_tables_with_the_same_ids_need_no_intersection(world: World) -> None:
    for role in world.rows:
        world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
    async with world.host() as peer:
        counts = await world.predict(peer, "scores.parquet", aligned=True)
    assert rows_of(counts) == (N_COMMON, N_COMMON, N_COMMON)
    about = pq.read_schema(world.folder / "scores.parquet").metadata
    assert about[b"trilateral.calibration"].decode() == counts.calibration
    assert about[b"trilateral.job"].decode() == JOB.name
    table = pd.read_parquet(world.folder / "scores.parquet").set_index("id")["score"]
    pd.testing.assert_series_equal(table, plain_scores(world.configs, JOB.name, world.rows), check_names=False)
    assert not (world.folder / "missing.parquet").exists()
    assert not world.audit("OpenAlignment")


async def test_many_shards_give_the_same_scores_as_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trilateral.common.data.alignment.dealing.SHARD_IDS", 10)
    async with world.host() as peer:
        assert (await world.predict(peer)).n_scored == N_COMMON
        many = (world.folder / "scores.csv").read_text()
        for role in world.rows:
            world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
        await world.predict(peer, aligned=True)
        assert (world.folder / "scores.csv").read_text() == many
        monkeypatch.undo()
        await world.predict(peer)
    assert (world.folder / "scores.csv").read_text() == many


async def test_ids_are_compared_in_normal_form_and_written_in_the_guests_spelling(world: World) -> None:
    world.rewrite(Role.GUEST, lambda table: table.assign(id=table["id"] + " "))
    async with world.host() as peer:
        assert (await world.predict(peer)).n_scored == N_COMMON
    assert pd.read_csv(world.folder / "scores.csv")["id"].str.endswith(" ").all()


@pytest.mark.parametrize("aligned", [False, True])
async def test_an_id_of_several_columns_comes_back_in_all_of_them(world: World, aligned: bool) -> None:
    for role in world.rows:
        if aligned:
            world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
    expected = plain_scores(world.configs, JOB.name, world.rows)
    world.split_ids(Role.HOST, ["h1", "h2"])
    world.split_ids(Role.GUEST, ["g1", "g2"])
    async with world.host() as peer:
        assert (await world.predict(peer, aligned=aligned)).n_scored == N_COMMON
    table = pd.read_csv(world.folder / "scores.csv", dtype={"g1": str, "g2": str})
    assert list(table) == ["g1", "g2", "score", "probability"]
    assert (table["g1"].str.strip() + table["g2"]).tolist() == expected.index.tolist()
    np.testing.assert_allclose(table["score"], expected, rtol=0, atol=1e-9)
    if not aligned:
        missing = pd.read_csv(world.folder / "missing.csv", dtype=str)
        assert (missing["g1"].str.strip() + missing["g2"]).str.startswith("only-guest").all()


@pytest.mark.parametrize("aligned", [False, True])
async def test_an_id_of_several_columns_is_a_frame_in_memory(world: World, aligned: bool) -> None:
    for role in world.rows:
        if aligned:
            world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
    world.split_ids(Role.HOST, ["h1", "h2"])
    world.split_ids(Role.GUEST, ["number", "part"])
    async with world.host(), AsyncSession(world.configs[Role.GUEST]) as session:
        prediction = await session.predict(JOB.name, NEW, aligned=aligned)
    assert list(prediction.scores) == ["number", "part", "score", "probability"]
    assert len(prediction.scores) == N_COMMON
    assert isinstance(prediction.missing, pd.DataFrame)
    assert list(prediction.missing) == ["number", "part"]
    assert len(prediction.missing) == (0 if aligned else N_ONLY)


@pytest.mark.parametrize(("how", "aligned"), [("first", False), ("first", True), ("aggregate", False)])
async def test_repeated_ids_count_once_if_the_settings_say_so_and_both_parties_learn_how_many(
    world: World, how: str, aligned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Copies of a row give its score, whichever of them counts."""
    for role in world.rows:
        if aligned:
            world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
        world.change_table(role, repeated_ids=how)
    expected = plain_scores(world.configs, JOB.name, world.rows)
    for role in world.rows:
        world.rewrite(role, lambda table: pd.concat([table, table.iloc[3:9], table.iloc[:5]]))
    async with world.host() as peer:
        counts = await world.predict(peer, aligned=aligned)
    assert counts.n_scored == world.given == N_COMMON
    assert counts.n_guest == counts.n_host == N_COMMON + (0 if aligned else N_ONLY)
    done = {"first": "kept the first row of each ID", "aggregate": "made one row of the rows of each ID"}[how]
    assert counts.warnings == (f"11 rows repeat an earlier ID: {done}",)
    assert f"job {JOB.name}: dataset {NEW}: 11 rows repeat an earlier ID: {done}" in caplog.text
    table = pd.read_csv(world.folder / "scores.csv")
    assert table["id"].tolist() == expected.index.tolist()
    np.testing.assert_allclose(table["score"], expected, rtol=0, atol=1e-9)


async def test_both_parties_are_told_again_which_columns_the_model_does_not_use(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for role in world.rows:
        path = world.model_path(role)
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"left_out": {f"k-{role}": "the same value in all training rows"}}))
    async with world.host() as peer:
        counts = await world.predict(peer)
    assert counts.notes == ("left out column 'k-guest': the same value in all training rows",)
    assert counts.warnings == ()
    assert f"dataset {NEW}: left out column 'k-host': the same value in all training rows" in caplog.text


async def test_tables_without_common_rows_are_not_an_error(world: World) -> None:
    world.rewrite(Role.GUEST, lambda table: table[table["id"].str.startswith("only")])
    async with world.host() as peer:
        assert rows_of(await world.predict(peer)) == (0, N_ONLY, N_COMMON + N_ONLY)
    assert len(pd.read_csv(world.folder / "scores.csv")) == 0
    assert world.given == 0


async def test_the_audit_log_has_the_caller_and_the_number_of_scores(world: World) -> None:
    async with world.host() as peer:
        await world.predict(peer)
    opened, ended = world.audit("OpenPrediction")
    (given,) = world.audit("GetScores")
    what = {"job": JOB.name, "run": load_model(world.model_path(Role.HOST)).run_id, "dataset": NEW}
    for line in (opened, given, ended):
        assert what.items() <= line.items()
    assert (opened["decision"], opened["role"]) == (given["decision"], given["role"]) == ("allowed", "guest")
    assert (given["n_scores"], given["n_left"]) == (N_COMMON, 1_000_000 - N_COMMON)
    assert (ended["decision"], ended["result"], ended["n_scores"]) == ("ended", "finished", N_COMMON)
    assert ended["n_rows"] == {"host": N_COMMON + N_ONLY, "guest": N_COMMON + N_ONLY}
    assert ended["n_common"] == world.given == N_COMMON
    text = (world.configs[Role.HOST].state / "audit.jsonl").read_text()
    assert not any(one in text for one in world.rows[Role.HOST]["id"])


def counted_points(world: World) -> int:
    return len(Ledger(world.configs[Role.HOST].state, Role.HOST).entry(NEW).points)


async def test_the_hosts_reasons_are_its_labels_and_each_counts_as_a_score_and_as_a_point(world: World) -> None:
    world.set_policy(max_reasons=3)
    world.change_table(Role.HOST, reason_labels=REASON_LABELS)
    async with world.host() as peer:
        for _ in range(2):
            await world.predict(peer, n_host_reasons=3, n_reasons=1)
    table = pd.read_csv(world.folder / "scores.csv", index_col="id", keep_default_na=False)
    assert [*table.columns] == ["score", "probability", "reason_1", "host_reason_1", "host_reason_2", "host_reason_3"]
    expected = host_reasons(world.configs[Role.HOST], JOB.name, world.rows[Role.HOST])
    got = table.filter(like="host_reason")
    assert {one: [each for each in row if each] for one, row in zip(got.index, got.to_numpy(), strict=True)} == {
        one: expected[one] for one in got.index
    }
    assert {*got.to_numpy().ravel()} == {"", "Balance", "Branch"}
    assert world.given == 2 * N_COMMON * 4
    assert counted_points(world) == 4
    # Other labels for the same columns, or fewer reasons, tell nothing new; reasons of other columns do.
    world.change_table(Role.HOST, reason_labels={name: f"my {label}" for name, label in REASON_LABELS.items()})
    async with world.host() as peer:
        await world.predict(peer, n_host_reasons=1)
    assert counted_points(world) == 4
    world.change_table(Role.HOST, reason_labels={"x0": "Balance"})
    async with world.host() as peer:
        await world.predict(peer, n_host_reasons=1)
    assert counted_points(world) == 5


# --- what is refused


async def test_reasons_of_the_host_are_refused_unless_it_permits_and_labels_them(world: World) -> None:
    await world.refused(ConfigError, "host_reasons: expected 0 to 10, not 11", n_host_reasons=11)
    world.change_table(Role.HOST, reason_labels=REASON_LABELS)
    said = r"under policy\.max_reasons: the maximum is 0 reason codes of a row; 1 asked for: ask for fewer"
    await world.refused(PolicyError, said, n_host_reasons=1)
    world.set_policy(max_reasons=1)
    await world.refused(PolicyError, "the maximum is 1 reason codes of a row; 2 asked for", n_host_reasons=2)
    world.change_table(Role.HOST, reason_labels={"of another model": "Balance"})
    await world.refused(DataError, rf"no column of the model of job {JOB.name} has a label", n_host_reasons=1)
    world.change_table(Role.HOST, reason_labels=REASON_LABELS)
    world.set_policy(max_reasons=1, min_columns_per_point=4)
    await world.refused(PolicyError, r"policy\.min_columns_per_point: .* 2 more needed", n_host_reasons=1)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ReleasedScores(np.zeros(N_COMMON), bytes(N_COMMON - 1)), "59 reason codes for 60 rows: expected 1 each"),
        (ReleasedScores(np.zeros(N_COMMON), bytes([3]) * N_COMMON), "of 2 labels"),
    ],
)
async def test_a_host_that_sends_wrong_reason_codes_is_refused(
    answer: ReleasedScores, said: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set_policy(max_reasons=1)
    world.change_table(Role.HOST, reason_labels=REASON_LABELS)
    monkeypatch.setattr(ScoreRelease, "scores", lambda *_: answer)
    async with world.host() as peer:
        with pytest.raises(ProtocolError, match=said):
            await world.predict(peer, n_host_reasons=1)
    assert not (world.folder / "scores.csv").exists()


async def test_a_scratch_folder_without_room_for_the_scores_ends_the_prediction_before_one_leaves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to a mapped file for which the disk has no room would kill the process."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    await world.refused(ConfigError, r"scratch\.folder: .* cannot be written: No space left")


async def test_without_permission_nothing_is_read_and_no_score_leaves(world: World) -> None:
    world.set_policy(allow_prediction=False)
    (world.folder / "new-host.csv").unlink()
    await world.refused(PolicyError, r"the host refuses the prediction under policy\.allow_prediction: ")
    (line,) = world.audit("OpenPrediction")
    assert (line["decision"], line["job"]) == ("refused", JOB.name)


async def test_a_table_that_other_jobs_may_use_gives_no_scores(world: World) -> None:
    host = world.configs[Role.HOST]
    closed = host.datasets[NEW].model_copy(update={"jobs": ["churn-*"]})
    world.change(Role.HOST, datasets=host.datasets | {NEW: closed})
    await world.refused(PolicyError, rf"under datasets\.{NEW}\.jobs: the setting does not include a job named")


async def test_a_dataset_that_a_party_lacks_is_named(world: World) -> None:
    world.change(Role.HOST, datasets={DATASET: world.configs[Role.HOST].datasets[DATASET]})
    await world.refused(PolicyError, f"the host has no dataset named {NEW}")
    await world.refused(PolicyError, "the guest has no dataset named none", dataset="none")


@pytest.mark.parametrize("aligned", [False, True])
async def test_the_limit_allows_all_scores_or_none(world: World, aligned: bool) -> None:
    if aligned:
        for role in world.rows:
            world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
    world.set_policy(max_scores_a_day=2 * N_COMMON - 1)
    async with world.host() as peer:
        await world.predict(peer, aligned=aligned)
    (world.folder / "scores.csv").unlink()
    said = rf"policy\.max_scores_a_day: the maximum is 119 scores a day; 59 left until .* 00:00 UTC, {N_COMMON} needed"
    await world.refused(PolicyError, said, aligned=aligned)
    assert world.given == N_COMMON
    world.set_policy(max_scores_a_day=2 * N_COMMON)
    async with world.host() as peer:
        await world.predict(peer, aligned=aligned)
    assert world.given == 2 * N_COMMON
    (world.folder / "scores.csv").unlink()
    await world.refused(PolicyError, "0 left until .* UTC, 1 needed", aligned=aligned)


async def test_a_model_part_of_another_job_is_refused_and_both_are_named(world: World) -> None:
    shutil.copy(world.model_path(Role.HOST, OTHER.name), world.model_path(Role.HOST))
    runs = [load_model(world.model_path(Role.GUEST, job)).run_id for job in (JOB.name, OTHER.name)]
    said = f"job {JOB.name}, run {runs[0]}, holds the host's part of job {OTHER.name}, run {runs[1]}"
    await world.refused(DataError, said)


async def test_a_wrong_model_part_at_the_guest_is_refused_before_the_host_is_called(world: World) -> None:
    path = world.model_path(Role.GUEST)
    shutil.copy(world.model_path(Role.GUEST, OTHER.name), path)
    await world.refused(DataError, f"for the guest's part .* job {JOB.name}, .* job {OTHER.name}")
    shutil.copy(world.model_path(Role.HOST), path)
    await world.refused(DataError, "for the guest's part .* holds the host's part")
    path.unlink()
    await world.refused(DataError, "there is no model file")
    assert not world.audit("OpenPrediction")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run_id": "0" * 32}, f"job {JOB.name}, run [0-9a-f]{{32}}, holds .* job {JOB.name}, run 0000"),
        ({"rounds": 999}, "do not belong together: one of the files was changed"),
        ({"format": 0}, "the host's model of job scores cannot be read: see the host's log"),
    ],
)
async def test_a_model_part_of_another_run_or_a_modified_one_is_refused(
    world: World, changed: dict[str, Any], said: str
) -> None:
    path = world.model_path(Role.HOST)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    await world.refused(DataError, said)


async def test_a_host_without_the_model_says_so(world: World) -> None:
    world.model_path(Role.HOST).unlink()
    await world.refused(DataError, f"the host has no model of job {JOB.name}$")


async def test_a_column_that_is_missing_or_has_another_type_is_named_on_either_side(world: World) -> None:
    whole = dict(world.rows)
    world.rewrite(Role.HOST, lambda table: table.drop(columns="x1"))
    await world.refused(DataError, "^the host: preprocessing mismatch: .*'x1'")
    world.rewrite(Role.HOST, lambda _: whole[Role.HOST].assign(x2="many"))
    await world.refused(DataError, r"^the host: column 'x2' was numeric at training, .* \(preprocessing mismatch\)")
    world.rewrite(Role.HOST, lambda _: whole[Role.HOST].drop(columns="branch"))
    await world.refused(DataError, "^the host: preprocessing mismatch: .*'branch'")
    world.rewrite(Role.HOST, lambda _: whole[Role.HOST])
    world.rewrite(Role.GUEST, lambda table: table.drop(columns="x4"))
    await world.refused(DataError, "^preprocessing mismatch: .*'x4'")
    world.rewrite(Role.GUEST, lambda _: whole[Role.GUEST].assign(x3="many"))
    await world.refused(DataError, r"^column 'x3' was numeric at training, .* \(preprocessing mismatch\)")


async def test_repeated_ids_are_counted_and_not_named_on_either_side(world: World) -> None:
    whole = dict(world.rows)
    for role, said in ((Role.HOST, "^the host: column 'id' repeats"), (Role.GUEST, "^column 'id' repeats")):
        for aligned in (False, True):
            for each in world.rows:
                # Both tables have the same number of rows, or that would be the reason.
                world.rewrite(each, lambda table: table[table["id"].str.startswith("new")])
            world.rewrite(role, lambda table: pd.concat([table.iloc[1:], table.iloc[-1:]]))
            await world.refused(DataError, said + " an earlier ID in 1 of 60 rows", aligned=aligned)
            for each in world.rows:
                world.rewrite(each, lambda _, each=each: whole[each])  # type: ignore[misc]


async def test_tables_with_different_ids_are_not_accepted_as_aligned(world: World) -> None:
    await world.refused(DataError, "do not hold the same IDs", aligned=True)
    world.rewrite(Role.HOST, lambda table: table.iloc[1:])
    await world.refused(DataError, "the host has 74 rows and the guest has 75", aligned=True)


async def test_a_host_that_claims_two_billion_rows_does_not_make_the_guest_cut_its_table_for_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger table decides how many shards there are, each with a file and a call."""

    async def claim(self: Predictions, name: bytes, request: PredictionRequest) -> OpenAnswer:
        return OpenAnswer(2**31, ())

    def deal(self: ScoredRows, dealing: Dealing) -> ScoredShards:
        raise AssertionError(f"{dealing.n_shards} shards")

    monkeypatch.setattr(Predictions, "open", claim)
    monkeypatch.setattr(ScoredRows, "deal", deal)
    await world.refused(DataError, "the host has 2147483648 rows and the guest has", aligned=True)


async def test_ids_in_another_form_are_refused(world: World) -> None:
    host = world.configs[Role.HOST]
    form = host.datasets[NEW].id_form.model_copy(update={"case": True})
    world.change(Role.HOST, datasets=host.datasets | {NEW: host.datasets[NEW].model_copy(update={"id_form": form})})
    for aligned in (False, True):
        await world.refused(ConfigError, "give both datasets the same `id_form`", aligned=aligned)


async def test_ids_with_another_number_of_columns_are_refused(world: World) -> None:
    world.split_ids(Role.GUEST, ["g1", "g2"])
    for aligned in (False, True):
        await world.refused(
            ConfigError, r"decimals, 2_columns\) and .* same number of columns in `id`", aligned=aligned
        )


@pytest.mark.parametrize("name", ["score", "probability", "reason_1", "host_reason_12"])
async def test_an_id_column_that_is_called_like_a_column_of_the_scores_is_refused(world: World, name: str) -> None:
    world.split_ids(Role.GUEST, ["id", name])
    await world.refused(ConfigError, f"datasets.new: `id` names the column '{name}'.* rename the column")


async def test_without_an_audit_log_or_a_counter_no_score_leaves(world: World) -> None:
    state = world.configs[Role.HOST].state
    (state / "audit.jsonl").unlink()
    (state / "audit.jsonl").mkdir()
    await world.refused(ConfigError, "the audit log in the folder cannot be written")
    (state / "audit.jsonl").rmdir()
    (state / COUNTER).write_text("damaged")
    async with world.host() as peer:
        with pytest.raises(ConfigError, match="the daily counter is damaged"):
            await world.predict(peer)
    (state / COUNTER).unlink()
    async with world.host() as peer:
        await world.predict(peer)


@pytest.mark.parametrize("name", ["new-guest.csv", "missing.csv"])
async def test_a_result_does_not_replace_a_file_that_it_is_made_from(world: World, name: str) -> None:
    await world.refused(
        ConfigError, "need three different files", out=world.folder / name, missing=world.folder / "missing.csv"
    )


async def test_neither_a_prediction_nor_an_alignment_waits_long_for_a_host_that_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_CONTACT_SECONDS", 0.2)
    world.change(Role.GUEST, limits=Limits(peer_timeout=10_000))
    async with new_channel("127.0.0.1:1", None, "") as channel:
        peer = Peer(Role.HOST, "127.0.0.1:1", channel)
        with pytest.raises(PeerError, match=r"the host at 127\.0\.0\.1:1 has not answered for 0\.\d s"):
            await world.predict(peer)
        with pytest.raises(PeerError, match=r"the host at 127\.0\.0\.1:1 has not answered for 0\.\d s"):
            await align_dataset(world.configs[Role.GUEST], peer, NEW)
    assert world.nothing_is_left()


@pytest.mark.parametrize("what", ["out", "missing"])
async def test_a_result_that_cannot_be_written_is_found_before_anything_is_asked(world: World, what: str) -> None:
    await world.refused(ConfigError, "the folder .*gone does not exist", **{what: world.folder / "gone" / "x.csv"})
    assert not world.audit("OpenPrediction")


async def test_a_full_disk_is_found_before_any_score_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(world.folder)._replace(free=1000)
    monkeypatch.setattr("trilateral.guest_party.score_file.shutil.disk_usage", lambda _: usage)
    await world.refused(ConfigError, "the scores need up to .* MiB are free: make room")


# --- a guest that keeps to no order


class Calls:
    """Calls the methods of the contract directly, as a guest of someone's own making could."""

    def __init__(self, world: World, peer: Peer) -> None:
        self._world = world
        self._calls = GuestAlignments(peer, Limits(), lambda: IdQuota(world.folder, 10**9))
        self.name = token_bytes(16)

    async def open(self, **changed: Any) -> int:
        model = load_model(self._world.model_path(Role.GUEST))
        fields: dict[str, Any] = {"job": JOB.name, "run_id": bytes.fromhex(model.run_id), "prediction": self.name}
        fields |= {"model": model.shared_digest, "dataset": NEW} | changed
        request = prediction_pb2.OpenPredictionRequest(**fields)
        answer = await self._calls.call(
            "PredictionService/OpenPrediction", request, prediction_pb2.OpenPredictionResponse
        )
        return answer.n_rows

    async def align(self, **changed: Any) -> prediction_pb2.AlignPredictionResponse:
        fields: dict[str, Any] = {"prediction": self.name, "nonce": bytes(NONCE_BYTES), "n_rows": N_COMMON + N_ONLY}
        fields |= {"form": ["spaces", "unicode", "decimals"]} | changed
        request = prediction_pb2.AlignPredictionRequest(**fields)
        return await self._calls.call(
            "PredictionService/AlignPrediction", request, prediction_pb2.AlignPredictionResponse
        )

    async def settle(self, shard: int, told: bytes) -> None:
        request = prediction_pb2.SettleShardRequest(prediction=self.name, shard=shard, told=told)
        await self._calls.call("PredictionService/SettleShard", request, prediction_pb2.SettleShardResponse)

    async def scores(self, shard: int) -> list[float]:
        request = prediction_pb2.GetScoresRequest(prediction=self.name, shard=shard)
        answer = await self._calls.call("PredictionService/GetScores", request, prediction_pb2.GetScoresResponse)
        return list(answer.scores)

    async def close(self) -> None:
        request = prediction_pb2.ClosePredictionRequest(prediction=self.name)
        await self._calls.call("PredictionService/ClosePrediction", request, prediction_pb2.ClosePredictionResponse)


async def test_no_score_leaves_out_of_order(world: World) -> None:
    async with world.host() as peer:
        calls = Calls(world, peer)
        for early in (calls.align(), calls.settle(0, b""), calls.scores(0)):
            with pytest.raises(PeerError, match="does not know this prediction"):
                await early
        assert await calls.open() == N_COMMON + N_ONLY
        for early in (calls.settle(0, b""), calls.scores(0)):
            with pytest.raises(ProtocolError, match="before it has aligned them"):
                await early
        begun = await calls.align()
        assert await calls.align() == begun
        with pytest.raises(ProtocolError, match="twice with different requests"):
            await calls.align(nonce=bytes([1] * NONCE_BYTES))
        with pytest.raises(ProtocolError, match="twice with different requests"):
            await calls.align(aligned=True)
        with pytest.raises(ProtocolError, match="only 0 of 1 shards are settled"):
            await calls.scores(0)
        with pytest.raises(ProtocolError, match="before the host answered it"):
            await calls.settle(0, bytes(16))
        with pytest.raises(PeerError, match="does not know this prediction"):
            await calls.scores(0)
    assert world.given == 0
    assert world.nothing_is_left()


async def test_a_caller_that_guesses_has_one_try(world: World) -> None:
    async with world.host() as peer:
        calls = Calls(world, peer)
        await calls.open()
        await calls.align(aligned=True)
        with pytest.raises(DataError, match="do not hold the same IDs"):
            await calls.settle(0, bytes(32))
        with pytest.raises(PeerError, match="does not know this prediction"):
            await calls.settle(0, bytes(32))


async def test_a_repeated_request_is_answered_again_and_a_different_one_is_refused(world: World) -> None:
    async with world.host() as peer:
        calls = Calls(world, peer)
        assert await calls.open() == await calls.open()
        with pytest.raises(ProtocolError, match="opens a prediction twice with different requests"):
            await calls.open(dataset=DATASET)
        assert len([line for line in world.audit("OpenPrediction") if line["decision"] == "allowed"]) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"prediction": b""},
        {"prediction": bytes(17)},
        {"model": bytes(31)},
        {"run_id": bytes(15)},
        {"job": "../scores"},
        {"dataset": "../new"},
        {"dataset": "x" * 65},
    ],
)
async def test_an_invalid_request_is_refused(world: World, changed: dict[str, Any]) -> None:
    async with world.host() as peer:
        with pytest.raises(ProtocolError):
            await Calls(world, peer).open(**changed)
    assert world.nothing_is_left()


class Held:
    """A function that waits in its thread until the test releases it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.entered, self.released = threading.Event(), threading.Event()

    def __get__(self, one: object, kind: type) -> Callable[..., Any]:
        return partial(self, one)

    def __call__(self, *args: Any) -> Any:
        self.entered.set()
        assert self.released.wait(SECONDS)
        return self._function(*args)


async def hang_up(call: "asyncio.Task[Any]") -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def test_the_hosts_folder_exists_while_a_thread_writes_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(ScoreRelease.settle)
    monkeypatch.setattr(ScoreRelease, "settle", held)
    async with world.host() as peer:
        calls = Calls(world, peer)
        await calls.open()
        await calls.align(aligned=True)
        settling = asyncio.create_task(calls.settle(0, bytes(32)))
        await eventually(held.entered.is_set)
        await hang_up(settling)
        await calls.close()
        assert not world.nothing_is_left()
        held.released.set()
        await eventually(world.nothing_is_left)


async def test_a_guest_that_hangs_up_after_a_wrong_guess_gets_no_second_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(ScoreRelease.settle)
    monkeypatch.setattr(ScoreRelease, "settle", held)
    async with world.host() as peer:
        calls = Calls(world, peer)
        await calls.open()
        await calls.align(aligned=True)
        guessing = asyncio.create_task(calls.settle(0, bytes(32)))
        await eventually(held.entered.is_set)
        await hang_up(guessing)
        await asyncio.sleep(0.2)  # The host learns of the cancelled call.
        held.released.set()
        await eventually(world.nothing_is_left)
        with pytest.raises(PeerError, match="does not know this prediction"):
            await calls.settle(0, bytes(32))


async def test_an_alignment_that_opens_after_its_prediction_ended_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(ScoredRows.deal)
    monkeypatch.setattr(ScoredRows, "deal", held)
    async with world.host() as peer:
        calls = Calls(world, peer)
        await calls.open()
        aligning = asyncio.create_task(calls.align())
        await eventually(held.entered.is_set)
        await calls.close()
        assert not world.nothing_is_left()
        held.released.set()
        with pytest.raises(PeerError, match="the prediction has ended"):
            await aligning
        await eventually(world.nothing_is_left)
        assert [line["decision"] for line in world.audit("OpenAlignment")] == ["allowed", "closed"]


async def test_the_guests_folder_exists_while_a_thread_writes_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(ScoreFiles.write)
    monkeypatch.setattr(ScoreFiles, "write", held)
    async with world.host() as peer:
        predicting = asyncio.create_task(world.predict(peer))
        await eventually(held.entered.is_set)
        predicting.cancel()
        await asyncio.wait({predicting}, timeout=0.5)
        assert not predicting.done()
        assert list((world.configs[Role.GUEST].state / SCRATCH).glob("*/totals"))
        held.released.set()
        with pytest.raises(asyncio.CancelledError):
            await predicting
    assert world.nothing_is_left()


async def test_a_comparison_counts_with_and_without_an_intersection(world: World) -> None:
    for role in world.rows:
        world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
    world.set_policy(max_ids_a_day=2 * N_COMMON - 1)
    async with world.host() as peer:
        await world.predict(peer, aligned=True)
    (world.folder / "scores.csv").unlink()
    assert json.loads((world.configs[Role.HOST].state / IDS_COUNTER).read_text())["given"] == N_COMMON
    said = rf"the host refuses .* under policy\.max_ids_a_day: the maximum is 119 .* 59 left until .* {N_COMMON} needed"
    await world.refused(PolicyError, said, aligned=True)


async def test_at_most_two_predictions_run_at_a_time_and_a_closed_one_makes_room(world: World) -> None:
    async with world.host() as peer:
        first, second, third = (Calls(world, peer) for _ in range(3))
        await first.open()
        await second.open()
        with pytest.raises(PolicyError, match="2 predictions open"):
            await third.open()
        await first.close()
        await first.close()
        await third.open()
        assert not world.nothing_is_left()
    assert world.nothing_is_left()
    ends = [line["result"] for line in world.audit("OpenPrediction") if line["decision"] == "ended"]
    assert ends == ["failed"] * 3


async def test_an_idle_prediction_ends(world: World) -> None:
    world.change(Role.HOST, limits=Limits(round_timeout=0.05))
    async with world.host() as peer:
        calls = Calls(world, peer)
        await calls.open()
        await eventually(world.nothing_is_left)
        with pytest.raises(PeerError, match="does not know this prediction"):
            await calls.align()


async def test_repeated_scores_are_counted_once(world: World) -> None:
    for role in world.rows:
        world.rewrite(role, lambda table: table[table["id"].str.startswith("new")])
    async with world.host() as peer:
        calls = Calls(world, peer)
        await calls.open()
        nonce = (await calls.align(aligned=True, n_rows=N_COMMON)).nonce
        ids = sorted(world.rows[Role.GUEST]["id"])
        await calls.settle(0, id_digest(Ids.of(ids).digest(), bytes(NONCE_BYTES), nonce, Role.GUEST))
        assert await calls.scores(0) == await calls.scores(0)
        with pytest.raises(ProtocolError, match="there is no shard 1"):
            await calls.scores(1)
    assert world.given == N_COMMON
