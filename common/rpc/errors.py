"""Errors over the wire: the one place where an exception becomes a status, and a status an exception.

What is raised on purpose has a status, a reason that a program can read (trailing metadata)
and its public text. Of anything else only the fact travels: its text may quote a row or a key,
and gRPC would send it to the peer word for word.
"""

import logging
from collections.abc import Mapping
from traceback import clear_frames
from types import MappingProxyType
from typing import Any, NoReturn

import grpc

from trilateral.common.base.errors import (
    BadCiphertextError,
    BadKeyError,
    ConfigError,
    DataError,
    OutOfRangeError,
    PeerError,
    PolicyError,
    ProtocolError,
    StoppedError,
    SuspendedError,
    TrilateralError,
)
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where

log = logging.getLogger(__name__)

REASON_KEY = "trilateral-reason"
MAX_TEXT = 2000
"""Characters of a public text that travel as a status: it goes as a header, whose size gRPC limits."""


class UnknownJobError(PeerError):
    """The process has never heard of the job, or was restarted since."""


class EndedError(PeerError):
    """The job has ended at the process that was asked; the text says why."""


class StoppingError(PeerError):
    """The process is being stopped, and takes nothing new."""


class NameTakenError(PolicyError):
    """A job of that name runs already, or has left its result."""


class AccessError(ProtocolError):
    """The caller's identity does not permit the call."""


class InternalError(PeerError):
    """A bug; only the log of the process where it happened says which."""


# A class stands after its bases: the last that fits an error is the one that says most about it.

STATUS: Mapping[type[TrilateralError], tuple[grpc.StatusCode, str]] = MappingProxyType(
    {
        ConfigError: (grpc.StatusCode.INVALID_ARGUMENT, "config"),
        DataError: (grpc.StatusCode.FAILED_PRECONDITION, "data"),
        PolicyError: (grpc.StatusCode.PERMISSION_DENIED, "policy"),
        NameTakenError: (grpc.StatusCode.ALREADY_EXISTS, "name_taken"),
        BadKeyError: (grpc.StatusCode.FAILED_PRECONDITION, "bad_key"),
        BadCiphertextError: (grpc.StatusCode.INVALID_ARGUMENT, "bad_ciphertext"),
        OutOfRangeError: (grpc.StatusCode.OUT_OF_RANGE, "out_of_range"),
        ProtocolError: (grpc.StatusCode.INVALID_ARGUMENT, "protocol"),
        AccessError: (grpc.StatusCode.PERMISSION_DENIED, "access"),
        PeerError: (grpc.StatusCode.ABORTED, "peer"),
        StoppedError: (grpc.StatusCode.ABORTED, "stopped"),
        SuspendedError: (grpc.StatusCode.ABORTED, "suspended"),
        EndedError: (grpc.StatusCode.ABORTED, "ended"),
        StoppingError: (grpc.StatusCode.UNAVAILABLE, "stopping"),
        UnknownJobError: (grpc.StatusCode.NOT_FOUND, "unknown_job"),
        InternalError: (grpc.StatusCode.INTERNAL, "internal"),
    }
)
_BY_REASON = MappingProxyType({reason: kind for kind, (_, reason) in STATUS.items()})

TRY_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""Without a reason of ours: the peer is away, or was on its way out and dropped the call. INTERNAL is what
grpc.aio makes of a write that fails because the call has ended; the status with which it ended is lost."""
UNANSWERED = TRY_AGAIN | {grpc.StatusCode.DEADLINE_EXCEEDED}


def public_error(error: BaseException, role: Role) -> TrilateralError:
    """The error itself if its text is public; otherwise one that points to this process's log."""
    if isinstance(error, TrilateralError):
        return error
    return InternalError(f"internal error; see the log of the {role}")


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception, role: Role) -> NoReturn:
    """End a call with what the caller may know of the error; log where the rest came from."""
    if not isinstance(error, TrilateralError):
        log.error("a call failed with an unexpected error: %s", where(error))
    public = public_error(error, role)
    code, reason = _status(public)
    # An error and its traceback hold each other, and with them what was refused, until the collector comes round: a
    # flood of refused messages would fill the memory faster than that.
    clear_frames(error.__traceback__)
    error.__traceback__ = None
    await context.abort(code, str(public)[:MAX_TEXT], ((REASON_KEY, reason),))


def _status(error: TrilateralError) -> tuple[grpc.StatusCode, str]:
    return next(status for kind, status in reversed([*STATUS.items()]) if isinstance(error, kind))


def reason_of(error: TrilateralError) -> str:
    """The reason that a program can read; there are few of them."""
    return _status(error)[1]


def raised_by_peer(error: grpc.aio.AioRpcError) -> type[TrilateralError] | None:
    """The class of what the peer itself raised; None if the call failed by other means."""
    return _BY_REASON.get(str(dict(error.trailing_metadata() or ()).get(REASON_KEY)))


RUN_IT = "check that it runs and can be reached"


def way_out(error: grpc.aio.AioRpcError) -> str:
    """Return what to do about a server that could not be called; gRPC tells only in words why a handshake failed."""
    details = error.details() or ""
    if "Hostname Verification" in details:
        return "its certificate has another name than the one expected: correct `name` in `peers`, or its address"
    if "WRONG_VERSION_NUMBER" in details:
        return "what listens there speaks no TLS: it is another program, or a process with `plaintext: true`"
    if "missing selected ALPN" in details or "Failed parsing HTTP/2" in details:
        return "what listens there is another program: correct the address"
    if "lookup failed" in details:
        return "its name cannot be resolved to an address: correct the name, or see to this machine's name server"
    if "handshake failed" in details:
        return (
            "it shows no certificate, an expired one, or one that `tls.authorities` did not issue: compare both "
            "processes' `tls`"
        )
    if "Socket closed" in details or "Connection reset" in details:
        return (
            "it hangs up, as it does when it does not accept this process's certificate: compare both processes' "
            "`tls`, and see that the certificates have not expired"
        )
    return RUN_IT


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> TrilateralError:
    """The error that the peer raised, or a PeerError if the call itself failed."""
    kind = raised_by_peer(error)
    if kind is not None:
        return kind(error.details() or "")
    if error.code() in UNANSWERED:
        return PeerError(f"{peer} does not answer: {way_out(error)}")
    return PeerError(f"{peer} refused the call: {error.code().name}")
