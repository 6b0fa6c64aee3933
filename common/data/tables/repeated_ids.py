"""One row for each ID, where a table has several.

Everything works on whole columns: a table may have millions of rows.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import DataError


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
    return np.flatnonzero(~pd.Series(ids, dtype=object).duplicated().to_numpy())


def owners(ids: Sequence[str]) -> NDArray[np.int64]:
    """Return for each row the place of its ID among the distinct IDs, in the order of `first_rows`; shape (n_rows,)."""
    return pd.factorize(np.array(ids, dtype=object))[0].astype(np.int64)


def aggregate(owner: NDArray[np.int64], features: pd.DataFrame) -> pd.DataFrame:
    """Make one row of the rows of each ID: the mean of numbers, and the most frequent category.

    Missing values do not count. Of categories that are equally frequent, the one in the earliest row wins.

    Args:
        owner: the ID of each row, as from `owners`.
        features: the rows, shape (n_rows, n_features).

    Returns:
        Shape (n_distinct, n_features), in the order of `first_rows`.
    """
    first = np.unique(owner, return_index=True)[1]
    # Most IDs have one row. Only the others need work.
    several = np.flatnonzero(np.bincount(owner)[owner] > 1)
    columns = {}
    for name in features.columns:
        column = features[name].take(first).reset_index(drop=True)
        values = features[name].take(several)
        if is_numeric_dtype(values.dtype):
            common = values.groupby(owner[several]).mean()
        else:
            common = _most_frequent(owner[several], values)
        column.iloc[common.index] = common.to_numpy()
        columns[name] = column
    return pd.DataFrame(columns, index=pd.RangeIndex(len(first)))


def rows_with_another_label(owner: NDArray[np.int64], labels: FloatVector) -> Rows:
    """Return the rows whose label differs from that of the first row of their ID, ascending.

    Args:
        owner: the ID of each row, as from `owners`.
        labels: the label of each row, shape (n_rows,).
    """
    first = np.unique(owner, return_index=True)[1]
    return np.flatnonzero(labels != labels[first][owner])


def _most_frequent(owner: NDArray[np.int64], values: "pd.Series[str]") -> "pd.Series[str]":
    """Return the most frequent value of each ID that has any, by ID."""
    codes, levels = pd.factorize(values)
    present = codes >= 0
    pairs, first, counts = np.unique(
        owner[present] * max(len(levels), 1) + codes[present], return_index=True, return_counts=True
    )
    whose, which = np.divmod(pairs, max(len(levels), 1))
    best = np.lexsort((first, -counts, whose))
    best = best[np.unique(whose[best], return_index=True)[1]]
    return pd.Series(np.asarray(levels, dtype=object)[which[best]], index=whose[best])
