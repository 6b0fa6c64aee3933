"""Who may call what: one interceptor that enforces the table of routes on every call.

A call of a method that the table does not permit is refused. Only `identify` determines who calls: under TLS from the
names in the caller's certificate, whatever the call claims; in plaintext from the claim of the call, because there is
no other evidence.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from cryptography import x509

from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import OperatorsConfig, PeerConfig, ProcessConfig
from trilateral.common.rpc.certificates import Certificates, subject_names
from trilateral.common.rpc.codec import decode_kind
from trilateral.common.rpc.errors import AccessError, abort
from trilateral.common.rpc.interceptor import Answer, AnswerStream, Context, Interceptor
from trilateral.common.rpc.issuers import fingerprint, is_directly_issued
from trilateral.common.rpc.routes import OPEN_METHODS, ROUTE_AT, Permission, Route, VectorRoute
from trilateral.common.rpc.versions import check_caller, version_metadata

ROLE_KEY = "trilateral-role"
MAX_NAMES_SHOWN = 3
MAX_KNOWN = 64
"""Callers whose certificates need not be read again."""


@dataclass(frozen=True)
class Caller:
    """Identity of a caller.

    Attributes:
        role: its role; None for an operator with a separate certificate, and for a stranger.
        names: host names and addresses in its certificate, in lower case, at most 253 characters each; empty in
            plaintext, and for a certificate with a flaw.
        flaw: why its certificate, which gRPC has accepted, does not count; empty if it counts.
    """

    role: Role | None
    names: frozenset[str] = frozenset()
    flaw: str = ""

    def __str__(self) -> str:
        if self.role is not None:
            return f"the {self.role}"
        if self.flaw:
            return f"a caller whose certificate {self.flaw}"
        if self.names:
            shown = ", ".join(sorted(self.names)[:MAX_NAMES_SHOWN])
            return f"a caller whose certificate ({shown}) does not match exactly one role"
        return "a caller without a role"


Identify: TypeAlias = Callable[[Context], Caller]


def call_metadata(role: Role) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each call: the caller's role, which only counts in plaintext, and its version."""
    return (ROLE_KEY, role.value), *version_metadata()


def identify(current: Callable[[], ProcessConfig], certificates: Certificates | None) -> Identify:
    """Return the function by which a process identifies its callers.

    Args:
        current: returns the configuration of the process at the time of a call.
        certificates: of the process; None for plaintext.
    """
    if certificates is None:
        return by_metadata

    known: dict[tuple[bytes, ...], tuple[Any, Caller]] = {}
    """What was found out about a certificate, and on what that depends. Every chunk of a vector asks for it."""

    def by_current_settings(context: Context) -> Caller:
        config, shown = current(), tuple(context.auth_context().get("x509_pem_cert", ()))
        basis = config, certificates.names, certificates.authorities
        if shown in known and known[shown][0] == basis:
            return known[shown][1]
        caller = by_certificate(context, config.role, config.peers, *basis[1:])
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[shown] = basis, caller
        return caller

    return by_current_settings


def by_metadata(context: Context) -> Caller:
    """Identify the caller by the role that the call claims, the only evidence in plaintext."""
    named = [value for key, value in context.invocation_metadata() or () if key == ROLE_KEY]
    return Caller(Role(named[0])) if len(named) == 1 and named[0] in set(Role) else Caller(None)


def by_certificate(
    context: Context,
    own_role: Role,
    peers: Mapping[Role, PeerConfig],
    own_names: Collection[str],
    authorities: Collection[bytes],
) -> Caller:
    """Identify the caller by its certificate.

    gRPC has verified the certificate's chain and dates, and that the caller has its key. A certificate that an
    intermediate has issued does not count, unless that intermediate is one of the authorities.

    A certificate with a peer's configured name, and one of its fingerprints if there are any, is that peer's. A
    certificate with exactly the names of this process's own certificate has this process's role: the command line uses
    that certificate. A caller whose certificate matches two roles gets no role.

    Args:
        context: the context of the call.
        own_role: the role of this process.
        peers: what the configuration expects of each peer.
        own_names: names in this process's own certificate.
        authorities: files of authorities, PEM, of which one must have issued the certificate.
    """
    # gRPC's own list of names mixes host names with e-mail addresses and URIs, and cuts each at its first NUL.
    certificates = list(context.auth_context().get("x509_pem_cert", ()))
    if len(certificates) != 1:
        return Caller(None)
    try:
        certificate = x509.load_pem_x509_certificate(certificates[0])
        names = frozenset(subject_names(certificate))
    except ValueError:
        return Caller(None)
    if not any(is_directly_issued(certificates[0], each) for each in authorities):
        return Caller(None, flaw="was not issued directly by an authority in `tls.authorities`")
    roles = [role for role, peer in peers.items() if peer.certificate_name in names]
    for role in roles:
        pinned = peers[role].fingerprint
        # Without its names the caller is not an operator either.
        if pinned and fingerprint(certificate.public_key()) not in pinned:
            return Caller(None, flaw=f"has the {role}'s name, but another key than `peers.{role}.fingerprint` says")
    if names and names == set(own_names):
        roles.append(own_role)
    return Caller(roles[0] if len(roles) == 1 else None, names)


