"""The events of a job's session. Metrics and traces are made from them.

Events hold kinds, counts, bytes, seconds and the mean loss. They never hold the content of a message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import HoldoutScores, Message, Piece, RoundKey

Direction = Literal["sent", "received"]


@dataclass(frozen=True, slots=True)
class PhaseOver:
    """A piece of the kind of work called `name` is done, and took `seconds`.

    This event occurs in the job's thread, all others in the event loop.
    """

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Moved:
    """A piece of a vector was sent to a peer or received from it.

    `n_bytes` is its size as it travels. `n_ciphertexts` is 0 for ring elements.
    """

    direction: Direction
    peer: Role
    kind: str
    n_bytes: int
    n_ciphertexts: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Randomness is ready for `n_ciphertexts` ciphertexts."""

    n_ciphertexts: int


@dataclass(frozen=True, slots=True)
class RoundBegun:
    """An attempt at a round begins. The event may occur again for the same attempt, and late for an older one."""

    key: RoundKey


@dataclass(frozen=True, slots=True)
class StageAdvanced:
    """At a party: a part of the work before the first round is done, from 0 to 1."""

    stage: Stage
    done: float


@dataclass(frozen=True, slots=True)
class RoundAdvanced:
    """An attempt at a round has come further. Only the coordinator knows how many rows it has in all."""

    key: RoundKey
    rows_done: int
    n_rows: int | None = None


@dataclass(frozen=True, slots=True)
class RoundOver:
    """A round is over. A round that another attempt begins again is not over.

    A round without a loss was void, unless `hides_loss`: with shares, a party does not learn losses.
    """

    key: RoundKey
    loss: float | None
    hides_loss: bool = False

    @property
    def is_void(self) -> bool:
        """Whether the round has brought nothing."""
        return self.loss is None and not self.hides_loss


@dataclass(frozen=True, slots=True)
class Handling:
    """The state machine begins to work on a message of a round. `Handled` marks the end of that work.

    The machine may be given several messages with ring elements at once: the event names the first.
    """

    sender: Role
    what: str
    key: RoundKey


@dataclass(frozen=True, slots=True)
class Handled:
    """The state machine has done all work for the last message that it was given."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message of a round was delivered, `seconds` after sending began.

    The peer has acknowledged it. Calls that carry ciphertexts stay open, so a vector of ciphertexts is delivered when
    the connection has taken its last piece.
    """

    peer: Role
    what: str
    key: RoundKey
    seconds: float


Event: TypeAlias = (
    PhaseOver
    | Moved
    | Prepared
    | StageAdvanced
    | RoundBegun
    | RoundAdvanced
    | RoundOver
    | Handling
    | Handled
    | Delivered
)
OnEvent: TypeAlias = Callable[[Event], None]


def subject_of(message: Message) -> tuple[str, RoundKey] | None:
    """Return the kind of a message and its round, without its content; None if it belongs to no round."""
    key = getattr(message, "key", None)
    if not isinstance(key, RoundKey) or isinstance(message, HoldoutScores):  # these also follow the last round
        return None
    return (message.kind.value if isinstance(message, Piece) else type(message).__name__), key


def ignore_event(event: Event) -> None:
    """Do nothing: for a session without metrics and traces."""
    del event
