"""The intake of vectors: takes their pieces in order, within bounds, and not before they are expected.

The intake does not know what the vectors are for. The code that expects a vector gives its length and a function for
each piece. The intake refuses pieces that no honest sender sends, and ignores pieces that it has taken before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.bounds import MAX_ATTEMPTS, Allowance, is_beyond
from trilateral.common.protocol.messages import ElementPiece, Envelope, Kind, Piece, RoundKey, VectorPiece

PieceT = TypeVar("PieceT", VectorPiece, ElementPiece)

_UNITS = {VectorPiece: "ciphertexts", ElementPiece: "rows"}


def unit_of(piece: Piece) -> str:
    """Return what the length of a vector counts, for the text of an error."""
    return _UNITS[type(piece)]


@dataclass(frozen=True)
class Expected(Generic[PieceT]):
    """A vector that the open attempt waits for."""

    kind: Kind
    total: int
    """Elements of the whole vector."""
    use: Callable[[PieceT, bool], Iterator[Envelope]]
    """Called with each piece of a vector in order, and with whether it is the last; yields the messages that
    follow."""
    spans: Sequence[tuple[int, int]] | None = None
    """The parts of the vector that come in this attempt, in order: the first element and the number of elements of
    each. None for the whole vector."""


@dataclass(frozen=True)
class VectorBounds:
    """What a sender can have for one attempt at a round, if it is honest."""

    longest: Mapping[Kind, int]
    """The number of elements of the longest vector of each kind. The sender has no vector of another kind."""
    early: Mapping[Kind, int]
    """The maximum number of elements of each kind that the sender can send for an attempt that the receiver has not
    begun. A kind with which the sender only answers the receiver's vectors is missing. With 0, the kind always follows
    the request that begins the attempt: if it comes earlier, the request was lost and the attempt is void."""
    widest: int = 1
    """The maximum number of ring elements of a row in an early piece. What is expected is known only later."""
    n_further: int = 0
    """Keys after the last round for which the sender has vectors."""

    @property
    def attempt(self) -> int:
        """The maximum number of elements in all vectors of an attempt together."""
        return sum(self.longest.values())


@dataclass(frozen=True)
class _EarlyPieces(Generic[PieceT]):
    """The pieces of an attempt that this party has not begun."""

    key: RoundKey
    pieces: dict[tuple[Kind, int], PieceT] = field(default_factory=dict)
    """By kind and offset, in the order of their arrival."""
    n_elements: dict[Kind, int] = field(default_factory=dict)
    """Elements of all pieces of a kind together."""


class _Coming(Generic[PieceT]):
    """An expected vector, and how much of it has come."""

    def __init__(self, expected: Expected[PieceT]) -> None:
        self.expected: Expected[PieceT] = expected
        first, n_elements = (expected.spans or [(0, expected.total)])[0]
        self._spans = list((expected.spans or ())[1:])
        self.next = first
        """The element that comes next."""
        self.end = first + n_elements
        """The end of the part that comes now."""

    def advance(self, n_elements: int) -> bool:
        """Count elements that have come; return whether they were the last."""
        self.next += n_elements
        if self.next == self.end and self._spans:
            self.next, n_elements = self._spans.pop(0)
            self.end = self.next + n_elements
        return self.next == self.end


class Intake(Generic[PieceT]):
    """The vectors that one sender sends in one job. Round 0, attempt 0 is open at first.

    Args:
        sender: the role that sends them.
        max_rounds: the maximum number of rounds of the job.
        bounds: what the sender can have for one attempt.
        unit: what the length of a vector counts, for the texts of errors.
    """

    def __init__(
        self,
        sender: Role,
        max_rounds: int,
        bounds: VectorBounds,
        unit: str = "ciphertexts",
    ) -> None:
        self._sender = sender
        self._max_rounds = max_rounds
        self._bounds = bounds
        self._allowance = Allowance(sender, max_rounds + bounds.n_further, bounds.attempt, unit)
        self._open = RoundKey(0, 0)
        self._coming: dict[Kind, _Coming[PieceT]] = {}
        self._early: _EarlyPieces[PieceT] = _EarlyPieces(RoundKey(0, 0))
        self._has_ended = False

    @property
    def n_early(self) -> int:
        """Elements that are kept for an attempt that has not begun."""
        return sum(self._early.n_elements.values())

    def open(self, key: RoundKey) -> list[PieceT]:
        """Begin an attempt: forget earlier expectations, and return its early pieces, which `receive` takes next."""
        self.close()
        self._open = key
        early = self._early
        if early.key > key:
            return []
        self._early = _EarlyPieces(key)
        return list(early.pieces.values()) if early.key == key else []

    def expect(self, expected: Expected[PieceT]) -> None:
        """Wait for a vector of the open attempt."""
        self._coming[expected.kind] = _Coming(expected)

    def close(self) -> None:
        """Ignore all further pieces for the open attempt."""
        self._coming.clear()

    def end(self) -> None:
        """Ignore all further pieces for the job, and drop the pieces that came early."""
        self.close()
        self._early = _EarlyPieces(RoundKey(0, 0))
        self._has_ended = True

    def take(self, piece: PieceT) -> Iterator[Envelope]:
        """Take a piece from the wire.

        Args:
            piece: what the sender sent.

        Yields:
            The messages that follow from the piece.

        Raises:
            ProtocolError: no honest sender sends this piece.
            OutOfRangeError: from the use of the piece.
            BadCiphertextError: from the use of the piece.
        """
        self._allowance.spend(piece.n_rows)
        # Check pieces to keep or to ignore as well: no honest sender sends such pieces.
        longest, unit = self._bounds.longest.get(piece.kind, 0), unit_of(piece)
        if is_beyond(piece.key, self._max_rounds + self._bounds.n_further) or piece.total > longest:
            raise ProtocolError(
                f"the {self._sender} sent {piece.total} {unit} of {piece.kind} for round {piece.key.round},"
                f" attempt {piece.key.attempt}: this job has at most {longest} of them, at most {self._max_rounds}"
                f" rounds, and {MAX_ATTEMPTS} attempts at each"
            )
        if piece.key > self._open and piece.kind not in self._bounds.early:
            raise ProtocolError(
                f"the {self._sender} sent {unit} of {piece.kind} for round {piece.key.round}, attempt"
                f" {piece.key.attempt}, before it was asked for them"
            )
        if piece.key > self._open:
            if self._bounds.early[piece.kind]:
                self._keep_early(piece)
        elif piece.key == self._open:
            yield from self.receive(piece)

    def receive(self, piece: PieceT) -> Iterator[Envelope]:
        """Use the next piece of a vector of the open attempt; see `take`."""
        coming = self._coming.get(piece.kind)
        if coming is None or piece.offset < coming.next:
            return  # The attempt is void, or the piece was sent again.
        unit, total = unit_of(piece), coming.expected.total
        if piece.total != total or piece.offset != coming.next:
            raise ProtocolError(
                f"the {self._sender} sent {unit} from {piece.offset} of {piece.total} of {piece.kind},"
                f" but those from {coming.next} of {total} are expected next"
            )
        if piece.offset + piece.n_rows > coming.end:
            raise ProtocolError(f"the {self._sender} sent more {unit} of {piece.kind} than announced")
        is_last = coming.advance(piece.n_rows)
        yield from coming.expected.use(piece, is_last)

    def _keep_early(self, piece: PieceT) -> None:
        """Keep a piece of an attempt that the sender has begun and this party has not. Keep only the newest attempt.

        The sender may be several rounds ahead, because a round that it declared void needed nothing from this party.
        """
        if self._has_ended or piece.key < self._early.key:
            return
        if piece.key > self._early.key:
            self._early = _EarlyPieces(piece.key)
        early, place = self._early, (piece.kind, piece.offset)
        if place in early.pieces:
            return
        n_elements = early.n_elements.get(piece.kind, 0) + piece.n_rows
        if n_elements > self._bounds.early[piece.kind]:
            raise ProtocolError(
                f"the {self._sender} has sent more {unit_of(piece)} of {piece.kind} for round {piece.key.round} than a"
                " round has before it begins here"
            )
        if isinstance(piece, ElementPiece) and len(piece.elements) > self._bounds.widest * piece.n_rows:
            raise ProtocolError(
                f"the {self._sender} sent {len(piece.elements)} elements of {piece.kind} for {piece.n_rows} rows of"
                f" round {piece.key.round}, but a row has at most {self._bounds.widest} of them"
            )
        early.pieces[place] = piece
        early.n_elements[piece.kind] = n_elements
