"""A server for HTTP: for programs on this machine, or for the pages that it serves itself.

Every program and every user of the machine can connect to a loopback address, and so can the pages in their browsers.
So a request must name this machine as its host, because a page can let its own name resolve to a loopback address. A
server for programs answers no page, whose browser adds an origin. What only some may ask for needs a token besides. A
server of pages decides by its own rules whom it answers.
"""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic_core import from_json

from trilateral.common.base.addresses import is_loopback, join_address, split_address
from trilateral.common.base.errors import (
    ConfigError,
    DataError,
    PeerError,
    PolicyError,
    ProtocolError,
    TrilateralError,
)
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.rpc.errors import InternalError, public_error

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
BODY_SECONDS = 10.0
"""How long a request may take to arrive."""
STOP_SECONDS = 3.0
"""Seconds for requests in progress when the server stops."""
IDLE_SECONDS = 75.0
"""How long a connection stays open between requests."""
MAX_CONNECTIONS = 128
"""Further connections are closed at once, under TLS after their handshake."""
MAX_HANDSHAKES = 128
"""TLS handshakes at a time; further connections are closed at once."""
HANDSHAKE_SECONDS = 10.0
"""How long a TLS handshake may take. Before its end, the caller has no identity."""
CONTENT_POLICY = "Content-Security-Policy"
HEADERS = {
    "Cache-Control": "no-store",
    CONTENT_POLICY: "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "trilateral",
    "X-Content-Type-Options": "nosniff",
}
_STATUS: tuple[tuple[type[TrilateralError], int], ...] = (
    (InternalError, 500),
    (PolicyError, 403),
    (DataError, 422),
    (ProtocolError, 400),
    (PeerError, 503),
    (ConfigError, 500),
)
_QUIET = logging.getLogger(f"{__name__}.requests")
"""Takes what the library logs, which may quote a request."""
_QUIET.disabled = True


class HttpRefusalError(ProtocolError):
    """A request that is answered with a status of its own.

    Args:
        status: the status.
        text: why, as a public text.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


Admit: TypeAlias = Callable[[web.Request], None]
"""Called with each request before it is answered; it raises `HttpRefusalError` for a request that must not be."""


def host_of(request: web.Request) -> str:
    """Return what a request calls this server, without the port; empty if it is no host.

    A page under another name keeps that name.
    """
    found = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?", request.host)
    return (found[1] or found[2] or "") if found else ""


def admit_programs(request: web.Request) -> None:
    """Admit programs on this machine, and no page in a browser.

    Raises:
        HttpRefusalError: the request calls this machine by another name, or comes from a page.
    """
    if not is_loopback(host_of(request)):
        raise HttpRefusalError(421, "this server answers only under the names localhost, 127.0.0.1 and [::1]")
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        raise HttpRefusalError(403, "this server does not answer pages in a browser")


@asynccontextmanager
async def serving_http(
    address: str,
    routes: Sequence[web.RouteDef],
    role: Role,
    setting: str,
    *,
    admit: Admit = admit_programs,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serve HTTP within the block.

    Args:
        address: the address to listen on, as ``host:port``.
        routes: what is served.
        role: the role of this process.
        setting: the setting with the address, for errors.
        admit: decides which requests are answered.
        tls: for HTTPS; None to serve unencrypted, which is right for a loopback address only.

    Yields:
        The address, with the port that was chosen if the port was 0.

    Raises:
        ConfigError: the address cannot be used.
    """
    application = web.Application(middlewares=[_guard(role, admit)], client_max_size=MAX_BODY_BYTES)
    application.add_routes(routes)
    application.on_response_prepare.append(_add_headers)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        logger=_QUIET,
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=STOP_SECONDS,
        # The library decompresses megabytes, and lets nothing else run, before it knows that a body is too long.
        auto_decompress=False,
    )
    await runner.setup()
    shaking: set[asyncio.Task[None]] = set()
    try:
        host, port = split_address(address)
        try:
            server = await _listen(runner, host, port, tls, shaking)
        except OSError:
            raise ConfigError(
                f"{setting}: {address} cannot be used: it is in use already, or is not an address of this machine; "
                "choose another port, or stop the program that listens there"
            ) from None
        bound = join_address(host, server.sockets[0].getsockname()[1])
        log.info("%s: serving %s://%s", setting, "http" if tls is None else "https", bound)
        try:
            yield bound
        finally:
            server.close()
            for task in tuple(shaking):
                task.cancel()
    finally:
        await runner.cleanup()


