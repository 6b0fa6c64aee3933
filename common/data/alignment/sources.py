"""Where the IDs of an alignment come from, shard by shard, so that they need not all be in memory."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import Rows
from trilateral.common.data.alignment.dealing import Dealing


class Shards(Protocol):
    """A party's IDs, dealt for one session. Read from several threads at once."""

    def ids(self, shard: int) -> Sequence[str]:
        """The IDs of one shard, each once, in the same order each time."""
        ...


class IdSource(Protocol):
    """A party's IDs, in their normal form, each once."""

    @property
    def n_ids(self) -> int:
        """How many there are, 1 at least."""
        ...

    def deal(self, dealing: Dealing) -> Shards:
        """Deal them to the shards of one session."""
        ...


class MemoryIds:
    """IDs in memory: a source for one session, which knows afterwards which rows are common."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids
        self._rows: list[Rows] = []

    @property
    def n_ids(self) -> int:
        """See `IdSource`."""
        return len(self._ids)

    def deal(self, dealing: Dealing) -> "MemoryIds":
        """See `IdSource`."""
        self._rows = dealing.deal(self._ids)
        return self

    def ids(self, shard: int) -> list[str]:
        """See `Shards`."""
        return [self._ids[row] for row in self._rows[shard]]

    def common_rows(self, places: Mapping[int, Sequence[int]]) -> Rows:
        """Row numbers of the common IDs, ascending, from their places in each shard's `ids`."""
        rows = [self._rows[shard][list(of_shard)] for shard, of_shard in places.items() if of_shard]
        return np.sort(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
