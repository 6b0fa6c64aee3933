"""Parquet files of random tables of any size, written in blocks.

Each value is a function of the number of its row and of its column alone. So both parties' files can be in an order of
their own, the guest's labels can depend on the host's column, and no table is ever in memory.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import ndtri

from benchmarks.harness import DATASET
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import PARTIES, Role

ROW_GROUP = 1_000_000
"""Rows of a row group, which is all that is in memory at a time."""
ID_COLUMN = "id"
LABEL_COLUMN = "label"
ID_DIGITS = 9
"""Digits of an ID, which bound the number of rows."""
NOISE = -1
"""The number of the column that the labels' noise comes from, which is in no table."""

__all__ = ["DATASET", "ID_COLUMN", "LABEL_COLUMN", "table_path", "write_tables"]


def table_path(folder: Path, role: Role) -> Path:
    """Return the file of a party's table in a folder."""
    return folder / f"{role}.parquet"


def write_tables(folder: Path, rows: int, columns: tuple[int, int]) -> None:
    """Write the tables of both parties: the same IDs in two orders, normal numbers, and labels at the guest.

    Args:
        folder: where `host.parquet` and `guest.parquet` go.
        rows: rows of each table.
        columns: features of the host and of the guest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for role, n_columns in zip(PARTIES, columns, strict=True):
        order = np.random.default_rng(PARTIES.index(role)).permutation(rows)
        fields = [(ID_COLUMN, pa.string()), *((f"{role} {each}", pa.float64()) for each in range(n_columns))]
        if role is Role.GUEST:
            fields.append((LABEL_COLUMN, pa.int64()))
        schema = pa.schema(fields)
        with pq.ParquetWriter(table_path(folder, role), schema) as writer:
            for start in range(0, rows, ROW_GROUP):
                numbers = order[start : start + ROW_GROUP]
                values: list[pa.Array] = [_ids(numbers)]
                values += [pa.array(_normal(numbers, role, each)) for each in range(n_columns)]
                if role is Role.GUEST:
                    values.append(pa.array(_labels(numbers)))
                writer.write_table(pa.Table.from_arrays(values, schema=schema), row_group_size=ROW_GROUP)


def _ids(numbers: NDArray[np.int64]) -> pa.Array:
    """Return IDs such as `row-000000012`."""
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), ID_DIGITS, "0")
    return pc.binary_join_element_wise("row", digits, "-")


def _labels(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 or 1, by the logistic model of the sum of both parties' first columns."""
    score = sum(_normal(numbers, role, 0) for role in PARTIES)
    noise = _uniform(numbers, Role.GUEST, NOISE)
    return (score + np.log(noise / (1 - noise)) > 0).astype(np.int64)


def _normal(numbers: NDArray[np.int64], role: Role, column: int) -> FloatVector:
    values: FloatVector = ndtri(_uniform(numbers, role, column))
    return values


def _uniform(numbers: NDArray[np.int64], role: Role, column: int) -> FloatVector:
    """Return a number between 0 and 1 for each row, both excluded: a hash of row and column, by SplitMix64."""
    stream = np.uint64((column - NOISE) * len(PARTIES) + PARTIES.index(role)) << np.uint64(40)
    with np.errstate(over="ignore"):
        z = (numbers.astype(np.uint64) + stream) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
