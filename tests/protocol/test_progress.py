"""The coordinator learns how far a round has come, and refuses what cannot be true."""

from typing import cast

import pytest

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import RoundKey, RoundProgress
from trilateral.coordinator.computation import Opening
from trilateral.coordinator.plan import RoundPlan
from trilateral.coordinator.rounds import Attempt

KEY = RoundKey(2, 1)


class Rows:
    """An opening of which only the number of rows matters."""

    n_rows = 100


@pytest.fixture
def attempt() -> Attempt:
    plan = cast(RoundPlan, Batch(1, 0))
    return Attempt(plan, KEY, 1, cast(Opening, Rows()))


def test_the_slower_party_that_reports_decides(attempt: Attempt) -> None:
    assert attempt.advance(Role.GUEST, 40) == RoundProgress(KEY, 40, 100)
    assert attempt.advance(Role.HOST, 30) == RoundProgress(KEY, 30, 100)
    assert attempt.advance(Role.GUEST, 100) == RoundProgress(KEY, 30, 100)


def test_a_report_that_says_nothing_new_is_no_progress(attempt: Attempt) -> None:
    attempt.advance(Role.GUEST, 40)
    assert attempt.advance(Role.GUEST, 40) is None
    assert attempt.advance(Role.GUEST, 10) is None


def test_more_rows_than_the_round_has_are_refused(attempt: Attempt) -> None:
    with pytest.raises(ProtocolError, match="the host is done with 101 rows of round 2, which has 100"):
        attempt.advance(Role.HOST, 101)
