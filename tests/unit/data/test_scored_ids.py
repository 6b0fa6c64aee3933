"""Scores in memory are found by ID, whatever the order of the table."""

import numpy as np
import pytest

from trilateral.common.base.errors import DataError
from trilateral.common.data.model.scored_ids import ScoredIds
from trilateral.common.data.tables.id_list import Ids


def scored(*ids: str) -> ScoredIds:
    rows = ScoredIds(["customer"])
    for number, one in enumerate(ids):
        rows.add(Ids.of([one]), Ids.of([one]), np.array([float(number)]))
    rows.finish()
    return rows


def test_each_id_has_its_own_score_and_others_have_none() -> None:
    ids = ["b", "Ä", "a", "10", "9", "\U0001f600", "\uffff", "a\x1fb"]
    rows = scored(*ids)
    assert [rows.score(one) for one in ids] == [*range(len(ids))]
    assert [rows.score(one) for one in ("", "c", "ä", "99", "\U0001f601")] == [None] * 5
    assert rows.n_ids == len(ids)


def test_each_id_has_its_own_reasons() -> None:
    rows = ScoredIds(["customer"])
    for one, reasons in (("b", [1, 0]), ("a", [0, -1])):
        rows.add(Ids.of([one]), Ids.of([one]), np.zeros(1), np.array([reasons], np.int16))
    rows.finish()
    assert [rows.reasons(one) for one in ("a", "b", "c")] == [[0, -1], [1, 0], []]


def test_repeated_ids_are_refused() -> None:
    with pytest.raises(DataError, match="column 'customer' repeats an earlier ID in 2 of 4 rows"):
        scored("a", "b", "a", "a")
