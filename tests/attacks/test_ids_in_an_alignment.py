"""What either side of an alignment, or an observer of all messages, can find out about IDs that are not common."""

import hashlib
from collections.abc import Callable, Iterator
from secrets import token_bytes

import pytest

import trilateral.common.data.alignment.guest_session as guest_session
import trilateral.common.data.alignment.host_session as host_session
from tests.support.curve import TWIST_ORDER, on_curve, times, to_bytes, to_int
from trilateral.common.curve25519 import points
from trilateral.common.curve25519.points import (
    KEY_BYTES,
    ORDER,
    POINT_BYTES,
    derive_keys,
    encode_to_curve,
    multiply,
    split_points,
)
from trilateral.common.data.alignment import dealing, intersection
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.guest_session import GuestSession
from trilateral.common.data.alignment.host_session import HostSession
from trilateral.common.data.alignment.intersection import DOMAIN, blind
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.tables.id_list import Ids

GUEST_IDS = [f"guest-person-{number:04d}" for number in range(40)]
HOST_IDS = [f"host-person-{number:04d}" for number in range(60)]
KNOWN = HOST_IDS[0]
"""An ID of the host that is the guest's last one too, as the host knows."""
Deviation = Callable[[HostSession, bytes], tuple[bytes, bytes]]
"""The answer of a host that deviates from the protocol, to a request."""
HASHES: list[Callable[[bytes], bytes]] = [
    lambda text: text,
    lambda text: hashlib.md5(text).digest(),
    lambda text: hashlib.sha1(text).digest(),
    lambda text: hashlib.sha256(text).digest(),
    lambda text: hashlib.sha512(text).digest(),
    lambda text: hashlib.blake2b(text, digest_size=16).digest(),
]


@pytest.fixture(autouse=True)
def several_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "SHARD_IDS", 20)


def record(guest_ids: list[str], host_ids: list[str]) -> tuple[Dealing, list[bytes]]:
    """All that goes over the wire in one alignment, both ways: requests, setups, responses and tags."""
    nonces = hashlib.sha256(b"guest").digest(), hashlib.sha256(b"host").digest()
    dealt = Dealing.of(*nonces, len(guest_ids), len(host_ids))
    guest, host = GuestSession(MemoryIds(Ids.of(guest_ids)), dealt), HostSession(MemoryIds(Ids.of(host_ids)), dealt)
    host.deal()
    sent = [*nonces]
    for shard in range(dealt.n_shards):
        points = guest.request(shard)
        host.check_request(shard, points)
        answer = host.answer(shard, points)
        common = guest.read(shard, *answer)
        host.settle(shard, common.tags)
        sent += [points, *answer, common.tags]
    return dealt, sent


def points_of(sent: list[bytes]) -> list[bytes]:
    """All points of a recording: it has two nonces, and for each shard three messages with points, and the tags."""
    points = [message for number, message in enumerate(sent[2:]) if number % 4 < 3]
    return [one for message in points for one in split_points(message)]


def seen(ids: list[str], sent: list[bytes], dealt: Dealing) -> Iterator[str]:
    """IDs of which some message has the text or a hash, keyed or not: what a dictionary of all IDs would find."""
    everything = b"".join(sent)
    for one in ids:
        tried = [hashed(one.encode()) for hashed in HASHES] + dealt.tags([one])
        if any(each[:16] in everything or each.hex().encode() in everything for each in tried):
            yield one


def test_the_messages_of_disjoint_tables_have_no_id_and_no_hash_of_one() -> None:
    dealt, sent = record(GUEST_IDS, HOST_IDS)
    assert dealt.n_shards == 3
    assert not list(seen(GUEST_IDS + HOST_IDS, sent, dealt))


def test_with_all_messages_only_common_ids_can_be_guessed() -> None:
    """The tags of a job's common rows, which both sides hold; TLS keeps them from everyone else."""
    dealt, sent = record(GUEST_IDS + HOST_IDS[:5], HOST_IDS)
    assert sorted(seen(GUEST_IDS + HOST_IDS, sent, dealt)) == HOST_IDS[:5]


def test_without_blinding_a_dictionary_finds_every_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(seed: bytes, texts: list[str]) -> bytes:
        return b"".join(hashlib.sha256(text.encode()).digest() for text in texts)

    dealt = Dealing.of(bytes(32), bytes(32), len(GUEST_IDS), len(HOST_IDS))
    monkeypatch.setattr(guest_session, "request", hashed)
    guest = GuestSession(MemoryIds(Ids.of(GUEST_IDS)), dealt)
    requests = [guest.request(shard) for shard in range(dealt.n_shards)]
    assert list(seen(GUEST_IDS, requests, dealt)) == GUEST_IDS


def test_two_alignments_of_the_same_tables_have_no_point_in_common() -> None:
    _, first = record(GUEST_IDS, HOST_IDS)
    _, second = record(GUEST_IDS, HOST_IDS)
    assert len({*points_of(first)} & {*points_of(second)}) == 0


def test_a_reused_key_shows_which_ids_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_session, "token_bytes", bytes)
    _, first = record(GUEST_IDS, HOST_IDS)
    _, second = record(GUEST_IDS, HOST_IDS[:30])
    assert len({*points_of(first)} & {*points_of(second)}) >= 30


