"""Rows that go through the disk come back as they were, in the shards that their IDs belong to."""

from pathlib import Path

import numpy as np
import pytest

import trilateral.common.data.model.spool
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.data.alignment.dealing import SHARD_IDS, Dealing
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.data.tables.id_list import Ids

KEY = bytes(range(32))


def spooled(folder: Path, ids: list[str], scores: FloatVector, piece: int = 7) -> ScoredRows:
    folder.mkdir(exist_ok=True)
    rows = ScoredRows(folder, ["id"])
    for start in range(0, len(ids), piece):
        part = ids[start : start + piece]
        rows.add(Ids.of(one.strip() for one in part), Ids.of(part), scores[start : start + piece])
    rows.finish()
    return rows


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trilateral.common.data.model.spool, "_DEALT_ROWS", 50)


def test_every_row_comes_back_once_from_the_shard_of_its_id(tmp_path: Path) -> None:
    ids = [f" {number}é" for number in range(500)]
    scores = np.random.default_rng(1).normal(size=500)
    rows = spooled(tmp_path / "rows", ids, scores)
    dealing = Dealing(KEY, 3 * SHARD_IDS, 5 * SHARD_IDS)
    shards = rows.deal(dealing)
    assert (rows.n_ids, dealing.n_shards) == (500, 5)
    seen = []
    for number in range(dealing.n_shards):
        shard = rows.dealt(dealing.n_shards).read(number)
        assert shard.ids == shards.ids(number) == [ids[row].strip() for row in shard.rows]
        assert shard.scores.tolist() == scores[shard.rows].tolist()
        assert len(dealing.deal(shard.ids)[number]) == len(shard.ids)
        assert (np.diff(shard.rows) > 0).all()
        seen += shard.rows.tolist()
    assert sorted(seen) == list(range(500))


def test_ids_are_kept_as_they_are_written_in_the_order_of_the_table(tmp_path: Path) -> None:
    ids = [f"{number}{' ' * (number % 2)}" for number in range(20)]
    rows = spooled(tmp_path / "rows", ids, np.zeros(20))
    assert [one for piece, _ in rows.written() for one in piece.to_pylist()] == ids


def test_reasons_go_with_their_rows(tmp_path: Path) -> None:
    reasons = np.random.default_rng(2).integers(-1, 9, (300, 3)).astype(np.int16)
    rows = ScoredRows(tmp_path, ["id"], n_reasons=3)
    for start in range(0, 300, 70):
        ids = Ids.of(str(number) for number in range(start, min(start + 70, 300)))
        rows.add(ids, ids, np.zeros(len(ids)), reasons[start : start + 70])
    rows.finish()
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in rows.written()]), reasons)
    shards = rows.deal(Dealing(KEY, 3 * SHARD_IDS, SHARD_IDS))
    for shard in map(shards.read, range(3)):
        np.testing.assert_array_equal(shard.reasons, reasons[shard.rows])


def test_both_parties_deal_the_same_ids_to_the_same_shard(tmp_path: Path) -> None:
    ids = [str(number) for number in range(200)]
    dealing = Dealing(KEY, 4 * SHARD_IDS, 1)
    first = spooled(tmp_path / "a", ids, np.zeros(200)).deal(dealing)
    second = spooled(tmp_path / "b", ids[::-1], np.ones(200)).deal(dealing)
    assert all(sorted(first.ids(shard)) == sorted(second.ids(shard)) for shard in range(dealing.n_shards))


def test_ids_that_repeat_in_their_normal_form_are_counted_whatever_piece_they_are_in(tmp_path: Path) -> None:
    ids = [str(number) for number in range(200)] + ["17 ", "17", " 3"]
    rows = spooled(tmp_path / "rows", ids, np.zeros(203))
    with pytest.raises(DataError, match="column 'id' repeats an earlier ID in 3 of 203 rows"):
        rows.deal(Dealing(KEY, 4 * SHARD_IDS, 1))


def test_a_shard_that_no_id_fell_into_is_empty(tmp_path: Path) -> None:
    shards = spooled(tmp_path / "rows", ["one"], np.zeros(1)).deal(Dealing(KEY, 64 * SHARD_IDS, 1))
    assert sorted(len(shards.read(shard).ids) for shard in range(64)) == [0] * 63 + [1]
