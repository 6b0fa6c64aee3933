"""The training columns of both parties side by side, in a file that may be larger than memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.made_tables import ID_COLUMN, LABEL_COLUMN
from benchmarks.optimum import Block
from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.data.features import Features
from trilateral.common.data.preprocessing import Preprocessing

BLOCK_ROWS = 1 << 16
"""Rows of a block."""


class StoredRows:
    """Rows in blocks, for `benchmarks.optimum.Objective`.

    Args:
        folder: Where the sorted tables go, one file for each party.
        tables: The Parquet files of both parties, with the same IDs.
        steps: The preprocessing that each party has fitted.
    """

    def __init__(self, folder: Path, tables: Mapping[Role, Path], steps: Mapping[Role, Preprocessing]) -> None:
        self._steps = steps
        self._names = {role: [*steps[role].features, *([LABEL_COLUMN] if role is Role.GUEST else [])] for role in steps}
        self._sorted = {role: _sort(tables[role], self._names[role], folder / f"{role}.sorted") for role in steps}

    def __iter__(self) -> Iterator[Block]:
        n_rows = self._sorted[Role.GUEST].shape[1]
        for start in range(0, n_rows, BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, n_rows))
            columns = np.hstack([self._columns(role, rows) for role in PARTIES])
            yield columns, 2 * np.array(self._sorted[Role.GUEST][-1, rows]) - 1

    @property
    def penalty(self) -> FloatMatrix:
        """P of both parties, shape (n_columns, n_columns)."""
        host, guest = (self._steps[role].penalty for role in PARTIES)
        penalty = np.zeros((len(host) + len(guest),) * 2)
        penalty[: len(host), : len(host)] = host
        penalty[len(host) :, len(host) :] = guest
        return penalty

    def _columns(self, role: Role, rows: slice) -> FloatMatrix:
        block = np.array(self._sorted[role][:, rows])
        columns = dict(zip(self._names[role], block, strict=True))
        return self._steps[role].transform(Features(columns, block.shape[1]))


def _sort(table: Path, names: list[str], path: Path) -> NDArray[np.float64]:
    """Write columns of a table in the order of its IDs, one column at a time, and return the file's array.

    Returns:
        Shape (n_columns, n_rows).
    """
    order = pc.sort_indices(pq.read_table(table, columns=[ID_COLUMN])[ID_COLUMN].combine_chunks()).to_numpy()
    columns = np.memmap(path, np.float64, "w+", shape=(len(names), len(order)))
    for place, name in enumerate(names):
        columns[place] = pq.read_table(table, columns=[name])[name].to_numpy()[order]
    return columns
