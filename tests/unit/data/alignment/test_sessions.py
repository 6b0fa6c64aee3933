"""An alignment finds exactly what is common, whoever looks at it; and the host refuses what was not agreed."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_bytes
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.late_engine import LateEngine
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.curve25519.points import POINT_BYTES
from trilateral.common.data.alignment import dealing as dealing_module
from trilateral.common.data.alignment.dealing import TAG_BYTES, Dealing
from trilateral.common.data.alignment.guest_session import CommonShard, GuestSession
from trilateral.common.data.alignment.host_session import MAX_ANSWERS, HostSession
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.tables.id_list import Ids


class Sides:
    """Both sides of one alignment, in one process."""

    def __init__(self, guest_ids: list[str], host_ids: list[str]) -> None:
        self.guest_ids, self.host_ids = guest_ids, host_ids
        self.dealing = Dealing.of(token_bytes(32), token_bytes(32), len(guest_ids), len(host_ids))
        self.guest_source, self.host_source = MemoryIds(Ids.of(guest_ids)), MemoryIds(Ids.of(host_ids))
        self.guest = GuestSession(self.guest_source, self.dealing)
        self.host = HostSession(self.host_source, self.dealing)
        self.host.deal()

    def intersect(self, shard: int) -> CommonShard:
        points = self.guest.request(shard)
        self.host.check_request(shard, points)
        return self.guest.read(shard, *self.host.answer(shard, points))

    def run(self) -> tuple[list[str], list[str]]:
        """The common IDs in the order of each side's rows."""
        places: tuple[dict[int, Iterable[int]], dict[int, Iterable[int]]] = ({}, {})
        for shard in range(self.dealing.n_shards):
            common = self.intersect(shard)
            places[0][shard], places[1][shard] = common.places, self.host.settle(shard, common.tags)
        guest = [self.guest_ids[row] for row in self.guest_source.common_rows(places[0])]  # type: ignore[arg-type]
        host = [self.host_ids[row] for row in self.host_source.common_rows(places[1])]  # type: ignore[arg-type]
        return guest, host


def tags(sides: Sides, ids: list[str]) -> bytes:
    return b"".join(sides.dealing.tags(ids))


ids = st.lists(st.text(max_size=8), min_size=1, max_size=12, unique=True)


@settings(max_examples=30, deadline=None)
@given(own=ids, others=ids, both=st.lists(st.text(max_size=8), max_size=12, unique=True))
def test_both_sides_find_the_intersection_of_the_sets(own: list[str], others: list[str], both: list[str]) -> None:
    guest_ids, host_ids = sorted({*own, *both}), sorted({*others, *both})
    sides = Sides(guest_ids, host_ids)
    expected = sorted({*guest_ids} & {*host_ids})
    assert sides.run() == (expected, expected)
    assert sides.host.complete
    assert sides.host.n_common == len(expected)


def test_many_shards_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing_module, "SHARD_IDS", 25)
    sides = Sides([f"{number:05d}" for number in range(200)], [f"{number:05d}" for number in range(150, 500, 2)])
    assert sides.dealing.n_shards == 8
    expected = [f"{number:05d}" for number in range(150, 200, 2)]
    assert sides.run() == (expected, expected)


@pytest.fixture
def sides() -> Sides:
    return Sides(["a", "b", "c"], ["b", "c", "d", "e"])


def test_the_same_request_may_come_again_and_another_one_may_not(sides: Sides) -> None:
    points = sides.guest.request(0)
    for _ in range(2):
        sides.host.check_request(0, points)
        assert list(sides.guest.read(0, *sides.host.answer(0, points)).places) == [1, 2]
    other = GuestSession(MemoryIds(Ids.of(["d", "e", "f"])), sides.dealing).request(0)
    with pytest.raises(ProtocolError, match="differs from the first one"):
        sides.host.check_request(0, other)


@pytest.mark.parametrize("n_ids", [0, 2, 4])
def test_the_host_takes_as_many_ids_as_were_announced(sides: Sides, n_ids: int) -> None:
    with pytest.raises(ProtocolError, match="expected 96"):
        sides.host.check_request(0, sides.guest.request(0)[:POINT_BYTES] * n_ids)


@pytest.mark.parametrize("shard", [-1, 1, 2**32 - 1])
def test_there_is_no_other_shard(sides: Sides, shard: int) -> None:
    with pytest.raises(ProtocolError, match="no shard"):
        sides.host.check_request(shard, sides.guest.request(0))
    with pytest.raises(ProtocolError, match="no shard"):
        sides.host.settle(shard, b"")


def test_what_is_common_can_be_told_only_after_the_intersection(sides: Sides) -> None:
    with pytest.raises(ProtocolError, match="before the host answered it"):
        sides.host.settle(0, b"")


def test_the_host_takes_what_is_common_once(sides: Sides) -> None:
    sides.intersect(0)
    with pytest.raises(ProtocolError, match="expected at most"):
        sides.host.settle(0, bytes(TAG_BYTES - 1))
    with pytest.raises(ProtocolError, match="expected at most"):
        sides.host.settle(0, bytes(TAG_BYTES * 4))
    assert not sides.host.complete
    assert sides.host.settle(0, tags(sides, ["c", "b"])).tolist() == [1, 0]
    assert sides.host.settle(0, tags(sides, ["c", "b"])).tolist() == [1, 0]
    for other in (["b"], ["a"]):  # one that the host holds, and one that it does not
        with pytest.raises(ProtocolError, match="differs from the first one"):
            sides.host.settle(0, tags(sides, other))
    assert (sides.host.complete, sides.host.n_common) == (True, 2)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["a", "b"], "^the guest reports common IDs that the host does not hold$"),
        (["a", "x"], "^the guest reports common IDs that the host does not hold$"),
        (["b", "b"], "^the guest reports a common ID twice$"),
        (["a", "a"], "^the guest reports a common ID twice$"),  # No other answer for one that the host does not hold.
    ],
)
def test_who_guesses_what_is_common_has_one_try_and_hears_of_how_many_no_word(
    sides: Sides, told: list[str], said: str
) -> None:
    sides.intersect(0)
    with pytest.raises(DataError, match=said):
        sides.host.settle(0, tags(sides, told))
    with pytest.raises(ProtocolError, match="the alignment is over"):
        sides.host.settle(0, tags(sides, ["c", "b"]))
    assert not sides.host.complete


