"""No score before all is settled, and none of a row that was not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.data.alignment.dealing import SHARD_IDS, Dealing
from trilateral.common.data.alignment.guest_session import GuestSession
from trilateral.common.data.alignment.host_session import HostSession
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.model.spool import ScoredRows, ScoredShards
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.protocol.ids import id_digest
from trilateral.host_party.score_release import SameIds, ScoreRelease

IDS = [f"{number:03d}" for number in range(40)]
SCORES = {one: 0.5 * float(one) for one in IDS}
NONCES = bytes(32), bytes([1] * 32)
DEALING = Dealing.of(*NONCES, 2 * SHARD_IDS, 40)
"""Two shards."""


@pytest.fixture
def rows(tmp_path: Path) -> ScoredRows:
    rows = ScoredRows(tmp_path, ["id"])
    rows.add(Ids.of(IDS), Ids.of(IDS), np.array([SCORES[one] for one in IDS]))
    rows.finish()
    return rows


@pytest.fixture
def same(rows: ScoredRows, tmp_path: Path) -> ScoreRelease:
    shards = rows.deal(DEALING)
    return ScoreRelease(shards, DEALING.n_shards, SameIds(shards, *NONCES), tmp_path)


def digest(shards: Callable[[int], list[str]], shard: int, role: Role = Role.GUEST) -> bytes:
    ids = shards(shard)
    return id_digest(Ids.of(sorted(ids)).digest(), *NONCES, role)


def of_shard(shard: int, ids: list[str] = IDS) -> list[str]:
    return [ids[row] for row in DEALING.deal(ids)[shard]]


def test_the_same_ids_get_all_scores_in_canonical_order_once_all_shards_are_settled(same: ScoreRelease) -> None:
    same.settle(0, digest(of_shard, 0))
    with pytest.raises(ProtocolError, match="only 1 of 2 shards are settled"):
        same.scores(0)
    same.settle(1, digest(of_shard, 1))
    same.settle(1, digest(of_shard, 1))
    assert (same.complete, same.n_common) == (True, 40)
    for shard in (0, 1, 0):
        assert same.scores(shard).scores.tolist() == [SCORES[one] for one in sorted(of_shard(shard))]


def test_reason_codes_leave_in_the_order_of_the_scores(tmp_path: Path) -> None:
    rows = ScoredRows(tmp_path, ["id"], n_reasons=2)
    reasons = np.array([[int(one), -1] for one in IDS], np.int16)
    rows.add(Ids.of(IDS), Ids.of(IDS), np.zeros(len(IDS)), reasons)
    rows.finish()
    shards = rows.deal(DEALING)
    release = ScoreRelease(shards, DEALING.n_shards, SameIds(shards, *NONCES), tmp_path)
    for shard in (0, 1):
        release.settle(shard, digest(of_shard, shard))
    for shard in (0, 1):
        codes = [each for one in sorted(of_shard(shard)) for each in (int(one) + 1, 0)]
        assert release.scores(shard).reasons == bytes(codes)


def test_other_ids_or_another_digest_settle_nothing(same: ScoreRelease) -> None:
    fewer = of_shard(0)[:-1]
    for told in (
        id_digest(Ids.of(sorted(fewer)).digest(), *NONCES, Role.GUEST),
        digest(of_shard, 0, Role.HOST),  # what the host itself would send
        digest(of_shard, 1),
        b"",
    ):
        with pytest.raises(DataError, match="do not hold the same IDs"):
            same.settle(0, told)
    assert same.n_common == 0


@pytest.mark.parametrize("shard", [-1, 2, 2**32 - 1])
def test_there_are_no_other_shards(same: ScoreRelease, shard: int) -> None:
    with pytest.raises(ProtocolError, match=f"there is no shard {shard}"):
        same.settle(shard, b"")
    with pytest.raises(ProtocolError, match=f"there is no shard {shard}"):
        same.scores(shard)


def test_after_an_intersection_there_are_scores_of_common_rows_alone(rows: ScoredRows, tmp_path: Path) -> None:
    guests = ["none", *IDS[::-3], "other"]
    dealing = Dealing.of(*NONCES, len(guests), len(IDS))
    host = HostSession(rows, dealing)
    host.deal()
    prediction = ScoreRelease(rows.dealt(dealing.n_shards), dealing.n_shards, host, tmp_path)
    guest = GuestSession(MemoryIds(Ids.of(guests)), dealing)
    points = guest.request(0)
    with pytest.raises(ProtocolError, match="before the host answered it"):
        prediction.settle(0, b"".join(dealing.tags(IDS)))
    host.check_request(0, points)
    common = guest.read(0, *host.answer(0, points))
    prediction.settle(0, common.tags)
    assert prediction.scores(0).scores.tolist() == [SCORES[common.ids[place]] for place in common.places]
    with pytest.raises(ProtocolError, match="differs from the first one"):
        prediction.settle(0, common.tags[16:])
    assert prediction.n_common == len(IDS[::-3])


def test_shards_are_read_from_disk_alone(rows: ScoredRows) -> None:
    rows.deal(DEALING)
    assert isinstance(rows.dealt(2), ScoredShards)
    assert sorted(rows.dealt(2).ids(0) + rows.dealt(2).ids(1)) == IDS