async def json_body(request: web.Request) -> Any:
    """Return the JSON in a request.

    Raises:
        HttpRefusalError: the request says that it is something else, is too long or takes too long, or is not JSON.
    """
    # A form of a page cannot send this type without the server's permission, which no answer gives.
    if request.content_type != "application/json":
        raise HttpRefusalError(415, "send JSON, with Content-Type: application/json")
    if "Content-Encoding" in request.headers:
        raise HttpRefusalError(415, "send JSON without compression, and without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise HttpRefusalError(413, f"a request may have at most {MAX_BODY_BYTES} bytes") from None
    except TimeoutError:
        raise HttpRefusalError(408, f"the request has not arrived within {BODY_SECONDS:g} s") from None
    except (OSError, web.RequestPayloadError):
        raise HttpRefusalError(400, "the request has ended too early") from None
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        raise HttpRefusalError(400, "the request is not JSON") from None


async def _listen(
    runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None, shaking: set[asyncio.Task[None]]
) -> asyncio.Server:
    def connected() -> asyncio.Protocol:
        library = runner.server
        return library() if library is not None and len(library.connections) < MAX_CONNECTIONS else _Full()

    def accepted() -> asyncio.Protocol:
        return connected() if tls is None else _Unsecured(tls, connected, shaking)

    return await asyncio.get_running_loop().create_server(accepted, host, port)


class _Full(asyncio.Protocol):
    """Closes a connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


class _Unsecured(asyncio.Protocol):
    """Leads a connection through its TLS handshake to the protocol that answers it.

    A server with TLS in asyncio learns of a connection only after the handshake. Callers that never complete one, who
    need no certificate, could hold all file descriptors of this process.

    Args:
        tls: for the server.
        connected: makes the protocol that answers.
        shaking: the handshakes in progress.
    """

    def __init__(
        self, tls: ssl.SSLContext, connected: Callable[[], asyncio.Protocol], shaking: set[asyncio.Task[None]]
    ) -> None:
        self._tls = tls
        self._connected = connected
        self._shaking = shaking

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            return
        if len(self._shaking) >= MAX_HANDSHAKES:
            transport.abort()
            return
        transport.pause_reading()
        task = asyncio.create_task(self._shake(transport))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _shake(self, transport: asyncio.Transport) -> None:
        early = _Early()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, early, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # No handshake, or none in time.
            transport.abort()
            return
        if secured is None or early.is_lost:
            return
        protocol = self._connected()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if early.received and not secured.is_closing():
            protocol.data_received(bytes(early.received))


class _Early(asyncio.Protocol):
    """Keeps what arrives between the end of a handshake and the protocol that answers."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True


def _guard(role: Role, admit: Admit) -> Any:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            admit(request)
            return await handler(request)
        except web.HTTPException as error:  # There is no such path or method.
            return _error(error.status, error.reason)
        except Exception as error:
            return _refused(error, role)

    return guarded


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every response. A response that is a page has a content policy of its own."""
    del request
    policy = response.headers.get(CONTENT_POLICY, HEADERS[CONTENT_POLICY])
    response.headers.update({**HEADERS, CONTENT_POLICY: policy})


def _refused(error: Exception, role: Role) -> web.Response:
    if isinstance(error, HttpRefusalError):
        return _error(error.status, str(error))
    if not isinstance(error, TrilateralError):
        log.error("a request failed with an unexpected error: %s", where(error))
    public = public_error(error, role)
    by_kind = next((status for kind, status in _STATUS if isinstance(public, kind)), 500)
    status: int = getattr(public, "http_status", by_kind)
    return _error(status, str(public))


def _error(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=json.dumps({"error": text}), content_type="application/json")
