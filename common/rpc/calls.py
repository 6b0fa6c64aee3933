"""Calls to a peer that are repeated until it answers.

Every call between the processes may be repeated: a receiver ignores a message that it has seen, and answers a
question a second time. A peer that is away for a while therefore costs only time.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from trilateral.common.base.errors import PeerError, SuspendedError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.pb.v1 import process_pb2
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import PACKAGE
from trilateral.common.rpc.errors import (
    RUN_IT,
    TRY_AGAIN,
    UNANSWERED,
    StoppingError,
    UnknownJobError,
    UntrustedPeerError,
    from_rpc_error,
    raised_by_peer,
    way_out,
)
from trilateral.common.rpc.versions import WAY_OUT, check_answer

log = logging.getLogger(__name__)

T = TypeVar("T")
Response = TypeVar("Response", bound=Message)

MIN_PAUSE, MAX_PAUSE = 0.1, 2.0
"""Seconds before the second try, and between later ones."""
FIRST_CONTACT_SECONDS = 5.0
"""Seconds for which a command waits for a peer that it has not reached before. A peer that restarts needs about 3 s."""
READING_SECONDS = 86_400.0
"""Deadline of a call that the peer answers once it has read its table. A peer that is gone shows earlier, because the
channel pings it."""
UNKNOWN_JOB_PATIENCE = 5.0
"""Seconds to wait for a party to learn of a session that the other party already knows."""

_JITTER = random.SystemRandom()  # leaves the shared generator of `random` alone, which a program may have seeded


@dataclass(frozen=True)
class Silence:
    """A peer that does not answer.

    Attributes:
        peer: the peer.
        since: Unix time from which it has not answered.
        until: Unix time until which this process waits for it.
    """

    peer: Peer
    since: float
    until: float

    def __str__(self) -> str:
        since, until = (time.strftime("%H:%M:%S", time.gmtime(moment)) for moment in (self.since, self.until))
        return f"waiting until {until} UTC for {self.peer}, silent since {since}"


async def call_peer(
    peer: Peer,
    sender: Role,
    path: str,
    request: Message,
    response: type[Response],
    *,
    limits: Limits,
    seconds: float | None = None,
) -> Response:
    """Call a method until the peer answers, and return the answer.

    Args:
        peer: who to call.
        sender: this process.
        path: the path of the method.
        request: its request.
        response: type of its response.
        limits: the peer may be away for `peer_timeout`.
        seconds: how long the peer may take to answer; `party_timeout` if None.

    Raises:
        TrilateralError: the peer does not answer, or refuses.
    """
    deadline = limits.party_timeout if seconds is None else seconds
    return await until_answered(
        lambda: call_once(peer, sender, path, request, response, seconds=deadline), peer, sender, limits, deadline
    )


async def first_contact(peer: Peer, sender: Role, limits: Limits) -> None:
    """Call a peer for the first time, for a person who waits: without the patience of a job.

    Args:
        peer: who to call.
        sender: this process.
        limits: `peer_timeout` counts if it is shorter than `FIRST_CONTACT_SECONDS`.

    Raises:
        TrilateralError: the peer does not answer, or refuses.
    """
    patience = min(limits.peer_timeout, FIRST_CONTACT_SECONDS)
    request, path = process_pb2.DescribeRequest(), f"/{PACKAGE}.ProcessService/Describe"
    impatient = limits.model_copy(update={"peer_timeout": patience})
    longest = patience + FIRST_CONTACT_SECONDS
    try:
        # An attempt to connect may hang for longer than the patience, if packets are dropped.
        async with asyncio.timeout(longest):
            await call_peer(peer, sender, path, request, process_pb2.DescribeResponse, limits=impatient)
    except TimeoutError:
        raise PeerError(f"{peer} has not answered for {longest:g} s: {RUN_IT}") from None


async def call_once(
    peer: Peer, sender: Role, path: str, request: Message, response: type[Response], *, seconds: float
) -> Response:
    """Call a method once and return the answer.

    Args:
        peer: who to call.
        sender: this process.
        path: the path of the method.
        request: its request.
        response: type of its response.
        seconds: deadline of the call.

    Raises:
        grpc.aio.AioRpcError: the call has failed.
        UntrustedPeerError: the server shows a certificate that is not the peer's.
        ProtocolError: the peer's release is older than protocol versions.
    """
    channel = await peer.connected()
    method: Any = channel.unary_unary(
        path, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
    )
    call = method(request, timeout=seconds, metadata=call_metadata(sender))
    answer: Response = await call
    check_answer(peer, await call.trailing_metadata())
    return answer


async def collect_from_peer(
    peer: Peer,
    sender: Role,
    path: str,
    request: Message,
    *,
    response: type[Message],
    on_response: Callable[[Any], None],
    limits: Limits,
    seconds: float,
) -> None:
    """Call a method that answers with a stream. The first part of an answer is not asked for twice.

    Args:
        peer: who to call.
        sender: this process.
        path: the path of the method.
        request: its request.
        response: type of the responses.
        on_response: takes each response, in order.
        limits: the peer may be away for `peer_timeout` before its first response.
        seconds: deadline of the call.

    Raises:
        TrilateralError: the peer does not answer, refuses, or the stream breaks off.
    """

    async def begin() -> tuple[Any, Any]:
        channel = await peer.connected()
        method: Any = channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        call = method(request, timeout=seconds, metadata=call_metadata(sender))
        responses = aiter(call)
        first = await anext(responses, None)
        check_answer(peer, await call.initial_metadata())
        return first, responses

    first, responses = await until_answered(begin, peer, sender, limits, seconds)
    if first is None:
        return
    on_response(first)
    try:
        async for each in responses:
            on_response(each)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, str(peer)) from error


def _log_silence(silence: Silence) -> None:
    log.info("%s", silence)


async def until_answered(
    attempt: Callable[[], Awaitable[T]],
    peer: Peer,
    sender: Role,
    limits: Limits,
    seconds: float,
    *,
    silent_from_start: bool = False,
    on_silence: Callable[[Silence], None] = _log_silence,
) -> T:
    """Repeat a call with growing pauses until the peer answers, and return the answer.

    Args:
        attempt: makes the call. `Peer.unanswered` has, under this key, the time since when the call has had no answer.
            `attempt` may remove that entry when it hears from the peer.
        peer: who is called.
        sender: this process.
        limits: how long to wait for a peer that is away.
        seconds: deadline of one call.
        silent_from_start: whether the peer counts as silent from now on, rather than from the first failure.
        on_silence: called after the first failure, unless the peer counts as silent from the start.

    Raises:
        TrilateralError: the peer does not answer in time, or refuses.
    """
    unanswered, pause = peer.unanswered, pauses()
    if silent_from_start:
        unanswered[attempt] = time.monotonic()
    try:
        while True:
            try:
                return await attempt()
            except (grpc.aio.AioRpcError, UntrustedPeerError) as error:
                now = time.monotonic()
                problem, patience = judge(error, peer, sender, limits, seconds)
                is_new = attempt not in unanswered
                if now - unanswered.setdefault(attempt, now) >= patience:
                    raise problem from error
                if is_new:
                    since = time.time()
                    on_silence(Silence(peer, since, since + patience))
                peer.retries += 1
                log.debug("%s did not answer: %s", peer, problem)
                # The last try comes when the patience ends, and not up to a whole pause later.
                await asyncio.sleep(min(next(pause), unanswered[attempt] + patience - now))
    finally:
        unanswered.pop(attempt, None)


def judge(
    error: grpc.aio.AioRpcError | UntrustedPeerError, peer: Peer, sender: Role, limits: Limits, seconds: float
) -> tuple[TrilateralError, float]:
    """Return the error that a failed call stands for, and how many seconds to keep trying before raising it.

    Args:
        error: the error of the call.
        peer: who was called.
        sender: who called.
        limits: how long to wait for a peer that is away.
        seconds: deadline of the call.
    """
    if isinstance(error, UntrustedPeerError):
        return error, limits.peer_timeout  # The peer may be about to renew its certificate.
    peer.doubt(error)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED and not raised_by_peer(error):
        return PeerError(
            f"the process at {peer.address} is not the {peer.role}, or runs another release: correct "
            f"`peers.{peer.role}` in the {sender}'s configuration, or {WAY_OUT}"
        ), 0.0
    problem = from_rpc_error(error, str(peer))
    if isinstance(problem, UnknownJobError):
        lost = SuspendedError(f"{peer} has lost the job (was it restarted?)")
        between_parties = Role.COORDINATOR not in (sender, peer.role)
        return lost, UNKNOWN_JOB_PATIENCE if between_parties else 0.0
    if isinstance(problem, StoppingError):
        return problem, limits.peer_timeout
    if raised_by_peer(error) or error.code() not in UNANSWERED:
        return problem, 0.0
    patience = limits.peer_timeout if error.code() in TRY_AGAIN else 0.0
    silence = patience or seconds
    return PeerError(f"{peer} has not answered for {silence:g} s: {way_out(error)}"), patience


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each new try: they grow, and vary at random."""
    pause = MIN_PAUSE
    while True:
        yield pause * _JITTER.uniform(0.5, 1.0)
        pause = min(2 * pause, MAX_PAUSE)
