"""A proxy to a TCP server that cuts connections in the middle of a stream."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

PIECE = 64 * 1024
T = TypeVar("T")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Cut(StrEnum):
    """How the proxy cuts a connection."""

    RESET = "reset"
    """Reset the connection at both ends."""
    CLOSE = "close"
    """Close the connection at both ends."""
    SWALLOW = "swallow"
    """Keep the connection open, and discard everything that both ends send."""


DrawCut = Callable[[], tuple[Cut, int] | None]
"""Returns how to cut a new connection, and after how many bytes in both directions; None to leave it whole."""


class _Connection:
    """Forwards bytes in both directions between a client and the server."""

    def __init__(self, ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter], due: tuple[Cut, int] | None) -> None:
        self._ends = ends
        self._due = due
        self._n_carried = 0
        self.swallows = False

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE):
                if self._due is not None:
                    how, after = self._due
                    piece = piece[: after - self._n_carried]
                    self._n_carried += len(piece)
                if not self.swallows:
                    sink.write(piece)
                    await sink.drain()
                if self._due is not None and self._n_carried >= after:
                    self._due = None
                    self.cut(how)
        if not self.swallows:
            self.cut(Cut.CLOSE)

    def cut(self, how: Cut) -> None:
        if how is Cut.SWALLOW:
            self.swallows = True
            return
        for end in self._ends:
            if how is Cut.RESET and not end.is_closing():
                sock = end.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                end.transport.abort()
            end.close()


class TcpProxy:
    """Listens on this machine and forwards each connection, in its own thread, until the block ends.

    Args:
        connect: Makes a connection to the server; may block.
        draw_cut: See `DrawCut`. By default, all connections stay whole.
    """

    def __init__(self, connect: Callable[[], socket.socket], draw_cut: DrawCut = lambda: None) -> None:
        self._connect = connect
        self._draw_cut = draw_cut
        self._open: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.cuts: Counter[Cut] = Counter()
        """The number of connections to be cut so far, by kind."""
        self.n_taken = 0
        """The number of connections so far."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._take, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut_all(self, how: Cut) -> int:
        """Cut all open connections, and return how many there were."""
        return self._run(self._cut_all(how))

    async def _cut_all(self, how: Cut) -> int:
        whole = [connection for connection in self._open if not connection.swallows]
        for connection in whole:
            connection.cut(how)
        self.cuts[how] += len(whole)
        return len(whole)

    async def _take(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.n_taken += 1
        try:
            sock = await asyncio.to_thread(self._connect)
        except OSError:
            to_client.close()
            return
        from_server, to_server = await asyncio.open_connection(sock=sock)
        due = self._draw_cut()
        if due is not None:
            self.cuts[due[0]] += 1
        connection = _Connection((to_client, to_server), due)
        self._open.add(connection)
        try:
            await asyncio.gather(connection.carry(from_client, to_server), connection.carry(from_server, to_client))
        finally:
            self._open.discard(connection)
            connection.cut(Cut.RESET)

    async def _end(self) -> None:
        self._server.close()
        for connection in self._open:
            connection.cut(Cut.RESET)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()


def connect_to(address: str) -> Callable[[], socket.socket]:
    """Return a function that connects to an address such as 127.0.0.1:50051."""
    host, _, port = address.rpartition(":")
    return lambda: socket.create_connection((host, int(port)))
