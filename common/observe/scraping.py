"""Serves a process's metrics over HTTP: one page, to anyone who can connect.

prometheus-client makes the page, but its server is not used, because it gives each connection a thread that waits
without a limit. Any stranger can connect here, so the number of connections, the size of a request and its duration
are bounded. The few lines of HTTP below read only the method and the path of a request. An HTTP library behind the
same bounds would only add code that strangers can reach.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from trilateral.common.base.addresses import join_address, split_address
from trilateral.common.base.errors import ConfigError
from trilateral.common.config.process import is_loopback_address
from trilateral.common.observe.metrics import Metrics

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
MAX_REQUEST_BYTES = 16 * 1024
REQUEST_SECONDS = 5.0
LAG_SECONDS = 1.0
"""How often to measure how late the event loop is."""
DISK_SECONDS = 1.0
"""How often to measure the free space on the state folder's disk."""
KEEP_SECONDS = 1.0
"""How long a page is reused. Making one takes a millisecond, in which the process does nothing else."""


@asynccontextmanager
async def scraped(address: str | None, metrics: Metrics) -> AsyncIterator[None]:
    """Serve the metrics within the block.

    Args:
        address: where to listen, as ``host:port``; None to serve no metrics.
        metrics: what to serve.

    Raises:
        ConfigError: the address cannot be used.
    """
    if address is None:
        yield
        return
    host, port = split_address(address)
    page = _Page(metrics)
    try:
        server = await asyncio.start_server(page.answer, host, port, limit=MAX_REQUEST_BYTES)
    except OSError:
        raise ConfigError(
            f"metrics.listen: {address} cannot be used: it is in use already, or is not an address of this machine; "
            "choose another port, or stop the program that listens there"
        ) from None
    log.info("metrics: serving http://%s/metrics", join_address(host, server.sockets[0].getsockname()[1]))
    if not is_loopback_address(address):
        log.warning("metrics.listen: anyone who can connect to %s can read the metrics, without a certificate", address)
    tasks = [asyncio.create_task(_measure_lag(metrics)), asyncio.create_task(_watch_disk(metrics))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        server.close()
        page.hang_up()


async def _measure_lag(metrics: Metrics) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        begun = clock()
        await asyncio.sleep(LAG_SECONDS)
        metrics.late(clock() - begun - LAG_SECONDS)


async def _watch_disk(metrics: Metrics) -> None:
    while True:
        await asyncio.to_thread(metrics.look_at_disk)
        await asyncio.sleep(DISK_SECONDS)


class _Page:
    """The page at ``/metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._callers: set[asyncio.StreamWriter] = set()
        self._page, self._page_ends = b"", 0.0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection; close it at once if there are `MAX_CONNECTIONS` others."""
        if len(self._callers) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._callers.add(writer)
        try:
            with suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._callers.discard(writer)
            writer.transport.abort()

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in list(self._callers):
            writer.transport.abort()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n")
        if method != b"GET":
            return _response("405 Method Not Allowed", b"use GET\n", "Allow: GET\r\n")
        now = asyncio.get_running_loop().time()
        if now >= self._page_ends:
            self._page, self._page_ends = generate_latest(self._metrics.registry), now + KEEP_SECONDS
        return _response("200 OK", self._page)


def _response(status: str, body: bytes, header: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n{header}\r\n"
    )
    return head.encode() + body
