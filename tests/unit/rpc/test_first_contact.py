"""A command that calls a peer for the first time says soon that the peer is not there."""

import socket

import pytest

from tests.support.rpc import connected
from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.rpc import calls
from trilateral.common.rpc.calls import first_contact

PATIENT = Limits(peer_timeout=10_000)


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "FIRST_CONTACT_SECONDS", 0.3)


async def test_a_refused_connection_ends_the_wait_early() -> None:
    async with connected(Role.HOST, "127.0.0.1:1") as host:
        with pytest.raises(
            PeerError, match="the host at 127.0.0.1:1 has not answered for 0.3 s: check that it runs and can be reached"
        ):
            await first_contact(host, Role.GUEST, PATIENT)


async def test_so_does_a_machine_that_accepts_connections_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with connected(Role.HOST, address) as host:
            with pytest.raises(PeerError, match=f"the host at {address} has not answered for 0.6 s: check that it"):
                await first_contact(host, Role.GUEST, PATIENT)


async def test_a_shorter_peer_timeout_counts() -> None:
    async with connected(Role.HOST, "127.0.0.1:1") as host:
        with pytest.raises(PeerError, match="has not answered for 0.1 s"):
            await first_contact(host, Role.GUEST, Limits(peer_timeout=0.1))
