"""A peer's description of itself is checked like everything else that a peer sends."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.pb.v1 import process_pb2, process_pb2_grpc
from trilateral.common.process.description import ask_description
from trilateral.common.rpc.channel import open_channel

Answer = Callable[[], process_pb2.DescribeResponse]


class Saying(process_pb2_grpc.ProcessServiceServicer):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def Describe(self, request: process_pb2.DescribeRequest, context: Any) -> process_pb2.DescribeResponse:
        return self._answer()


@asynccontextmanager
async def saying(answer: Answer) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    process_pb2_grpc.add_ProcessServiceServicer_to_server(Saying(answer), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}", None) as channel:
        yield channel
    await server.stop(None)


def said(**fields: Any) -> process_pb2.DescribeResponse:
    settings: dict[str, Any] = {
        "role": process_pb2.PROCESS_ROLE_HOST,
        "caller": process_pb2.PROCESS_ROLE_GUEST,
        "protocol": 7,
        "version": "9.9",
        "time": time.time(),
    }
    return process_pb2.DescribeResponse(**(settings | fields))


@pytest.mark.parametrize("ahead", [-5000.0, -1.0, 0.0, 40.0])
async def test_a_clocks_difference_is_known_to_half_of_the_calls_duration(ahead: float) -> None:
    async with saying(lambda: said(time=time.time() + ahead)) as channel:
        told = await ask_description(channel, Role.GUEST, 5)
    assert abs(told.clock_ahead - ahead) <= told.uncertainty + 1e-3
    assert str(told.version) == "version 7 of the protocol (trilateral 9.9)"


@pytest.mark.parametrize("field", [{"role": 0}, {"role": 9}, {"caller": 0}, {"caller": -1}, {"protocol": 0}])
async def test_values_outside_the_contract_are_refused(field: dict[str, int]) -> None:
    async with saying(lambda: said(**field)) as channel:
        with pytest.raises(ProtocolError, match="values that this release does not know"):
            await ask_description(channel, Role.GUEST, 5)


async def test_a_strangers_text_is_not_shown() -> None:
    async with saying(lambda: said(version="9.9\nok all is well")) as channel:
        told = await ask_description(channel, Role.GUEST, 5)
    assert told.version.package == ""


@pytest.mark.parametrize("clock", [float("nan"), float("inf"), -1e300])
async def test_an_impossible_time_is_refused(clock: float) -> None:
    async with saying(lambda: said(time=clock)) as channel:
        with pytest.raises(ProtocolError):
            await ask_description(channel, Role.GUEST, 5)
