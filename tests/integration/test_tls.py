"""Trainings under mutual TLS, and who may start, watch, and stop them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import load_pem_x509_certificate

from tests.support.certificates import (
    issued_below,
    make_identity,
    new_authority,
    signed_as_requested,
    write_identity,
)
from tests.support.three_servers import (
    DATASET,
    check_model,
    make_configs,
    serving,
    train_over_localhost,
    write_tables,
)
from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import OperatorsConfig, PeerConfig, ProcessConfig, TlsConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process import server
from trilateral.common.process.job_client import JobClient
from trilateral.common.rpc import access, channel
from trilateral.common.rpc.certificates import Identity
from trilateral.common.rpc.errors import AccessError
from trilateral.common.rpc.issuers import fingerprint, spell
from trilateral.common.trial.authority import Authority
from trilateral.common.trial.development import write_development_files

QUICK = JobConfig(name="quick", dataset=DATASET, key_bits=512)
LONG = JobConfig(name="long", dataset=DATASET, key_bits=512, algorithm=Sgd(), batch=48, epochs=60, tolerance=0.0)
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    write_development_files(tmp_path / "certs")
    return make_configs(tmp_path, certificates=tmp_path / "certs")


async def test_a_training_under_tls_gives_the_model_of_plain_numpy(configs: Configs) -> None:
    assert all(config.tls and not config.plaintext for config in configs.values())
    async with serving(configs) as client:
        status = await train_over_localhost(client, QUICK)
    assert status.state == JOB_STATE_FINISHED, status.detail
    check_model(configs, QUICK)


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
    check_model(configs, LONG)


async def test_a_job_survives_constant_reconnection(configs: Configs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SERVER_OPTIONS", with_connection_age(100))
    async with serving(configs) as client:
        status = await train_over_localhost(client, LONG)
    assert status.state == JOB_STATE_FINISHED, status.detail
    check_model(configs, LONG)


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
        "its certificate has expired, or `tls.authorities` did not issue it": {
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


# --- a certificate that a peer has issued to itself


def certified(configs: Configs, authority: Authority, folder: Path) -> Configs:
    """Three organisations with a certificate each of one authority."""
    return {
        role: config.model_copy(
            update={"tls": write_identity(folder / f"tls-{role}", make_identity(authority, f"{role}.trilateral.test"))}
        )
        for role, config in configs.items()
    }


def as_guest_of(configs: Configs, identity: Identity, folder: Path) -> JobClient:
    return JobClient(configs[Role.GUEST].model_copy(update={"tls": write_identity(folder, identity)}))


@pytest.mark.parametrize("is_checked", [False, True], ids=["as gRPC accepts it", "with the check of the issuer"])
async def test_a_host_that_has_become_an_authority_cannot_be_the_guest(
    configs: Configs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    authority = new_authority()
    configs = with_operators(certified(configs, authority, tmp_path), OperatorsConfig())
    host, become = signed_as_requested(authority, "host.trilateral.test")
    if not is_checked:
        monkeypatch.setattr(access, "is_directly_issued", lambda certificate, authorities: True)
    async with serving(configs):
        async with as_guest_of(configs, issued_below(authority, become, "guest.trilateral.test"), tmp_path / "a") as it:
            does = await may(it)
            assert does == dict.fromkeys(("start", "stop", "watch"), not is_checked)
            if is_checked:
                with pytest.raises(AccessError, match="was not issued directly by an authority in `tls.authorities`"):
                    await it.statuses()
        # Its own certificate still has the host's rights and no more.
        own = configs[Role.HOST].model_copy(update={"tls": write_identity(tmp_path / "b", host)})
        async with JobClient(own) as it:
            assert await may(it) == {"start": False, "stop": False, "watch": True}


async def test_nor_an_operator(configs: Configs, tmp_path: Path) -> None:
    authority = new_authority()
    configs = with_operators(
        certified(configs, authority, tmp_path), OperatorsConfig(start=["analyst.bank.test"], watch=["host"])
    )
    _, become = signed_as_requested(authority, "host.trilateral.test")
    analyst = issued_below(authority, become, "analyst.bank.test")
    async with serving(configs), as_guest_of(configs, analyst, tmp_path / "a") as client:
        assert not any((await may(client)).values())


async def test_a_pinned_peer_can_renew_its_key_while_both_fingerprints_are_listed(
    configs: Configs, tmp_path: Path
) -> None:
    authority = new_authority()
    configs = with_operators(certified(configs, authority, tmp_path), OperatorsConfig())
    old, new, other = (make_identity(authority, "guest.trilateral.test") for _ in range(3))

    def pin(*identities: Identity) -> Configs:
        keys = [load_pem_x509_certificate(each.certificate).public_key() for each in identities]
        guest = configs[Role.COORDINATOR].peers[Role.GUEST]
        pinned = PeerConfig(address=guest.address, name=guest.name, fingerprint=[spell(fingerprint(k)) for k in keys])
        peers = configs[Role.COORDINATOR].peers | {Role.GUEST: pinned}
        return configs | {Role.COORDINATOR: configs[Role.COORDINATOR].model_copy(update={"peers": peers})}

    async def recognised(configs: Configs) -> list[bool]:
        found = []
        async with serving(configs):
            for number, identity in enumerate((old, new, other)):
                async with as_guest_of(configs, identity, tmp_path / f"guest-{number}") as client:
                    found.append((await may(client))["start"])
        return found

    assert await recognised(pin()) == [True, True, True]
    assert await recognised(pin(old)) == [True, False, False]
    assert await recognised(pin(old, new)) == [True, True, False]
