"""A party's scores of a table in memory, by ID."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import repeated_error


class ScoredIds:
    """The scores of a table's rows, which `score_table` adds, and their IDs in canonical order.

    Args:
        columns: names of the columns of the ID, for errors.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._parts: list[tuple[Ids, FloatVector]] = []
        self._n_ids = 0
        self._ids, self._scores = Ids.of([]), np.empty(0)

    @property
    def n_ids(self) -> int:
        """The number of rows added so far."""
        return self._n_ids

    def add(self, ids: Ids, written: Ids, scores: FloatVector) -> None:
        """Add rows; see `ScoreSink`."""
        del written
        self._parts.append((ids, scores))
        self._n_ids += len(ids)

    def finish(self) -> None:
        """Put the rows in order.

        Raises:
            DataError: the table repeats IDs; the text has the number of such rows.
        """
        ids = Ids.join([ids for ids, _ in self._parts])
        scores = np.concatenate([scores for _, scores in self._parts])
        self._parts.clear()
        order = ids.order()
        self._ids, self._scores = ids.take(order), scores[order]
        repeated = int(np.count_nonzero(~self._ids.starts()))
        if repeated:
            raise repeated_error(self._columns, repeated, self._n_ids)

    def score(self, one: str) -> float | None:
        """Return the score of an ID in its normal form; None if the table does not have it."""
        place = bisect_left(self._ids, one)
        found = place < len(self._ids) and self._ids[place] == one
        return float(self._scores[place]) if found else None
