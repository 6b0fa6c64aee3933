"""A party's scores of a table in memory, by ID."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.model.reasons import Places
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import repeated_error


class ScoredIds:
    """The scores of a table's rows, which `score_table` adds, and their IDs in canonical order.

    Args:
        columns: names of the columns of the ID, for errors.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._parts: list[tuple[Ids, FloatVector, Places]] = []
        self._n_ids = 0
        self._ids, self._scores, self._reasons = Ids.of([]), np.empty(0), _no_reasons(0)

    @property
    def n_ids(self) -> int:
        """The number of rows added so far."""
        return self._n_ids

    def add(self, ids: Ids, written: Ids, scores: FloatVector, reasons: Places | None = None) -> None:
        """Add rows; see `ScoreSink`."""
        del written
        self._parts.append((ids, scores, _no_reasons(len(ids)) if reasons is None else reasons))
        self._n_ids += len(ids)

    def finish(self) -> None:
        """Put the rows in order.

        Raises:
            DataError: the table repeats IDs; the text has the number of such rows.
        """
        ids = Ids.join([ids for ids, _, _ in self._parts])
        scores = np.concatenate([scores for _, scores, _ in self._parts])
        reasons = np.concatenate([reasons for _, _, reasons in self._parts])
        self._parts.clear()
        order = ids.order()
        self._ids, self._scores, self._reasons = ids.take(order), scores[order], reasons[order]
        repeated = int(np.count_nonzero(~self._ids.starts()))
        if repeated:
            raise repeated_error(self._columns, repeated, self._n_ids)

    def score(self, one: str) -> float | None:
        """Return the score of an ID in its normal form; None if the table does not have it."""
        place = self._find(one)
        return None if place is None else float(self._scores[place])

    def reasons(self, one: str) -> list[int]:
        """Return the places of the reasons of an ID; empty if the table does not have it."""
        place = self._find(one)
        reasons: list[int] = [] if place is None else self._reasons[place].tolist()
        return reasons

    def _find(self, one: str) -> int | None:
        place = bisect_left(self._ids, one)
        return place if place < len(self._ids) and self._ids[place] == one else None


def _no_reasons(n_rows: int) -> Places:
    return np.empty((n_rows, 0), np.int16)