def test_of_guesses_at_the_same_time_one_is_answered() -> None:
    sides = Sides(["a", "b", "c"], [f"{number:04d}" for number in range(3000)])
    sides.intersect(0)
    n_threads = 8
    together = Barrier(n_threads)

    def guess(_: int) -> str:
        together.wait()
        try:
            sides.host.settle(0, tags(sides, ["a"]))
        except (DataError, ProtocolError) as error:
            return str(error)
        return "taken"

    with ThreadPoolExecutor(n_threads) as threads:
        said = Counter(threads.map(guess, range(n_threads)))
    assert said == {
        "the guest reports common IDs that the host does not hold": 1,
        "the alignment is over: the guest reported common IDs that are not common": n_threads - 1,
    }


def test_what_is_asked_again_is_answered_alike_and_a_shard_is_asked_for_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points in both of two answers would be those of IDs, if each had padding of its own."""
    monkeypatch.setattr(dealing_module, "SHARD_IDS", 25)
    sides = Sides([f"{number:05d}" for number in range(60)], [f"{number:05d}" for number in range(50, 110)])
    points = sides.guest.request(1)
    assert len(sides.guest.shards.ids(1)) < sides.dealing.guest_points
    assert len(sides.host_source.ids(1)) < sides.dealing.host_points
    assert sides.guest.request(1) == points
    assert sides.host.answer(1, points) == sides.host.answer(1, points)


@pytest.mark.parametrize("u", [0, 1, 2**255 - 20, 2**255 - 19, 2**255, 2**255 + 1])
def test_a_point_of_low_order_is_refused_by_both(sides: Sides, u: int) -> None:
    bad = u.to_bytes(POINT_BYTES, "little")
    request = sides.guest.request(0)
    setup, response = sides.host.answer(0, request)
    with pytest.raises(ProtocolError, match="low order"):
        sides.host.answer(0, bad + request[POINT_BYTES:])
    with pytest.raises(ProtocolError, match="low order"):
        sides.guest.read(0, setup, bad + response[POINT_BYTES:])


@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=3 * POINT_BYTES, max_size=3 * POINT_BYTES))
def test_garbage_never_ends_the_process(data: bytes) -> None:
    sides = Sides(["a", "b", "c"], ["b", "c", "d"])
    for read in (
        lambda: sides.host.answer(0, data),
        lambda: sides.guest.read(0, data, sides.host.answer(0, sides.guest.request(0))[1]),
        lambda: sides.guest.read(0, data, data),
    ):
        with suppress(ProtocolError):
            read()


def test_an_answer_with_a_point_twice_makes_no_further_id_common(sides: Sides) -> None:
    setup, response = sides.host.answer(0, sides.guest.request(0))
    held = response[POINT_BYTES : 2 * POINT_BYTES]
    same = held[:-1] + bytes([held[-1] | 0x80])  # The topmost bit of a point is ignored.
    for answer in ((setup, held * 3), (setup, held + same + response[:POINT_BYTES])):
        assert {*sides.guest.read(0, *answer).places} <= {1}
    assert len(sides.guest.read(0, setup[:POINT_BYTES] * 4, response).places) <= 1


def test_a_shard_is_answered_a_few_times(sides: Sides) -> None:
    points = sides.guest.request(0)
    for _ in range(MAX_ANSWERS):
        sides.host.check_request(0, points)
    assert not sides.host.over
    for _ in range(2):
        with pytest.raises(
            ProtocolError, match="the alignment is over: the guest requested a shard more than 10 times"
        ):
            sides.host.check_request(0, points)
    assert sides.host.over


def test_an_answer_of_another_size_is_refused(sides: Sides) -> None:
    setup, response = sides.host.answer(0, sides.guest.request(0))
    for answer in ((setup[:-1], response), (setup, response + response), (b"", b"")):
        with pytest.raises(ProtocolError, match=r"does not have \d+ bytes"):
            sides.guest.read(0, *answer)


def test_an_engine_gives_the_same_rows_and_runs_each_part_once() -> None:
    guest_ids, host_ids = ["a", "b", "c"], ["b", "c", "d", "e"]
    engines = LateEngine(), LateEngine()
    dealing = Dealing.of(token_bytes(32), token_bytes(32), 3, 4)
    guest = GuestSession(MemoryIds(Ids.of(guest_ids)), dealing, engines[0])
    host = HostSession(MemoryIds(Ids.of(host_ids)), dealing, engines[1])
    host.deal()
    points = guest.request(0)
    host.check_request(0, points)
    common = guest.read(0, *host.answer(0, points))
    assert [guest_ids[place] for place in common.places] == ["b", "c"]
    assert [host_ids[place] for place in host.settle(0, common.tags)] == ["b", "c"]
    assert [engine.n_run for engine in engines] == [2, 1]
