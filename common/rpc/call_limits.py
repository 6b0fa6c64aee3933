"""Limits on each caller of a server: how many calls at a time, and how long a caller may take to send its requests.

gRPC itself limits the size of a message, and the calls of all callers together. But it lets any caller begin a call
without ever sending the request, and it reads the request before it runs an interceptor's handler. `CallLimiter`
therefore treats every method as if it had a stream of requests: its handler runs at once and reads the requests itself.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from trilateral.common.base.errors import PeerError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.rpc.access import Caller, Identify, OnRefusal
from trilateral.common.rpc.errors import abort
from trilateral.common.rpc.interceptor import Answer, AnswerStream, Context, Interceptor

MAX_CALLS_EACH = 64
"""Concurrent calls of one caller. A peer makes at most two for each job: one for a message and one for a vector."""


class CallLimiter(Interceptor):
    """Limits what each caller uses of a server, before the guard checks the caller.

    Args:
        role: the role of the server.
        identify: returns the caller of a call.
        limits: how long to wait for the requests of a call.
        on_refusal: called for each call that is refused here.
    """

    reads_streams = True

    def __init__(self, role: Role, identify: Identify, limits: Limits, on_refusal: OnRefusal | None = None) -> None:
        self._role = role
        self._identify = identify
        self._limits = limits
        self._on_refusal = on_refusal
        self._calls: Counter[Caller] = Counter()

    def wrap(self, method: str, answer: Answer, is_stream: bool) -> Answer:
        """Limit the calls of a method."""

        async def limited(requests: AsyncIterator[Any], context: Context) -> Any:
            with await self._counted(method, context):
                return await answer(await self._read(requests, context, is_stream), context)

        return limited

    def wrap_stream(self, method: str, answer: AnswerStream, is_stream: bool) -> AnswerStream:
        """Limit the calls of a method that has a stream of responses."""

        async def limited(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            with await self._counted(method, context):
                async for response in answer(await self._read(requests, context, is_stream), context):
                    yield response

        return limited

    async def _counted(self, method: str, context: Context) -> AbstractContextManager[None]:
        """Count the call while it lasts; refuse it if its caller has too many."""
        caller = self._identify(context)
        if self._calls[caller] >= MAX_CALLS_EACH:
            problem = ProtocolError(f"{caller} has {MAX_CALLS_EACH} calls in progress, the maximum at a time")
            if self._on_refusal:
                self._on_refusal(caller, method, problem, None)
            # Without a reason in the metadata, an honest caller tries again.
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

    async def _read(self, requests: AsyncIterator[Any], context: Context, is_stream: bool) -> Any:
        """Return the stream of requests, or the single request of a method without a stream."""
        if is_stream:
            return self._timed(requests)
        try:
            request = await anext(self._timed(requests), None)
            if request is None:
                raise ProtocolError("received a call without a request")
            return request
        except (PeerError, ProtocolError) as error:
            await abort(context, error, self._role)

    async def _timed(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Limit the wait for each request, and limit the total wait to the time that the sender itself would wait.

        The time that this process takes for a request does not count: a call may last for as long as it progresses.
        """
        clock, left = asyncio.get_running_loop().time, self._limits.party_timeout
        while True:
            seconds, begun = min(self._limits.peer_timeout, left), clock()
            try:
                async with asyncio.timeout(seconds):
                    request = await anext(requests)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise PeerError(
                    f"the {self._role} has waited {max(seconds, 0):.3g} s for the rest of a call, and has ended it"
                ) from None
            except DecodeError:
                raise ProtocolError(f"the {self._role} received a request that it cannot parse") from None
            left -= clock() - begun
            yield request
