"""The proxy for tests cuts connections as documented."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.tcp_proxy import Cut, DrawCut, TcpProxy, connect_to

SENT = bytes(range(250)) * 4


@contextmanager
def connected(draw_cut: DrawCut = lambda: None) -> Iterator[tuple[TcpProxy, socket.socket, socket.socket]]:
    """Run a proxy; yield it with the client's and the server's end of a connection through it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with TcpProxy(connect_to(address), draw_cut) as proxy, connect_to(proxy.address)() as client:
            server, _ = listening.accept()
            with server:
                client.settimeout(10)
                server.settimeout(10)
                yield proxy, client, server


def read(end: socket.socket, n_bytes: int) -> bytes:
    content = b""
    while len(content) < n_bytes:
        content += end.recv(n_bytes - len(content))
    return content


def test_a_whole_connection_passes_data_both_ways_until_one_end_closes() -> None:
    with connected() as (_, client, server):
        client.sendall(SENT)
        assert read(server, len(SENT)) == SENT
        server.sendall(SENT)
        assert read(client, len(SENT)) == SENT
        server.close()
        assert client.recv(1) == b""


def test_a_connection_is_closed_after_the_drawn_number_of_bytes() -> None:
    with connected(lambda: (Cut.CLOSE, 700)) as (proxy, client, server):
        client.sendall(SENT)
        assert read(server, 700) == SENT[:700]
        assert server.recv(1) == b""
        assert client.recv(1) == b""
        assert proxy.cuts == {Cut.CLOSE: 1}


def test_a_reset_connection_is_broken_at_both_ends() -> None:
    with connected(lambda: (Cut.RESET, 700)) as (_, client, server):
        client.sendall(SENT[:400])
        assert read(server, 400) == SENT[:400]
        server.sendall(SENT[:300])
        for end in (client, server):
            with pytest.raises(ConnectionResetError):
                read(end, 700)


def test_a_swallowing_connection_stays_open_and_others_stay_whole() -> None:
    with connected() as (proxy, client, server):
        client.sendall(b"heard")
        assert read(server, 5) == b"heard"
        assert proxy.cut_all(Cut.SWALLOW) == 1
        server.settimeout(0.1)
        client.sendall(SENT)
        with pytest.raises(TimeoutError):
            server.recv(1)
        server.sendall(SENT)
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert proxy.cut_all(Cut.RESET) == 0
