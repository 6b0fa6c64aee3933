"""The metrics that the three processes of a training publish."""

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from tests.support.waiting import eventually
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import MetricsConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.trial.localhost import free_addresses

JOB = JobConfig(name="watched", dataset=DATASET, epochs=6, key_bits=256)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(address: str) -> Samples:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    body = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
    writer.close()
    return {
        (sample.name.removeprefix("trilateral_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def get(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def scrape_when_ended(address: str) -> Samples:
    async def has_ended() -> bool:
        return get(await scrape(address), "sessions_ended_total", result="finished") == 1

    await eventually(has_ended)
    return await scrape(address)


async def test_the_three_processes_agree_on_rounds_and_on_the_traffic_between_them(tmp_path: Path) -> None:
    write_tables(tmp_path)
    pages = free_addresses()
    configs = {
        role: config.model_copy(update={"metrics": MetricsConfig(listen=pages[role])})
        for role, config in make_configs(tmp_path).items()
    }
    async with serving(configs) as client:
        status = await train_over_localhost(client, JOB)
        assert status.state == JOB_STATE_FINISHED
        seen = {role: await scrape_when_ended(pages[role]) for role in Role}
    losses = {get(samples, "loss", job_name=JOB.name) for samples in seen.values()}
    assert len(losses) == 1
    for samples in seen.values():
        assert get(samples, "rounds_total", outcome="complete") == status.round
        assert get(samples, "round_seconds_count") == status.round
        assert get(samples, "round", job_name=JOB.name) == status.round
        assert get(samples, "jobs", state="training") == 0
        assert {value for (name, _), value in samples.items() if name == "peer_silence_seconds"} == {0.0}
    for sender, receiver, kind in (
        (Role.HOST, Role.GUEST, "scores"),
        (Role.GUEST, Role.HOST, "residual"),
        (Role.GUEST, Role.COORDINATOR, "gradient"),
    ):
        for name in ("vector_bytes_total", "ciphertexts_total"):
            sent = get(seen[sender], name, direction="sent", peer=receiver, kind=kind)
            received = get(seen[receiver], name, direction="received", peer=sender, kind=kind)
            assert sent == received > 0
    assert get(seen[Role.HOST], "phase_seconds_total", phase="product") > 0
    assert get(seen[Role.COORDINATOR], "phase_seconds_total", phase="decrypt") > 0
