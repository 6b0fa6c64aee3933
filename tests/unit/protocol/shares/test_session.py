"""The keys of streams: the same at both ends, and never the same twice."""

import pytest

from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.protocol.shares.session import StreamKeys, draw_seed
from trilateral.common.shares.keys import SEED_BYTES


def test_both_ends_derive_the_same_keys() -> None:
    first, second = draw_seed(), draw_seed()
    one, other = StreamKeys.agreed(first, second), StreamKeys.agreed(first, second)

    assert one.session == other.session
    assert one.of(RoundKey(3, 2)) == other.of(RoundKey(3, 2))


def test_each_part_attempt_and_round_changes_the_key() -> None:
    first, second = bytes(SEED_BYTES), bytes(range(SEED_BYTES))
    pairs = [(first, second), (second, first), (first, first)]
    places = [RoundKey(round_number, attempt) for round_number in range(9) for attempt in range(9)]

    keys = [StreamKeys.agreed(*pair).of(place) for pair in pairs for place in places]

    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}


def test_every_session_has_other_seeds() -> None:
    assert draw_seed() != draw_seed()
    assert StreamKeys.alone().session != StreamKeys.alone().session


@pytest.mark.parametrize("wrong", [b"", bytes(SEED_BYTES - 1), bytes(SEED_BYTES + 1)])
def test_a_part_of_another_length_is_refused(wrong: bytes) -> None:
    for parts in ((wrong, draw_seed()), (draw_seed(), wrong)):
        with pytest.raises(ProtocolError, match="32 bytes"):
            StreamKeys.agreed(*parts)


def test_the_seed_is_in_no_text() -> None:
    keys = StreamKeys(b"s" * SEED_BYTES)
    assert "sss" not in repr(keys)
