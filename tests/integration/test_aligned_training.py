"""A job finds the rows that both parties have, and trains on these rows only."""

import asyncio
import gc
import logging
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.three_servers import (
    DATASET,
    PROTOCOLS,
    Protocol,
    check_model,
    load_tables,
    make_configs,
    serving,
    train_over_localhost,
    under,
    write_tables,
)
from tests.support.waiting import SECONDS, eventually
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.dataset import IdForm
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment import dealing
from trilateral.common.data.alignment.host_session import HostSession
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.party_data import PreparedData, split_rows
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_STOPPED, JobStatus
from trilateral.common.protocol.block import TrainingBlock

JOB = JobConfig(name="overlap", dataset=DATASET, key_bits=512, l2=0.01)
Configs = dict[Role, ProcessConfig]


def common_part(table: pd.DataFrame, ids: set[str]) -> pd.DataFrame:
    return table[table["id"].isin(ids)]


def write_overlapping(folder: Path, spell: Callable[[Role, str], str] = lambda role, one: one) -> set[str]:
    """Write tables: the host lacks the last 40 of 160 rows, the guest the first 30. Return the common rows."""
    tables = write_tables(folder, n_rows=160)
    kept = {
        Role.HOST: tables[Role.HOST][tables[Role.HOST]["id"] < "000120"],
        Role.GUEST: tables[Role.GUEST][tables[Role.GUEST]["id"] >= "000030"],
    }
    both = {*kept[Role.HOST]["id"]} & {*kept[Role.GUEST]["id"]}
    (folder / "common").mkdir()
    for role, table in kept.items():
        common_part(table, both).to_csv(folder / "common" / f"{role}.csv", index=False)
        spelt = table.assign(id=[spell(role, one) for one in table["id"]])
        spelt.to_csv(folder / f"{role}.csv", index=False)
    return both


