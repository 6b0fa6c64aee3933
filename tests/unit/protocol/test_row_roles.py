"""The owner tells the other party what each row is for, and both end with the same bytes."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol import row_roles
from trilateral.common.protocol.row_roles import Purpose, RoleExchange, RolePiece, RoleVector, RowRole, rows_of

N_ROWS = 11
ROLES = np.array([0, 1, 0, 2, 255, 3, 0, 0, 1, 0, 0], dtype=np.uint8)


def parties(
    host: RoleVector | None,
    guest: RoleVector | None,
    purpose: Purpose = Purpose.SPLIT,
    n_rows: int = N_ROWS,
    n_folds: int = 0,
) -> dict[Role, RoleExchange]:
    own = {Role.HOST: host, Role.GUEST: guest}
    return {role: RoleExchange(role, purpose, own[role], n_rows, n_folds) for role in PARTIES}


def exchange(sides: dict[Role, RoleExchange], *, times: int = 1) -> list[tuple[Role, RolePiece]]:
    """Deliver every message `times` times, and return those that were sent."""
    waiting: deque[tuple[Role, RolePiece]] = deque()
    sent = []
    for sender, side in sides.items():
        waiting.extend((sender, piece) for piece in side.start())
    while waiting:
        sender, piece = waiting.popleft()
        sent.append((sender, piece))
        receiver = Role.GUEST if sender is Role.HOST else Role.HOST
        for _ in range(times):
            waiting.extend((receiver, answer) for answer in sides[receiver].take(piece))
    return sent


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_roles, "ROLE_PIECE", 4)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("owner", PARTIES)
def test_both_parties_end_with_the_roles_of_the_owner(owner: Role, times: int) -> None:
    sides = parties(ROLES, None) if owner is Role.HOST else parties(None, ROLES)
    sent = exchange(sides, times=times)
    for side in sides.values():
        assert side.result is not None
        assert np.array_equal(side.result, ROLES)
    assert [len(piece.roles) for sender, piece in sent if sender is owner] == [0, 4, 4, 3]
    assert [piece.roles for sender, piece in sent if sender is not owner] == [b""]


def test_the_guest_speaks_first_because_the_host_has_the_job_earlier() -> None:
    sides = parties(ROLES, None)
    assert not list(sides[Role.HOST].start())
    assert [sender for sender, _ in exchange(sides)] == [Role.GUEST, *[Role.HOST] * 4]


@pytest.mark.parametrize(
    ("host", "guest", "problem"), [(None, None, "neither party's dataset"), (ROLES, ROLES, "both parties' datasets")]
)
def test_exactly_one_party_decides(host: RoleVector | None, guest: RoleVector | None, problem: str) -> None:
    sides = parties(host, guest)
    (opening,) = sides[Role.GUEST].start()
    answers = sides[Role.HOST].take(opening)
    answer = next(answers)  # The guest gets it, and fails for the same reason.
    for failing in (answers, sides[Role.GUEST].take(answer)):
        with pytest.raises(DataError, match=problem):
            list(failing)


def test_parties_with_other_numbers_of_rows_do_not_go_on() -> None:
    host = parties(ROLES, None)[Role.HOST]
    with pytest.raises(DataError, match="11 rows and the guest 12"):
        list(host.take(RolePiece(Purpose.SPLIT, False, 0, 12, b"")))


@pytest.fixture
def receiver() -> RoleExchange:
    """A guest that has heard that the host is the owner."""
    guest = parties(None, None)[Role.GUEST]
    list(guest.start())
    list(guest.take(RolePiece(Purpose.SPLIT, True, 0, N_ROWS, b"")))
    return guest


NEXT = RolePiece(Purpose.SPLIT, True, 0, N_ROWS, bytes(4))


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (replace(NEXT, is_owner=False), "does not decide"),
        (replace(NEXT, offset=4), "other rows"),
        (replace(NEXT, roles=bytes(12)), "other rows"),
        (replace(NEXT, roles=bytes([0, 4])), "values that the job lacks"),
        (replace(NEXT, roles=bytes([0, 254])), "values that the job lacks"),
        (replace(NEXT, purpose=Purpose.FOLDS), "in place of the split"),
    ],
)
def test_what_does_not_continue_the_exchange_is_refused(receiver: RoleExchange, piece: RolePiece, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        list(receiver.take(piece))


def test_roles_before_the_announcement_are_refused() -> None:
    with pytest.raises(ProtocolError, match="does not decide"):
        list(parties(None, None)[Role.HOST].take(NEXT))


def test_an_owner_takes_no_roles() -> None:
    sides = parties(None, ROLES)
    exchange(sides)
    with pytest.raises(ProtocolError, match="does not decide"):
        list(sides[Role.GUEST].take(NEXT))


def test_folds_follow_the_split_and_ignore_what_comes_again() -> None:
    folds = np.arange(N_ROWS, dtype=np.uint8) % 5
    sides = parties(folds, None, Purpose.FOLDS, n_folds=5)
    assert not list(sides[Role.HOST].take(NEXT))
    exchange(sides)
    found = sides[Role.GUEST].result
    assert found is not None
    assert np.array_equal(rows_of(found, 3), [3, 8])


@pytest.mark.parametrize("own", [np.array([0, 5], np.uint8), np.array([0, 255], np.uint8), np.zeros(3, np.uint8)])
def test_an_owner_with_folds_that_the_job_lacks_is_a_mistake_of_the_caller(own: RoleVector) -> None:
    with pytest.raises(ValueError, match="do not fit the job"):
        RoleExchange(Role.HOST, Purpose.FOLDS, own, 2, n_folds=5)


def test_a_message_does_not_show_the_rows_in_a_log() -> None:
    assert "roles" not in repr(NEXT)


def test_the_sets_have_the_names_that_a_model_file_uses() -> None:
    assert [role.set_name for role in row_roles.EVALUATION_SETS] == ["valid", "test", "out_of_time"]
    assert int(RowRole.TRAIN) == 0
