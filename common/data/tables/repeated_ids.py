"""One row for each ID, where a table has several.

Everything works on whole columns: a table may have millions of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError
from trilateral.common.data.features import Categories, Column
from trilateral.common.data.tables.id_list import Ids


def repeated_error(columns: Sequence[str], n_repeated: int, n_rows: int, n_by_form: int = 0) -> DataError:
    """Return the error for repeated IDs that the settings refuse.

    Args:
        columns: names of the columns of the ID.
        n_repeated: how many rows repeat an earlier ID.
        n_rows: how many rows there are.
        n_by_form: how many of them repeat it only in the normal form.
    """
    by_form = f", {n_by_form} of them only after the rules of `id_form`" if n_by_form else ""
    return DataError(
        f"{described(columns)} {'repeat' if len(columns) > 1 else 'repeats'} an earlier ID in {n_repeated} of {n_rows} "
        f"rows{by_form}: keep one row for each ID, set `repeated_ids` to first or aggregate, or list all columns of "
        "the ID in `id`"
    )


def described(columns: Sequence[str]) -> str:
    """Name the columns of an ID, for an error."""
    return f"{'columns' if len(columns) > 1 else 'column'} {', '.join(map(repr, columns))}"


@dataclass(frozen=True, eq=False)
class DistinctIds:
    """The different IDs of a table. They are numbered in canonical order."""

    ids: Ids
    """Each ID once, in canonical order."""
    first: Rows
    """The first row of each ID, shape (n_distinct,)."""
    rows: Rows
    """All rows in canonical order of their IDs; those of one ID in the order of the table. Shape (n_rows,)."""
    starts: NDArray[np.bool_]
    """For each of `rows`, whether it is the first one of its ID; shape (n_rows,)."""
    is_ascending: bool
    """Whether the rows of the table are in canonical order."""

    @classmethod
    def of(cls, ids: Ids) -> Self:
        """Find the different IDs of a table; `ids` are those of its rows."""
        is_ascending, rows = ids.is_ascending, ids.order()
        ordered = ids if is_ascending else ids.take(rows)
        starts = ordered.starts()
        if starts.all():
            return cls(ordered, rows, rows, starts, is_ascending)
        return cls(ordered.take(np.flatnonzero(starts)), rows[starts], rows, starts, is_ascending)

    @property
    def is_in_order(self) -> bool:
        """Whether each row of the table has another ID and the rows are in canonical order already."""
        return self.is_ascending and not self.n_repeated

    @property
    def n_repeated(self) -> int:
        """How many rows have the ID of an earlier row."""
        return len(self.rows) - len(self.first)

    @property
    def first_repeated(self) -> int:
        """The first row that has the ID of an earlier row. There must be one."""
        return int(self.rows[~self.starts].min())

    def owners(self) -> NDArray[np.int64]:
        """Return for each row of the table the number of its ID, shape (n_rows,)."""
        owners = np.empty(len(self.rows), dtype=np.int64)
        owners[self.rows] = np.cumsum(self.starts) - 1
        return owners


def aggregate_column(owner: NDArray[np.int64], column: Column) -> Column:
    """Make one value of those of each ID: the mean of numbers, and the most frequent category.

    Missing values do not count. Of categories that are equally frequent, the one in the earliest row wins.

    Args:
        owner: the ID of each row, as from `DistinctIds.owners`.
        column: the rows.

    Returns:
        A row for each ID, in the order of `DistinctIds.ids`.
    """
    if isinstance(column, Categories):
        return _most_frequent(owner, column)
    return mean_of_owner(owner, column[:])


def mean_of_owner(owner: NDArray[np.int64], values: FloatVector) -> FloatVector:
    """Return the mean of the values of each ID, NaN where all are missing; shape (n_distinct,).

    Args:
        owner: the ID of each row, as from `DistinctIds.owners`.
        values: a number for each row, NaN where it is missing; shape (n_rows,).
    """
    import pandas as pd  # The import takes 40 MB, and only a job that merges rows needs it.

    # Most IDs have one row. Only the others need work.
    several = np.bincount(owner)[owner] > 1
    means = values[np.unique(owner, return_index=True)[1]]
    common = pd.Series(values[several]).groupby(owner[several]).mean()
    means[common.index] = common
    return means


def rows_with_another_label(owner: NDArray[np.int64], labels: NDArray[Any]) -> Rows:
    """Return the rows whose label differs from that of the first row of their ID, ascending.

    Args:
        owner: the ID of each row, as from `DistinctIds.owners`.
        labels: the label, or the role, of each row, shape (n_rows,).
    """
    first = np.unique(owner, return_index=True)[1]
    return np.flatnonzero(labels != labels[first][owner])


def _most_frequent(owner: NDArray[np.int64], values: Categories) -> Categories:
    """Return the most frequent value of each ID, missing where all are missing."""
    present = np.flatnonzero(~values.missing)
    n_levels = max(len(values.levels), 1)
    pairs, first, counts = np.unique(
        owner[present] * n_levels + values.codes[present], return_index=True, return_counts=True
    )
    whose, which = np.divmod(pairs, n_levels)
    best = np.lexsort((first, -counts, whose))
    best = best[np.unique(whose[best], return_index=True)[1]]
    codes = np.full(int(owner.max()) + 1, -1, dtype=np.int32)
    codes[whose[best]] = which[best]
    return Categories(codes, values.levels)
