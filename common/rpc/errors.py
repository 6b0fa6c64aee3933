"""Errors on the wire: only here does an exception become a status, and a status an exception.

An error that is raised on purpose travels as a status, a machine-readable reason (trailing metadata) and its public
text. Any other error travels without its text, which may quote a row or a key and which gRPC would send verbatim.
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
"""Maximum characters of a public text that travel with a status, in a header whose size gRPC limits."""


class UnknownJobError(PeerError):
    """The process does not know the job: it never did, or it was restarted since."""


class EndedError(PeerError):
    """The job has ended at the peer; the text says why."""


class StoppingError(PeerError):
    """The process is being stopped and accepts no new work."""


class NameTakenError(PolicyError):
    """A job with that name is running, or has left a result."""


class AccessError(ProtocolError):
    """The caller is not allowed to make the call."""


class UntrustedPeerError(PeerError):
    """The server at a peer's address shows a certificate that is not the peer's."""


class InternalError(PeerError):
    """A bug; only the log of the process where it happened has the details."""


# Each class comes after its base classes, so the last class that fits an error is the most specific one.

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
        UntrustedPeerError: (grpc.StatusCode.ABORTED, "untrusted_peer"),
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
"""Statuses, without a reason in the metadata, that mean: the peer is away, or dropped the call while it was stopping.
grpc.aio gives INTERNAL when a write fails because the call has ended, and loses the status with which it ended."""
UNANSWERED = TRY_AGAIN | {grpc.StatusCode.DEADLINE_EXCEEDED}


def public_error(error: BaseException, role: Role) -> TrilateralError:
    """Return the error itself if its text is public, otherwise one that points to this process's log."""
    if isinstance(error, TrilateralError):
        return error
    if isinstance(error, PermissionError):
        return ConfigError(f"the {role} may not use one of its own files; see the log of the {role}")
    return InternalError(f"internal error; see the log of the {role}")


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception, role: Role) -> NoReturn:
    """End a call with the public part of an error; log the origin of an unexpected error."""
    if not isinstance(error, TrilateralError):
        log.error("a call failed with an unexpected error: %s", where(error))
    public = public_error(error, role)
    code, reason = _status(public)
    # An error and its traceback refer to each other, which keeps the refused request alive until the garbage collector
    # runs. A flood of refused messages would fill the memory before it runs.
    clear_frames(error.__traceback__)
    error.__traceback__ = None
    await context.abort(code, str(public)[:MAX_TEXT], ((REASON_KEY, reason),))


def _status(error: TrilateralError) -> tuple[grpc.StatusCode, str]:
    return next(status for kind, status in reversed([*STATUS.items()]) if isinstance(error, kind))


def reason_of(error: TrilateralError) -> str:
    """Return the machine-readable reason of an error: one of the reasons in `STATUS`."""
    return _status(error)[1]


def raised_by_peer(error: grpc.aio.AioRpcError) -> type[TrilateralError] | None:
    """Return the class of the error that the peer raised; None if the call failed in another way."""
    return _BY_REASON.get(str(dict(error.trailing_metadata() or ()).get(REASON_KEY)))


RUN_IT = "check that it runs and can be reached"


WRONG_NAME = "its certificate does not have the expected name: correct its `name` or its address in `peers`"


def is_of_certificate(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether a call failed because this process did not accept the server's certificate."""
    details = error.details() or ""
    return "handshake failed" in details or "Hostname Verification" in details


def way_out(error: grpc.aio.AioRpcError) -> str:
    """Return what to do about a server that cannot be called.

    gRPC reports the cause of a failed handshake only as text.
    """
    details = error.details() or ""
    if "Hostname Verification" in details:
        return WRONG_NAME
    if "WRONG_VERSION_NUMBER" in details:
        return "the program there does not speak TLS: it is not trilateral, or its process has `plaintext: true`"
    if "missing selected ALPN" in details or "Failed parsing HTTP/2" in details:
        return "another program listens there: correct the address"
    if "lookup failed" in details:
        return "its name cannot be resolved to an address: correct the name, or check this machine's name server"
    if "handshake failed" in details:
        return (
            "it presents no certificate, an expired one, or one that `tls.authorities` did not issue: compare both "
            "processes' `tls`"
        )
    if "Socket closed" in details or "Connection reset" in details:
        return (
            "it closes the connection, perhaps because it does not accept this process's certificate: compare both "
            "processes' `tls`, and check that the certificates have not expired"
        )
    return RUN_IT


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> TrilateralError:
    """Return the error that the peer raised, or a PeerError if the call itself failed."""
    kind = raised_by_peer(error)
    if kind is not None:
        return kind(error.details() or "")
    if error.code() in UNANSWERED:
        return PeerError(f"{peer} does not answer: {way_out(error)}")
    return PeerError(f"{peer} refused the call: {error.code().name}")
