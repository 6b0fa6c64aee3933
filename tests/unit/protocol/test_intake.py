"""What the intake passes on, keeps, ignores and refuses."""

from collections.abc import Iterator

import pytest

from tests.support.ciphertexts import some_ciphertexts
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.intake import Expected, Intake, VectorBounds
from trilateral.common.protocol.messages import Envelope, Kind, RoundKey, VectorPiece

NOW, NEXT = RoundKey(1, 1), RoundKey(2, 1)


def make_intake(*, may_be_early: bool = True) -> Intake[VectorPiece]:
    longest = {Kind.SCORES: 10, Kind.SQUARES: 1}
    return Intake(Role.HOST, 4, VectorBounds(longest, early=longest if may_be_early else {}))


def piece(offset: int, count: int, *, key: RoundKey = NOW, kind: Kind = Kind.SCORES, total: int = 4) -> VectorPiece:
    return VectorPiece(key, kind, offset, total, some_ciphertexts(*range(offset + 1, offset + count + 1)))


class Vector:
    """Remembers what came of one."""

    def __init__(self, kind: Kind = Kind.SCORES, total: int = 4) -> None:
        self.came: list[int] = []
        self.is_complete = False
        self.expected = Expected(kind, total, self._use)

    def _use(self, piece: VectorPiece, is_last: bool) -> Iterator[Envelope]:
        self.came += [int(ciphertext) for ciphertext in piece.ciphertexts]
        self.is_complete = is_last
        yield Envelope(Role.HOST, piece)


def test_pieces_are_used_in_order_and_the_last_one_is_known() -> None:
    intake, vector = make_intake(), Vector()
    intake.open(NOW)
    intake.expect(vector.expected)
    assert len(list(intake.take(piece(0, 3)))) == 1
    assert not vector.is_complete
    assert list(intake.take(piece(0, 3))) == []  # sent again
    assert len(list(intake.take(piece(3, 1)))) == 1
    assert (vector.came, vector.is_complete) == ([1, 2, 3, 4], True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (piece(1, 1), "ciphertexts from 1 of 4 of scores, but those from 0 of 4 are expected next"),
        (piece(0, 1, total=5), "but those from 0 of 4 are expected next"),
        (piece(0, 5), "more ciphertexts of scores than announced"),
        (piece(0, 1, total=11), "this job has at most 10 of them"),
        (piece(0, 1, kind=Kind.SQUARES, total=2), "2 ciphertexts of squares .* at most 1 of them"),
        (piece(0, 1, kind=Kind.GRADIENT, total=1), "at most 0 of them"),
        (piece(0, 1, key=RoundKey(5, 1)), "at most 4 rounds"),
        (piece(0, 1, key=RoundKey(1, 6)), "5 attempts at each"),
    ],
)
def test_a_piece_that_no_honest_sender_sends_is_refused(wrong: VectorPiece, said: str) -> None:
    intake, vector = make_intake(), Vector()
    intake.open(NOW)
    intake.expect(vector.expected)
    with pytest.raises(ProtocolError, match=said):
        list(intake.take(wrong))
    assert not vector.came


def test_early_pieces_are_returned_when_their_attempt_is_opened() -> None:
    intake = make_intake()
    early = [piece(0, 2, key=NEXT), piece(2, 2, key=NEXT)]
    for each in (*early, early[0]):
        assert list(intake.take(each)) == []
    assert intake.open(NEXT) == early
    assert intake.open(NEXT) == []


def test_a_kind_that_follows_its_request_is_dropped_if_it_comes_before() -> None:
    intake = Intake[VectorPiece](Role.HOST, 4, VectorBounds({Kind.SCORES: 10}, early={Kind.SCORES: 0}))
    assert list(intake.take(piece(0, 4, key=NEXT))) == []
    assert intake.n_early == 0
    assert intake.open(NEXT) == []


def test_only_the_newest_attempt_is_kept_early() -> None:
    intake = make_intake()
    old, new = piece(0, 1, key=NEXT), piece(0, 1, key=RoundKey(2, 2))
    for each in (old, new, old):
        list(intake.take(each))
    assert intake.open(NEXT) == []
    assert intake.open(RoundKey(2, 2)) == [new]


def test_more_early_pieces_than_a_vector_of_that_kind_has_are_refused() -> None:
    intake = make_intake()
    list(intake.take(piece(0, 9, key=NEXT, total=10)))
    list(intake.take(piece(0, 1, key=NEXT, kind=Kind.SQUARES, total=1)))
    with pytest.raises(ProtocolError, match="more ciphertexts of scores for round 2 than a round has"):
        list(intake.take(piece(8, 2, key=NEXT, total=10)))


def test_a_sender_that_only_answers_is_never_early() -> None:
    intake = make_intake(may_be_early=False)
    with pytest.raises(ProtocolError, match="round 2, attempt 1, before it was asked for them"):
        list(intake.take(piece(0, 1, key=NEXT)))
    assert intake.open(NEXT) == []


def test_no_piece_is_used_for_a_closed_attempt_or_one_that_expects_none() -> None:
    intake, vector = make_intake(), Vector()
    intake.open(NOW)
    assert list(intake.take(piece(0, 1))) == []
    intake.expect(vector.expected)
    intake.close()
    assert list(intake.take(piece(0, 1))) == []
    intake.open(NEXT)
    intake.expect(vector.expected)
    assert list(intake.take(piece(0, 1))) == []  # of the attempt before
    assert not vector.came


def test_the_end_drops_early_pieces() -> None:
    intake = make_intake()
    list(intake.take(piece(0, 1, key=NEXT)))
    intake.end()
    assert intake.open(NEXT) == []
