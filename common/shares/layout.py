"""Where the element of a row and a column is in a flat table: groups of 8 rows, (n_rows / 8, n_columns, 8).

Within a group each column has its 8 rows side by side, so one vector register holds them, and any run of groups is one
run of memory.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

GROUP = 8
"""Rows side by side."""
ROWS = 16
"""Tables have a multiple of so many rows. Rows of zeros fill the rest."""
BLOCK_ROWS = 8192
"""Rows that are worked through at a time. A block starts at a multiple of ROWS."""

ScalarT = TypeVar("ScalarT", np.int32, np.uint64)


def pad(n_rows: int) -> int:
    """Return the number of rows of a table with room for `n_rows`: the next multiple of ROWS."""
    return -(-n_rows // ROWS) * ROWS


def tile(matrix: NDArray[ScalarT], n_padded: int) -> NDArray[ScalarT]:
    """Return a matrix in the layout.

    Args:
        matrix: shape (n_rows, n_columns).
        n_padded: rows of the table, at least n_rows and a multiple of ROWS. The others are zero.

    Returns:
        Shape (n_padded * n_columns,).
    """
    n_rows, n_columns = matrix.shape
    if n_padded % ROWS or n_padded < n_rows:
        raise ValueError(f"a table of {n_padded} rows: expected a multiple of {ROWS}, and at least {n_rows}")
    padded = np.zeros((n_padded, n_columns), matrix.dtype)
    padded[:n_rows] = matrix
    return np.ascontiguousarray(padded.reshape(n_padded // GROUP, GROUP, n_columns).transpose(0, 2, 1)).ravel()


def untile(table: NDArray[ScalarT], n_columns: int) -> NDArray[ScalarT]:
    """Return a table in the layout as a matrix, shape (n_padded, n_columns): the reverse of `tile`."""
    groups = grouped(table, n_columns)
    return np.ascontiguousarray(groups.transpose(0, 2, 1)).reshape(GROUP * len(groups), n_columns)


def grouped(table: NDArray[ScalarT], n_columns: int) -> NDArray[ScalarT]:
    """Return a view of a table with a dimension for each part of the layout, shape (n_rows / 8, n_columns, 8)."""
    return table.reshape(len(table) // (GROUP * n_columns) if n_columns else 0, n_columns, GROUP)
