"""What those who may start jobs, or a coordinator, could do to the state folder of a process."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.three_servers import DATASET, make_configs, serving, write_tables
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import JOURNAL, Journal, Record
from trilateral.common.jobs.party_jobs import PartyJobs
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.party_pb2_grpc import PartyServiceStub
from trilateral.common.protocol.messages import OpenJob
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.routes import encode, route_for
from trilateral.coordinator.server import serve as serve_coordinator

# --- names of jobs

NAMES = ["journal.sqlite-journal", "Journal.SQLite-journal", "journal.sqlite-wal", "journal.sqlite.new", "audit.jsonl"]


async def starts_again(config: ProcessConfig, name: str) -> bool:
    """Let the guest start a job of that name, end the coordinator, and start it again."""
    async with serving({Role.COORDINATOR: config}) as client:
        await client.start(JobConfig(name=name, dataset=DATASET, key_bits=256))
    stop = asyncio.Event()
    try:
        await serve_coordinator(config, stop=stop, on_ready=lambda _: stop.set())
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
async def test_no_name_of_a_job_is_that_of_another_file(name: str, tmp_path: Path) -> None:
    config = make_configs(tmp_path)[Role.COORDINATOR]
    assert await starts_again(config, name)
    assert JobFolder(config.state, name).path.is_dir()


async def test_without_a_folder_of_their_own_a_job_stops_the_coordinator_for_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(JobFolder, "path", property(lambda folder: folder.state / folder.job))
    assert not await starts_again(make_configs(tmp_path)[Role.COORDINATOR], NAMES[0])


# --- a coordinator that says that a job has not begun

JOB = JobConfig(name="attacked", dataset=DATASET, key_bits=512)
JOB_ID = bytes(range(16))
ROUNDS = 7


def write_record(config: ProcessConfig) -> None:
    """Write what a host keeps of a job in its eighth round."""
    config.state.mkdir(parents=True)
    journal = Journal(config.state, config.role, config.limits.journal_days)
    journal.add(JOB_ID, JOB)
    for number in range(1, ROUNDS + 1):
        journal.write_round(JOB_ID, number, b"asked")
    journal.set_facts(JOB_ID, {"scores counted": b""})
    journal.close()


def record_left(config: ProcessConfig) -> tuple[int, int]:
    """Return how many rounds and facts the journal has of that job."""
    with closing(sqlite3.connect(f"file:{config.state / JOURNAL}?mode=ro", uri=True)) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {table} WHERE job = ?", (JOB_ID,)).fetchone()[0]
            for table in ("round", "fact")
        ]
    return counts[0], counts[1]


async def offer_anew(config: ProcessConfig, job_id: bytes, private_key: PrivateKey) -> str:
    """Offer the job as one in which the parties were never ready; return the host's refusal, or nothing."""
    message = OpenJob(JOB, private_key.public_key.n, Role.HOST, job_id, was_ready=False)
    request: Any = encode(JobKey.draw(JOB.name), message, route_for(Role.COORDINATOR, Role.HOST, message))
    async with (
        serving({Role.HOST: config}),
        grpc.aio.insecure_channel(config.listen, options=[("grpc.enable_http_proxy", 0)]) as channel,
    ):
        try:
            await PartyServiceStub(channel).OpenJob(request, metadata=call_metadata(Role.COORDINATOR))
        except grpc.aio.AioRpcError as error:
            return str(error.details())
    return ""


def host_config(folder: Path) -> ProcessConfig:
    write_tables(folder)
    return make_configs(folder)[Role.HOST]


async def test_a_coordinator_cannot_erase_the_rounds_of_a_job(private_key: PrivateKey, tmp_path: Path) -> None:
    config = host_config(tmp_path)
    write_record(config)
    refusal = await offer_anew(config, JOB_ID, private_key)
    assert f"the host has {ROUNDS} rounds of it in its journal: start the training again under another name" in refusal
    assert record_left(config) == (ROUNDS, 1)


async def test_a_new_job_of_the_same_name_leaves_the_rounds_of_the_old_one(
    private_key: PrivateKey, tmp_path: Path
) -> None:
    config = host_config(tmp_path)
    write_record(config)
    assert await offer_anew(config, b"", private_key) == ""
    assert record_left(config) == (ROUNDS, 1)
    assert "rounds of it in its journal" in await offer_anew(config, JOB_ID, private_key)
    assert record_left(config) == (ROUNDS, 1)


@pytest.mark.parametrize("job_id", [JOB_ID, b""], ids=["same job", "same name"])
async def test_without_the_checks_the_record_is_gone(
    job_id: bytes, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add: Callable[[Journal, bytes, JobConfig], None] = Journal.add

    def believe(self: PartyJobs, key: JobKey, offer: OpenJob) -> tuple[bytes, Record | None]:
        return offer.job_id or key.run_id, None

    def replace(self: Journal, job_id: bytes, job: JobConfig) -> None:
        with self._changing() as database:
            database.execute("DELETE FROM job WHERE name = ?", (job.name,))
        add(self, job_id, job)

    monkeypatch.setattr(PartyJobs, "_find_known", believe)
    monkeypatch.setattr(Journal, "add", replace)
    config = host_config(tmp_path)
    write_record(config)
    assert await offer_anew(config, job_id, private_key) == ""
    assert record_left(config)[0] == 0
