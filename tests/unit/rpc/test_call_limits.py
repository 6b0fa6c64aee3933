"""No caller uses more than its share of a server, whatever it sends or does not send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.support.rpc import Recorder, plaintext_server
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits, OperatorsConfig
from trilateral.common.pb.v1 import rounds_pb2
from trilateral.common.pb.v1.jobs_pb2 import OUTCOME_FAILED
from trilateral.common.pb.v1.party_pb2 import FailJobRequest
from trilateral.common.process.server import bind, new_server
from trilateral.common.protocol.messages import Failed, Message
from trilateral.common.rpc.access import Caller, Guard, call_metadata
from trilateral.common.rpc.call_limits import MAX_CALLS_EACH, CallLimiter
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import REASON_KEY

VECTOR = "/trilateral.v1.GuestService/SendVector"
FAIL = "/trilateral.v1.PartyService/FailJob"
CHUNK = rounds_pb2.SendVectorRequest(
    job="credit",
    run_id=bytes(16),
    key=rounds_pb2.RoundKey(round=1, attempt=1),
    kind=rounds_pb2.VECTOR_KIND_SCORES,
    total=1000,
    width=64,
    ciphertexts=bytes(63) + b"\1",
).SerializeToString()
LAST_WORD = FailJobRequest(job="credit", run_id=bytes(16), reason="over", outcome=OUTCOME_FAILED).SerializeToString()
HOST, COORDINATOR = call_metadata(Role.HOST), call_metadata(Role.COORDINATOR)


@asynccontextmanager
async def guest(recorder: Recorder, **limits: float) -> AsyncIterator[str]:
    server = plaintext_server(Role.GUEST, Limits.model_validate(limits))
    server.add_generic_rpc_handlers(recorder.handlers())
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def still_serves(channel: grpc.aio.Channel) -> bool:
    method: Any = channel.unary_unary(FAIL)
    return bool(await method(LAST_WORD, metadata=COORDINATOR, timeout=10) == b"")


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    error = refused.value
    return error.code(), str(error.details()), str(dict(error.trailing_metadata() or ()).get(REASON_KEY))


@pytest.mark.parametrize("n_chunks", [0, 3])
async def test_a_stream_that_stalls_is_ended(n_chunks: int) -> None:
    recorder = Recorder()
    async with guest(recorder, peer_timeout=0.3) as address, open_channel(address, None) as channel:
        call: Any = channel.stream_unary(VECTOR)(metadata=HOST, timeout=30)
        for _ in range(n_chunks):
            await call.write(CHUNK)
        code, text, reason = await refusal(call)
        assert (code, reason) == (grpc.StatusCode.ABORTED, "peer")
        assert text == "the guest has waited 0.3 s for the rest of a call, and has ended it"
        assert len(recorder.messages) == n_chunks
        assert await still_serves(channel)


async def test_a_caller_that_is_no_longer_permitted_cannot_go_on_in_an_open_call() -> None:
    recorder, callers = Recorder(), [Caller(Role.HOST)]

    def who(context: object) -> Caller:
        return callers[-1]

    server = new_server(CallLimiter(Role.GUEST, who, Limits()), Guard(Role.GUEST, who, OperatorsConfig()))
    server.add_generic_rpc_handlers(recorder.handlers())
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    async with open_channel(address, None) as channel:
        call: Any = channel.stream_unary(VECTOR)(metadata=HOST, timeout=30)
        await call.write(CHUNK)
        await recorder.until(lambda: len(recorder.messages) == 1)
        callers.append(Caller(None))
        await call.write(CHUNK)
        code, text, _ = await refusal(call)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert text == "a caller without a role may no longer call SendVector here"
        assert len(recorder.messages) == 1
    await server.stop(None)


async def test_a_call_whose_request_never_comes_is_ended() -> None:
    recorder = Recorder()
    async with guest(recorder, peer_timeout=0.3) as address, open_channel(address, None) as channel:
        call: Any = channel.stream_unary(FAIL)(metadata=COORDINATOR, timeout=30)  # on the wire as any unary call
        assert (await refusal(call))[0] is grpc.StatusCode.ABORTED
        assert await still_serves(channel)


async def test_a_stream_lasts_as_long_as_the_receiver_works_on_it() -> None:
    recorder = Recorder()
    taken = 0

    async def work(message: Message, context: Any) -> None:
        nonlocal taken
        taken += 1
        await asyncio.sleep(0.3)

    recorder.react = work
    async with guest(recorder, peer_timeout=5, round_timeout=0.3) as address, open_channel(address, None) as channel:
        call: Any = channel.stream_unary(VECTOR)(metadata=HOST, timeout=30)
        for _ in range(5):
            await call.write(CHUNK)
        await call.done_writing()
        await call
    assert taken == 5


async def test_a_stream_without_end_is_ended() -> None:
    recorder = Recorder()
    async with guest(recorder, peer_timeout=5, round_timeout=0.3) as address, open_channel(address, None) as channel:

        async def drip() -> AsyncIterator[bytes]:
            while True:
                yield CHUNK
                await asyncio.sleep(0.02)

        method: Any = channel.stream_unary(VECTOR)
        code, text = grpc.StatusCode.INTERNAL, ""
        while code is grpc.StatusCode.INTERNAL:  # gRPC loses the status of a call that ends during a write
            code, text, _ = await refusal(method(drip(), metadata=HOST, timeout=30))
        assert code is grpc.StatusCode.ABORTED
        assert "for the rest of a call" in text
        assert await still_serves(channel)


async def test_garbage_is_refused_with_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    async with guest(recorder) as address, open_channel(address, None) as channel:
        for method, metadata in ((VECTOR, HOST), (FAIL, COORDINATOR)):
            call: Any = channel.stream_unary(method)(metadata=metadata, timeout=30)
            await call.write(b"\xff" * 100)
            code, text, reason = await refusal(call)
            assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "protocol")
            assert text == "the guest received a request that it cannot parse"
        assert await still_serves(channel)
    assert [type(message) for message in recorder.messages] == [Failed]  # from `still_serves`
    assert not caplog.records


async def test_a_call_without_a_request_is_refused() -> None:
    async with guest(Recorder()) as address, open_channel(address, None) as channel:
        call: Any = channel.stream_unary(FAIL)(metadata=COORDINATOR, timeout=30)
        await call.done_writing()
        assert (await refusal(call))[1] == "received a call without a request"


async def test_one_callers_many_calls_do_not_lock_out_another() -> None:
    recorder = Recorder()
    async with guest(recorder) as address, AsyncExitStack() as stack:
        # Several connections, since each limits its calls.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(address, options)) for _ in range(3)]
        held: list[Any] = [
            channel.stream_unary(VECTOR)(metadata=HOST, timeout=60) for channel in channels[:2] for _ in range(32)
        ]
        for call in held:
            await call.write(CHUNK)
        await recorder.until(lambda: len(recorder.messages) == MAX_CALLS_EACH)
        code, text, reason = await refusal(channels[2].stream_unary(VECTOR)(metadata=HOST, timeout=30))
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "None")
        assert text == "the host has 64 calls in progress, the maximum at a time"
        assert await still_serves(channels[2])
        held[0].cancel()
        again: Any = None
        async with asyncio.timeout(10):
            while again is None or again.done():  # until the server has noticed the cancelled call
                again = channels[2].stream_unary(VECTOR)(metadata=HOST, timeout=60)
                await again.write(CHUNK)
                await asyncio.sleep(0.05)
        assert len(recorder.messages) == MAX_CALLS_EACH + 1 + 1  # and the coordinator's
        for call in [*held, again]:
            call.cancel()


async def test_a_watch_of_the_health_has_no_time_limit() -> None:
    async with guest(Recorder(), peer_timeout=0.2) as address, open_channel(address, None) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)
        await watch.read()
        await asyncio.sleep(0.5)
        assert not watch.done()
        watch.cancel()
