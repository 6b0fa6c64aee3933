"""The intake of encrypted vectors: takes their pieces in order, within bounds, and not before they are expected.

The intake does not know what the vectors are for. The code that expects a vector gives its length and a function for
each piece. The intake refuses pieces that no honest sender sends, and ignores pieces that it has taken before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gmpy2 import mpz

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.bounds import MAX_ATTEMPTS, Allowance, is_beyond
from trilateral.common.protocol.messages import Envelope, Kind, RoundKey, VectorPiece

UsePiece = Callable[[VectorPiece, bool], Iterator[Envelope]]
"""Called with each piece of a vector in order, and with whether it is the last; yields the messages that follow."""


@dataclass(frozen=True)
class Expected:
    """A vector that the open attempt waits for."""

    kind: Kind
    total: int
    """Elements of the whole vector."""
    use: UsePiece


@dataclass(frozen=True)
class VectorBounds:
    """What a sender can have for one attempt at a round, if it is honest."""

    longest: Mapping[Kind, int]
    """The number of elements of the longest vector of each kind. The sender has no vector of another kind."""
    may_be_early: bool
    """Whether the sender can have a vector for an attempt that the receiver has not begun. A sender that only answers
    the receiver's vectors cannot."""

    @property
    def attempt(self) -> int:
        """The maximum number of elements in all vectors of an attempt together."""
        return sum(self.longest.values())


@dataclass(frozen=True)
class _EarlyPieces:
    """The pieces of an attempt that this party has not begun."""

    key: RoundKey
    pieces: dict[tuple[Kind, int], VectorPiece] = field(default_factory=dict)
    """By kind and offset, in the order of their arrival."""
    n_elements: dict[Kind, int] = field(default_factory=dict)
    """Elements of all pieces of a kind together."""


class Intake:
    """The vectors that one sender sends in one job.

    Args:
        sender: the role that sends them.
        max_rounds: the maximum number of rounds of the job.
        bounds: what the sender can have for one attempt.
        check: raises an error if an element is not safe to compute with.
    """

    def __init__(
        self, sender: Role, max_rounds: int, bounds: VectorBounds, check: Callable[[Sequence[mpz]], None]
    ) -> None:
        self._sender = sender
        self._max_rounds = max_rounds
        self._bounds = bounds
        self._check = check
        self._allowance = Allowance(sender, max_rounds, bounds.attempt)
        self._expected: dict[Kind, Expected] = {}
        self._received: dict[Kind, int] = {}
        self._early = _EarlyPieces(RoundKey(0, 0))

    def open(self, key: RoundKey) -> list[VectorPiece]:
        """Begin an attempt: forget earlier expectations, and return its early pieces, which `receive` takes next."""
        self.close()
        early = self._early
        if early.key > key:
            return []
        self._early = _EarlyPieces(key)
        return list(early.pieces.values()) if early.key == key else []

    def expect(self, expected: Expected) -> None:
        """Wait for a vector of the open attempt."""
        self._expected[expected.kind] = expected
        self._received[expected.kind] = 0

    def close(self) -> None:
        """Ignore all further pieces for the open attempt."""
        self._expected.clear()
        self._received.clear()

    def end(self) -> None:
        """Ignore all further pieces for the job, and drop the pieces that came early."""
        self.close()
        self._early = _EarlyPieces(RoundKey(0, 0))

    def take(self, piece: VectorPiece, newest: RoundKey) -> Iterator[Envelope]:
        """Take a piece from the wire.

        Args:
            piece: what the sender sent.
            newest: the newest attempt that was begun.

        Yields:
            The messages that follow from the piece.

        Raises:
            ProtocolError: no honest sender sends this piece.
            OutOfRangeError: from the use of the piece.
        """
        self._allowance.spend(len(piece.ciphertexts))
        # Check pieces to keep or to ignore as well: no honest sender sends such pieces.
        longest = self._bounds.longest.get(piece.kind, 0)
        if is_beyond(piece.key, self._max_rounds) or piece.total > longest:
            raise ProtocolError(
                f"the {self._sender} sent {piece.total} ciphertexts of {piece.kind} for round {piece.key.round},"
                f" attempt {piece.key.attempt}: this job has at most {longest} of them, at most {self._max_rounds}"
                f" rounds, and {MAX_ATTEMPTS} attempts at each"
            )
        if piece.key > newest and not self._bounds.may_be_early:
            raise ProtocolError(
                f"the {self._sender} sent ciphertexts of {piece.kind} for round {piece.key.round}, attempt"
                f" {piece.key.attempt}, before it was asked for them"
            )
        if piece.key > newest:
            self._keep_early(piece)
        elif piece.key == newest:
            yield from self.receive(piece)

    def receive(self, piece: VectorPiece) -> Iterator[Envelope]:
        """Use the next piece of a vector of the open attempt; see `take`."""
        expected = self._expected.get(piece.kind)
        if expected is None or piece.offset < self._received[piece.kind]:
            return  # The attempt is void, or the piece was sent again.
        received = self._received[piece.kind]
        if piece.total != expected.total or piece.offset != received:
            raise ProtocolError(
                f"the {self._sender} sent ciphertexts from {piece.offset} of {piece.total} of {piece.kind},"
                f" but those from {received} of {expected.total} are expected next"
            )
        received += len(piece.ciphertexts)
        if received > expected.total:
            raise ProtocolError(f"the {self._sender} sent more ciphertexts of {piece.kind} than announced")
        self._check(piece.ciphertexts)
        self._received[piece.kind] = received
        yield from expected.use(piece, received == expected.total)

    def _keep_early(self, piece: VectorPiece) -> None:
        """Keep a piece of an attempt that the sender has begun and this party has not. Keep only the newest attempt.

        The sender may be several rounds ahead, because a round that it declared void needed nothing from this party.
        """
        if piece.key < self._early.key:
            return
        if piece.key > self._early.key:
            self._early = _EarlyPieces(piece.key)
        early, place = self._early, (piece.kind, piece.offset)
        if place in early.pieces:
            return
        n_elements = early.n_elements.get(piece.kind, 0) + len(piece.ciphertexts)
        if n_elements > self._bounds.longest[piece.kind]:
            raise ProtocolError(
                f"the {self._sender} has sent more ciphertexts of {piece.kind} for round {piece.key.round} than a"
                " round has"
            )
        early.pieces[place] = piece
        early.n_elements[piece.kind] = n_elements
