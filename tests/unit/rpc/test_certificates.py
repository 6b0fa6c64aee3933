"""A process refuses a bad certificate at the start, and takes a renewed certificate while it runs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509 import load_pem_x509_certificate

from tests.support import certificates as certificates_of_tests
from tests.support.certificates import make_identity, new_authority, write_identity
from tests.support.rpc import plaintext_server
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig, TlsConfig
from trilateral.common.process import job_client as client_module
from trilateral.common.process import server as server_module
from trilateral.common.process.server import bind
from trilateral.common.rpc import certificates as certificates_module
from trilateral.common.rpc import channel as channel_module
from trilateral.common.rpc.certificates import (
    SETTLE_SECONDS,
    TICKET_SECONDS,
    Certificates,
    Identity,
    is_name,
    load_certificates,
)
from trilateral.common.rpc.channel import new_channel, open_peers

AUTHORITY = new_authority()
CLIENT = make_identity(AUTHORITY, "guest.example.org")


@pytest.fixture
def files(tmp_path: Path) -> TlsConfig:
    return write_identity(tmp_path, make_identity(AUTHORITY, "Host.example.org", "10.0.0.4"))


def test_the_names_are_those_of_hosts_and_addresses_in_lower_case(files: TlsConfig) -> None:
    assert Certificates(files).names == ("host.example.org", "10.0.0.4")


def test_no_text_shows_a_key(files: TlsConfig) -> None:
    text = repr(Certificates(files).current())
    assert "PRIVATE" not in text
    assert "host.example.org" in text


# --- what is refused


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o610])
def test_a_key_that_others_can_read_is_refused_with_the_command_that_helps(files: TlsConfig, mode: int) -> None:
    files.key.chmod(mode)
    with pytest.raises(
        ConfigError,
        match=f"tls.key: {files.key} can be read by users other than its owner: run `chmod 600 {files.key}`",
    ):
        Certificates(files)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_that_only_its_owner_can_read_is_accepted(files: TlsConfig, mode: int) -> None:
    files.key.chmod(mode)
    Certificates(files)


@pytest.mark.parametrize("setting", ["certificate", "key", "authorities"])
def test_a_missing_file_is_named(files: TlsConfig, setting: str) -> None:
    path: Path = getattr(files, setting)
    path.unlink()
    with pytest.raises(ConfigError, match=f"tls.{setting}: {path} cannot be read: No such file"):
        Certificates(files)


@pytest.mark.parametrize("setting", ["certificate", "authorities"])
@pytest.mark.parametrize("content", [b"", b"words", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_that_is_not_a_certificate_is_named(files: TlsConfig, setting: str, content: bytes) -> None:
    path: Path = getattr(files, setting)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"tls.{setting}: {path} is not a certificate in PEM"):
        Certificates(files)


def encrypted_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))


@pytest.mark.parametrize(
    ("make_key", "told"),
    [
        (lambda: CLIENT.key, "is not the private key of"),
        (lambda: b"words", "is not a private key in PEM"),
        (lambda: b"", "is not a private key in PEM"),
        (encrypted_key, "has a passphrase, which a server cannot ask for: remove it"),
    ],
)
def test_a_key_that_is_not_the_certificates_is_refused(
    files: TlsConfig, make_key: Callable[[], bytes], told: str
) -> None:
    files.key.write_bytes(make_key())
    with pytest.raises(ConfigError, match=f"tls.key: {files.key} {told}"):
        Certificates(files)


@pytest.mark.parametrize(
    "make_key",
    [
        ed448.Ed448PrivateKey.generate,
        ed25519.Ed25519PrivateKey.generate,
        lambda: ec.generate_private_key(ec.SECP256K1()),
        lambda: ec.generate_private_key(ec.SECP521R1()),
        lambda: rsa.generate_private_key(65537, 1024),
    ],
)
def test_a_key_that_grpc_or_a_peer_refuses_is_refused_at_the_start(
    tmp_path: Path, make_key: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates_of_tests, "new_key", make_key)
    files = write_identity(tmp_path, make_identity(AUTHORITY, "host.example.org"))
    with pytest.raises(ConfigError, match="own.pem has a key that TLS libraries refuse: use RSA of 2048 to 8192 bits"):
        Certificates(files)


def test_a_renewal_with_such_a_key_leaves_the_old_certificate_in_use(
    files: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(files)
    before = certificates.current()
    monkeypatch.setattr(certificates_of_tests, "new_key", ed448.Ed448PrivateKey.generate)
    write_identity(tmp_path, make_identity(AUTHORITY, "host.example.org"))
    assert certificates.current() == before
    assert "has a key that TLS libraries refuse" in caplog.text


def with_byte_order_mark(pem: bytes) -> bytes:
    return b"\xef\xbb\xbf" + pem


def indented(pem: bytes) -> bytes:
    return b"".join(b"  " + line + b"\r\n" for line in pem.splitlines())


def after_a_comment(pem: bytes) -> bytes:
    return "Bag Attributes\n    friendlyName: schlüssel\n".encode() + pem


@pytest.mark.parametrize("write", [with_byte_order_mark, indented, after_a_comment])
async def test_grpc_gets_pem_that_it_can_read(files: TlsConfig, write: Callable[[bytes], bytes]) -> None:
    for path in (files.certificate, files.key, files.authorities):
        path.write_bytes(write(path.read_bytes()))
    async with serving(files) as address:
        assert await answers(address, "host.example.org")


def test_a_chain_that_begins_with_its_issuer_is_named(files: TlsConfig) -> None:
    files.certificate.write_bytes(AUTHORITY.pem + files.certificate.read_bytes())
    with pytest.raises(
        ConfigError,
        match="begins with the certificate of 'CN=tests', and the process's own certificate is number 2 in it: put the",
    ):
        Certificates(files)


def test_a_wildcard_is_named(tmp_path: Path) -> None:
    files = write_identity(tmp_path, make_identity(AUTHORITY, "*.example.org"))
    with pytest.raises(ConfigError, match=r"has only the wildcard \*\.example\.org, which many could share: have one"):
        Certificates(files)


async def test_a_certificate_that_grpc_cannot_load_is_not_reported_as_a_port_in_use(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates_module, "_pem", lambda certificates: b"words")
    with pytest.raises(ConfigError, match="tls: gRPC can use the address, but not the certificate, its key or the"):
        bind(plaintext_server(Role.HOST), "127.0.0.1:0", Certificates(files))


def test_a_certificate_without_a_subject_alternative_name_is_refused(tmp_path: Path) -> None:
    files = write_identity(tmp_path, make_identity(AUTHORITY))
    with pytest.raises(ConfigError, match="tls.certificate: .* has no host name among its subject alternative names"):
        Certificates(files)


def test_a_certificate_that_has_a_peers_name_is_refused(files: TlsConfig) -> None:
    with pytest.raises(ConfigError, match="has a peer's name, host.example.org"):
        Certificates(files, frozenset({"host.example.org", "guest.example.org"}))


def test_the_validity_counts(files: TlsConfig) -> None:
    now = datetime.now(UTC)
    with pytest.raises(ConfigError, match="tls.certificate: .* expired on .*: renew it"):
        Certificates(files, now=lambda: now + timedelta(days=2))
    with pytest.raises(ConfigError, match="is not valid before .*set this machine's clock"):
        Certificates(files, now=lambda: now - timedelta(days=1))


@pytest.mark.parametrize("name", ["", "a b", "*.example.org", "a/b", "x" * 254, "ä.example.org"])
def test_text_that_cannot_be_a_name(name: str) -> None:
    assert not is_name(name)


def test_the_log_warns_of_the_expiry_once_a_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    identity = make_identity(AUTHORITY, "host.example.org", expires=now + timedelta(days=40))
    certificates = Certificates(write_identity(tmp_path, identity), now=lambda: now)
    told = []
    for days_left, n_calls in ((4.1, 3), (3.9, 3), (3, 1), (2.8, 3), (1.7, 2)):
        now = identity.expires - timedelta(days=days_left)
        for _ in range(n_calls):
            certificates.warn_of_expiry()
        told.append(len(caplog.records))
    assert told == [0, 1, 1, 2, 3]
    assert "expires on" in caplog.text


# --- renewal


async def answer_certificate(request: bytes, context: Any) -> bytes:
    (certificate,) = context.auth_context()["x509_pem_cert"]
    return bytes(certificate)


@asynccontextmanager
async def serving(
    files: TlsConfig, answer: Callable[[bytes, Any], Awaitable[bytes]] = answer_certificate
) -> AsyncIterator[str]:
    """A server that answers every call alike: with the certificate that the caller has shown."""

    class Answers(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = plaintext_server(Role.HOST)
    server.add_generic_rpc_handlers([Answers()])
    address = bind(server, "127.0.0.1:0", Certificates(files))
    await server.start()
    yield address
    await server.stop(None)


@pytest.fixture
async def server(files: TlsConfig) -> AsyncIterator[str]:
    async with serving(files) as address:
        yield address


async def shown(channel: grpc.aio.Channel) -> int:
    """The serial number of the certificate that the caller of this channel shows, according to the server."""
    method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    return load_pem_x509_certificate(await method(b"", timeout=5)).serial_number


async def answers(address: str, name: str, client: Identity = CLIENT) -> bool:
    """Whether a server at that address shows a certificate of that name, on a new connection."""
    async with new_channel(address, client, name) as channel:
        try:
            await shown(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            raise
        return True


async def test_the_next_connection_sees_the_renewed_certificate_and_the_old_connection_lives(
    files: TlsConfig, server: str, tmp_path: Path
) -> None:
    async with new_channel(server, CLIENT, "host.example.org") as old:
        await shown(old)
        write_identity(tmp_path, make_identity(AUTHORITY, "new.example.org"))
        assert await answers(server, "new.example.org")
        assert not await answers(server, "host.example.org")
        await shown(old)


def test_grpc_is_given_a_configuration_only_when_the_certificate_has_changed(
    files: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one for each connection, concurrent connections crash the process: grpc/grpc#36693.
    fetchers: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, fetch, **_: fetchers.append(fetch))
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    certificates = Certificates(files)
    for _ in range(2):  # each port is given the renewed certificate
        certificates.server_credentials()
    for fetch in fetchers:
        assert fetch() is None
    write_identity(tmp_path, make_identity(AUTHORITY, "new.example.org"))
    for fetch in fetchers:
        assert isinstance(fetch(), grpc.ServerCertificateConfiguration)
        assert fetch() is None
    assert pauses == [SETTLE_SECONDS] * 2


def test_a_caller_that_resumes_its_session_shows_its_certificate_again_after_an_hour(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a new configuration makes the tickets of earlier sessions void.
    fetchers: list[Callable[[], object]] = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, fetch, **_: fetchers.append(fetch))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    Certificates(files).server_credentials()
    (fetch,) = fetchers
    for _ in range(2):
        assert fetch() is None
        now += TICKET_SECONDS
        assert isinstance(fetch(), grpc.ServerCertificateConfiguration)
        assert fetch() is None


async def test_a_new_authority_counts_from_the_next_connection_on(server: str, tmp_path: Path) -> None:
    authority = new_authority()
    newcomer = make_identity(authority, "guest.example.org", trusts=AUTHORITY)
    assert not await answers(server, "host.example.org", newcomer)
    write_identity(tmp_path, make_identity(AUTHORITY, "host.example.org", trusts=authority))
    assert await answers(server, "host.example.org", newcomer)
    assert not await answers(server, "host.example.org", CLIENT)


async def until_cut_off(channel: grpc.aio.Channel) -> None:
    while True:
        await shown(channel)


async def test_a_caller_that_is_no_longer_trusted_loses_its_old_connection(
    files: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", (("grpc.max_connection_age_ms", 100),))
    async with serving(files) as address, new_channel(address, CLIENT, "host.example.org") as old:
        await shown(old)
        other = new_authority()
        write_identity(tmp_path, make_identity(AUTHORITY, "host.example.org", trusts=other))
        with pytest.raises(grpc.aio.AioRpcError) as cut_off:
            await until_cut_off(old)
        assert cut_off.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_call_of_a_caller_that_is_no_longer_trusted_ends_after_a_while(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = (("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 100))
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", short)

    async def stay(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with serving(files, stay) as address, new_channel(address, CLIENT, "host.example.org") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await shown(channel)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_watch_begins_anew_before_its_old_connection_is_ended() -> None:
    grace = dict(channel_module.SERVER_OPTIONS)["grpc.max_connection_age_grace_ms"]
    assert grace > 1000 * client_module.WATCH_SECONDS


async def test_a_caller_that_stalls_in_the_handshake_is_let_go(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "grpc.server_handshake_timeout_ms"
    assert key in dict(channel_module.SERVER_OPTIONS)
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", ((key, 100),))
    async with serving(files) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""  # the end of the connection
        writer.close()
        assert await answers(address, "host.example.org")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("setting", ["certificate", "key", "authorities"])
async def test_a_half_written_file_leaves_the_old_in_use_until_it_is_whole(
    files: TlsConfig, server: str, tmp_path: Path, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cut_short(getattr(files, setting))
    for _ in range(3):
        assert await answers(server, "host.example.org")
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.getMessage().startswith(
        f"the changed certificate cannot be used; the last one stays in use: tls.{setting}"
    )
    assert "BEGIN" not in caplog.text

    write_identity(tmp_path, make_identity(AUTHORITY, "new.example.org"))
    assert await answers(server, "new.example.org")
    assert "certificate renewed, valid until" in caplog.text


def test_a_renewed_certificate_that_is_refused_is_tried_again_without_a_new_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = datetime.now(UTC)
    now = start - timedelta(minutes=75)
    old = make_identity(AUTHORITY, "host.example.org", expires=start - timedelta(minutes=30))
    certificates = Certificates(write_identity(tmp_path, old), now=lambda: now)
    # It is valid from an hour ago, in a quarter of an hour by this process's clock.
    write_identity(tmp_path, make_identity(AUTHORITY, "new.example.org"))
    for _ in range(3):
        assert certificates.current().names == ("host.example.org",)
    (error,) = caplog.records
    assert "is not valid before" in error.getMessage()

    now = start
    assert certificates.current().names == certificates.names == ("new.example.org",)
    assert len(caplog.records) == 1


async def test_a_file_that_vanishes_leaves_the_old_in_use(files: TlsConfig, server: str) -> None:
    files.key.unlink()
    assert await answers(server, "host.example.org")


async def test_a_peer_sees_the_renewed_certificate_and_calls_in_progress_continue(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "RENEWAL_SECONDS", 0.02)
    own = make_identity(AUTHORITY, "guest.example.org")
    config = ProcessConfig.model_validate(
        {
            "role": "guest",
            "tls": write_identity(tmp_path / "guest", own),
            "listen": "127.0.0.1:0",
            "peers": {
                "host": {"address": server, "name": "host.example.org"},
                "coordinator": {"address": "127.0.0.1:1", "name": "coordinator.example.org"},
            },
            "state": tmp_path / "state",
        }
    )
    async with open_peers(config, load_certificates(config)) as peers:
        host = peers[Role.HOST]
        old = await host.connected()
        before = await shown(old)
        health: Any = old.unary_unary("/grpc.health.v1.Health/Check")
        write_identity(tmp_path / "guest", make_identity(AUTHORITY, "guest.example.org"))
        while await host.connected() is old:
            under_way = health(b"", timeout=5)
            await under_way
        after = await shown(await host.connected())
    assert after != before
