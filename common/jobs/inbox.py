"""The messages that wait for a job's state machine."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import Message

MAX_MESSAGES = 64
"""How many messages of one sender may wait."""
MAX_BYTES = 6 * 1024 * 1024
"""How many bytes of one sender may wait before its further messages are held up. Only vectors reach this limit."""

IsHeld = Callable[[Role, Message], bool]
"""Returns whether a message has to wait on, and with it those that its sender has sent after it."""


@dataclass
class _Queue:
    """The messages of one sender, each with its number in the order of all arrivals and with its bytes."""

    messages: deque[tuple[int, Message, int]] = field(default_factory=deque)
    n_bytes: int = 0

    def is_full_for(self, n_bytes: int) -> bool:
        """Return whether a message has to wait. One that is larger than the limit waits until it is the only one."""
        return bool(self.messages) and (len(self.messages) >= MAX_MESSAGES or self.n_bytes + n_bytes > MAX_BYTES)


class Inbox:
    """A queue of messages for each sender, bounded by their number and by their bytes.

    Messages come out in the order in which they have arrived, those of a sender that is held excepted. A sender whose
    queue is full waits, with at most `call_limits.MAX_CALLS_EACH` messages. The other senders do not wait for it: a
    round of the coordinator must pass what the other party has sent for it.

    Args:
        is_held: see `IsHeld`. What it returns may change only between two calls of the methods of the inbox.
    """

    def __init__(self, is_held: IsHeld = lambda sender, message: False) -> None:
        self._queues = {role: _Queue() for role in Role}
        self._is_held = is_held
        self._n_arrived = 0
        self._filled, self._has_room = asyncio.Event(), asyncio.Event()
        self._closed = False

    def empty(self) -> bool:
        """Return whether no message waits that may be taken."""
        return self._oldest() is None

    async def put(self, sender: Role, message: Message, n_bytes: int) -> None:
        """Add a message of `n_bytes` bytes once there is room for it. A closed inbox drops it."""
        queue = self._queues[sender]
        while queue.is_full_for(n_bytes) and not self._closed:
            self._has_room.clear()
            await self._has_room.wait()
        if not self._closed:
            self._n_arrived += 1
            queue.messages.append((self._n_arrived, message, n_bytes))
            queue.n_bytes += n_bytes
            self._filled.set()

    async def get(self) -> tuple[Role, Message]:
        """Remove the oldest message, and return its sender and the message."""
        while (sender := self._oldest()) is None:
            await self.arrival()
        return self._pop(sender)

    async def arrival(self) -> None:
        """Wait until a further message arrives."""
        self._filled.clear()
        await self._filled.wait()

    def take(self, kinds: tuple[type, ...], most: int) -> Iterator[tuple[Role, Message]]:
        """Remove and yield up to `most` of the oldest messages, as long as they are of `kinds`, without waiting."""
        while most > 0 and (sender := self._oldest()) is not None:
            if not isinstance(self._queues[sender].messages[0][1], kinds):
                return
            most -= 1
            yield self._pop(sender)

    def take_from(self, sender: Role, is_wanted: Callable[[Message], bool]) -> Message | None:
        """Remove the oldest message of a sender and return it, without waiting; None if it is not wanted."""
        messages = self._queues[sender].messages
        return self._pop(sender)[1] if messages and is_wanted(messages[0][1]) else None

    def _oldest(self) -> Role | None:
        """Return the sender of the oldest message that is not held."""
        heads = [
            (queue.messages[0][0], sender)
            for sender, queue in self._queues.items()
            if queue.messages and not self._is_held(sender, queue.messages[0][1])
        ]
        return min(heads)[1] if heads else None

    def _pop(self, sender: Role) -> tuple[Role, Message]:
        queue = self._queues[sender]
        _, message, n_bytes = queue.messages.popleft()
        queue.n_bytes -= n_bytes
        self._has_room.set()
        return sender, message

    def close(self) -> None:
        """Drop all messages, and those that wait for room."""
        self._closed = True
        for queue in self._queues.values():
            queue.messages.clear()
        self._has_room.set()
