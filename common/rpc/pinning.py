"""Which certificate a server must show to this process: its peer's own, and no other.

Python's gRPC does not show a caller the certificate of the server, and gRPC's own checks accept more than this project
does: any chain up to an authority, whatever certificates are in between, and any key. So a caller first looks at the
certificate with Python's TLS library and judges it here. Then it gives that certificate to gRPC as the only one to
trust, so gRPC accepts no server that lacks the key of this very certificate.
"""

import asyncio
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from trilateral.common.base.addresses import split_address
from trilateral.common.base.roles import Role
from trilateral.common.config.process import PeerConfig
from trilateral.common.rpc.certificates import Identity, subject_names
from trilateral.common.rpc.errors import WRONG_NAME
from trilateral.common.rpc.issuers import fingerprint, is_directly_issued, spell

LOOK_SECONDS = 5.0
"""How long to wait for a server to show its certificate."""


def client_tls(identity: Identity) -> ssl.SSLContext:
    """Return a client context that shows the certificate of this process, trusts its authorities and checks no name.

    Raises:
        ssl.SSLError: OpenSSL does not accept the certificate or the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    use_identity(context, identity)
    return context


def use_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """Let a context show the certificate of this process and trust its authorities; see `client_tls`."""
    context.load_verify_locations(cadata=identity.authorities.decode())
    with _file_of(identity.key + identity.certificate) as path:
        context.load_cert_chain(path)


@contextmanager
def _file_of(secret: bytes) -> Iterator[str]:
    """Yield the path of a file that only this process can open, in memory where the operating system has such files."""
    with ExitStack() as stack:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("identity")
            stack.callback(os.close, handle)
            path = f"/proc/self/fd/{handle}"
        else:
            path = stack.enter_context(tempfile.NamedTemporaryFile()).name
        Path(path).write_bytes(secret)
        yield path


async def shake_hands(address: str, name: str, context: ssl.SSLContext, seconds: float) -> tuple[bytes, bool]:
    """Connect to a server, and close the connection again.

    Args:
        address: host:port of the server.
        name: the name to ask for.
        context: decides what is accepted.
        seconds: how long to wait.

    Returns:
        The server's certificate in DER, and whether it speaks HTTP/2.

    Raises:
        OSError: there is no connection; an ssl.SSLError for a failed handshake.
        TimeoutError: it takes too long.
        ValueError: the name is not a host name.
    """
    host, port = split_address(address)
    async with asyncio.timeout(seconds):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return connection.getpeercert(binary_form=True) or b"", connection.selected_alpn_protocol() == "h2"
    finally:
        writer.transport.abort()


async def shown_certificate(settings: PeerConfig, identity: Identity) -> x509.Certificate:
    """Return the certificate that the server of a peer shows, if its chain and dates are valid.

    Args:
        settings: what the configuration expects of the peer.
        identity: of this process.

    Raises:
        ssl.SSLCertVerificationError: the chain or the dates are not valid.
        OSError: there is no connection, or no handshake.
        TimeoutError: it takes too long.
        ValueError: the server shows no readable certificate.
    """
    context = client_tls(identity)
    shown, _ = await shake_hands(settings.address, settings.certificate_name, context, LOOK_SECONDS)
    return x509.load_der_x509_certificate(shown)


def flaw_of(certificate: x509.Certificate, role: Role, settings: PeerConfig, authorities: bytes) -> str:
    """Return why a server's certificate, with a valid chain, is not the peer's; "" if it is.

    Args:
        certificate: what the server has shown.
        role: the role of the peer.
        settings: what the configuration expects of the peer.
        authorities: PEM; one of them must have issued the certificate.
    """
    if settings.certificate_name not in subject_names(certificate):
        return WRONG_NAME
    if not is_directly_issued(certificate.public_bytes(Encoding.PEM), authorities):
        return (
            "no authority in `tls.authorities` has issued its certificate itself: find out who issued it, and add that "
            "authority only if it may name all three organisations"
        )
    shown = fingerprint(certificate.public_key())
    if settings.fingerprint and shown not in settings.fingerprint:
        return (
            f"it shows the fingerprint {spell(shown)}, which is not one of `peers.{role}.fingerprint`: compare it with "
            "its owner by telephone before you change the setting"
        )
    return ""
