"""This process's own certificate: its files, dates and names, and whether its own authorities would take it."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from cryptography import x509

from trilateral.common.base.errors import ConfigError
from trilateral.common.checks.finding import Finding, faults, ok, problem, warning
from trilateral.common.config.process import ProcessConfig, TlsConfig
from trilateral.common.rpc.certificates import Identity, load_certificates

MANY_AUTHORITIES = 10
"""More are an operating system's list, whose every authority could let anyone in."""
HANDSHAKE_TURNS = 10


def check_certificate(config: ProcessConfig) -> Iterator[Finding]:
    """Check the files of `tls`, as they are now."""
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
    refusal = _meet_itself(config.tls)
    if refusal:
        yield problem(
            "tls.certificate",
            f"whoever trusts {config.tls.authorities} refuses it, {refusal}: have it issued by that authority, good for"
            " TLS servers and clients, and put those between into the file below it",
        )
    else:
        yield ok("tls.certificate", "whoever trusts the same authorities takes it, from a server and from a client")


def _dates(identity: Identity) -> Iterator[Finding]:
    now = datetime.now(UTC)
    left = describe_end(identity.expires, now)
    if identity.expires_soon(now):
        yield warning("tls.certificate", f"{left}: renew it; nothing need be restarted")
    else:
        yield ok("tls.certificate", f"{left}; shows the names {', '.join(identity.names)}")


def describe_end(expires: datetime, now: datetime) -> str:
    """Say in words when a certificate expires."""
    days = (expires - now).days
    return f"expires on {expires:%Y-%m-%d}, in {days} days" if days else f"expires at {expires:%Y-%m-%d %H:%M} UTC"


def _authorities(identity: Identity, tls: TlsConfig) -> Iterator[Finding]:
    now = datetime.now(UTC)
    authorities = x509.load_pem_x509_certificates(identity.authorities)
    ended = [each for each in authorities if each.not_valid_after_utc < now]
    if len(ended) == len(authorities):
        yield problem("tls.authorities", f"all in {tls.authorities} have expired: put their successors there")
    elif ended:
        yield warning(
            "tls.authorities", f"{len(ended)} of {len(authorities)} in {tls.authorities} have expired: take them out"
        )
    if len(authorities) > MANY_AUTHORITIES:
        yield warning(
            "tls.authorities",
            f"{tls.authorities} has {len(authorities)}, and each can let in whom it likes: name the one alone that "
            "issues to these three",
        )


def _meet_itself(tls: TlsConfig) -> str:
    """Have a server and a client, both with this certificate and its authorities, meet in memory; return what ails."""
    try:
        client_context = client_tls(tls)
        client_context.verify_mode = ssl.CERT_REQUIRED
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.verify_mode = ssl.CERT_REQUIRED
        server_context.load_verify_locations(tls.authorities)
        server_context.load_cert_chain(tls.certificate, tls.key)
    except ssl.SSLError as error:
        return f"as OpenSSL says: {describe_tls_error(error)}"
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
                return f"as {side} says: {describe_tls_error(error)}"
            ends.remove(end)
        if not ends:
            return ""
    return "for the handshake does not end"


def client_tls(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that shows this certificate and takes any other; names are for the caller to compare.

    Raises:
        ssl.SSLError: OpenSSL does not take a file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(tls.authorities)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def describe_tls_error(error: ssl.SSLError) -> str:
    """Say in words what OpenSSL says."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or error.strerror or "unknown").lower().replace("_", " ")
