"""Who may call what: one table, and one interceptor that enforces it on every call.

What is not in the table is refused. `identify` is the only place where an identity is determined: under TLS by
the names in the caller's certificate, whatever the call says of itself; in plaintext by what it says, since
there is nothing else.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import grpc
from cryptography import x509

from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import OperatorsConfig, ProcessConfig
from trilateral.common.protocol.messages import Kind
from trilateral.common.rpc.certificates import Certificates, subject_names
from trilateral.common.rpc.codec import PACKAGE, decode_kind
from trilateral.common.rpc.errors import AccessError, abort
from trilateral.common.rpc.versions import check_caller, version_metadata

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

ROLE_KEY = "trilateral-role"
MAX_NAMES_SHOWN = 3


@dataclass(frozen=True)
class Caller:
    """Who calls.

    Attributes:
        role: one of the three; None for an operator with a certificate of its own, and for a stranger.
        names: of hosts and addresses in the certificate, in lower case, 253 characters at the most; none in plaintext.
    """

    role: Role | None
    names: frozenset[str] = frozenset()

    def __str__(self) -> str:
        if self.role is not None:
            return f"the {self.role}"
        if self.names:
            shown = ", ".join(sorted(self.names)[:MAX_NAMES_SHOWN])
            return f"a caller whose certificate ({shown}) is no one role's"
        return "a caller without a role"


Identify: TypeAlias = Callable[[Context], Caller]


def call_metadata(role: Role) -> tuple[tuple[str, str], ...]:
    """What a caller adds to each call: its role, which counts in plaintext alone, and its version."""
    return (ROLE_KEY, role.value), *version_metadata()


def identify(config: ProcessConfig, certificates: Certificates | None) -> Identify:
    """Return what tells a process who calls it."""
    if certificates is None:
        return by_metadata
    peer_names = {role: peer.certificate_name for role, peer in config.peers.items()}
    return lambda context: by_certificate(context, config.role, peer_names, certificates.names)


def by_metadata(context: Context) -> Caller:
    """Believe what the call says of itself: in plaintext nobody can do better."""
    named = [value for key, value in context.invocation_metadata() or () if key == ROLE_KEY]
    return Caller(Role(named[0])) if len(named) == 1 and named[0] in set(Role) else Caller(None)


def by_certificate(
    context: Context, own_role: Role, peer_names: Mapping[Role, str], own_names: Collection[str]
) -> Caller:
    """Go by the certificate, which gRPC has checked to be an authority's, valid, and the caller's own.

    Its role is the peer's whose configured name is among its names, or this process's own if it has the very
    names of this process's own certificate: an operator's command line uses that. Whoever would be two is nobody.
    """
    names = frozenset(_shown_names(context))
    roles = [role for role, name in peer_names.items() if name in names]
    if names and names == set(own_names):
        roles.append(own_role)
    return Caller(roles[0] if len(roles) == 1 else None, names)


def _shown_names(context: Context) -> tuple[str, ...]:
    # gRPC's own list of names mixes hosts with e-mail addresses and URIs, and cuts each at its first NUL.
    certificates = list(context.auth_context().get("x509_pem_cert", ()))
    if len(certificates) != 1:
        return ()
    try:
        return subject_names(x509.load_pem_x509_certificate(certificates[0]))
    except ValueError:
        return ()


_calling: ContextVar[Caller] = ContextVar("calling")


def calling() -> Caller:
    """Who makes the call that is being answered."""
    return _calling.get(Caller(None))


def calling_role() -> Role:
    """Which of the three roles makes the call that is being answered, for methods that only they may call."""
    caller = calling()
    if caller.role is None:
        raise AccessError("only the host, the guest and the coordinator send messages of a job")
    return caller.role


_HOST, _GUEST, _COORDINATOR = (frozenset({role}) for role in (Role.HOST, Role.GUEST, Role.COORDINATOR))
_PARTIES = _HOST | _GUEST

DESCRIBE = f"/{PACKAGE}.ProcessService/Describe"
"""The one method that a process of another version of the protocol may call."""
METHODS = MappingProxyType(
    {
        f"/{PACKAGE}.HostService/ChallengeIds": _GUEST,
        f"/{PACKAGE}.HostService/ConfirmIds": _GUEST,
        f"/{PACKAGE}.HostService/SendVector": _GUEST,
        f"/{PACKAGE}.AlignmentService/OpenAlignment": _GUEST,
        f"/{PACKAGE}.AlignmentService/IntersectShard": _GUEST,
        f"/{PACKAGE}.AlignmentService/ConfirmShard": _GUEST,
        f"/{PACKAGE}.AlignmentService/CloseAlignment": _GUEST,
        f"/{PACKAGE}.PredictionService/OpenPrediction": _GUEST,
        f"/{PACKAGE}.PredictionService/AlignPrediction": _GUEST,
        f"/{PACKAGE}.PredictionService/SettleShard": _GUEST,
        f"/{PACKAGE}.PredictionService/GetScores": _GUEST,
        f"/{PACKAGE}.PredictionService/ClosePrediction": _GUEST,
        f"/{PACKAGE}.GuestService/ProveIds": _HOST,
        f"/{PACKAGE}.GuestService/SendVector": _HOST,
        f"/{PACKAGE}.GuestService/SendHoldoutScores": _HOST,
        f"/{PACKAGE}.PartyService/OpenJob": _COORDINATOR,
        f"/{PACKAGE}.PartyService/BeginRound": _COORDINATOR,
        f"/{PACKAGE}.PartyService/FinishJob": _COORDINATOR,
        f"/{PACKAGE}.PartyService/CheckJob": _COORDINATOR,
        f"/{PACKAGE}.PartyService/FailJob": _COORDINATOR,
        f"/{PACKAGE}.CoordinatorService/ReportAlignment": _GUEST,
        f"/{PACKAGE}.CoordinatorService/ReportReady": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/SendVector": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportOutOfRange": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportEvaluation": _GUEST,
        f"/{PACKAGE}.CoordinatorService/ReportFinished": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportWaiting": _PARTIES,
        f"/{PACKAGE}.CoordinatorService/ReportFailure": _PARTIES,
        DESCRIBE: frozenset(Role),
    }
)
"""Method to the roles that may call it."""

Permission: TypeAlias = Literal["start", "stop", "watch"]

OPERATIONS: Mapping[str, Permission] = MappingProxyType(
    {
        f"/{PACKAGE}.JobService/StartJob": "start",
        f"/{PACKAGE}.JobService/GetJob": "watch",
        f"/{PACKAGE}.JobService/ListJobs": "watch",
        f"/{PACKAGE}.JobService/WatchJob": "watch",
        f"/{PACKAGE}.JobService/StopJob": "stop",
        f"/{PACKAGE}.JobService/ResumeJob": "start",
    }
)
"""Method to the permission that it takes; the coordinator's configuration says who has it."""

