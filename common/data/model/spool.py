"""Scored rows of a table on disk: as many as the disk holds, in bounded memory.

First they are spooled in the order of the table; then, once both parties' tables are counted, dealt to shards of which
each fits in memory. `ScoredRows` is an `IdSource`, so that rows are aligned from here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError
from trilateral.common.data.alignment.dealing import Dealing

_DEALT_ROWS = 500_000
"""Rows in memory while they are dealt."""

_SPOOL = pa.schema([("id", pa.string()), ("written", pa.string()), ("score", pa.float64())])
_SHARD = pa.schema([("id", pa.string()), ("row", pa.int64()), ("score", pa.float64())])


class ScoredRows:
    """A table's IDs with this party's score of each, as they are written to `folder`.

    Args:
        folder: empty, and for this table alone.
        column: of the IDs, for errors.

    Methods raise OSError when the folder cannot be written or read.
    """

    def __init__(self, folder: Path, column: str) -> None:
        self._folder = folder
        self._column = column
        self._path = folder / "rows"
        self._file = self._path.open("xb")
        self._stream = ipc.new_stream(self._file, _SPOOL)
        self._n_ids = 0

    @property
    def n_ids(self) -> int:
        """How many rows were added."""
        return self._n_ids

    def add(self, ids: Sequence[str], written: Sequence[str], scores: FloatVector) -> None:
        """Add rows in the order of the table: IDs in their normal form and as they are written."""
        # Most are written as their normal form is, and need not be kept twice.
        other = [None if one == own else own for one, own in zip(ids, written, strict=True)]
        columns = [pa.array(ids, pa.string()), pa.array(other, pa.string()), pa.array(scores, pa.float64())]
        self._stream.write_batch(pa.record_batch(columns, _SPOOL))
        self._n_ids += len(ids)

    def finish(self) -> None:
        """Nothing more is added; another time it does nothing."""
        if not self._file.closed:
            self._stream.close()
            self._file.close()

    def written(self) -> Iterator[pa.Array]:
        """The IDs as they are written, in the order of the table, a piece at a time."""
        for batch in self._batches():
            yield pc.coalesce(batch["written"], batch["id"])

    def deal(self, dealing: Dealing) -> "ScoredShards":
        """Deal the rows to shards.

        Raises:
            DataError: an ID comes twice; how many do.
        """
        shards = ScoredShards(self._folder, dealing.n_shards)
        pending: list[pa.RecordBatch] = []
        first = n_pending = 0
        for batch in self._batches():
            pending.append(batch)
            n_pending += len(batch)
            if n_pending >= _DEALT_ROWS:
                shards.append(pa.Table.from_batches(pending), first, dealing)
                first, pending, n_pending = first + n_pending, [], 0
        if pending:
            shards.append(pa.Table.from_batches(pending), first, dealing)
        repeated = sum(map(shards.count_repeated, range(dealing.n_shards)))
        if repeated:
            raise DataError(
                f"column {self._column!r} repeats an earlier ID in {repeated} of {self._n_ids} rows: keep one row for"
                " each ID"
            )
        return shards

    def dealt(self, n_shards: int) -> "ScoredShards":
        """The shards to which the rows were dealt."""
        return ScoredShards(self._folder, n_shards)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with self._path.open("rb") as file, ipc.open_stream(file) as stream:
            yield from stream


@dataclass(frozen=True, eq=False)
class ScoredShard:
    """The rows of one shard, in the order of the table."""

    ids: list[str]
    """In their normal form."""
    rows: Rows
    """Where each is in the table, from 0 up; shape (n,)."""
    scores: FloatVector
    """Shape (n,)."""


class ScoredShards:
    """Rows dealt to shards, each a file. Read from several threads at once."""

    def __init__(self, folder: Path, n_shards: int) -> None:
        self._folder = folder
        self._n_shards = n_shards

    def append(self, table: pa.Table, first: int, dealing: Dealing) -> None:
        """Deal some more rows, of which the first has number `first`."""
        rows = dealing.deal(table["id"].to_pylist())
        numbers = pa.array(np.arange(first, first + len(table)))
        table = pa.table([table["id"], numbers, table["score"]], schema=_SHARD)
        table = table.take(pa.array(np.concatenate(rows))).combine_chunks()
        start = 0
        for shard, length in enumerate(map(len, rows)):
            if length:
                # Opened for each piece: so many files at a time would be more than some systems permit.
                with self._path(shard).open("ab") as file, ipc.new_stream(file, _SHARD) as stream:
                    stream.write_table(table.slice(start, length))
            start += length

    def ids(self, shard: int) -> list[str]:
        """See `Shards`."""
        ids: list[str] = self._read(shard)["id"].to_pylist()
        return ids

    def read(self, shard: int) -> ScoredShard:
        """All about the rows of one shard."""
        table = self._read(shard)
        return ScoredShard(table["id"].to_pylist(), table["row"].to_numpy(), table["score"].to_numpy())

    def count_repeated(self, shard: int) -> int:
        """How many IDs of a shard have come before."""
        ids = self._read(shard)["id"]
        return len(ids) - int(pc.count_distinct(ids).as_py())

    def _read(self, shard: int) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        path = self._path(shard)
        if path.exists():
            with path.open("rb") as file:
                size = path.stat().st_size
                while file.tell() < size:
                    batches.extend(ipc.open_stream(file))
        return pa.Table.from_batches(batches, _SHARD)

    def _path(self, shard: int) -> Path:
        return self._folder / f"shard-{shard}"