def check_against_plain(folder: Path, configs: Configs, job: JobConfig) -> None:
    """Check that the model matches plain numpy on a table with the common rows only."""
    tables = load_tables(make_configs(folder / "common"), job)
    check_model(configs, job, tables)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_overlapping_tables_give_the_model_of_their_common_rows(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = under(protocol, JOB)
    monkeypatch.setattr(dealing, "SHARD_IDS", 50)
    assert len(write_overlapping(tmp_path)) == 90
    configs = make_configs(tmp_path)
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
        assert status.state == JOB_STATE_FINISHED, status.detail
        notes = (await client.status(JOB.name)).notes
    assert list(notes) == ["the host has 120 rows, the guest 130; they have 90 in common"]
    check_against_plain(tmp_path, configs, job)
    for role in PARTIES:
        assert load_model(JobFolder(configs[role].state, JOB.name).model).data.n_rows == 90


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_folders_of_parquet_parts_give_the_model_of_their_common_rows(protocol: Protocol, tmp_path: Path) -> None:
    job = under(protocol, JOB)
    write_overlapping(tmp_path)
    configs = make_configs(tmp_path)
    for role in PARTIES:
        parts = tmp_path / f"{role}-parts"
        parts.mkdir()
        table = pd.read_csv(tmp_path / f"{role}.csv", dtype={"id": str})
        for number in range(3):
            table[number::3].to_parquet(parts / f"part-{number}.parquet", index=False)
        dataset = configs[role].datasets[DATASET].model_copy(update={"path": parts})
        configs[role] = configs[role].model_copy(update={"datasets": {DATASET: dataset}})
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
        assert status.state == JOB_STATE_FINISHED, status.detail
    check_against_plain(tmp_path, configs, job)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_party_frees_its_table_at_the_end_of_the_job_without_a_garbage_collection(
    protocol: Protocol, tmp_path: Path
) -> None:
    def alive() -> list[str]:
        types = (PartyTable, PreparedData, TrainingBlock)
        return [type(each).__name__ for each in gc.get_objects() if type(each) in types]

    write_overlapping(tmp_path)
    gc.collect()
    before = alive()
    gc.disable()
    try:
        async with serving(make_configs(tmp_path)) as client:
            status = await train_over_localhost(client, under(protocol, JOB))
            assert status.state == JOB_STATE_FINISHED, status.detail
            await eventually(lambda: alive() == before)
    finally:
        gc.enable()


async def test_different_spellings_of_an_id_match(tmp_path: Path) -> None:
    write_overlapping(tmp_path, lambda role, one: f" {one}" if role is Role.GUEST else f"{one}.0")
    configs = make_configs(tmp_path)
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED, status.detail
    check_against_plain(tmp_path, configs, JOB)


async def test_awkward_tables_give_the_model_of_the_tables_that_they_mean(tmp_path: Path) -> None:
    """IDs of two columns, rows that come twice, and columns that say nothing about the common rows."""
    both = write_overlapping(tmp_path)
    configs = make_configs(tmp_path)
    for role in PARTIES:
        table = pd.read_csv(tmp_path / f"{role}.csv", dtype={"id": str})
        table["empty"], table["same"] = None, np.where(table["id"].isin(both), 1, table.index)
        # Another value in a copy would show that it counts.
        copies = table.iloc[:5].assign(same=-1)
        table = pd.concat([table, copies])
        ids = table.pop("id")
        table = table.assign(first=ids.str[:2], second=ids.str[2:])
        table.to_csv(tmp_path / f"{role}.csv", index=False)
        dataset = (
            configs[role].datasets[DATASET].model_copy(update={"id": ["first", "second"], "repeated_ids": "first"})
        )
        configs[role] = configs[role].model_copy(update={"datasets": {DATASET: dataset}})
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED, status.detail
    check_against_plain(tmp_path, configs, JOB)
    for role in PARTIES:
        assert sorted(load_model(JobFolder(configs[role].state, JOB.name).model).left_out) == ["empty", "same"]


async def test_tables_with_the_same_ids_are_not_aligned_again(tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path)
    job = JOB.model_copy(update={"aligned": True})
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
        assert status.state == JOB_STATE_FINISHED, status.detail
        assert list((await client.status(job.name)).notes) == []
    assert "OpenAlignment" not in (configs[Role.HOST].state / "audit.jsonl").read_text()


async def failed(configs: Configs, job: JobConfig = JOB) -> str:
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
    assert status.state == JOB_STATE_FAILED
    return status.detail


async def test_tables_without_a_common_row_are_refused(tmp_path: Path) -> None:
    write_overlapping(tmp_path, lambda role, one: f"{role}-{one}")
    assert "the host and the guest have no IDs in common" in await failed(make_configs(tmp_path))


async def test_a_split_that_leaves_a_label_on_one_side_is_refused_and_only_the_guest_sees_the_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = write_overlapping(tmp_path)
    common = sorted(both)
    held_out = {common[row] for row in split_rows(len(common), JOB, None)[1]["holdout"]}
    guest = pd.read_csv(tmp_path / "guest.csv", dtype={"id": str})
    positive = guest["id"].isin({*sorted(held_out)[:3]}) | ~guest["id"].isin(both)  # the others are not common
    guest.assign(label=np.where(positive, "yes", "no")).to_csv(tmp_path / "guest.csv", index=False)
    caplog.set_level(logging.WARNING)
    detail = await failed(make_configs(tmp_path))
    assert re.fullmatch(
        "the guest: training needs 2 training rows and 1 hold-out row of each label, .* set another `seed`, another "
        "`holdout`, or `holdout: 0`; the log of the guest has the numbers",
        detail,
    )
    told = [each.message for each in caplog.records if "rows are positive" in each.message]
    assert [text.partition("has the numbers: ")[2] for text in told] == [
        "0 of 72 training rows are positive",
        "3 of 18 hold-out rows are positive",
    ]
    assert all(text.startswith("guest.csv: ") for text in told)


async def test_two_forms_of_ids_are_refused_and_both_are_named(tmp_path: Path) -> None:
    write_overlapping(tmp_path)
    configs = make_configs(tmp_path)
    dataset = configs[Role.GUEST].datasets[DATASET].model_copy(update={"id_form": IdForm(zeros=True)})
    configs[Role.GUEST] = configs[Role.GUEST].model_copy(update={"datasets": {DATASET: dataset}})
    detail = await failed(configs)
    assert "(spaces, unicode, decimals, zeros) and the host's have (spaces, unicode, decimals)" in detail


async def test_an_error_in_the_hosts_table_fails_the_job_with_that_reason(tmp_path: Path) -> None:
    write_overlapping(tmp_path)
    (tmp_path / "host.csv").write_text("id,x\n1,2\n1,3\n")
    assert (await failed(make_configs(tmp_path))).startswith("the host: column 'id' repeats an earlier ID in 1 of 2")


async def test_a_policy_without_alignments_is_named_in_the_refusal(tmp_path: Path) -> None:
    write_overlapping(tmp_path)
    configs = make_configs(tmp_path)
    policy = configs[Role.HOST].policy.model_copy(update={"max_ids_a_day": 0})
    configs[Role.HOST] = configs[Role.HOST].model_copy(update={"policy": policy})
    detail = await failed(configs)
    assert detail.startswith("the host refuses the job under policy.max_ids_a_day")
    assert "`aligned: true`" in detail


# --- what may end an alignment


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make alignments so slow that something can happen meanwhile."""
    answer = HostSession.answer

    def late(session: HostSession, shard: int, points: bytes) -> tuple[bytes, bytes]:
        time.sleep(0.3)
        return answer(session, shard, points)

    monkeypatch.setattr(dealing, "SHARD_IDS", 3)
    monkeypatch.setattr(HostSession, "answer", late)


async def until_aligning(statuses: "asyncio.Queue[JobStatus]") -> JobStatus:
    async with asyncio.timeout(SECONDS):
        while True:
            status = await statuses.get()
            if "looking for their common rows" in status.detail:
                return status


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("ends", ["operator", Role.HOST, Role.GUEST])
async def test_the_end_of_an_alignment_ends_the_job_for_all(tmp_path: Path, ends: str) -> None:
    write_overlapping(tmp_path)
    configs = make_configs(tmp_path, peer_timeout=2)
    rest = {role: config for role, config in configs.items() if role != ends}
    stopping = {role: config for role, config in configs.items() if role == ends}
    async with serving(rest) as client:
        async with serving(stopping) if stopping else nullcontext():
            await client.start(JOB)
            statuses: asyncio.Queue[JobStatus] = asyncio.Queue()

            async def watch() -> JobStatus:
                async for status in client.watch(JOB.name):
                    statuses.put_nowait(status)
                return status

            watching = asyncio.create_task(watch())
            seen = await until_aligning(statuses)
            assert "of 44 parts" in seen.detail
            assert "the host has 120 rows, the guest 130" in seen.detail
            if ends == "operator":
                await client.stop(JOB.name)
        last = await watching
    if ends == "operator":
        assert last.state == JOB_STATE_STOPPED
    else:
        # A stopped party could come back, so the others wait for it.
        assert last.state == JOB_STATE_FAILED
        assert re.fullmatch(rf"the {ends} at \S+ has not answered for 2 s: .*", last.detail)
    audit = (configs[Role.HOST].state / "audit.jsonl").read_text()
    assert '"decision": "closed"' in audit
    assert '"result": "failed"' in audit
