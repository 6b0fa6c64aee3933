"""A link: the messages of one job from this process to one peer, in order, each until it is acknowledged.

Every message of the protocol may be sent again, because its receiver ignores what it has seen. So a
peer that is away for a while costs time and nothing else: a link tries again with growing pauses, up
to `Limits.peer_timeout`. Consecutive pieces of a vector share one streaming call, and its receiver
works on the first while this process still makes the last.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from trilateral.common.base.errors import PeerError, SuspendedError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.observe.events import Delivered, OnEvent, ignore_event, subject_of
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest
from trilateral.common.protocol.messages import Kind, Message, RoundKey, VectorPiece
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey, encode, encode_piece, route_for
from trilateral.common.rpc.errors import (
    TRY_AGAIN,
    UNANSWERED,
    StoppingError,
    UnknownJobError,
    from_rpc_error,
    raised_by_peer,
    way_out,
)
from trilateral.common.rpc.versions import WAY_OUT, check_answer

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
NOTICE_SECONDS = 1.0
"""How often to tell of a peer that does not answer."""
LOG_SECONDS = 5.0
"""After how long the log has a line of it."""
UNKNOWN_JOB_PATIENCE = 5.0
"""Seconds for a party to hear of a session that the other has heard of already."""

_JITTER = random.SystemRandom()  # leaves the state of the module's own generator to whoever has seeded it


@dataclass(frozen=True)
class Silence:
    """A peer has not answered a call for a while: Unix times since when, and until when it is waited for."""

    peer: Peer
    since: float
    until: float

    def __str__(self) -> str:
        since, until = (time.strftime("%H:%M:%S", time.gmtime(moment)) for moment in (self.since, self.until))
        return f"waiting until {until} UTC for {self.peer}, silent since {since}"


OnWait = Callable[[Peer, Silence | None], None]
"""Called every second in which a peer does not answer, and with None once it has."""
CountSent = Callable[[RoundKey, Kind, int, int], None]
"""Called with the bytes and the count of the ciphertexts that are sent of a vector, once for each."""


class Link:
    """Sends the messages of `job` from `sender` to `peer`.

    Args:
        job: whose messages.
        sender: this process.
        peer: where to.
        width: bytes of a ciphertext.
        limits: how long to wait.
        count_sent: is told of the vectors.
        on_failure: takes what ends the link, and so the job; nothing is sent after it.
        on_wait: is told of a peer that does not answer a call, but not during the last words after `clear`.
        on_event: called when a message has been delivered.
    """

    def __init__(
        self,
        job: JobKey,
        sender: Role,
        peer: Peer,
        *,
        width: int,
        limits: Limits,
        count_sent: CountSent,
        on_failure: Callable[[Exception], None],
        on_wait: OnWait | None = None,
        on_event: OnEvent = ignore_event,
    ) -> None:
        self._job = job
        self._sender = sender
        self._peer = peer
        self._width = width
        self._limits = limits
        self._count_sent = count_sent
        self._on_failure = on_failure
        self._on_wait = on_wait
        self._on_event = on_event
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._held: list[Message | None] = []
        self._oldest = RoundKey(0, 0)
        self._task = asyncio.create_task(self._run())

    def send(self, message: Message) -> None:
        """Send a message as soon as those before it are acknowledged."""
        if not self._task.done() and not self._is_overtaken(message):
            self._queue.put_nowait(message)

    async def call(self, message: Message) -> None:
        """Send a message past the queue, and wait until the peer has taken it.

        Raises:
            TrilateralError: the peer does not answer, or refuses it.
        """
        route = route_for(self._sender, self._peer.role, message)
        request, seconds = encode(self._job, message, route), self._limits.peer_timeout
        deadline = time.monotonic() + seconds

        async def attempt() -> None:
            method: Any = self._peer.channel.unary_unary(
                route.path,
                request_serializer=route.request.SerializeToString,
                response_deserializer=route.response.FromString,
            )
            seconds_left = max(deadline - time.monotonic(), FIRST_PAUSE)
            call = method(request, timeout=seconds_left, metadata=call_metadata(self._sender))
            await call
            check_answer(self._peer, await call.trailing_metadata())

        async with self._tell_silence(seconds):
            await self._until_answered(message, attempt, seconds)

    def overtake(self, key: RoundKey) -> None:
        """Nothing of a round before `key` matters any more: drop what is queued of it."""
        self._oldest = max(self._oldest, key)
        for message in [self._queue.get_nowait() for _ in range(self._queue.qsize())]:
            if not self._is_overtaken(message):
                self._queue.put_nowait(message)

    def clear(self) -> None:
        """Drop what is queued and under way, to make room for a last word."""
        self._on_wait = None
        self._task.cancel()
        self._queue, self._held = asyncio.Queue(), []
        self._task = asyncio.create_task(self._run())

    async def close(self, grace: float) -> None:
        """Wait up to `grace` seconds until all that was sent is acknowledged, then end."""
        self._queue.put_nowait(None)
        _, unfinished = await asyncio.wait({self._task}, timeout=grace)
        if unfinished:
            log.warning("job %s: %s has not taken the last messages", self._job.name, self._peer)
            self._task.cancel()

    # --- one message after the other

    async def _run(self) -> None:
        try:
            while (message := self._held.pop() if self._held else await self._queue.get()) is not None:
                begun, subject = time.monotonic(), subject_of(message)
                if isinstance(message, VectorPiece):
                    await self._send_vector(message)
                else:
                    await self.call(message)
                if subject is not None:
                    self._on_event(Delivered(self._peer.role, *subject, time.monotonic() - begun))
        except Exception as error:
            self._on_failure(error)

    async def _send_vector(self, piece: VectorPiece) -> None:
        """The piece and those of the same vector that follow; they are kept until all are acknowledged."""
        route = route_for(self._sender, self._peer.role, piece)
        seconds = self._limits.party_timeout
        requests = self._encode(piece)

        async def attempt() -> None:
            nonlocal piece
            method = self._peer.channel.stream_unary(
                route.path,
                request_serializer=route.request.SerializeToString,
                response_deserializer=route.response.FromString,
            )
            call = method(timeout=seconds, metadata=call_metadata(self._sender))
            try:
                written = 0
                while True:
                    for request in requests[written:]:
                        await call.write(request)
                        # It left on a connection that was there, after whatever had failed before.
                        self._peer.unanswered.pop(attempt, None)
                    written = len(requests)
                    following = None if _is_last(piece) else await self._next_of(piece)
                    if following is None:
                        break
                    piece = following
                    requests.extend(self._encode(piece))
                await call.done_writing()
                await call
            except (asyncio.InvalidStateError, grpc.aio.InternalError):
                # The call is over before all was written: refused, which raises here, or acknowledged by a peer
                # whose run has finished and needs no more of it.
                await call
            finally:
                call.cancel()

        await self._until_answered(piece, attempt, seconds)

    async def _next_of(self, piece: VectorPiece) -> VectorPiece | None:
        """The next piece of the same vector, as soon as there is one; None if something else comes first.

        Or if nothing comes for long: the receiver ends a call in which it hears nothing for its `peer_timeout`.
        """
        if not self._held:
            try:
                async with asyncio.timeout(self._limits.peer_timeout / 2):
                    message = await self._queue.get()
            except TimeoutError:
                return None
            if isinstance(message, VectorPiece) and (message.key, message.kind) == (piece.key, piece.kind):
                return message
            self._held.append(message)
        return None

    def _encode(self, piece: VectorPiece) -> list[SendVectorRequest]:
        requests = list(encode_piece(self._job, piece, self._width))
        n_bytes = sum(request.ByteSize() for request in requests)
        self._count_sent(piece.key, piece.kind, n_bytes, len(piece.ciphertexts))
        return requests

    def _is_overtaken(self, message: Message | None) -> bool:
        return isinstance(message, VectorPiece) and message.key < self._oldest

    # --- until it is answered

    async def _until_answered(self, message: Message, attempt: Callable[[], Awaitable[None]], seconds: float) -> None:
        # A call is without an answer since it began; a vector, whose pieces may take long, since it first failed.
        unanswered = self._peer.unanswered
        if not isinstance(message, VectorPiece):
            unanswered[attempt] = time.monotonic()
        pause = pauses()
        try:
            while not self._is_overtaken(message):
                try:
                    await attempt()
                except grpc.aio.AioRpcError as error:
                    now = time.monotonic()
                    problem, patience = judge(error, self._peer, self._sender, self._limits, seconds)
                    if attempt not in unanswered:
                        unanswered[attempt] = now
                        since = time.time()
                        log.info("job %s: %s", self._job.name, Silence(self._peer, since, since + patience))
                    if now - unanswered[attempt] >= patience and not self._is_overtaken(message):
                        raise problem from error
                    self._peer.retries += 1
                    log.debug("job %s: %s failed to answer: %s", self._job.name, self._peer, error.code().name)
                    await asyncio.sleep(next(pause))
                else:
                    return
        finally:
            unanswered.pop(attempt, None)

    @asynccontextmanager
    async def _tell_silence(self, seconds: float) -> AsyncIterator[None]:
        """Tell meanwhile that the peer has not answered, and at the end that it is over."""
        on_wait = self._on_wait
        now = time.time()
        silence = Silence(self._peer, now, now + seconds)
        told = logged = False

        async def tell() -> None:
            nonlocal told, logged
            while True:
                await asyncio.sleep(NOTICE_SECONDS)
                if on_wait is not None:
                    told = True
                    on_wait(self._peer, silence)
                if not logged and time.time() - silence.since >= LOG_SECONDS:
                    logged = True
                    log.warning("job %s: %s", self._job.name, silence)

        telling = asyncio.create_task(tell())
        try:
            yield
            if logged:
                log.info("job %s: %s answers again", self._job.name, self._peer)
        finally:
            telling.cancel()
            if told and on_wait is not None:
                on_wait(self._peer, None)


def judge(
    error: grpc.aio.AioRpcError, peer: Peer, sender: Role, limits: Limits, seconds: float
) -> tuple[TrilateralError, float]:
    """What a failed call means if it goes on failing, and for how many seconds to go on trying.

    Args:
        error: of the call.
        peer: who was called.
        sender: who called.
        limits: how long to wait for a peer that is away.
        seconds: the call's own deadline.
    """
    if error.code() is grpc.StatusCode.UNIMPLEMENTED and not raised_by_peer(error):
        return PeerError(
            f"what listens at {peer.address} is not the {peer.role}, or is one of another release: correct "
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
    """Seconds to wait before each new try, growing, with jitter."""
    pause = FIRST_PAUSE
    while True:
        yield pause * _JITTER.uniform(0.5, 1.0)
        pause = min(2 * pause, LONGEST_PAUSE)


def _is_last(piece: VectorPiece) -> bool:
    return piece.offset + len(piece.ciphertexts) >= piece.total