_calling: ContextVar[Caller] = ContextVar("calling")


def calling() -> Caller:
    """Return the caller of the call that is being answered."""
    return _calling.get(Caller(None))


def calling_role() -> Role:
    """Return the role of the caller of the call that is being answered.

    Raises:
        AccessError: the caller has no role.
    """
    caller = calling()
    if caller.role is None:
        raise AccessError("only the host, the guest and the coordinator may send messages of a job")
    return caller.role


OnRefusal: TypeAlias = Callable[[Caller, str, TrilateralError, Any], None]
"""Called with the caller, the method, the reason, and the request if there is one."""


class Guard(Interceptor):
    """Checks the caller and its version before each method of a server runs, and translates errors.

    Args:
        role: the role of the server.
        identify: returns the caller of a call.
        operators: who may start, stop and watch jobs.
        on_refusal: called for each call that ends with an error that the caller has caused.

    Attributes:
        operators: as given; a change counts from the next call on.
    """

    def __init__(
        self, role: Role, identify: Identify, operators: OperatorsConfig, on_refusal: OnRefusal | None = None
    ) -> None:
        self._role = role
        self._identify = identify
        self.operators = operators
        self._on_refusal = on_refusal

    def wrap(self, method: str, answer: Answer, is_stream: bool) -> Answer:
        """Guard a method."""
        route = ROUTE_AT.get(method)

        async def guarded(request: Any, context: Context) -> Any:
            try:
                self._authorise(method, route, context)
                if route is not None and route.streams_requests:
                    request = self._authorised_requests(route, request, context)
                return await answer(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                self._report(method, error, request)
                await abort(context, error, self._role)

        return guarded

    def wrap_stream(self, method: str, answer: AnswerStream, is_stream: bool) -> AnswerStream:
        """Guard a method that has a stream of responses."""
        route = ROUTE_AT.get(method)

        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                self._authorise(method, route, context)
                # A stream may last for hours, so its version must not wait for the trailing metadata.
                await context.send_initial_metadata(version_metadata())
                async for response in answer(request, context):
                    yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                self._report(method, error, request)
                await abort(context, error, self._role)

        return guarded

    def _report(self, method: str, error: Exception, request: Any) -> None:
        # A PeerError means that something is gone or late. That is not a refusal.
        if self._on_refusal and isinstance(error, TrilateralError) and not isinstance(error, PeerError):
            self._on_refusal(calling(), method, error, request)

    def _authorise(self, method: str, route: Route | None, context: Context) -> None:
        caller = self._identify(context)
        _calling.set(caller)
        if method in OPEN_METHODS:
            return
        context.set_trailing_metadata(version_metadata())
        # The access rules may differ between versions, so check the version of a known caller first.
        is_known = caller.role is not None or not caller.names.isdisjoint(self.operators.names)
        if is_known and not (route and route.any_version):
            check_caller(caller, self._role, context.invocation_metadata())
        if route is not None and route.permission is not None:
            if not self._may_operate(caller, route.permission):
                raise AccessError(
                    f"{caller} may not {route.permission} jobs: `operators.{route.permission}` in the coordinator's "
                    "configuration lists the callers that may"
                )
        elif route is None or caller.role not in route.callers:
            raise AccessError(f"{caller} may not call {method.rpartition('/')[2]} here")

    def _may_operate(self, caller: Caller, permission: Permission) -> bool:
        permitted: list[str] = getattr(self.operators, permission)
        return caller.role in permitted or not caller.names.isdisjoint(permitted)

    async def _authorised_requests(
        self, route: Route, requests: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        role = calling_role()
        async for request in requests:
            # The call may have been open for a while, and the settings may have changed.
            if (caller := self._identify(context)).role is not role:
                raise AccessError(f"{caller} may no longer call {route.method} here")
            if isinstance(route, VectorRoute):
                kind = decode_kind(request.kind)
                if role not in route.senders.get(kind, frozenset()):
                    raise AccessError(f"the {role} may not send {kind} to the {self._role}")
            yield request
