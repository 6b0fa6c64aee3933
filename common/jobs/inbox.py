"""The messages that wait for a job's state machine."""

import asyncio
from collections import deque
from collections.abc import Iterator

from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import Message

MAX_MESSAGES = 64
"""How many messages may wait. Pieces of ciphertexts are then at most 16 MiB under a 2048-bit key, because a piece has
at most `bounds.PIECE` of them."""
MAX_BYTES = 8 * 1024 * 1024
"""How many bytes may wait before further messages are held up. Only ring elements reach this limit."""


class Inbox:
    """A queue of messages with their senders, bounded by their number and by their bytes.

    The senders of further messages wait, with at most `call_limits.MAX_CALLS_EACH` messages of each peer.
    """

    def __init__(self) -> None:
        self._messages: deque[tuple[Role, Message, int]] = deque()
        self._n_bytes = 0
        self._filled, self._has_room = asyncio.Event(), asyncio.Event()
        self._closed = False

    def empty(self) -> bool:
        """Return whether no message waits."""
        return not self._messages

    async def put(self, sender: Role, message: Message, n_bytes: int) -> None:
        """Add a message of `n_bytes` bytes once there is room for it. A closed inbox drops it."""
        while self._is_full_for(n_bytes) and not self._closed:
            self._has_room.clear()
            await self._has_room.wait()
        if not self._closed:
            self._messages.append((sender, message, n_bytes))
            self._n_bytes += n_bytes
            self._filled.set()

    async def get(self) -> tuple[Role, Message]:
        """Remove the oldest message, and return its sender and the message."""
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        return self._pop()

    def take(self, kinds: tuple[type, ...], most: int) -> Iterator[tuple[Role, Message]]:
        """Remove and yield up to `most` of the oldest messages, as long as they are of `kinds`, without waiting."""
        while self._messages and most > 0 and isinstance(self._messages[0][1], kinds):
            most -= 1
            yield self._pop()

    def _pop(self) -> tuple[Role, Message]:
        sender, message, n_bytes = self._messages.popleft()
        self._n_bytes -= n_bytes
        self._has_room.set()
        return sender, message

    def close(self) -> None:
        """Drop all messages, and those that wait for room."""
        self._closed = True
        self._messages.clear()
        self._has_room.set()

    def _is_full_for(self, n_bytes: int) -> bool:
        """Return whether a message has to wait. One that is larger than the limit waits until it is the only one."""
        return bool(self._messages) and (len(self._messages) >= MAX_MESSAGES or self._n_bytes + n_bytes > MAX_BYTES)
