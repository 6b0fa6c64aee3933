"""A connection that dies without notice is detected in time, and one that is only slow is kept."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.support.rpc import plaintext_server
from tests.support.tcp_proxy import Cut, TcpProxy, connect_to
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.pb.v1.jobs_pb2 import ListJobsRequest, ListJobsResponse
from trilateral.common.process.server import bind
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.channel import SERVER_OPTIONS, Peer, client_options, open_channel
from trilateral.common.trial.ports import free_address

METHOD = "/trilateral.v1.JobService/ListJobs"


class Slow(grpc.GenericRpcHandler):
    """Every method takes `seconds`."""

    seconds = 0.0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def behaviour(request: bytes, context: Any) -> bytes:
            await asyncio.sleep(self.seconds)
            return request

        return grpc.unary_unary_rpc_method_handler(behaviour)


@asynccontextmanager
async def through_proxy(slow: Slow, limits: Limits) -> AsyncIterator[tuple[TcpProxy, Callable[[], Awaitable[None]]]]:
    """A server behind a proxy, and a call of it that fails if there is no answer."""
    server = plaintext_server(Role.COORDINATOR)
    server.add_generic_rpc_handlers([slow])
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    with TcpProxy(connect_to(address)) as proxy:
        async with open_channel(proxy.address, None, peer_timeout=limits.peer_timeout) as channel:
            peer = Peer(Role.COORDINATOR, proxy.address, channel)

            async def call() -> None:
                async with asyncio.timeout(30):
                    await call_peer(peer, Role.GUEST, METHOD, ListJobsRequest(), ListJobsResponse, limits=limits)

            yield proxy, call
    await server.stop(None)


@pytest.mark.parametrize("options", [SERVER_OPTIONS, client_options(60)])
def test_each_option_of_a_connection_is_given_once(options: tuple[tuple[str, object], ...]) -> None:
    assert len(dict(options)) == len(options)


@pytest.mark.parametrize("peer_timeout", [0.001, 1, 10, 60, 86_400])
def test_a_clients_pings_are_never_too_many_for_a_server(peer_timeout: float) -> None:
    often = int(dict(client_options(peer_timeout))["grpc.keepalive_time_ms"])
    assert dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"] < often


async def test_a_peer_is_connected_before_the_first_call() -> None:
    server = plaintext_server(Role.COORDINATOR)
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        await Peer(Role.COORDINATOR, address, channel).connect_ahead()
        async with asyncio.timeout(10):
            while (state := channel.get_state()) is not grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
    await server.stop(None)


async def test_a_peer_that_is_away_can_be_connected_ahead_in_vain() -> None:
    async with open_channel(free_address(), None) as channel:
        await Peer(Role.COORDINATOR, "away", channel).connect_ahead()


async def test_a_dead_connection_is_replaced_within_the_peer_timeout() -> None:
    async with through_proxy(Slow(), Limits(peer_timeout=4)) as (proxy, call):
        await call()
        assert proxy.cut_all(Cut.SWALLOW) == 1
        await call()
        assert proxy.cut_all(Cut.SWALLOW) == 1


async def test_a_dead_connection_is_noticed_between_the_calls() -> None:
    server = plaintext_server(Role.COORDINATOR)
    server.add_generic_rpc_handlers([Slow()])
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    with TcpProxy(connect_to(address)) as proxy:
        async with open_channel(proxy.address, None, peer_timeout=4) as channel, asyncio.timeout(30):
            method: Any = channel.unary_unary(METHOD)
            await method(b"", wait_for_ready=True, metadata=call_metadata(Role.GUEST))
            proxy.cut_all(Cut.SWALLOW)
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
    await server.stop(None)


async def test_an_idle_connection_with_many_pings_is_kept() -> None:
    async with through_proxy(Slow(), Limits(peer_timeout=4)) as (proxy, call):
        await call()
        await asyncio.sleep(5)
        await call()
        assert proxy.n_taken == 1


async def test_a_call_that_takes_longer_than_many_pings_is_answered() -> None:
    slow = Slow()
    async with through_proxy(slow, Limits(peer_timeout=1)) as (proxy, call):
        slow.seconds = 4.5
        await call()
        assert proxy.cut_all(Cut.RESET) == 1


async def test_a_new_channel_does_not_wait_out_the_failures_of_an_older_one() -> None:
    async def call(channel: grpc.aio.Channel) -> None:
        method: Any = channel.unary_unary(METHOD)
        await method(b"", timeout=10)

    address = free_address()
    async with open_channel(address, None) as older:
        for _ in range(4):  # four failures make a back-off of about a second
            with pytest.raises(grpc.aio.AioRpcError):
                await call(older)
            await asyncio.sleep(0.2)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_insecure_port(address)
        await server.start()
        async with open_channel(address, None) as newer:
            with pytest.raises(grpc.aio.AioRpcError) as answered:
                await call(newer)
        await server.stop(None)
    assert answered.value.code() is grpc.StatusCode.UNIMPLEMENTED
