"""What either side of an alignment, or an observer of all messages, can find out about IDs that are not common."""

import hashlib
from collections.abc import Callable, Iterator

import pytest

import trilateral.common.data.alignment.guest_session as guest_session
import trilateral.common.data.alignment.host_session as host_session
from trilateral.common.curve25519.points import POINT_BYTES, new_key, new_key_pair, split_points
from trilateral.common.data.alignment import dealing
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.guest_session import GuestSession
from trilateral.common.data.alignment.host_session import HostSession
from trilateral.common.data.alignment.intersection import blind
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.tables.id_list import Ids

GUEST_IDS = [f"guest-person-{number:04d}" for number in range(40)]
HOST_IDS = [f"host-person-{number:04d}" for number in range(60)]
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
    def hashed(key: bytes, texts: list[str]) -> bytes:
        return b"".join(hashlib.sha256(text.encode()).digest() for text in texts)

    dealt = Dealing.of(bytes(32), bytes(32), len(GUEST_IDS), len(HOST_IDS))
    monkeypatch.setattr(guest_session, "blind", hashed)
    guest = GuestSession(MemoryIds(Ids.of(GUEST_IDS)), dealt)
    requests = [guest.request(shard) for shard in range(dealt.n_shards)]
    assert list(seen(GUEST_IDS, requests, dealt)) == GUEST_IDS


def test_two_alignments_of_the_same_tables_have_no_point_in_common() -> None:
    _, first = record(GUEST_IDS, HOST_IDS)
    _, second = record(GUEST_IDS, HOST_IDS)
    assert len({*points_of(first)} & {*points_of(second)}) == 0


def test_a_reused_key_shows_which_ids_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, key = new_key_pair(), new_key()
    monkeypatch.setattr(guest_session, "new_key_pair", lambda: pair)
    monkeypatch.setattr(host_session, "new_key", lambda: key)
    _, first = record(GUEST_IDS, HOST_IDS)
    _, second = record(GUEST_IDS[:30], HOST_IDS)
    assert len({*points_of(first)} & {*points_of(second)}) >= 30 + len(HOST_IDS)


def test_the_host_cannot_tell_the_guests_ids_by_its_own_key() -> None:
    """It knows H(x)^b of every x it can think of, and sees H(x)^a: without a they do not compare."""
    _, sent = record(GUEST_IDS, HOST_IDS)
    key = new_key()
    guessed = blind(key, GUEST_IDS)
    assert not {*points_of(sent)} & {*points_of([guessed])}


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
