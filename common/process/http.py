"""A server for HTTP on a loopback address, for programs on this machine.

Every program and every user of the machine can connect, and so can the pages in their browsers. So a request must name
this machine as its host, because a page can let its own name resolve to a loopback address. It must not come from a
page, whose browser adds an origin. What only some may ask for needs a token besides.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

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
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
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


@asynccontextmanager
async def serving_http(address: str, routes: Sequence[web.RouteDef], role: Role, setting: str) -> AsyncIterator[str]:
    """Serve HTTP within the block.

    Args:
        address: the loopback address to listen on, as ``host:port``.
        routes: what is served.
        role: the role of this process.
        setting: the setting with the address, for errors.

    Yields:
        The address, with the port that was chosen if the port was 0.

    Raises:
        ConfigError: the address cannot be used.
    """
    application = web.Application(middlewares=[_guard(role)], client_max_size=MAX_BODY_BYTES)
    application.add_routes(routes)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        logger=_QUIET,
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=STOP_SECONDS,
    )
    await runner.setup()
    try:
        host, port = split_address(address)
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            raise ConfigError(
                f"{setting}: {address} cannot be used: it is in use already, or is not an address of this machine; "
                "choose another port, or stop the program that listens there"
            ) from None
        bound = join_address(host, runner.addresses[0][1])
        log.info("%s: serving http://%s", setting, bound)
        yield bound
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
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise HttpRefusalError(413, f"a request may have at most {MAX_BODY_BYTES} bytes") from None
    except TimeoutError:
        raise HttpRefusalError(408, f"the request has not arrived within {BODY_SECONDS:g} s") from None
    except (OSError, web.RequestPayloadError):
        raise HttpRefusalError(400, "the request has ended too early, or cannot be decompressed") from None
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        raise HttpRefusalError(400, "the request is not JSON") from None


def _guard(role: Role) -> Any:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_origin(request)
            response = await handler(request)
        except web.HTTPException as error:  # There is no such path or method.
            response = _error(error.status, error.reason)
        except Exception as error:
            response = _refused(error, role)
        response.headers.update(HEADERS)
        return response

    return guarded


def _check_origin(request: web.Request) -> None:
    # `host` is what the request calls this server; a page under its own name keeps that name.
    host = request.host.rpartition("]")[0] + "]" if request.host.startswith("[") else request.host.partition(":")[0]
    if not is_loopback(host.strip("[]")):
        raise HttpRefusalError(421, "this server answers only under the names localhost, 127.0.0.1 and [::1]")
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        raise HttpRefusalError(403, "this server does not answer pages in a browser")


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
