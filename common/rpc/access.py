"""Who may call what: one table, and one interceptor that enforces it on every call.

What is not in the table is refused. `caller` is the only place where an identity is
determined: today it is what the call says of itself, which is enough between processes of one
machine.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import grpc

from common.protocol.messages import Kind
from common.roles import Role
from common.rpc.codec import PACKAGE, decode_kind
from common.rpc.errors import AccessError, abort

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

IDENTITY_KEY = "trilateral-role"


class Identity(StrEnum):
    """Who calls: one of the three roles, or an operator's command line."""

    HOST = "host"
    GUEST = "guest"
    COORDINATOR = "coordinator"
    OPERATOR = "operator"


def call_metadata(identity: Identity | Role) -> tuple[tuple[str, str], ...]:
    """What a caller adds to each call."""
    return ((IDENTITY_KEY, identity.value),)


def caller(context: Context) -> Identity | None:
    """Who calls; None if that is not known."""
    named = [value for key, value in context.invocation_metadata() or () if key == IDENTITY_KEY]
    return Identity(named[0]) if len(named) == 1 and named[0] in set(Identity) else None


def calling_role(context: Context) -> Role:
    """Which of the three roles calls, for methods that only they may call."""
    identity = caller(context)
    if identity is None or identity is Identity.OPERATOR:
        raise AccessError("only the host, the guest and the coordinator send messages of a job")
    return Role(identity.value)


_HOST, _GUEST = frozenset({Identity.HOST}), frozenset({Identity.GUEST})
_PARTIES = _HOST | _GUEST
_COORDINATOR = frozenset({Identity.COORDINATOR})
_OPERATOR = frozenset({Identity.OPERATOR})
_ANYONE = frozenset({*Identity, None})

METHODS = MappingProxyType(
    {
        f"/{PACKAGE}.HostService/ChallengeIds": _GUEST,
        f"/{PACKAGE}.HostService/ConfirmIds": _GUEST,
        f"/{PACKAGE}.HostService/SendVector": _GUEST,
        f"/{PACKAGE}.GuestService/ProveIds": _HOST,
        f"/{PACKAGE}.GuestService/SendVector": _HOST,
        f"/{PACKAGE}.GuestService/SendHoldoutScores": _HOST,
        f"/{PACKAGE}.PartyService/OpenJob": _COORDINATOR,
        f"/{PACKAGE}.PartyService/BeginRound": _COORDINATOR,
        f"/{PACKAGE}.PartyService/FinishJob": _COORDINATOR,
        f"/{PACKAGE}.PartyService/FailJob": _COORDINATOR,
        f"/{PACKAGE}.CoordinatorService/ReportReady": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/SendVector": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportOutOfRange": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportFinished": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportFailure": _PARTIES,
        f"/{PACKAGE}.JobService/StartJob": _OPERATOR,
        f"/{PACKAGE}.JobService/GetJob": _OPERATOR,
        f"/{PACKAGE}.JobService/ListJobs": _OPERATOR,
        f"/{PACKAGE}.JobService/WatchJob": _OPERATOR,
        f"/{PACKAGE}.JobService/StopJob": _OPERATOR,
        "/grpc.health.v1.Health/Check": _ANYONE,
        "/grpc.health.v1.Health/Watch": _ANYONE,
    }
)
"""Method to the identities that may call it."""

VECTORS = MappingProxyType(
    {
        (Role.GUEST, Kind.SCORES): _HOST,
        (Role.GUEST, Kind.SQUARES): _HOST,
        (Role.GUEST, Kind.SCORE_CHANGE): _HOST,
        (Role.HOST, Kind.RESIDUAL): _GUEST,
        (Role.HOST, Kind.TOTAL_CHANGE): _GUEST,
        (Role.COORDINATOR, Kind.GRADIENT): _PARTIES,
        (Role.COORDINATOR, Kind.CURVATURE): _PARTIES,
        (Role.COORDINATOR, Kind.LOSS): _GUEST,
    }
)
"""Receiver and kind of a vector to the identities that may send it."""


class Guard(grpc.aio.ServerInterceptor):
    """Stands before every method of one server: checks the caller, and translates what is raised."""

    def __init__(self, role: Role) -> None:
        self._role = role

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the method's handler; a method that does not exist has none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        coding = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._guard(method, handler.unary_unary), *coding)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._guard(method, handler.stream_unary), *coding)
        if handler.unary_stream and inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(self._guard_stream(method, handler.unary_stream), *coding)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._guard(method, handler.unary_stream), *coding)
        raise NotImplementedError(f"{method} streams both ways, which no method of this project does")

    def _guard(self, method: str, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                self._authorise(method, context)
                if method.endswith("/SendVector"):
                    request = self._authorised_vectors(request, context)
                return await behaviour(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await abort(context, error, self._role)

        return guarded

    def _guard_stream(self, method: str, behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                self._authorise(method, context)
                async for response in behaviour(request, context):
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await abort(context, error, self._role)

        return guarded

    def _authorise(self, method: str, context: Context) -> None:
        identity = caller(context)
        if identity not in METHODS.get(method, frozenset()):
            raise AccessError(f"{identity or 'a caller without a role'} may not call {method.rpartition('/')[2]} here")

    async def _authorised_vectors(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        identity = caller(context)
        async for request in requests:
            kind = decode_kind(request.kind)
            if identity not in VECTORS.get((self._role, kind), frozenset()):
                raise AccessError(f"{identity} may not send {kind} to the {self._role}")
            yield request
