"""Check of this process's own certificate: its files, dates and names, and whether its own authorities accept it."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import grpc
from cryptography import x509

from trilateral.common.base.errors import ConfigError, Counted
from trilateral.common.checks.finding import Finding, faults, ok, problem, warning
from trilateral.common.config.process import ProcessConfig, TlsConfig
from trilateral.common.process.listening import obstacle
from trilateral.common.rpc.certificates import Certificates, Identity, load_certificates
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.issuers import fingerprint, is_directly_issued, spell
from trilateral.common.rpc.pinning import client_tls, use_identity

MANY_AUTHORITIES = 10
"""A longer list is probably that of the operating system, and any authority in it could admit anyone."""
LOOPBACK = "127.0.0.1:0"
HANDSHAKE_SECONDS = 5.0
HANDSHAKE_TURNS = 10
"""Turns after which a handshake in memory counts as endless; it needs about three."""


def check_certificate(config: ProcessConfig) -> Iterator[Finding]:
    """Check the files of `tls`.

    Args:
        config: the configuration of the process.

    Yields:
        What was found; nothing for a configuration without `tls`.
    """
    if config.tls is None:
        return
    try:
        certificates = load_certificates(config)
    except ConfigError as error:
        yield from faults("tls", error)
        return
    if certificates is None:
        return
    identity = certificates.current()
    yield from _dates(identity)
    yield from _authorities(identity, config.tls)
    refusal = _meet_itself(identity) or asyncio.run(_meet_itself_in_grpc(certificates))
    if not is_directly_issued(identity.certificate, identity.authorities):
        yield problem(
            "tls.certificate",
            f"peers that trust {config.tls.authorities} refuse it: none of its authorities has issued this certificate "
            "itself; get a certificate from one of them, or add its issuer to the authorities of all three "
            "organisations if it may name all three",
        )
    elif refusal:
        yield problem(
            "tls.certificate",
            f"peers that trust {config.tls.authorities} refuse it ({refusal}): get a certificate for TLS servers and "
            "clients from an authority in that file",
        )
    else:
        yield ok("tls.certificate", "peers that trust the same authorities accept it, from a server and from a client")
    key = x509.load_pem_x509_certificate(identity.certificate).public_key()
    yield ok("tls.certificate", f"the fingerprint of its key is {spell(fingerprint(key))}")


def _dates(identity: Identity) -> Iterator[Finding]:
    now = datetime.now(UTC)
    left = describe_end(identity.expires, now)
    if identity.expires_soon(now):
        yield warning("tls.certificate", f"{left}: renew it; no restart is needed")
    else:
        yield ok("tls.certificate", f"{left}; its names are {', '.join(identity.names)}")


def describe_end(expires: datetime, now: datetime) -> str:
    """Describe when a certificate expires.

    Args:
        expires: the end of its validity, with a time zone.
        now: the present time, with a time zone.
    """
    days = (expires - now).days
    if not days:
        return f"expires at {expires:%Y-%m-%d %H:%M} UTC"
    return f"expires on {expires:%Y-%m-%d}, in {Counted(days):day|days}"


def _authorities(identity: Identity, tls: TlsConfig) -> Iterator[Finding]:
    now = datetime.now(UTC)
    authorities = x509.load_pem_x509_certificates(identity.authorities)
    ended = [each for each in authorities if each.not_valid_after_utc < now]
    if len(ended) == len(authorities):
        yield problem("tls.authorities", f"all certificates in {tls.authorities} have expired: replace them")
    elif ended:
        yield warning(
            "tls.authorities",
            f"{len(ended)} of {len(authorities)} certificates in {tls.authorities} have expired: remove them",
        )
    if len(authorities) > MANY_AUTHORITIES:
        yield warning(
            "tls.authorities",
            f"{tls.authorities} holds {len(authorities)} authorities, and each of them can admit anyone: keep only the "
            "one that issues to these three processes",
        )


def _meet_itself(identity: Identity) -> str:
    """Connect a server and a client in memory, both with this certificate; return why that fails, or ''."""
    try:
        client_context = client_tls(identity)
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.verify_mode = ssl.CERT_REQUIRED
        use_identity(server_context, identity)
    except ssl.SSLError as error:
        return f"OpenSSL reports: {describe_tls_error(error)}"
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client_context.wrap_bio(to_client, to_server),
        server_context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(HANDSHAKE_TURNS):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                side = "a server" if end.server_side else "a client"
                return f"{side} reports: {describe_tls_error(error)}"
            ends.remove(end)
        if not ends:
            return ""
    return "the handshake does not end"


async def _meet_itself_in_grpc(certificates: Certificates) -> str:
    """Connect a server and a client of gRPC on this machine, both with this certificate; return why that fails, or ''.

    gRPC has a TLS library of its own, which judges certificates differently from OpenSSL.
    """
    server, identity = grpc.aio.server(), certificates.current()
    try:
        port = server.add_secure_port(LOOPBACK, certificates.server_credentials())
    except RuntimeError:
        with ExitStack() as taken:  # Without the loopback address, the check has nothing to try the certificate on.
            return "" if obstacle(LOOPBACK, taken) else "gRPC cannot load it"
    await server.start()
    try:
        async with open_channel(LOOPBACK.replace(":0", f":{port}"), identity, identity.host_name) as channel:
            await channel.unary_unary("/trilateral.Check/Meet")(b"", timeout=HANDSHAKE_SECONDS)  # type: ignore[arg-type]
    except grpc.aio.AioRpcError as error:
        # The server has no method, and says so once both ends have accepted the certificate.
        return "" if error.code() is grpc.StatusCode.UNIMPLEMENTED else f"gRPC reports: {_tls_reason(error)}"
    finally:
        await server.stop(None)
    return ""


def _tls_reason(error: grpc.aio.AioRpcError) -> str:
    """Return the part of gRPC's text that names the flaw of a certificate."""
    details = (error.details() or error.code().name).removesuffix(": OK")
    return details.rpartition("OPENSSL_internal:")[2].replace("_", " ").lower()


def describe_tls_error(error: ssl.SSLError) -> str:
    """Describe an error of OpenSSL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or error.strerror or "unknown").lower().replace("_", " ")
