"""A link sends the messages of one job from this process to one peer, in order, and repeats each until acknowledged.

Every message of the protocol may be sent again, because its receiver ignores messages that it has seen. Consecutive
pieces of a vector share one streaming call. The receiver works on the first piece while this process still makes the
last one.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.observe.events import Delivered, OnEvent, ignore_event, subject_of
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest
from trilateral.common.protocol.messages import Kind, Message, RoundKey, VectorPiece
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.calls import MIN_PAUSE, Silence, call_once, until_answered
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey, encode_piece
from trilateral.common.rpc.errors import UntrustedPeerError
from trilateral.common.rpc.routes import encode, route_for

log = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
"""Interval at which `on_wait` is called while a peer does not answer."""
LOG_SECONDS = 5.0
"""Seconds of silence after which a line about it goes to the log."""

OnWait = Callable[[Peer, Silence | None], None]
"""Called every second while a peer does not answer, and with None once it does."""
OnSent = Callable[[RoundKey, Kind, int, int], None]
"""Called once for each piece of a vector, with the number of its bytes on the wire and of its ciphertexts."""


class Link:
    """Sends the messages of `job` from `sender` to `peer`.

    Args:
        job: the run whose messages it sends.
        sender: this process.
        peer: the receiver.
        width: bytes of a ciphertext.
        limits: how long to wait.
        on_sent: see `OnSent`.
        on_failure: called with the error that ends the link and the job. The link sends nothing after that.
        on_wait: see `OnWait`; not called for the last messages after `clear`.
        on_delivered: called for each message that has been acknowledged, with its `Delivered` event.
    """

    def __init__(
        self,
        job: JobKey,
        sender: Role,
        peer: Peer,
        *,
        width: int,
        limits: Limits,
        on_sent: OnSent,
        on_failure: Callable[[Exception], None],
        on_wait: OnWait | None = None,
        on_delivered: OnEvent = ignore_event,
    ) -> None:
        self._job = job
        self._sender = sender
        self._peer = peer
        self._width = width
        self._limits = limits
        self._on_sent = on_sent
        self._on_failure = on_failure
        self._on_wait = on_wait
        self._on_delivered = on_delivered
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._held: list[Message | None] = []
        self._oldest = RoundKey(0, 0)
        self._task = asyncio.create_task(self._run())

    def send(self, message: Message) -> None:
        """Send a message as soon as all earlier messages are acknowledged."""
        if not self._task.done() and not self._is_overtaken(message):
            self._queue.put_nowait(message)

    async def call(self, message: Message) -> None:
        """Send a message ahead of the queue, and wait until the peer has acknowledged it.

        Raises:
            TrilateralError: the peer does not answer, or refuses the message.
        """
        route = route_for(self._sender, self._peer.role, message)
        request, seconds = encode(self._job, message, route), self._limits.peer_timeout
        deadline = time.monotonic() + seconds

        async def attempt() -> None:
            seconds_left = max(deadline - time.monotonic(), MIN_PAUSE)
            await call_once(self._peer, self._sender, route.path, request, route.response, seconds=seconds_left)

        async with self._report_silence(seconds):
            await until_answered(attempt, self._peer, self._sender, self._limits, seconds, silent_from_start=True)

    def overtake(self, key: RoundKey) -> None:
        """Drop queued pieces of vectors of attempts before `key`: they no longer matter."""
        self._oldest = max(self._oldest, key)
        for message in [self._queue.get_nowait() for _ in range(self._queue.qsize())]:
            if not self._is_overtaken(message):
                self._queue.put_nowait(message)

    def clear(self) -> None:
        """Drop all queued messages and the one being sent, to make room for a last message."""
        self._on_wait = None
        self._task.cancel()
        self._queue, self._held = asyncio.Queue(), []
        self._task = asyncio.create_task(self._run())

    async def close(self, grace: float) -> None:
        """Wait up to `grace` seconds until everything sent is acknowledged, then end."""
        self._queue.put_nowait(None)
        _, unfinished = await asyncio.wait({self._task}, timeout=grace)
        if unfinished:
            log.warning("job %s: %s has not acknowledged the last messages", self._job.name, self._peer)
            self._task.cancel()

    # --- one message after another

    async def _run(self) -> None:
        try:
            while (message := self._held.pop() if self._held else await self._queue.get()) is not None:
                begun, subject = time.monotonic(), subject_of(message)
                if isinstance(message, VectorPiece):
                    await self._send_vector(message)
                else:
                    await self.call(message)
                if subject is not None:
                    self._on_delivered(Delivered(self._peer.role, *subject, time.monotonic() - begun))
        except Exception as error:
            self._on_failure(error)

    async def _send_vector(self, piece: VectorPiece) -> None:
        """Send the piece and the following pieces of the same vector. Keep them until all are acknowledged."""
        route = route_for(self._sender, self._peer.role, piece)
        seconds = self._limits.party_timeout
        requests = self._encode(piece)

        async def stream() -> None:
            nonlocal piece
            channel = await self._peer.connected()
            method = channel.stream_unary(
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
                        # The peer is connected, so the silence after an earlier failure is over.
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
                # The call ended before everything was written. Either the peer refused it, which raises here, or a
                # peer whose run has finished acknowledged it early.
                await call
            finally:
                call.cancel()

        async def attempt() -> None:
            # The peer does not need a vector of an attempt that is over.
            if self._is_overtaken(piece):
                return
            try:
                await stream()
            except (grpc.aio.AioRpcError, UntrustedPeerError):
                if not self._is_overtaken(piece):
                    raise

        def on_silence(silence: Silence) -> None:
            log.info("job %s: %s", self._job.name, silence)

        await until_answered(attempt, self._peer, self._sender, self._limits, seconds, on_silence=on_silence)

    async def _next_of(self, piece: VectorPiece) -> VectorPiece | None:
        """Return the next piece of the same vector, as soon as there is one.

        Returns:
            None if another message comes first, or if no message comes for half of `peer_timeout`: the receiver ends a
            call in which nothing arrives for its own `peer_timeout`.
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
        self._on_sent(piece.key, piece.kind, n_bytes, len(piece.ciphertexts))
        return requests

    def _is_overtaken(self, message: Message | None) -> bool:
        return isinstance(message, VectorPiece) and message.key < self._oldest

    @asynccontextmanager
    async def _report_silence(self, seconds: float) -> AsyncIterator[None]:
        """Within the block, report that the peer has not answered yet; afterwards, report that the wait is over."""
        on_wait = self._on_wait
        now = time.time()
        silence = Silence(self._peer, now, now + seconds)
        reported = logged = False

        async def report() -> None:
            nonlocal reported, logged
            while True:
                await asyncio.sleep(NOTICE_SECONDS)
                if on_wait is not None:
                    reported = True
                    on_wait(self._peer, silence)
                if not logged and time.time() - silence.since >= LOG_SECONDS:
                    logged = True
                    log.warning("job %s: %s", self._job.name, silence)

        reporting = asyncio.create_task(report())
        try:
            yield
            if logged:
                log.info("job %s: %s answers again", self._job.name, self._peer)
        finally:
            reporting.cancel()
            if reported and on_wait is not None:
                on_wait(self._peer, None)


def _is_last(piece: VectorPiece) -> bool:
    return piece.offset + len(piece.ciphertexts) >= piece.total