OPEN = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods for everyone who can connect, under TLS whoever has a certificate of a trusted authority."""

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
"""Receiver and kind of a vector to the roles that may send it."""


OnRefusal: TypeAlias = Callable[[Caller, str, TrilateralError, Any], None]
"""Is told who was refused which method, why, and the request, if there is one."""


class Guard(grpc.aio.ServerInterceptor):
    """Stands before every method of one server: checks the caller and its version, and translates what is raised.

    Args:
        role: of the server.
        identify: tells who calls.
        operators: who may start, stop and watch jobs.
        on_refusal: is told of each call that ends with an error of the caller's making.
    """

    def __init__(
        self, role: Role, identify: Identify, operators: OperatorsConfig, on_refusal: OnRefusal | None = None
    ) -> None:
        self._role = role
        self._identify = identify
        self._operators = operators
        self._on_refusal = on_refusal

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
                    request = self._authorised_vectors(request)
                return await behaviour(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                self._tell(method, error, request)
                await abort(context, error, self._role)

        return guarded

    def _guard_stream(self, method: str, behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                self._authorise(method, context)
                # A stream's end, and what comes with it, may be hours away.
                await context.send_initial_metadata(version_metadata())
                async for response in behaviour(request, context):
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                self._tell(method, error, request)
                await abort(context, error, self._role)

        return guarded

    def _tell(self, method: str, error: Exception, request: Any) -> None:
        # A PeerError says that something is gone or late, which refuses nobody.
        if self._on_refusal and isinstance(error, TrilateralError) and not isinstance(error, PeerError):
            self._on_refusal(calling(), method, error, request)

    def _authorise(self, method: str, context: Context) -> None:
        caller = self._identify(context)
        _calling.set(caller)
        if method in OPEN:
            return
        context.set_trailing_metadata(version_metadata())
        # Who may call what may differ between versions: whoever is known hears of the versions first.
        if method != DESCRIBE and (caller.role is not None or not caller.names.isdisjoint(self._operators.names)):
            check_caller(caller, self._role, context.invocation_metadata())
        if method in OPERATIONS:
            permission = OPERATIONS[method]
            if not self._may_operate(caller, permission):
                raise AccessError(
                    f"{caller} may not {permission} jobs: `operators.{permission}` in the coordinator's configuration "
                    "says who may"
                )
        elif caller.role not in METHODS.get(method, frozenset()):
            raise AccessError(f"{caller} may not call {method.rpartition('/')[2]} here")

    def _may_operate(self, caller: Caller, permission: Permission) -> bool:
        permitted: list[str] = getattr(self._operators, permission)
        return caller.role in permitted or not caller.names.isdisjoint(permitted)

    async def _authorised_vectors(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        role = calling_role()
        async for request in requests:
            kind = decode_kind(request.kind)
            if role not in VECTORS.get((self._role, kind), frozenset()):
                raise AccessError(f"the {role} may not send {kind} to the {self._role}")
            yield request
