"""Processes of different versions refuse each other at the start, and name both versions."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.three_servers import DATASET, make_configs, train_over_localhost, write_tables
from tests.support.versions import NEWER, OLDER, OWN, let_versions_differ, serving_versions, speaking
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED, JOB_STATE_TRAINING, JobStatus
from trilateral.common.process.description import ask_description
from trilateral.common.process.job_client import JobClient
from trilateral.common.rpc.channel import Peer, open_channel
from trilateral.common.rpc.versions import PROTOCOL, WAY_OUT, Version
from trilateral.guest_party.dataset_alignment import align_dataset
from trilateral.guest_party.prediction import PredictionPlan, predict

JOB = JobConfig(name="quick", dataset=DATASET, key_bits=512)
SILENT = "states no version of the protocol because its release is older than protocol versions"
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configs:
    write_tables(tmp_path)
    let_versions_differ(monkeypatch)
    return make_configs(tmp_path)


@pytest.mark.parametrize("party", PARTIES)
async def test_a_party_of_a_newer_version_refuses_jobs(party: Role, configs: Configs) -> None:
    async with serving_versions(configs, {party: NEWER}) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FAILED
    assert status.detail == f"the coordinator speaks {OWN}, and the {party} {NEWER}: {WAY_OUT}"
    assert f"version {PROTOCOL + 1} of the protocol (trilateral 99.0)" in status.detail


@pytest.mark.parametrize("party", PARTIES)
async def test_a_party_of_a_release_without_versions_gets_no_job(party: Role, configs: Configs) -> None:
    async with serving_versions(configs, {party: OLDER}) as client:
        status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FAILED
    assert status.detail == (
        f"the {party} at {configs[party].listen} {SILENT}, and this process speaks {OWN}: {WAY_OUT}"
    )


async def test_a_coordinator_of_another_version_opens_no_job(configs: Configs) -> None:
    for version, text in ((NEWER, f"the coordinator speaks {NEWER}, and the host {OWN}"), (OLDER, SILENT)):
        async with serving_versions(configs, {Role.COORDINATOR: version}) as client:
            with speaking(version):
                status = await train_over_localhost(client, JOB.model_copy(update={"name": f"of-{version.package}x"}))
        assert status.state == JOB_STATE_FAILED
        assert text in status.detail
        assert WAY_OUT in status.detail


async def test_a_refusal_is_in_the_audit_log(configs: Configs) -> None:
    async with serving_versions(configs, {Role.HOST: NEWER}) as client:
        await train_over_localhost(client, JOB)
    assert str(NEWER) in (configs[Role.HOST].state / "audit.jsonl").read_text()


async def test_all_three_of_another_version_train_together(configs: Configs) -> None:
    async with serving_versions(configs, dict.fromkeys(Role, NEWER)) as client:
        with speaking(NEWER):
            assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED


@pytest.mark.parametrize(
    ("version", "text"),
    [(NEWER, f"the guest speaks {OWN}, and the host {NEWER}: {WAY_OUT}"), (OLDER, SILENT)],
    ids=["newer", "older"],
)
async def test_a_host_of_another_version_aligns_and_scores_nothing(
    version: Version, text: str, configs: Configs, tmp_path: Path
) -> None:
    guest = configs[Role.GUEST]
    async with serving_versions(configs, {}) as client:
        assert (await train_over_localhost(client, JOB)).state == JOB_STATE_FINISHED
    wanted = PredictionPlan(JOB.name, DATASET, tmp_path / "scores.csv", tmp_path / "missing.csv", aligned=False)
    host_config = configs[Role.HOST].model_copy(
        update={"policy": configs[Role.HOST].policy.model_copy(update={"allow_prediction": True})}
    )
    async with (
        serving_versions(configs | {Role.HOST: host_config}, {Role.HOST: version}),
        open_channel(host_config.listen, None) as channel,
    ):
        host = Peer(Role.HOST, host_config.listen, channel)
        with pytest.raises(ProtocolError) as aligning:
            await align_dataset(guest, host, DATASET, lambda _: None)
        with pytest.raises(ProtocolError) as scoring:
            await predict(guest, host, wanted, lambda _: None)
    assert text in str(aligning.value)
    assert text in str(scoring.value)
    assert not wanted.out.exists()


async def test_an_operator_of_another_version_is_refused(configs: Configs) -> None:
    async with serving_versions(configs, {}):
        for version, text in (
            (NEWER, f"the guest speaks {NEWER}, and the coordinator {OWN}: {WAY_OUT}"),
            (OLDER, f"the guest {SILENT}, and the coordinator speaks {OWN}"),
        ):
            with speaking(version):
                async with JobClient(configs[Role.GUEST]) as client:
                    await refuses_all_calls(client, text)


async def refuses_all_calls(client: JobClient, text: str) -> None:
    calls: Any = [client.start(JOB), client.status("quick"), client.statuses(), client.stop("quick")]
    calls += [client.resume("quick"), anext(client.watch("quick"))]
    for call in calls:
        with pytest.raises(ProtocolError, match="speak") as refused:
            await call
        assert text in str(refused.value)


async def test_a_client_refuses_a_coordinator_of_a_release_without_versions(configs: Configs) -> None:
    async with serving_versions(configs, {Role.COORDINATOR: OLDER}), JobClient(configs[Role.GUEST]) as client:
        with pytest.raises(ProtocolError, match=f"the coordinator at {configs[Role.COORDINATOR].listen} {SILENT}"):
            await client.statuses()
        with speaking(OLDER):
            await client.start(JOB)
        with pytest.raises(ProtocolError, match=SILENT):
            await anext(client.watch(JOB.name))


async def test_a_job_fails_when_one_process_is_upgraded_and_resumes_when_all_are(
    configs: Configs,
) -> None:
    endless = JOB.model_copy(
        update={"name": "endless", "algorithm": Sgd(), "batch": 48, "epochs": 10_000, "tolerance": 0.0, "holdout": 0.0}
    )

    async def until(client: JobClient, state: int) -> JobStatus:
        async for status in client.watch(endless.name):
            if status.state == state:
                return status
        raise AssertionError("the job has ended")

    host = {Role.HOST: configs[Role.HOST]}
    others: Configs = {role: config for role, config in configs.items() if role is not Role.HOST}
    async with serving_versions(others, {}) as client:
        async with serving_versions(host, {}):
            await client.start(endless)
            await until(client, JOB_STATE_TRAINING)
        async with serving_versions(host, {Role.HOST: NEWER}):
            failed = await until(client, JOB_STATE_FAILED)
        assert f"speaks {OWN}, and the host {NEWER}: {WAY_OUT}" in failed.detail
        async with serving_versions(host, {}):
            await client.resume(endless.name)
            await until(client, JOB_STATE_TRAINING)
            await client.stop(endless.name)


@pytest.mark.parametrize("version", [NEWER, OWN])
async def test_a_process_describes_itself_across_versions(version: Version, configs: Configs) -> None:
    async with (
        serving_versions(configs, {Role.HOST: version}),
        open_channel(configs[Role.HOST].listen, None) as channel,
    ):
        told = await ask_description(channel, Role.GUEST, 5)
    assert (told.role, told.caller, told.version) == (Role.HOST, Role.GUEST, version)
    assert abs(told.clock_ahead) <= told.uncertainty + 0.01
