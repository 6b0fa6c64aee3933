"""A link sends the messages of one job from this process to one peer, in order, and repeats each until acknowledged.

Every message of the protocol may be sent again, because its receiver ignores messages that it has seen. Consecutive
pieces of vectors share one streaming call. The receiver works on the first piece while this process still makes the
last one. Calls of ciphertexts stay open from round to round, because a piece in an open call arrives in half the time
that it takes with a call of its own. A call ends after `CALL_BYTES`, because the link keeps the pieces of a call until
the peer has acknowledged it or they no longer matter. `flow` says which messages wait for room in the queue.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc

from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits
from trilateral.common.jobs.flow import size_of
from trilateral.common.observe.events import Delivered, OnEvent, ignore_event, subject_of
from trilateral.common.protocol.messages import (
    BeginRound,
    ElementPiece,
    FinishJob,
    Kind,
    Message,
    Piece,
    RoundKey,
    VectorPiece,
)
from trilateral.common.protocol.shares.session import SESSION
from trilateral.common.rpc.access import call_metadata
from trilateral.common.rpc.calls import MIN_PAUSE, Silence, call_once, until_answered
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey, encode_piece
from trilateral.common.rpc.elements import encode_elements
from trilateral.common.rpc.errors import RUN_IT, UntrustedPeerError
from trilateral.common.rpc.routes import MessageRoute, encode, route_for

log = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
"""Interval at which `on_wait` is called while a peer does not answer."""
LOG_SECONDS = 5.0
"""Seconds of silence after which a line about it goes to the log."""

CALL_BYTES = 8 * 1024 * 1024
"""Bytes after which a streaming call ends. With 4 MiB, a byte costs a fifth more processor time."""
QUEUE_BYTES = 4 * 1024 * 1024
"""Bytes of vectors in the queue from which on the link counts as full."""
LINGER_SECONDS = 0.05
"""How long a streaming call of ring elements waits for further pieces. It is short: the message of another kind that
comes next would have to wait until the call has been acknowledged."""
OPEN_SECONDS = 2.0
"""The same for a call of ciphertexts or of rounds. A process seldom has another kind of message for the same peer. In a
job with longer rounds, a call for each round costs next to nothing, and a peer whose `peer_timeout` is short has no
reason to end the call."""

Streamed = Piece | BeginRound
"""A message that shares a streaming call with others of its type."""
Subject: TypeAlias = tuple[str, RoundKey]
"""The kind of a message and its round; see `subject_of`."""
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
        limits: how long to wait.
        on_sent: see `OnSent`.
        on_failure: called with the error that ends the link and the job. The link sends nothing after that.
        on_wait: see `OnWait`; not called for the last messages after `clear`. For vectors it is called once, after the
            first failure.
        on_delivered: called for each message that has been acknowledged, with its `Delivered` event.
    """

    def __init__(
        self,
        job: JobKey,
        sender: Role,
        peer: Peer,
        *,
        limits: Limits,
        on_sent: OnSent,
        on_failure: Callable[[Exception], None],
        on_wait: OnWait | None = None,
        on_delivered: OnEvent = ignore_event,
    ) -> None:
        self._job = job
        self._sender = sender
        self._peer = peer
        self._limits = limits
        self._on_sent = on_sent
        self._on_failure = on_failure
        self._on_wait = on_wait
        self._on_delivered = on_delivered
        self._queue: asyncio.Queue[Message | None] = asyncio.Queue()
        self._stirred = asyncio.Event()
        """Set when a message is queued, and when the open call ends."""
        self._unacknowledged: list[tuple[Streamed, Any]] = []
        """The messages of the open call, each with the request that carries it."""
        self._held: list[Message | None] = []
        self._oldest = RoundKey(0, 0)
        self._is_silent = False
        """Whether the peer was reported as silent in a call of pieces."""
        self._n_expected = 0
        """Bytes of vectors that were handed over: only one thread at a time changes it."""
        self._n_taken = 0
        """How many of them are no longer queued: only the event loop changes it."""
        self._has_room = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        """Ends the open call if the peer takes nothing for `party_timeout` and the job does not progress."""
        self._task = asyncio.create_task(self._run())

    def send(self, message: Message) -> None:
        """Send a message as soon as all earlier messages are acknowledged.

        The beginning of a round makes the pieces of all other rounds and attempts that still wait here useless, and so
        does the end of the job: those of earlier ones, and what was dealt ahead for a later one.
        """
        match message:
            case BeginRound(key=key):
                self._oldest = max(self._oldest, key)
                self._keep(lambda queued: not isinstance(queued, Piece) or queued.key == key)
            case FinishJob():
                self._keep(lambda queued: not isinstance(queued, Piece))
        if self._task.done() or self._is_overtaken(message):
            self._take(message)
        else:
            self._put(message)

    def expect(self, message: Message) -> None:
        """Count a message that is about to be sent. Another thread may call this method, before the loop sends it."""
        self._n_expected += size_of(message)

    @property
    def is_full(self) -> bool:
        """Whether the queue has `QUEUE_BYTES` of vectors. It may be read in any thread."""
        return self._n_expected - self._n_taken >= QUEUE_BYTES and not self._task.done()

    @property
    def is_idle(self) -> bool:
        """Whether no message is queued, and no call of vectors or rounds is open."""
        return self._queue.empty() and not self._held and not self._unacknowledged

    def wait_on(self) -> None:
        """Give the peer its whole time to take the next piece, because the job progresses."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time() + self._limits.party_timeout)

    async def room(self) -> None:
        """Wait until the queue is not full, or the link has ended."""
        while self.is_full:
            self._has_room.clear()
            await self._has_room.wait()

    async def call(self, message: Message) -> None:
        """Send a message ahead of the queue, and wait until the peer has acknowledged it.

        Args:
            message: one whose method takes no stream.

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
        """Drop queued and sent pieces of vectors of attempts before `key`: they no longer matter."""
        self._oldest = max(self._oldest, key)
        self._keep(lambda queued: not self._is_overtaken(queued))
        self._forget_overtaken()

    def clear(self) -> None:
        """Drop all queued messages and the one being sent, to make room for a last message."""
        self._on_wait = None
        self._task.cancel()
        self._keep(lambda queued: False)
        self._queue, self._held = asyncio.Queue(), []
        self._task = asyncio.create_task(self._run())

    async def close(self, grace: float) -> None:
        """Wait up to `grace` seconds until everything sent is acknowledged, then end."""
        self._put(None)
        _, unfinished = await asyncio.wait({self._task}, timeout=grace)
        if unfinished:
            log.warning("job %s: %s has not acknowledged the last messages", self._job.name, self._peer)
            self._task.cancel()

    # --- one message after another

    async def _run(self) -> None:
        try:
            while (message := await self._next()) is not None:
                if isinstance(message, Streamed):
                    await self._send_stream(message)
                else:
                    begun = time.monotonic()
                    await self.call(message)
                    self._report(subject_of(message), begun)
        except Exception as error:
            self._on_failure(error)
        finally:
            self._has_room.set()

    def _report(self, subject: Subject | None, begun: float) -> None:
        """Report that a message was delivered."""
        if subject is not None:
            self._on_delivered(Delivered(self._peer.role, *subject, time.monotonic() - begun))

    async def _next(self) -> Message | None:
        """Remove the next message from the queue, and return it as soon as there is one; None at the end."""
        message = self._held.pop() if self._held else await self._queue.get()
        self._take(message)
        return message

    async def _send_stream(self, first: Streamed) -> None:
        """Send a message, and the following ones that the same call can carry. Keep them until it is acknowledged."""
        route = route_for(self._sender, self._peer.role, first)
        sent = self._unacknowledged = self._encode(first, route)
        of_call = _OfCall(first, time.monotonic())

        async def attempt() -> None:
            # The peer does not need a vector of an attempt that is over.
            self._forget_overtaken()
            if not sent:
                return
            try:
                await self._stream(route, of_call, attempt)
            except (grpc.aio.AioRpcError, UntrustedPeerError):
                if not all(self._is_overtaken(of) for of, _ in sent):
                    raise

        seconds = self._limits.party_timeout
        try:
            await until_answered(attempt, self._peer, self._sender, self._limits, seconds, on_silence=self._on_silence)
        finally:
            self._on_answer()
            # `attempt` refers to itself, so only a garbage collection would free what it refers to, and with a few
            # large objects that does not come for long.
            sent.clear()
        for subject in of_call.subjects:
            self._report(subject, of_call.begun)

    async def _stream(self, route: MessageRoute, of_call: "_OfCall", attempt: object) -> None:
        """Make one call: write all messages that are not acknowledged, and those that follow.

        Args:
            route: the method.
            of_call: what is known about the call, also after a failed attempt.
            attempt: the key under which the peer counts as silent.
        """
        channel, seconds = await self._peer.connected(), self._limits.party_timeout
        method = channel.stream_unary(
            route.path,
            request_serializer=route.chunk.SerializeToString,
            response_deserializer=route.response.FromString,
        )
        call = method(metadata=call_metadata(self._sender))
        call.add_done_callback(lambda _: self._stirred.set())
        try:
            # A call has no deadline of its own: it may last for as long as the peer goes on taking pieces.
            async with asyncio.timeout(seconds) as self._patience:
                await self._write(route, of_call, attempt, channel, call)
                await self._finish(call, of_call)
        except TimeoutError:
            raise PeerError(f"{self._peer} has taken nothing for {seconds:g} s: {RUN_IT}") from None
        except (asyncio.InvalidStateError, grpc.aio.InternalError):
            # The call ended before everything was written. Either the peer refused it, which raises here, or a peer
            # whose run has finished acknowledged it early.
            await call
        finally:
            self._patience = None
            call.cancel()

    async def _write(
        self, route: MessageRoute, of_call: "_OfCall", attempt: object, channel: grpc.aio.Channel, call: Any
    ) -> None:
        """Write the messages of a call; see `_stream`.

        Args:
            route: see `_stream`, also for the next two.
            of_call: see there.
            attempt: see there.
            channel: the channel of the call.
            call: the call.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + self._limits.party_timeout / 2
        to_write, n_bytes = list(self._unacknowledged), 0
        while True:
            for _, request in to_write:
                await call.write(request)
                self.wait_on()
                n_bytes += request.ByteSize()
                # The peer is connected, so the silence after an earlier failure is over.
                self._peer.unanswered.pop(attempt, None)
                self._on_answer()
            if of_call.is_complete:
                self._report(of_call.subject, of_call.vector_begun)
            is_full = n_bytes >= CALL_BYTES or clock() >= end
            following = None if is_full else await self._following(of_call.carries, channel, call)
            if following is None:
                break
            of_call.add(following)
            to_write = self._encode(following, route)
            self._forget_overtaken()
            self._unacknowledged.extend(to_write)
            del following  # A large piece lives on in its request, for as long as that is needed.

    async def _finish(self, call: Any, of_call: "_OfCall") -> None:
        """Wait until the peer has acknowledged a call.

        Raises:
            PeerError: it is a call of rounds, and the peer does not acknowledge it within `peer_timeout`. Pieces may
                wait for longer, because a peer takes a piece only when it has room for it.
        """
        await call.done_writing()
        if of_call.carries is not BeginRound:
            await call
            return
        seconds = self._limits.peer_timeout
        self._peer.unanswered[call] = time.monotonic()
        async with self._report_silence(seconds):
            try:
                async with asyncio.timeout(seconds):
                    await call
            except TimeoutError:
                raise PeerError(f"{self._peer} has not answered for {seconds:g} s: {RUN_IT}") from None
            finally:
                del self._peer.unanswered[call]

    def _forget_overtaken(self) -> None:
        """Keep the messages of the open call only as long as they matter."""
        self._unacknowledged[:] = [each for each in self._unacknowledged if not self._is_overtaken(each[0])]

    def _on_silence(self, silence: Silence) -> None:
        """Report that the peer takes no pieces."""
        log.info("job %s: %s", self._job.name, silence)
        if self._on_wait is not None:
            self._is_silent = True
            self._on_wait(self._peer, silence)

    def _on_answer(self) -> None:
        """Report that it takes them again, if it did not before."""
        if self._is_silent and self._on_wait is not None:
            self._on_wait(self._peer, None)
        self._is_silent = False

    async def _following(self, carries: type[Streamed], channel: grpc.aio.Channel, call: Any) -> Streamed | None:
        """Return the next message that the same call can carry, as soon as there is one.

        Args:
            carries: the type of the call's messages.
            channel: the channel of the call.
            call: the call.

        Returns:
            None if another message comes first, if the call ends, if another channel replaces the call's, or if no
            message comes for `LINGER_SECONDS`, `OPEN_SECONDS` or half of `peer_timeout`: the job fails if the receiver
            ends the call, in which nothing has arrived for its own `peer_timeout`.
        """
        linger = LINGER_SECONDS if carries is ElementPiece else OPEN_SECONDS
        try:
            async with asyncio.timeout(min(self._limits.peer_timeout / 2, linger)):
                while not self._held and self._queue.empty():
                    if call.done():
                        return None
                    self._stirred.clear()
                    await self._stirred.wait()
        except TimeoutError:
            return None
        # The peer may not accept the certificate of an older channel any more.
        if not self._held and self._peer.channel is channel:
            message = self._queue.get_nowait()
            if isinstance(message, Streamed) and isinstance(message, carries):
                self._take(message)
                return message
            self._held.append(message)
        return None

    def _encode(self, piece: Streamed, route: MessageRoute) -> list[tuple[Streamed, Any]]:
        """Return the requests that carry a message, each with the message."""
        if isinstance(piece, BeginRound):
            return [(piece, encode(self._job, piece, route))]
        if isinstance(piece, ElementPiece):
            requests: list[Any] = list(encode_elements(self._job, piece))
        else:
            requests = list(encode_piece(self._job, piece))
        n_bytes = sum(request.ByteSize() for request in requests)
        self._on_sent(piece.key, piece.kind, n_bytes, piece.n_ciphertexts)
        return [(piece, request) for request in requests]

    def _keep(self, is_kept: Callable[[Message | None], bool]) -> None:
        """Drop all other messages from the queue."""
        for message in [self._queue.get_nowait() for _ in range(self._queue.qsize())]:
            if is_kept(message):
                self._put(message)
            else:
                self._take(message)

    def _put(self, message: Message | None) -> None:
        """Add a message at the end of the queue."""
        self._queue.put_nowait(message)
        self._stirred.set()

    def _take(self, message: Message | None) -> None:
        """Count a message that is no longer queued."""
        self._n_taken += size_of(message)
        self._has_room.set()

    def _is_overtaken(self, message: Message | None) -> bool:
        # What belongs to the session is due whatever the round, and so are the rounds that a party has missed.
        if isinstance(message, BeginRound):
            return not message.over and message.key < self._oldest
        return isinstance(message, Piece) and SESSION < message.key < self._oldest

    @asynccontextmanager
    async def _report_silence(self, seconds: float) -> AsyncIterator[None]:
        """Within the block, report that the peer has not answered yet; afterwards, report that the wait is over."""
        on_wait = self._on_wait
        now = time.time()
        silence = Silence(self._peer, now, now + seconds)
        reported = logged = False
        loop = asyncio.get_running_loop()
        reporting: asyncio.TimerHandle | None = None

        def report() -> None:
            nonlocal reported, logged, reporting
            if on_wait is not None:
                reported = True
                on_wait(self._peer, silence)
            if not logged and time.time() - silence.since >= LOG_SECONDS:
                logged = True
                log.warning("job %s: %s", self._job.name, silence)
            reporting = loop.call_later(NOTICE_SECONDS, report)

        # A task would run before the call does.
        reporting = loop.call_later(NOTICE_SECONDS, report)
        try:
            yield
            if logged:
                log.info("job %s: %s answers again", self._job.name, self._peer)
        finally:
            if reporting is not None:
                reporting.cancel()
            if reported and on_wait is not None:
                on_wait(self._peer, None)


class _OfCall:
    """What a link knows about a call that carries several messages, without the messages.

    Args:
        first: the first of them.
        begun: when the sending of it began, by time.monotonic().
    """

    def __init__(self, first: Streamed, begun: float) -> None:
        self.carries = type(first)
        """The type of the messages."""
        self.begun = self.vector_begun = begun
        """When the sending of the call, and of the newest vector, began."""
        self.subjects: dict[Subject | None, None] = {}
        """The vectors of ring elements in the call. They count as delivered when the call is acknowledged."""
        self._newest(first)

    def add(self, piece: Streamed) -> None:
        """Go on to the next message."""
        if self.is_complete:
            self.vector_begun = time.monotonic()
        self._newest(piece)

    def _newest(self, piece: Streamed) -> None:
        self.subject = subject_of(piece)
        self.is_complete = isinstance(piece, BeginRound) or (
            isinstance(piece, VectorPiece) and piece.offset + piece.n_rows >= piece.total
        )
        """Whether the newest message is a whole one, or the last piece of a vector of ciphertexts."""
        if isinstance(piece, ElementPiece):
            self.subjects[self.subject] = None
