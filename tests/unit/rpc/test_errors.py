"""Errors reach the caller as themselves, except that a bug arrives without its text."""

import gc
import logging
import weakref
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.support.rpc import plaintext_server
from trilateral.common.base import errors as public
from trilateral.common.base.errors import DataError, PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.process.server import bind
from trilateral.common.rpc import errors as rpc
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import REASON_KEY, STATUS, from_rpc_error

ERRORS = [
    kind
    for module in (public, rpc)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, TrilateralError) and kind is not TrilateralError
]


class Raising(grpc.GenericRpcHandler):
    """Every method raises `error`."""

    error: Exception

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def behaviour(request: bytes, context: Any) -> bytes:
            raise self.error

        return grpc.unary_unary_rpc_method_handler(behaviour)


@pytest.fixture
async def raising() -> AsyncIterator[tuple[Raising, grpc.aio.Channel]]:
    server, handler = plaintext_server(Role.HOST), Raising()
    server.add_generic_rpc_handlers([handler])
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        yield handler, channel
    await server.stop(None)


async def call(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    method: Any = channel.unary_unary("/trilateral.v1.JobService/GetJob")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await method(b"", metadata=call_metadata(Role.GUEST), timeout=5)
    return raised.value


def test_every_error_has_a_status_and_a_reason_of_its_own() -> None:
    assert set(STATUS) == set(ERRORS)
    assert len({reason for _, reason in STATUS.values()}) == len(STATUS)


async def test_an_error_comes_back_as_itself(raising: tuple[Raising, grpc.aio.Channel]) -> None:
    handler, channel = raising
    for kind in ERRORS:
        handler.error = kind("column 'Alter (Jahre) ü' has 3 values that are no numbers")
        received = await call(channel)
        error = from_rpc_error(received, "the host")
        assert type(error) is kind
        assert str(error) == str(handler.error)
        assert received.code() is STATUS[kind][0]


async def test_an_error_of_a_subclass_comes_back_as_the_nearest_known(
    raising: tuple[Raising, grpc.aio.Channel],
) -> None:
    class NoColumnError(DataError):
        pass

    handler, channel = raising
    handler.error = NoColumnError("no column")
    assert type(from_rpc_error(await call(channel), "the host")) is DataError


async def test_a_bug_is_reported_without_its_text(
    raising: tuple[Raising, grpc.aio.Channel], caplog: pytest.LogCaptureFixture
) -> None:
    handler, channel = raising
    handler.error = ValueError("row of customer 4711 is odd")
    with caplog.at_level(logging.ERROR):
        received = await call(channel)
    assert received.code() is grpc.StatusCode.INTERNAL
    assert received.details() == "internal error; see the log of the host"
    assert "4711" not in str(received.trailing_metadata())
    assert "4711" not in caplog.text  # the text may quote anyone's row
    assert "ValueError" in caplog.text
    assert "test_errors.py" in caplog.text


async def test_a_long_text_is_cut_so_that_it_arrives(raising: tuple[Raising, grpc.aio.Channel]) -> None:
    handler, channel = raising
    handler.error = DataError("ü" * 100_000)
    assert str(from_rpc_error(await call(channel), "the host")) == "ü" * rpc.MAX_TEXT


def failed(code: grpc.StatusCode, *trailing: tuple[str, str]) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details="socket says: 10.0.0.7")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_silent_peer_is_named(code: grpc.StatusCode) -> None:
    error = from_rpc_error(failed(code), "the guest at 127.0.0.1:50052")
    assert type(error) is PeerError
    assert str(error).startswith("the guest at 127.0.0.1:50052 does not answer")


def test_a_status_without_a_known_reason_does_not_quote_its_text() -> None:
    for trailing in ((), ((REASON_KEY, "no such reason"),)):
        error = from_rpc_error(failed(grpc.StatusCode.UNKNOWN, *trailing), "the guest")
        assert str(error) == "the guest refused the call: UNKNOWN"


class Held:
    """Stands for a request that a frame refers to."""


async def test_a_refused_request_is_freed_at_once(raising: tuple[Raising, grpc.aio.Channel]) -> None:
    """Not only when the garbage collector runs: requests are large, and a flood has many."""

    def refuse() -> weakref.ref[Held]:
        held = Held()
        handler.error = DataError("refused")
        try:
            raise handler.error
        except DataError:
            return weakref.ref(held)

    handler, channel = raising
    gc.disable()
    try:
        reference = refuse()
        await call(channel)
        assert reference() is None
    finally:
        gc.enable()
