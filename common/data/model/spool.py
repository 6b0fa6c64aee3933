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

from trilateral.common.base.arrays import FloatArray, FloatVector, Rows
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.model.reasons import Places
from trilateral.common.data.tables.arrow_arrays import from_numpy, null, to_numpy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import repeated_error

_DEALT_ROWS = 500_000
"""Rows in memory while rows are dealt."""

_SPOOL = pa.schema([("id", pa.string()), ("written", pa.string())])
_SHARD = pa.schema([("id", pa.string()), ("row", pa.int64())])


def _with_scores(schema: pa.Schema, n_models: int, n_reasons: int) -> pa.Schema:
    scored = schema.append(pa.field("scores", pa.list_(pa.float64(), n_models)))
    return scored.append(pa.field("reasons", pa.list_(pa.int16(), n_reasons))) if n_reasons else scored


def _reasons_in(table: pa.Table | pa.RecordBatch, n_reasons: int) -> Places:
    if not n_reasons:
        return np.empty((len(table), 0), np.int16)
    places: Places = to_numpy(pc.list_flatten(table["reasons"])).reshape(-1, n_reasons)
    return places


class ScoredRows:
    """The IDs of a table with this party's scores, stored in a folder.

    All methods raise OSError if the folder cannot be written or read.

    Args:
        folder: an empty folder for this table only.
        columns: names of the columns of the ID, for errors.
        n_models: how many scores a row has.
        n_reasons: how many reasons a row has.
    """

    def __init__(self, folder: Path, columns: Sequence[str], n_models: int = 1, n_reasons: int = 0) -> None:
        self._folder = folder
        self._columns = columns
        self._n_models = n_models
        self._n_reasons = n_reasons
        self._schema = _with_scores(_SPOOL, n_models, n_reasons)
        self._path = folder / "rows"
        self._file = self._path.open("xb")
        self._stream = ipc.new_stream(self._file, self._schema)
        self._n_ids = 0

    @property
    def n_ids(self) -> int:
        """The number of rows added so far."""
        return self._n_ids

    @property
    def n_bytes(self) -> int:
        """The size of the finished file: all IDs, scores and reasons."""
        return self._path.stat().st_size

    def add(self, ids: Ids, written: Ids, scores: FloatArray, reasons: Places | None = None) -> None:
        """Add rows, in the order of the table.

        Args:
            ids: the IDs in their normal form.
            written: the same IDs as they are written.
            scores: this party's parts of the scores, shape (n_added,) or (n_added, n_models).
            reasons: the reasons of the scores, shape (n_added, n_reasons); None without.
        """
        # Most IDs are written in their normal form and need not be stored twice.
        other = pc.if_else(pc.equal(ids.texts, written.texts), null(written.texts.type), written.texts)
        flat = pa.FixedSizeListArray.from_arrays(from_numpy(np.ascontiguousarray(scores).ravel()), self._n_models)
        columns = [ids.texts.cast(pa.string()), other.cast(pa.string()), flat]
        if reasons is not None:
            columns.append(pa.FixedSizeListArray.from_arrays(from_numpy(reasons.ravel()), self._n_reasons))
        self._stream.write_batch(pa.record_batch(columns, self._schema))
        self._n_ids += len(ids)

    def finish(self) -> None:
        """Close the file after the last row was added. A second call has no effect."""
        if not self._file.closed:
            self._stream.close()
            self._file.close()

    def written(self) -> Iterator[tuple[pa.Array, Places]]:
        """Yield the IDs as they are written, and the reasons, in batches, in the order of the table."""
        for batch in self._batches():
            yield pc.coalesce(batch["written"], batch["id"]), _reasons_in(batch, self._n_reasons)

    def deal(self, dealing: Dealing) -> "ScoredShards":
        """Deal the rows to the shards of a session.

        Args:
            dealing: the session's assignment of IDs to shards.

        Raises:
            DataError: the table repeats IDs; the text has the number of such rows.
        """
        shards = self.dealt(dealing.n_shards)
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
        return ScoredShards(self._folder, n_shards, self._n_models, self._n_reasons)

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
    scores: FloatArray
    """This party's parts of the scores, shape (n_shard_rows,), or (n_shard_rows, n_models) for several models."""
    reasons: Places
    """The reasons of the scores, shape (n_shard_rows, n_reasons)."""


class ScoredShards:
    """Rows dealt to shards, one file for each shard. Several threads may read at once."""

    def __init__(self, folder: Path, n_shards: int, n_models: int = 1, n_reasons: int = 0) -> None:
        self._folder = folder
        self._n_shards = n_shards
        self._n_models = n_models
        self._n_reasons = n_reasons
        self._schema = _with_scores(_SHARD, n_models, n_reasons)

    def append(self, table: pa.Table, first: int, dealing: Dealing) -> None:
        """Deal more rows.

        Args:
            table: the rows, as `ScoredRows` stores them.
            first: row number of the first of them.
            dealing: the session's assignment of IDs to shards.
        """
        rows = dealing.deal(Ids(table["id"]))
        numbers = from_numpy(np.arange(first, first + len(table)))
        kept = ["scores", "reasons"] if self._n_reasons else ["scores"]
        table = pa.table([table["id"], numbers, *(table[name] for name in kept)], schema=self._schema)
        table = table.take(from_numpy(np.concatenate(rows))).combine_chunks()
        start = 0
        for shard, length in enumerate(map(len, rows)):
            if length:
                # Open a file for each piece, because some systems do not permit that many open files.
                with self._path(shard).open("ab") as file, ipc.new_stream(file, self._schema) as stream:
                    stream.write_table(table.slice(start, length))
            start += length

    def ids(self, shard: int) -> list[str]:
        """Return the IDs of one shard, as `Shards` promises."""
        ids: list[str] = self._read(shard)["id"].to_pylist()
        return ids

    def read(self, shard: int) -> ScoredShard:
        """Return the rows of one shard."""
        table = self._read(shard)
        scores: FloatVector = to_numpy(pc.list_flatten(table["scores"]))
        of_rows = scores if self._n_models == 1 else scores.reshape(-1, self._n_models)
        return ScoredShard(Ids(table["id"]), to_numpy(table["row"]), of_rows, _reasons_in(table, self._n_reasons))

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
        return pa.Table.from_batches(batches, self._schema)

    def _path(self, shard: int) -> Path:
        return self._folder / f"shard-{shard}"
