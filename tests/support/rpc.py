"""A peer of plain gRPC that accepts every message of the protocol and reacts as a test asks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.support.waiting import SECONDS
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits, OperatorsConfig
from trilateral.common.process.server import bind, new_server
from trilateral.common.protocol.messages import Message
from trilateral.common.rpc.access import Guard, by_metadata
from trilateral.common.rpc.call_limits import CallLimiter
from trilateral.common.rpc.channel import Peer, open_channel
from trilateral.common.rpc.codec import PACKAGE, JobKey, job_key
from trilateral.common.rpc.routes import MESSAGE_ROUTES, MessageRoute, decode

Reaction = Callable[[Message, Any], Awaitable[None]]


@dataclass
class Recorder:
    """Records incoming calls and messages. `react` may abort a call or delay it."""

    messages: list[Message] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    jobs: set[JobKey] = field(default_factory=set)
    react: Reaction | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, method: str, request: Any, context: Any) -> None:
        message = decode(request)
        self.jobs.add(job_key(request))
        self.messages.append(message)
        self.changed.set()
        if self.react:
            await self.react(message, context)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        services: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        for route in MESSAGE_ROUTES:
            methods = services.setdefault(f"{PACKAGE}.{route.service}", {})
            methods[route.method] = self._handler(route)
        return [grpc.method_handlers_generic_handler(service, methods) for service, methods in services.items()]

    def _handler(self, route: MessageRoute) -> "grpc.RpcMethodHandler[Any, Any]":
        method, response = route.method, route.response

        async def unary(message: Any, context: Any) -> Any:
            self.calls.append(method)
            await self.take(method, message, context)
            return response()

        async def streamed(messages: Any, context: Any) -> Any:
            self.calls.append(method)
            async for message in messages:
                await self.take(method, message, context)
            return response()

        if route.streams_requests:
            return grpc.stream_unary_rpc_method_handler(streamed, route.chunk.FromString, response.SerializeToString)
        return grpc.unary_unary_rpc_method_handler(unary, route.request.FromString, response.SerializeToString)


def plaintext_guard(role: Role) -> Guard:
    """A guard that believes the role that callers claim; the guest may start and stop jobs."""
    return Guard(role, by_metadata, OperatorsConfig())


def plaintext_server(role: Role, limits: Limits | None = None) -> grpc.aio.Server:
    """Return a server of a role, with the interceptors in front of its methods."""
    return new_server(CallLimiter(role, by_metadata, limits or Limits()), plaintext_guard(role))


@asynccontextmanager
async def served(role: Role, recorder: Recorder, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Run a server of a role behind the real guard; yield its address."""
    server = plaintext_server(role)
    server.add_generic_rpc_handlers(recorder.handlers())
    bound = bind(server, address, None)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(role: Role, address: str) -> AsyncIterator[Peer]:
    async with open_channel(address, None) as channel:
        yield Peer(role, address, channel)
