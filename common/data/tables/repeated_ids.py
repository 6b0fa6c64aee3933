"""One row for each ID, where a table has several.

Everything works on whole columns: a table may have millions of rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError
from trilateral.common.data.features import Categories, Features


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


def first_rows(ids: Sequence[str]) -> Rows:
    """Return the number of the first row of each ID, ascending, shape (n_distinct,)."""
    if len(set(ids)) == len(ids):
        return np.arange(len(ids), dtype=np.int64)
    # Later entries of a dictionary replace earlier ones, so the rows come from the last to the first.
    first = dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))
    return np.sort(np.fromiter(first.values(), dtype=np.int64, count=len(first)))


def owners(ids: Sequence[str]) -> NDArray[np.int64]:
    """Return for each row the place of its ID among the distinct IDs, in the order of `first_rows`; shape (n_rows,)."""
    places = {one: place for place, one in enumerate(dict.fromkeys(ids))}
    return np.fromiter(map(places.__getitem__, ids), dtype=np.int64, count=len(ids))


def aggregate(owner: NDArray[np.int64], features: Features) -> Features:
    """Make one row of the rows of each ID: the mean of numbers, and the most frequent category.

    Missing values do not count. Of categories that are equally frequent, the one in the earliest row wins.

    Args:
        owner: the ID of each row, as from `owners`.
        features: the rows.

    Returns:
        A row for each ID, in the order of `first_rows`.
    """
    columns = {
        name: _most_frequent(owner, column) if isinstance(column, Categories) else mean_of_owner(owner, column)
        for name, column in features.columns.items()
    }
    return Features(columns, int(owner.max()) + 1)


def mean_of_owner(owner: NDArray[np.int64], values: FloatVector) -> FloatVector:
    """Return the mean of the values of each ID, NaN where all are missing; shape (n_distinct,).

    Args:
        owner: the ID of each row, as from `owners`.
        values: a number for each row, NaN where it is missing; shape (n_rows,).
    """
    import pandas as pd  # The import takes 40 MB, and only a job that merges rows needs it.

    # Most IDs have one row. Only the others need work.
    several = np.bincount(owner)[owner] > 1
    means = values[np.unique(owner, return_index=True)[1]]
    common = pd.Series(values[several]).groupby(owner[several]).mean()
    means[common.index] = common
    return means


def rows_with_another_label(owner: NDArray[np.int64], labels: FloatVector) -> Rows:
    """Return the rows whose label differs from that of the first row of their ID, ascending.

    Args:
        owner: the ID of each row, as from `owners`.
        labels: the label of each row, shape (n_rows,).
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
