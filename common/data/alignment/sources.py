"""Sources of the IDs of an alignment, read shard by shard, so that not all IDs need to be in memory."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import Rows
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.tables.id_list import Ids


class Shards(Protocol):
    """A party's IDs, dealt to the shards of one session. Several threads may read at once."""

    def ids(self, shard: int) -> Sequence[str]:
        """Return the IDs of one shard, without duplicates and in the same order in every call."""
        ...


class IdSource(Protocol):
    """A party's IDs in their normal form, without duplicates."""

    @property
    def n_ids(self) -> int:
        """The number of IDs, at least 1."""
        ...

    def deal(self, dealing: Dealing) -> Shards:
        """Deal the IDs to the shards of one session."""
        ...


class MemoryIds:
    """A source of IDs in memory for one session. It also converts the result back to row numbers.

    Args:
        ids: the IDs, in the order of their rows.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._rows: list[Rows] = []

    @property
    def n_ids(self) -> int:
        """The number of IDs."""
        return len(self._ids)

    def deal(self, dealing: Dealing) -> "MemoryIds":
        """Deal the IDs to the shards of one session, as `IdSource` promises."""
        self._rows = dealing.deal(self._ids)
        return self

    def ids(self, shard: int) -> list[str]:
        """Return the IDs of one shard, as `Shards` promises."""
        return [*self._ids.take(self._rows[shard])]

    def common_rows(self, places: Mapping[int, Rows]) -> Rows:
        """Return the row numbers of the common IDs.

        Args:
            places: for each shard, the indices of the common IDs in its `ids`, shape (n_common_in_shard,).

        Returns:
            Row numbers, ascending, shape (n_common,).
        """
        rows = [self._rows[shard][of_shard] for shard, of_shard in places.items()]
        return np.sort(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
