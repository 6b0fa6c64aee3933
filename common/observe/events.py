"""What a session of a job tells those that watch it from outside: metrics and traces.

Kinds, counts, bytes, seconds and the mean loss; nothing of what is in a message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import HoldoutScores, Message, RoundKey, VectorPiece

Direction = Literal["sent", "received"]


@dataclass(frozen=True, slots=True)
class PhaseOver:
    """A piece of one kind of work has just been done, in so many seconds. In the job's thread; all else in the loop."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Moved:
    """A piece of a vector was sent to a peer or received from it; bytes as they travel."""

    direction: Direction
    peer: Role
    kind: str
    n_bytes: int
    n_ciphertexts: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """There is randomness for so many ciphertexts now."""

    n_ciphertexts: int


@dataclass(frozen=True, slots=True)
class RoundBegun:
    """An attempt at a round begins. The same may be told more than once, and an older one after it."""

    key: RoundKey


@dataclass(frozen=True, slots=True)
class RoundOver:
    """A round is over; its loss is None if it was void. One that is begun again is not over."""

    key: RoundKey
    loss: float | None


@dataclass(frozen=True, slots=True)
class Taken:
    """The state machine is given a message of a round, and works on it until `WorkedOff`."""

    sender: Role
    what: str
    key: RoundKey


@dataclass(frozen=True, slots=True)
class WorkedOff:
    """The state machine has done what follows from the message that it was given last."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A peer has acknowledged a message of a round, or a whole vector, so many seconds after its sending began."""

    peer: Role
    what: str
    key: RoundKey
    seconds: float


Event: TypeAlias = PhaseOver | Moved | Prepared | RoundBegun | RoundOver | Taken | WorkedOff | Delivered
Tell: TypeAlias = Callable[[Event], None]


def subject_of(message: Message) -> tuple[str, RoundKey] | None:
    """What a message of a round is, without what is in it; None for one that is of no round."""
    key = getattr(message, "key", None)
    if not isinstance(key, RoundKey) or isinstance(message, HoldoutScores):  # which come after the last round too
        return None
    return (message.kind.value if isinstance(message, VectorPiece) else type(message).__name__), key


def tell_nobody(event: Event) -> None:
    """Where nobody watches."""
    del event
