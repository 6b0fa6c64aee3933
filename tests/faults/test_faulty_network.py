"""A network that delays, loses, or reorders packets, is slow, or breaks apart does not change the model."""

import asyncio
from collections.abc import Iterator
from itertools import combinations

import pytest

from tests.faults.networks import GOOD_LINE, Network, end_of, on_wan, partition, reach
from tests.support.three_servers import DATASET, PROTOCOLS, Protocol, check_model, under
from tests.support.waiting import eventually
from tests.support.wan import Line, Wan, why_not
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sqn
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

JOB = JobConfig(name="any", dataset=DATASET, key_bits=512, algorithm=Sqn(interval=4), batch=24, epochs=3, tolerance=0.0)
PEER_TIMEOUT = 6.0
PAIRS = list(combinations(Role, 2))


@pytest.fixture(scope="module")
def wan() -> Iterator[Wan]:
    with Wan(dict.fromkeys(Role, GOOD_LINE)) as wan:
        yield wan


@pytest.fixture(scope="module")
def network(wan: Wan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with on_wan(wan, tmp_path_factory.mktemp("network"), peer_timeout=PEER_TIMEOUT) as network:
        yield network


def shape_all(wan: Wan, line: Line) -> None:
    for role in Role:
        wan.shape(role, line)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_training_survives_late_lost_and_reordered_packets(protocol: Protocol, wan: Wan, network: Network) -> None:
    job = under(protocol, JOB.model_copy(update={"name": f"lossy-{protocol}"}))
    shape_all(wan, Line(delay=0.01, jitter=0.005, loss=0.02, reordering=0.1))
    try:
        network.train(job)
    finally:
        shape_all(wan, GOOD_LINE)
    check_model(network.configs, job)


def test_a_training_survives_a_line_of_1_mbit_s(wan: Wan, network: Network) -> None:
    job = JOB.model_copy(update={"name": "narrow", "slots": 1, "batch": "all", "epochs": 1})
    shape_all(wan, Line(delay=0.01, bandwidth=1e6))
    before = wan.bytes_between(Role.HOST, Role.GUEST)
    try:
        network.train(job)
    finally:
        shape_all(wan, GOOD_LINE)
    assert wan.bytes_between(Role.HOST, Role.GUEST) - before > 96 * 128  # one vector of 96 ciphertexts
    check_model(network.configs, job)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_training_survives_a_partition_of_each_pair_and_of_all(
    protocol: Protocol, wan: Wan, network: Network
) -> None:
    job = under(protocol, JOB.model_copy(update={"name": f"parted-{protocol}"}))

    network.train(job, [(2 + 3 * k, partition(wan, 1.0, *hosts)) for k, hosts in enumerate([*PAIRS, ()])])

    check_model(network.configs, job)


@pytest.mark.slow
def test_a_partition_longer_than_peer_timeout_ends_the_job_at_all_three_and_the_job_can_be_resumed(
    wan: Wan, network: Network
) -> None:
    job = JOB.model_copy(update={"name": "given-up", "epochs": 8})
    shape_all(wan, Line(delay=0.05))  # A round takes 0.2 s: the partition comes long before the last round.

    async def lose_and_resume() -> None:
        async with asyncio.timeout(90), JobClient(network.operator) as client:
            await client.start(job)
            assert (await reach(client, job.name, 2)).state not in ENDED
            await asyncio.to_thread(wan.cut)
            status = await end_of(client, job.name)
            assert status.state == JOB_STATE_FAILED
            assert "has not answered for 6 s" in status.detail
            await eventually(lambda: len(network.ends(job.name)) == len(Role))
            for role, end in network.ends(job.name).items():
                assert end["result"] == "failed", role
                assert "has not answered for 6 s" in end["reason"], role

            await asyncio.to_thread(wan.heal)
            await asyncio.to_thread(shape_all, wan, GOOD_LINE)
            await client.resume(job.name)
            status = await end_of(client, job.name)
            assert status.state == JOB_STATE_FINISHED, status.detail

    try:
        asyncio.run(lose_and_resume())
    finally:
        wan.heal()
        shape_all(wan, GOOD_LINE)
    check_model(network.configs, job)
