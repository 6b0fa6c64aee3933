"""IDs are dealt alike at both parties, anew in each session, and counts of points come from public sizes alone."""

import hashlib
from secrets import token_bytes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.data.alignment import dealing as dealing_module
from trilateral.common.data.alignment.dealing import TAG_BYTES, Dealing, n_points
from trilateral.common.data.alignment.intersection import pad


def new_dealing(n_guest: int, n_host: int) -> Dealing:
    return Dealing.of(token_bytes(32), token_bytes(32), n_guest, n_host)


def hashed(dealing: Dealing, one: str) -> tuple[bytes, int]:
    """The tag and the shard of an ID, as both parties compute them."""
    digest = hashlib.blake2b(one.encode(), key=dealing.key, digest_size=TAG_BYTES + 8).digest()
    return digest[:TAG_BYTES], int.from_bytes(digest[TAG_BYTES:], "big") % dealing.n_shards


@settings(max_examples=30)
@given(ids=st.lists(st.text(max_size=5), unique=True), nonce=st.binary(min_size=32, max_size=32))
def test_every_row_is_dealt_to_the_one_shard_of_its_id(ids: list[str], nonce: bytes) -> None:
    dealing = Dealing.of(nonce, bytes(32), 50_000, 10)
    assert dealing.n_shards == 5
    rows = dealing.deal(ids)
    assert len(rows) == 5
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(ids)))
    for shard, of_shard in enumerate(rows):
        assert {hashed(dealing, ids[row])[1] for row in of_shard} <= {shard}
        assert sorted(of_shard) == of_shard.tolist()


def test_another_session_deals_otherwise() -> None:
    ids = [f"{number:07d}" for number in range(500)]
    first, second = new_dealing(10**6, 10**6), new_dealing(10**6, 10**6)
    assert [of_shard.tolist() for of_shard in first.deal(ids)] != [of_shard.tolist() for of_shard in second.deal(ids)]
    assert first.tags(ids) == [hashed(first, one)[0] for one in ids]
    assert not {*first.tags(ids)} & {*second.tags(ids)}


@pytest.mark.parametrize(
    ("n_guest", "n_host", "n_shards", "guest_points", "host_points"),
    [
        (1, 1, 1, 1, 1),
        (10_000, 7, 1, 10_000, 7),
        (1, 10**6, 100, 1, 10_824),
        (1_000_000, 1_000_000, 100, 10_824, 10_824),
        (10**6, 50, 100, 10_824, 33),
    ],
)
def test_points_follow_from_sizes(
    n_guest: int, n_host: int, n_shards: int, guest_points: int, host_points: int
) -> None:
    dealing = new_dealing(n_guest, n_host)
    assert (dealing.n_shards, dealing.guest_points, dealing.host_points) == (n_shards, guest_points, host_points)
    assert (dealing.guest_room, dealing.host_room) == (n_shards * guest_points, n_shards * host_points)


def test_many_ids_are_dealt_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, dealing = [f"{number:07d}" for number in range(1000)], new_dealing(10**6, 10**6)
    at_once = [of_shard.tolist() for of_shard in dealing.deal(ids)]
    monkeypatch.setattr(dealing_module, "_IDS_AT_A_TIME", 7)
    assert [of_shard.tolist() for of_shard in dealing.deal(ids)] == at_once


def test_a_shard_has_room_for_what_is_dealt_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing_module, "SHARD_IDS", 20)
    for n_ids in (21, 100, 999, 20_000):
        dealing = new_dealing(n_ids, 1)
        largest = max(map(len, dealing.deal([str(number) for number in range(n_ids)])))
        assert largest <= n_points(n_ids, dealing.n_shards)


def test_padding_never_repeats_and_an_overfull_shard_is_refused() -> None:
    padded = pad(bytes(32), 0, ["a", "b"], 100)
    assert padded[:2] == ["a", "b"]
    assert len(set(padded)) == 100
    with pytest.raises(DataError, match="run the alignment again"):
        pad(bytes(32), 0, ["a", "b"], 1)


def test_padding_is_the_same_for_a_shard_and_a_key_and_for_no_other() -> None:
    key = token_bytes(32)
    assert pad(key, 1, ["a"], 20) == pad(key, 1, ["a"], 20)
    assert {*pad(key, 1, ["a"], 20)} & {*pad(key, 11, ["a"], 20)} == {"a"}
    assert {*pad(key, 1, ["a"], 20)} & {*pad(token_bytes(32), 1, ["a"], 20)} == {"a"}


def test_a_short_nonce_is_refused() -> None:
    with pytest.raises(ProtocolError, match="nonce"):
        Dealing.of(b"short", bytes(32), 1, 1)
