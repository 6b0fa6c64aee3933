"""What one caller may take up of a server: calls at a time, and time to say what it has to say.

gRPC itself bounds the size of a message and the calls of all callers together. It lets anyone begin a call
and never send its request, and reads the request before an interceptor's handler runs. So this one takes
every method as if its requests came in a stream: its handler runs at once, and reads them itself.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from trilateral.common.base.errors import PeerError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.rpc.access import Caller, Context, Identify, OnRefusal
from trilateral.common.rpc.errors import abort

MAX_CALLS_EACH = 64
"""Calls of one caller at a time. A peer has two for each job at the most: a message, and a vector."""


class Intake(grpc.aio.ServerInterceptor):
    """Stands before the guard of one server, and bounds what any caller takes up.

    Args:
        role: of the server.
        identify: tells who calls.
        limits: how long to wait for what a caller has to send.
        on_refusal: is told of each call that is refused here.
    """

    def __init__(self, role: Role, identify: Identify, limits: Limits, on_refusal: OnRefusal | None = None) -> None:
        self._role = role
        self._identify = identify
        self._limits = limits
        self._on_refusal = on_refusal
        self._calls: Counter[Caller] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the guarded handler of a method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        coding = (handler.request_deserializer, handler.response_serializer)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._streamed(method, handler.stream_unary), *coding)
        if handler.unary_unary:
            return grpc.stream_unary_rpc_method_handler(self._single(method, handler.unary_unary), *coding)
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.stream_stream_rpc_method_handler(self._generated(method, handler.unary_stream), *coding)
        return grpc.stream_stream_rpc_method_handler(self._single(method, handler.unary_stream), *coding)

    def _streamed(self, method: str, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def bounded(requests: AsyncIterator[Any], context: Context) -> Any:
            with await self._counted(method, context):
                return await behaviour(self._timed(requests), context)

        return bounded

    def _single(self, method: str, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def bounded(requests: AsyncIterator[Any], context: Context) -> Any:
            with await self._counted(method, context):
                return await behaviour(await self._only(requests, context), context)

        return bounded

    def _generated(self, method: str, behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
        async def bounded(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            with await self._counted(method, context):
                async for response in behaviour(await self._only(requests, context), context):
                    yield response

        return bounded

    async def _counted(self, method: str, context: Context) -> AbstractContextManager[None]:
        """Count the call while it lasts; end it if its caller has too many."""
        caller = self._identify(context)
        if self._calls[caller] >= MAX_CALLS_EACH:
            problem = ProtocolError(f"{caller} has {MAX_CALLS_EACH} calls under way: no more are taken at a time")
            if self._on_refusal:
                self._on_refusal(caller, method, problem, None)
            # Without a reason of ours: an honest caller tries again.
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(problem))
        self._calls[caller] += 1
        return self._uncount_after(caller)

    @contextmanager
    def _uncount_after(self, caller: Caller) -> Iterator[None]:
        try:
            yield
        finally:
            self._calls[caller] -= 1
            if not self._calls[caller]:
                del self._calls[caller]

    async def _only(self, requests: AsyncIterator[Any], context: Context) -> Any:
        try:
            request = await anext(self._timed(requests), None)
            if request is None:
                raise ProtocolError("a call came without a request")
            return request
        except (PeerError, ProtocolError) as error:
            await abort(context, error, self._role)

    async def _timed(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Wait for each request so long, and for all of them together no longer than their sender would."""
        clock = asyncio.get_running_loop().time
        end = clock() + self._limits.party_timeout
        while True:
            seconds = min(self._limits.peer_timeout, end - clock())
            try:
                async with asyncio.timeout(seconds):
                    request = await anext(requests)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise PeerError(
                    f"the {self._role} has waited {max(seconds, 0):.3g} s for the rest of a call, and ends it"
                ) from None
            except DecodeError:
                raise ProtocolError(f"the {self._role} received a request that is none of the contract's") from None
            yield request
