"""A party that breaks the protocol ends its job with one sentence on both sides, and affects no other job."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import SECONDS
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1 import coordinator_pb2, rounds_pb2
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING, JobStatus
from trilateral.common.process.job_client import JobClient
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.channel import open_channel

ENDLESS = JobConfig(
    name="endless", dataset=DATASET, key_bits=512, algorithm=Sgd(), batch=30, epochs=100_000, tolerance=0.0
)
QUICK = JobConfig(name="quick", dataset=DATASET, key_bits=512)
WIDTH = 128
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    return make_configs(tmp_path)


def run_id_of(configs: Configs, job: str) -> bytes:
    """Return the run ID, from the audit log."""
    for line in (configs[Role.COORDINATOR].state / "audit.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["decision"] == "allowed" and entry["job"] == job:
            return bytes.fromhex(entry["run"])
    raise AssertionError("no such job")


def chunk(run_id: bytes, **changes: Any) -> rounds_pb2.SendVectorRequest:
    fields: dict[str, Any] = {
        "job": "endless",
        "run_id": run_id,
        "key": rounds_pb2.RoundKey(round=1, attempt=1),
        "kind": rounds_pb2.VECTOR_KIND_SCORES,
        "offset": 0,
        "total": 2,
        "width": WIDTH,
        "ciphertexts": (b"\1" * WIDTH),
    }
    return rounds_pb2.SendVectorRequest(**fields | changes)


def far(round_number: int, attempt: int = 1) -> dict[str, Any]:
    return {"key": rounds_pb2.RoundKey(round=round_number, attempt=attempt)}


Chunks = Callable[[bytes], list[rounds_pb2.SendVectorRequest]]
MISDEEDS: dict[str, tuple[Chunks, str]] = {
    "more ciphertexts than announced": (
        lambda run: [chunk(run), chunk(run, offset=1), chunk(run, offset=2)],
        "ciphertexts 2 to 3 of 2|more ciphertexts than the 2",
    ),
    "another vector from its middle": (
        lambda run: [chunk(run), chunk(run, offset=1, total=3)],
        "received ciphertexts from 1, expected those from 0",
    ),
    "a gap": (lambda run: [chunk(run, total=9), chunk(run, total=9, offset=2)], "expected those from 1"),
    "ciphertexts of another width": (
        lambda run: [chunk(run, width=64, ciphertexts=bytes(64))],
        "received ciphertexts of 64 bytes, expected ciphertexts of 128 bytes",
    ),
    "more ciphertexts than there are rows": (lambda run: [chunk(run, total=10**6)], "this job has at most 24 of them"),
    "a round far off": (lambda run: [chunk(run, **far(2**32 - 1))], "at most 300002 rounds"),
    "an attempt far off": (lambda run: [chunk(run, **far(1, 6))], "5 attempts at each"),
}


async def send(configs: Configs, chunks: list[rounds_pb2.SendVectorRequest]) -> str:
    """Send a request to the guest as the host does; return the answer."""
    async with open_channel(configs[Role.GUEST].listen, None) as channel:
        method: Any = channel.stream_unary(
            "/trilateral.v1.GuestService/SendVector", request_serializer=rounds_pb2.SendVectorRequest.SerializeToString
        )
        try:
            await method(iter(chunks), metadata=call_metadata(Role.HOST), timeout=10)
        except grpc.aio.AioRpcError as error:
            return str(error.details())
    return ""


async def end_of(client: JobClient, job: str) -> JobStatus:
    status = JobStatus()
    async with asyncio.timeout(SECONDS):
        async for changed in client.watch(job):
            status = changed
    return status


async def until_training(client: JobClient, job: str) -> None:
    async with asyncio.timeout(SECONDS):
        async for status in client.watch(job):
            if status.state == JOB_STATE_TRAINING and status.round >= 2:
                return


@pytest.mark.parametrize("misdeed", MISDEEDS)
async def test_a_vector_that_breaks_the_protocol_ends_only_its_own_job(misdeed: str, configs: Configs) -> None:
    make_chunks, said = MISDEEDS[misdeed]
    async with serving(configs) as client:
        await client.start(ENDLESS)
        await until_training(client, "endless")
        quick = asyncio.create_task(train_over_localhost(client, QUICK))
        answer = await send(configs, make_chunks(run_id_of(configs, "endless")))
        status = await end_of(client, "endless")
        assert status.state == JOB_STATE_FAILED
        assert any(part in status.detail for part in said.split("|")), status.detail
        # The state machine detects some errors after the call has ended; then the sender's own job reports them.
        assert answer == "" or any(part in answer for part in said.split("|"))
        assert (await quick).state == JOB_STATE_FINISHED
    ends = {
        role: [json.loads(line) for line in (config.state / "audit.jsonl").read_text().splitlines()]
        for role, config in configs.items()
    }
    for lines in ends.values():
        (end,) = (line for line in lines if line["decision"] == "ended" and line["job"] == "endless")
        assert any(part in end["reason"] for part in said.split("|"))


async def test_an_impossible_count_ends_the_job_at_the_coordinator(configs: Configs) -> None:
    async with serving(configs) as client:
        await client.start(ENDLESS)
        await until_training(client, "endless")
        ready = coordinator_pb2.ReportReadyRequest(
            job="endless", run_id=run_id_of(configs, "endless"), n_train=96, n_columns=2**32 - 1
        )
        async with open_channel(configs[Role.COORDINATOR].listen, None) as channel:
            method: Any = channel.unary_unary("/trilateral.v1.CoordinatorService/ReportReady")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method(ready.SerializeToString(), metadata=call_metadata(Role.HOST), timeout=10)
        assert "a count of 4294967295 columns; expected 1 to 65536" in str(refused.value.details())
        status = await end_of(client, "endless")
        assert status.detail == refused.value.details()
        assert status.detail.startswith("the coordinator, about a message from the host: received")
        assert (await train_over_localhost(client, QUICK)).state == JOB_STATE_FINISHED


async def test_a_stranger_to_the_run_cannot_end_a_job(configs: Configs) -> None:
    async with serving(configs) as client:
        await client.start(ENDLESS)
        await until_training(client, "endless")
        answer = await send(configs, [chunk(bytes(16), width=64, ciphertexts=bytes(64))])
        assert answer == "the guest does not know this run of the job endless"
        assert (await client.status("endless")).state == JOB_STATE_TRAINING
        await client.stop("endless")
