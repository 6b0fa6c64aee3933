"""What is a sign of separation, and what both parties are told about the signs of both."""

from typing import Any

import pytest

from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.protocol.separation import (
    ALL_SIGNS,
    MAX_ERROR,
    OF_BOTH,
    SEPARATION,
    Sign,
    of_party,
    signs_of,
    warnings_of,
)

NONE = Sign(0)
WIDE, BEYOND, UNCERTAIN = Sign.WIDE, Sign.WIDE | Sign.BEYOND, Sign.UNCERTAIN
HOST, GUEST = PARTIES


def told(host: Sign, guest: Sign, **how: Any) -> tuple[list[str], bool]:
    return warnings_of({HOST: host, GUEST: guest}, **{"max_score": 12, "is_known": False, "depends": False, **how})


@pytest.mark.parametrize(
    ("score", "error", "signs"),
    [
        (6.0, MAX_ERROR, NONE),
        (6.1, 0.0, WIDE),
        (12.0, 0.0, WIDE),
        (12.1, 0.0, BEYOND),
        (0.0, MAX_ERROR + 0.1, UNCERTAIN),
        (100.0, 100.0, ALL_SIGNS),
    ],
)
def test_signs_are_scores_that_are_large_or_uncertain(score: float, error: float, signs: Sign) -> None:
    assert signs_of(score, error, 12) == signs


def test_no_sign_is_no_warning() -> None:
    assert told(NONE, NONE) == ([], False)
    assert told(NONE, NONE, depends=True) == ([], False)
    assert told(NONE, NONE, is_known=True) == ([], True)


@pytest.mark.parametrize("party", PARTIES)
def test_the_party_whose_part_has_the_sign_is_named(party: Role) -> None:
    def only(sign: Sign) -> tuple[list[str], bool]:
        return told(*(sign if each is party else NONE for each in PARTIES))

    (caution,), may_be_separated = only(WIDE)
    assert not may_be_separated
    assert caution.startswith(f"the {party}'s part of a score exceeds half of `max_score`, 12")
    (beyond,), may_be_separated = only(BEYOND)
    assert may_be_separated
    assert SEPARATION in beyond
    assert f"the {party}'s part of the score of a training row exceeds `max_score`, 12." in beyond
    assert only(UNCERTAIN) == ([of_party(party)], True)


def test_large_errors_are_no_news_once_the_coordinator_has_warned() -> None:
    assert told(UNCERTAIN, UNCERTAIN, is_known=True) == ([], True)


@pytest.mark.parametrize(("host", "guest"), [(BEYOND, NONE), (NONE, UNCERTAIN), (WIDE, WIDE)])
def test_large_parts_of_columns_that_depend_on_each_other_may_cancel(host: Sign, guest: Sign) -> None:
    found, may_be_separated = told(host, guest, depends=True)
    assert found[0] == OF_BOTH
    assert may_be_separated
    assert not any("most likely" in each for each in found)
    assert sum("exceeds half" in each for each in found) == sum(Sign.WIDE in each for each in (host, guest))


def test_one_wide_part_of_dependent_columns_is_a_caution_alone() -> None:
    found, may_be_separated = told(WIDE, NONE, depends=True)
    assert len(found) == 1
    assert not may_be_separated
