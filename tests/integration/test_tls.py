"""Trainings under mutual TLS, and who may start, watch, and stop them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.certificates import make_identity, new_authority, write_identity
from tests.support.three_servers import (
    DATASET,
    load_tables,
    make_configs,
    serving,
    train_over_localhost,
    trained_coef,
    write_tables,
)
from trilateral.client.job_client import JobClient
from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import OperatorsConfig, ProcessConfig, TlsConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process import server
from trilateral.common.rpc import channel
from trilateral.common.rpc.errors import AccessError
from trilateral.common.trial.development import write_development_files
from trilateral.coordinator.numpy_training import train_plain

QUICK = JobConfig(name="quick", dataset=DATASET, key_bits=512)
LONG = JobConfig(name="long", dataset=DATASET, key_bits=512, algorithm=Sgd(), batch=48, epochs=60, tolerance=0.0)
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    write_development_files(tmp_path / "certs")
    return make_configs(tmp_path, certificates=tmp_path / "certs")


def assert_model_of_plain_numpy(configs: Configs, job: JobConfig) -> None:
    tables = load_tables(configs, job)
    plain = train_plain(job, tables.joined.columns, tables.joined.labels, tables.joined.penalty)
    np.testing.assert_allclose(trained_coef(configs, job), plain.coef, rtol=0, atol=1e-6)


async def test_a_training_under_tls_gives_the_model_of_plain_numpy(configs: Configs) -> None:
    assert all(config.tls and not config.plaintext for config in configs.values())
    async with serving(configs) as client:
        status = await train_over_localhost(client, QUICK)
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert_model_of_plain_numpy(configs, QUICK)


async def test_a_job_survives_the_renewal_of_all_certificates_and_of_the_authority(
    configs: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "RENEWAL_SECONDS", 0.05)
    renewals = 0
    async with serving(configs) as client:
        await client.start(LONG)
        async for status in client.watch(LONG.name):
            if status.round >= 5 * (renewals + 1) and renewals < 3:
                await asyncio.to_thread(write_development_files, tmp_path / "certs")
                renewals += 1
    assert renewals == 3
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert_model_of_plain_numpy(configs, LONG)


async def test_a_job_survives_constant_reconnection(configs: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SERVER_OPTIONS", with_connection_age(100))
    async with serving(configs) as client:
        status = await train_over_localhost(client, LONG)
    assert status.state == JOB_STATE_FINISHED, status.detail
    assert_model_of_plain_numpy(configs, LONG)


def with_connection_age(milliseconds: int) -> tuple[tuple[str, int], ...]:
    key = "grpc.max_connection_age_ms"
    assert key in dict(channel.SERVER_OPTIONS)
    return tuple((dict(channel.SERVER_OPTIONS) | {key: milliseconds}).items())


# --- operators


async def may(client: JobClient) -> dict[str, bool]:
    """Return what the coordinator lets a client do, tried on a job that does not exist."""

    async def is_let(call: object) -> bool:
        try:
            await call  # type: ignore[misc]
        except AccessError:
            return False
        except TrilateralError:
            pass
        return True

    return {
        "start": await is_let(client.start(QUICK)),
        "stop": await is_let(client.stop("none")),
        "watch": await is_let(client.status("none")),
    }


def with_operators(configs: Configs, operators: OperatorsConfig) -> Configs:
    return configs | {Role.COORDINATOR: configs[Role.COORDINATOR].model_copy(update={"operators": operators})}


async def test_by_default_the_guest_starts_and_stops_and_all_three_watch(configs: Configs) -> None:
    configs = with_operators(configs, OperatorsConfig())
    async with serving(configs):
        for role in Role:
            async with JobClient(configs[role]) as client:
                is_guest = role is Role.GUEST
                assert await may(client) == {"start": is_guest, "stop": is_guest, "watch": True}, role


async def test_a_certificate_of_its_own_makes_an_operator(configs: Configs, tmp_path: Path) -> None:
    authority = new_authority()
    names = {role: f"{role}.trilateral.test" for role in Role}
    configs = {
        role: config.model_copy(
            update={"tls": write_identity(tmp_path / f"tls-{role}", make_identity(authority, names[role]))}
        )
        for role, config in configs.items()
    }
    configs = with_operators(configs, OperatorsConfig(start=["analyst.bank.test"], watch=["Analyst.bank.test"]))
    analyst = write_identity(tmp_path / "analyst", make_identity(authority, "analyst.bank.test"))
    stranger = write_identity(tmp_path / "stranger", make_identity(authority, "stranger.bank.test"))

    def command_line(tls: TlsConfig) -> JobClient:
        return JobClient(configs[Role.HOST].model_copy(update={"tls": tls}))

    async with serving(configs):
        async with command_line(analyst) as client:
            assert await may(client) == {"start": True, "stop": False, "watch": True}
        async with command_line(stranger) as client:
            assert not any((await may(client)).values())
            with pytest.raises(
                AccessError, match=r"certificate \(stranger.bank.test\) .*may not watch jobs: `operators"
            ):
                await client.status("none")


# --- what an operator is told when there is no connection


def trusted_by(configs: Configs) -> bytes:
    tls = configs[Role.GUEST].tls
    assert tls is not None
    return tls.authorities.read_bytes()


async def test_an_untrusted_caller_learns_where_to_look(configs: Configs, tmp_path: Path) -> None:
    unknown = make_identity(new_authority(), "guest.trilateral.test")
    unknown_but_trusting = write_identity(tmp_path / "unknown", replace(unknown, authorities=trusted_by(configs)))
    wrong_name = configs[Role.GUEST].peers | {
        Role.COORDINATOR: configs[Role.GUEST].peers[Role.COORDINATOR].model_copy(update={"name": "c.example.org"})
    }
    told: dict[str, dict[str, Any]] = {
        "it closes the connection, perhaps because it does not accept this process's certificate": {
            "tls": unknown_but_trusting
        },
        "it presents no certificate, an expired one, or one that `tls.authorities` did not issue": {
            "tls": write_identity(tmp_path / "suspicious", unknown)
        },
        "its certificate does not have the expected name": {"peers": wrong_name},
        "it closes the connection": {"tls": None, "plaintext": True},
    }
    async with serving(configs):
        for text, update in told.items():
            async with JobClient(configs[Role.GUEST].model_copy(update=update)) as client:
                with pytest.raises(PeerError, match=text):
                    await client.statuses()
