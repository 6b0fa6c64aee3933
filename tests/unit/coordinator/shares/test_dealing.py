"""What the coordinator deals, and when: ahead of the parties, but never further than they have room for."""

from collections.abc import Iterator

import numpy as np
import pytest

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.messages import ElementPiece, Envelope, RoundKey, RowsDone
from trilateral.common.protocol.shares.rows import RowPlan, Selection
from trilateral.common.protocol.shares.session import StreamKeys
from trilateral.common.shares.format import Format
from trilateral.common.shares.layout import BLOCK_ROWS
from trilateral.coordinator.shares import dealing as module
from trilateral.coordinator.shares.dealing import Dealing

FORMAT = Format.of(10 * BLOCK_ROWS, 8)
COLUMNS = {Role.HOST: 1, Role.GUEST: 1}
WINDOW = 3 * BLOCK_ROWS
FIRST, SECOND = RoundKey(1, 1), RoundKey(2, 1)


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "window_rows", lambda *_: WINDOW)


def make_dealing(rows: RowPlan, max_rounds: int = 10) -> Dealing:
    keys = {party: StreamKeys(bytes([number]) * 32) for number, party in enumerate(PARTIES)}
    return Dealing(FORMAT, keys, COLUMNS, rows, max_rounds=max_rounds)


def plan(n_train: int, n_holdout: int = 0, batch: int | None = None) -> RowPlan:
    return RowPlan.of(Batches(n_train, batch or "all", 0), n_holdout)


def dealt(envelopes: Iterator[Envelope]) -> list[tuple[RoundKey, int, int]]:
    """Key, first row and rows of each block; both parties get the same blocks."""
    pieces: dict[Role, list[ElementPiece]] = {party: [] for party in PARTIES}
    for envelope in envelopes:
        assert isinstance(envelope.message, ElementPiece)
        pieces[envelope.to].append(envelope.message)
    blocks = {party: [(one.key, one.offset, one.n_rows) for one in each] for party, each in pieces.items()}
    assert blocks[Role.HOST] == blocks[Role.GUEST]
    return blocks[Role.HOST]


def test_no_party_has_more_than_a_window_of_dealt_rows() -> None:
    rows = plan(5 * BLOCK_ROWS)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, rows.all_selected, None)

    assert [first for _, first, _ in dealt(dealing.deal())] == [0, BLOCK_ROWS, 2 * BLOCK_ROWS]
    dealing.take_done(Role.HOST, RowsDone(FIRST, 2 * BLOCK_ROWS))
    assert dealt(dealing.deal()) == []  # the guest has no room yet
    dealing.take_done(Role.GUEST, RowsDone(FIRST, BLOCK_ROWS))
    assert dealt(dealing.deal()) == [(FIRST, 3 * BLOCK_ROWS, BLOCK_ROWS)]


def test_the_next_round_is_dealt_ahead_and_not_again() -> None:
    rows = plan(2 * BLOCK_ROWS)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, rows.all_selected, None)

    ahead = [key for key, _, _ in dealt(dealing.deal())]
    assert ahead == [FIRST, FIRST, SECOND]
    for party in PARTIES:
        dealing.take_all_done(party)
    assert dealt(dealing.deal()) == [(SECOND, BLOCK_ROWS, BLOCK_ROWS)]
    deal = dealing.begin(SECOND, rows.all_selected, None)
    assert deal.is_complete
    assert {key for key, _, _ in dealt(dealing.deal())} == {RoundKey(3, 1)}


def test_hold_out_rows_follow_what_was_dealt_ahead() -> None:
    rows = plan(BLOCK_ROWS, n_holdout=100)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, None, None)
    assert dealt(dealing.deal()) == [(SECOND, 0, BLOCK_ROWS)]

    deal = dealing.begin(SECOND, rows.all_selected, rows.holdout)
    assert not deal.is_complete
    assert dealt(dealing.deal())[0] == (SECOND, rows.holdout.first, rows.holdout.n_rows)
    assert deal.is_complete


def test_a_new_attempt_is_dealt_from_its_start_under_another_key() -> None:
    rows = plan(2 * BLOCK_ROWS)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, rows.all_selected, None)
    list(dealing.deal())
    again = RoundKey(1, 2)
    dealing.begin(again, rows.all_selected, None)

    assert dealt(dealing.deal())[:2] == [(again, 0, BLOCK_ROWS), (again, BLOCK_ROWS, BLOCK_ROWS)]


def test_what_is_dealt_again_for_an_attempt_is_the_same_to_the_bit() -> None:
    """The streams of an attempt are the same, so anything else would show a party a difference of two masked values."""
    rows = plan(BLOCK_ROWS)
    dealing = make_dealing(rows)

    def ahead_of(key: RoundKey) -> dict[Role, ElementVector]:
        dealing.begin(key, rows.all_selected, None)
        sent = [(envelope.to, envelope.message) for envelope in dealing.deal()]
        return {to: one.elements for to, one in sent if isinstance(one, ElementPiece) and one.key == SECOND}

    once, twice = ahead_of(FIRST), ahead_of(RoundKey(1, 2))
    assert set(once) == set(PARTIES)
    assert all(np.array_equal(once[party], twice[party]) for party in PARTIES)


def test_batches_are_not_dealt_ahead() -> None:
    """The coordinator does not know the next round's batch before the round."""
    rows = plan(2 * BLOCK_ROWS, batch=BLOCK_ROWS)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, Selection([1], (rows.section(1),)), None)

    assert dealt(dealing.deal()) == [(FIRST, BLOCK_ROWS, BLOCK_ROWS)]


def test_nothing_is_dealt_beyond_the_last_round_or_after_the_end() -> None:
    rows = plan(BLOCK_ROWS)
    dealing = make_dealing(rows, max_rounds=2)
    dealing.begin(SECOND, rows.all_selected, None)
    assert [key for key, _, _ in dealt(dealing.deal())] == [SECOND]
    dealing.stop()
    assert dealt(dealing.deal()) == []


def test_a_party_cannot_have_used_more_than_was_dealt() -> None:
    rows = plan(5 * BLOCK_ROWS)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, rows.all_selected, None)
    list(dealing.deal())

    for n_rows in (WINDOW + 16, -16):
        with pytest.raises(ProtocolError, match="dealt rows of round 1"):
            dealing.take_done(Role.HOST, RowsDone(FIRST, n_rows))
    with pytest.raises(ProtocolError, match="not dealt"):
        dealing.take_done(Role.HOST, RowsDone(RoundKey(7, 1), 16))
    with pytest.raises(ProtocolError, match="before all rows of the round were dealt"):
        dealing.take_all_done(Role.HOST)


def test_old_and_repeated_reports_change_nothing() -> None:
    rows = plan(5 * BLOCK_ROWS)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, rows.all_selected, None)
    list(dealing.deal())
    dealing.begin(RoundKey(1, 2), rows.all_selected, None)
    list(dealing.deal())

    for party in PARTIES:
        dealing.take_done(party, RowsDone(FIRST, 10**9))  # of an attempt that is over
        dealing.take_done(party, RowsDone(RoundKey(1, 2), BLOCK_ROWS))
        dealing.take_done(party, RowsDone(RoundKey(1, 2), 0))
    assert len(dealt(dealing.deal())) == 1


def test_the_coordinator_keeps_nothing_of_a_size_that_grows_with_the_rows() -> None:
    rows = RowPlan.of(Batches(2**31, "all", 0), 2**31)
    dealing = make_dealing(rows)
    dealing.begin(FIRST, rows.all_selected, rows.holdout)
    assert len(dealt(dealing.deal())) == WINDOW // BLOCK_ROWS
