"""Whom the page answers.

Every program on this machine can connect to a loopback address, and the pages of other servers can make a browser send
requests to it. A request must therefore call this server by one of its own names, and come from its own page or from no
page. With `ui.clients`, the caller must also show a certificate with one of these names.
"""

import ssl
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from trilateral.common.base.addresses import is_loopback
from trilateral.common.config.process import ProcessConfig
from trilateral.common.observe.audit import Audit
from trilateral.common.process.http import HttpRefusalError, host_of
from trilateral.common.rpc.access import Caller
from trilateral.common.rpc.certificates import Certificates, Identity, subject_names
from trilateral.common.rpc.issuers import is_directly_issued
from trilateral.common.rpc.pinning import use_identity

visitor: ContextVar[Caller] = ContextVar("visitor")
"""Who has sent the request that is being answered."""
_OWN = ("same-origin", "none")
"""What a browser says of a request that this server's own page has sent, or the person at the browser."""


class Admission:
    """Admits the requests of those who may open the page.

    Args:
        config: configuration of this process.
        certificates: of this process; None for plaintext.
        audit: records each certificate that is refused.

    Attributes:
        config: as given. While the process runs, a changed configuration replaces it.
        tls: for the server; None if it serves without TLS, to this machine only.
    """

    def __init__(self, config: ProcessConfig, certificates: Certificates | None, audit: Audit) -> None:
        self.config = config
        self._certificates = certificates if config.ui.clients else None
        self._audit = audit
        self.tls = None if self._certificates is None else _renewing_tls(self._certificates)

    def __call__(self, request: web.Request) -> None:
        """Admit a request.

        Raises:
            HttpRefusalError: it is not admitted.
        """
        self._check_host(request)
        self._check_origin(request)
        visitor.set(self._identify(request))

    def _check_host(self, request: web.Request) -> None:
        host = host_of(request).lower()
        names = () if self._certificates is None else self._certificates.names
        if not is_loopback(host) and host not in names:
            known = ", ".join(("localhost", "127.0.0.1", "[::1]", *names))
            raise HttpRefusalError(421, f"this server answers only under its own names: {known}")

    def _check_origin(self, request: web.Request) -> None:
        scheme = "http" if self.tls is None else "https"
        origin, relation = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        is_own = origin is not None and origin.lower() == f"{scheme}://{request.host}".lower()
        if (origin is not None and not is_own) or (relation is not None and relation not in _OWN):
            raise HttpRefusalError(403, "this request comes from the page of another server: type the address yourself")
        if request.method != "GET" and not is_own and relation != "same-origin":
            raise HttpRefusalError(403, "a change must come from the page itself: send its Origin")

    def _identify(self, request: web.Request) -> Caller:
        config = self.config
        if self._certificates is None:
            if config.ui.clients:
                raise HttpRefusalError(403, "restart the process: `ui.clients` is new, and needs a certificate of you")
            return Caller(None)
        shown = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        identity = self._certificates.current()
        caller, expires = _read(shown.getpeercert(binary_form=True) if shown else b"", identity.authorities)
        peers = {peer.certificate_name for peer in config.peers.values()}
        if not caller.flaw and datetime.now(UTC) > expires:
            caller = Caller(None, caller.names, flaw="has expired")
        elif not caller.flaw and (caller.names.isdisjoint(config.ui.clients) or not caller.names.isdisjoint(peers)):
            caller = Caller(None, caller.names, flaw="has no name in `ui.clients`, or a name of a peer")
        if caller.flaw:
            self._audit.refused(caller, "page", f"its certificate {caller.flaw}")
            raise HttpRefusalError(403, f"your certificate {caller.flaw}")
        return caller


def _renewing_tls(certificates: Certificates) -> ssl.SSLContext:
    """Return a context for a server that uses the newest certificate of this process for each connection."""
    identity = certificates.current()
    newest = _server_tls(identity)

    def renew(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        nonlocal identity, newest
        if (current := certificates.current()) != identity:
            identity, newest = current, _server_tls(current)
        connection.context = newest

    # It is called in each handshake, whether or not the caller names a server.
    context = _server_tls(identity)
    context.sni_callback = renew
    return context


def _server_tls(identity: Identity) -> ssl.SSLContext:
    """Return a context that shows a certificate and requires one of each caller."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["http/1.1"])
    # A session that is resumed would not show its certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    use_identity(context, identity)
    return context


@lru_cache(64)
def _read(shown: bytes | None, authorities: bytes) -> tuple[Caller, datetime]:
    """Return the caller with a certificate, in DER, and when the certificate expires."""
    try:
        certificate = x509.load_der_x509_certificate(shown or b"")
        names = frozenset(subject_names(certificate))
    except ValueError:
        return Caller(None, flaw="cannot be read"), datetime.now(UTC)
    if not is_directly_issued(certificate.public_bytes(Encoding.PEM), authorities):
        flaw = "was not issued directly by an authority in `tls.authorities`"
        return Caller(None, names, flaw=flaw), certificate.not_valid_after_utc
    return Caller(None, names), certificate.not_valid_after_utc