def test_the_host_cannot_tell_the_guests_ids_by_its_own_key() -> None:
    """It knows H(x)^b of every x it can think of, and sees H(x)^a: without a they do not compare."""
    _, sent = record(GUEST_IDS, HOST_IDS)
    key = token_bytes(KEY_BYTES)
    guessed = blind(key, GUEST_IDS)
    assert not {*points_of(sent)} & {*points_of([guessed])}


@pytest.fixture
def one_key_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest with one key for all of its IDs, as in the textbook."""
    monkeypatch.setattr(intersection, "derive_keys", lambda seed, n: derive_keys(seed, 1) * n)


def in_another_order(host: HostSession, request: bytes) -> tuple[bytes, bytes]:
    """The right points, each one place further on: a guest's ID is common if the one before it is."""
    setup, response = host.answer(0, request)
    return setup, response[-POINT_BYTES:] + response[:-POINT_BYTES]


def from_one_known_id(_: HostSession, request: bytes) -> tuple[bytes, bytes]:
    """Multiples of one pair: the point of a known ID, and that under the guest's key."""
    known, point = encode_to_curve([KNOWN.encode()], DOMAIN), request[-POINT_BYTES:]
    keys = token_bytes(KEY_BYTES * len(HOST_IDS))
    response = multiply(keys[: len(request)], point * (len(request) // POINT_BYTES))
    return multiply(keys, known * len(HOST_IDS)), response


def learnt_by(deviation: Deviation, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What a host that deviates from the protocol finds in the guest's tags, given all IDs of the guest to try."""
    monkeypatch.setattr(dealing, "SHARD_IDS", 1000)
    ids = [*GUEST_IDS, KNOWN]
    dealt = Dealing.of(token_bytes(32), token_bytes(32), len(ids), len(HOST_IDS))
    guest, host = GuestSession(MemoryIds(Ids.of(ids)), dealt), HostSession(MemoryIds(Ids.of(HOST_IDS)), dealt)
    host.deal()
    tags = guest.read(0, *deviation(host, guest.request(0))).tags
    return {*seen(ids, [tags], dealt)}


@pytest.mark.parametrize("deviation", [in_another_order, from_one_known_id])
def test_a_host_that_deviates_finds_no_id_that_it_does_not_hold(
    deviation: Deviation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert learnt_by(deviation, monkeypatch) <= {KNOWN}


@pytest.mark.usefixtures("one_key_for_all")
@pytest.mark.parametrize(("deviation", "n_found"), [(in_another_order, 1), (from_one_known_id, len(GUEST_IDS))])
def test_with_one_key_for_all_ids_it_finds_others(
    deviation: Deviation, n_found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(learnt_by(deviation, monkeypatch) & {*GUEST_IDS}) == n_found


def traits(ids: list[str]) -> list[tuple[bool, int | None]]:
    """Of the guest's point for each ID: whether it is on the curve, and its part outside the large subgroup."""
    dealt = Dealing.of(bytes(32), bytes(32), 1, 1)
    points = [to_int(GuestSession(MemoryIds(Ids.of([one])), dealt).request(0)) for one in ids]
    return [(on_curve(u), times(ORDER if on_curve(u) else TWIST_ORDER, u)) for u in points]


def test_a_point_shows_no_bit_of_its_id() -> None:
    """Neither multiplications by a key nor the host's knowledge of all possible IDs tell two IDs apart."""
    assert traits(GUEST_IDS) == [(True, None)] * len(GUEST_IDS)


def test_with_any_hash_for_a_point_the_host_tells_ids_apart_whatever_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bit whether a point is on the curve or on the twist is the same under every key, and differs between IDs."""
    monkeypatch.setattr(points, "_map_to_curve", lambda elements: elements)
    expected = [on_curve(to_int(encode_to_curve([one.encode()], DOMAIN))) for one in GUEST_IDS]
    assert {*expected} == {True, False}
    for _ in range(2):
        assert [on for on, _ in traits(GUEST_IDS)] == expected


def test_with_keys_that_are_no_multiples_of_the_cofactor_the_host_tells_ids_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The part of an ID's point outside the subgroup would survive the key: one of eight points."""

    def odd_key(keys: bytes, some: bytes) -> bytes:
        products = [
            times(8 * to_int(key) + 1, to_int(one))
            for key, one in zip(split_points(keys), split_points(some), strict=True)
        ]
        return b"".join(to_bytes(product) for product in products if product is not None)

    monkeypatch.setattr(intersection, "multiply", odd_key)
    expected = [times(ORDER, to_int(encode_to_curve([one.encode()], DOMAIN))) for one in GUEST_IDS]
    assert len({*expected}) > 2
    for _ in range(2):
        assert [part for _, part in traits(GUEST_IDS)] == expected


@pytest.mark.parametrize("ids", [GUEST_IDS, [f"x{number}" for number in range(40)]])
def test_messages_have_the_same_sizes_whatever_the_ids_are(ids: list[str]) -> None:
    dealt, sent = record(ids, HOST_IDS)
    assert {len(message) for message in sent if len(message) > 32} == {
        dealt.guest_points * POINT_BYTES,
        dealt.host_points * POINT_BYTES,
    }


def test_without_padding_the_sizes_of_shards_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_session, "pad", lambda key, shard, ids, n_points: list(ids))
    dealt = Dealing.of(bytes(32), bytes(32), len(GUEST_IDS), len(HOST_IDS))
    guest = GuestSession(MemoryIds(Ids.of(GUEST_IDS)), dealt)
    assert len({len(guest.request(shard)) for shard in range(dealt.n_shards)}) > 1
