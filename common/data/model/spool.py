"""Scored rows on disk, in bounded memory.

The rows are first written in the order of the table. Once the sizes of both parties' tables are known, the rows are
dealt to shards that each fit in memory. `ScoredRows` is an `IdSource`, so that an alignment can read from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.tables.arrow_arrays import from_numpy, null, to_numpy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import repeated_error

_DEALT_ROWS = 500_000
"""Rows in memory while rows are dealt."""

_SPOOL = pa.schema([("id", pa.string()), ("written", pa.string()), ("score", pa.float64())])
_SHARD = pa.schema([("id", pa.string()), ("row", pa.int64()), ("score", pa.float64())])


class ScoredRows:
    """The IDs of a table with this party's scores, stored in a folder.

    All methods raise OSError if the folder cannot be written or read.

    Args:
        folder: an empty folder for this table only.
        columns: names of the columns of the ID, for errors.
    """

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self._folder = folder
        self._columns = columns
        self._path = folder / "rows"
        self._file = self._path.open("xb")
        self._stream = ipc.new_stream(self._file, _SPOOL)
        self._n_ids = 0

    @property
    def n_ids(self) -> int:
        """The number of rows added so far."""
        return self._n_ids

    @property
    def n_bytes(self) -> int:
        """The size of the finished file: all IDs and scores."""
        return self._path.stat().st_size

    def add(self, ids: Ids, written: Ids, scores: FloatVector) -> None:
        """Add rows, in the order of the table.

        Args:
            ids: the IDs in their normal form.
            written: the same IDs as they are written.
            scores: this party's parts of the scores, shape (n_added,).
        """
        # Most IDs are written in their normal form and need not be stored twice.
        other = pc.if_else(pc.equal(ids.texts, written.texts), null(written.texts.type), written.texts)
        columns = [ids.texts.cast(pa.string()), other.cast(pa.string()), from_numpy(scores)]
        self._stream.write_batch(pa.record_batch(columns, _SPOOL))
        self._n_ids += len(ids)

    def finish(self) -> None:
        """Close the file after the last row was added. A second call has no effect."""
        if not self._file.closed:
            self._stream.close()
            self._file.close()

    def written(self) -> Iterator[pa.Array]:
        """Yield the IDs as they are written, in batches, in the order of the table."""
        for batch in self._batches():
            yield pc.coalesce(batch["written"], batch["id"])

    def deal(self, dealing: Dealing) -> "ScoredShards":
        """Deal the rows to the shards of a session.

        Args:
            dealing: the session's assignment of IDs to shards.

        Raises:
            DataError: the table repeats IDs; the text has the number of such rows.
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
            raise repeated_error(self._columns, repeated, self._n_ids)
        return shards

    def dealt(self, n_shards: int) -> "ScoredShards":
        """Return the shards to which `deal` has dealt the rows.

        Args:
            n_shards: the number of shards.
        """
        return ScoredShards(self._folder, n_shards)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with self._path.open("rb") as file, ipc.open_stream(file) as stream:
            yield from stream


@dataclass(frozen=True, eq=False)
class ScoredShard:
    """The rows of one shard, in the order of the table."""

    ids: Ids
    """The IDs in their normal form."""
    rows: Rows
    """Row numbers in the table, from 0; shape (n_shard_rows,)."""
    scores: FloatVector
    """This party's parts of the scores, shape (n_shard_rows,)."""


class ScoredShards:
    """Rows dealt to shards, one file for each shard. Several threads may read at once."""

    def __init__(self, folder: Path, n_shards: int) -> None:
        self._folder = folder
        self._n_shards = n_shards

    def append(self, table: pa.Table, first: int, dealing: Dealing) -> None:
        """Deal more rows.

        Args:
            table: the rows, as `ScoredRows` stores them.
            first: row number of the first of them.
            dealing: the session's assignment of IDs to shards.
        """
        rows = dealing.deal(Ids(table["id"]))
        numbers = from_numpy(np.arange(first, first + len(table)))
        table = pa.table([table["id"], numbers, table["score"]], schema=_SHARD)
        table = table.take(from_numpy(np.concatenate(rows))).combine_chunks()
        start = 0
        for shard, length in enumerate(map(len, rows)):
            if length:
                # Open a file for each piece, because some systems do not permit that many open files.
                with self._path(shard).open("ab") as file, ipc.new_stream(file, _SHARD) as stream:
                    stream.write_table(table.slice(start, length))
            start += length

    def ids(self, shard: int) -> list[str]:
        """Return the IDs of one shard, as `Shards` promises."""
        ids: list[str] = self._read(shard)["id"].to_pylist()
        return ids

    def read(self, shard: int) -> ScoredShard:
        """Return the rows of one shard."""
        table = self._read(shard)
        return ScoredShard(Ids(table["id"]), to_numpy(table["row"]), to_numpy(table["score"]))

    def count_repeated(self, shard: int) -> int:
        """Return how many rows of a shard repeat an earlier ID."""
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
