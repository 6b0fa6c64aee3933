"""Which fold of a cross-validation each training row gets, where a party decides it and not the seed of the job.

`label` and `group` deal rows by randomness of the operating system, afresh in each job. If they depended on the job's
seed or on a key that stays, two jobs could have folds that differ by one row, and the difference of two sums over them
would show that row. The journal keeps what was dealt, so that a job that goes on has the same folds.
"""

import heapq
from secrets import token_bytes

import numpy as np

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import Counted, DataError
from trilateral.common.config.job import JobConfig
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.protocol.row_roles import RoleVector

MIN_FOLD_OF_LABEL = 10
"""Rows of each label in a fold that the guest decides. The coordinator reads sums over a fold. Over rows of one label,
such a sum is a sum of values that no label hides."""


def decides_folds(job: JobConfig, table: PartyTable) -> bool:
    """Return whether the party with this table decides the folds of a job, as `JobConfig.fold_by` says."""
    if job.fold_by == "label":
        return table.labels is not None
    return job.fold_by != "random" and table.fold_by == job.fold_by


def make_folds(job: JobConfig, table: PartyTable, train: Rows) -> RoleVector:
    """Decide the folds of a job.

    Args:
        job: the job.
        table: of the party that decides.
        train: the training rows in the table.

    Returns:
        The fold of each training row, from 0 up; shape (n_train,).

    Raises:
        DataError: the rows do not give that many folds, or the guest's give a fold with too few rows of a label.
    """
    n_folds = job.folds or 0
    labels = None if table.labels is None else table.labels[train]
    if labels is not None and job.fold_by == "label":
        folds = deal_by_label(labels, n_folds)
    elif table.fold_values is not None:
        values = table.fold_values[train]
        if n_lacking := int(np.isnan(values).sum()):
            raise DataError(
                f"the `{job.fold_by}` column of the dataset's `folds` has no {job.fold_by} in"
                f" {n_lacking:,} of {Counted(len(values)):training row|training rows}: correct these values, or set"
                " `fold_by: random`"
            )
        folds = deal_groups(values, n_folds) if job.fold_by == "group" else cut_by_time(values, n_folds)
    else:
        raise ValueError("this party does not decide the folds")
    if labels is not None:
        _check_labels(labels, folds, n_folds)
    return folds


def deal_by_label(labels: FloatVector, n_folds: int) -> RoleVector:
    """Deal the rows of each label to the folds in turn, in a secret random order.

    In any two folds, the numbers of rows of a label differ by at most one. The sizes of the folds differ by at most one
    as well: a label begins where the one before has ended. So they depend on the number of rows alone.

    Args:
        labels: shape (n_rows,).
        n_folds: number of folds.
    """
    order = np.lexsort((_random(len(labels)), labels))
    folds = np.empty(len(labels), dtype=np.uint8)
    folds[order] = np.arange(len(labels)) % n_folds
    return folds


def deal_groups(values: FloatVector, n_folds: int) -> RoleVector:
    """Deal whole groups to the folds, in a secret random order, each to the fold with the fewest rows.

    The sizes of two folds differ by at most the rows of the largest group.

    Args:
        values: equal for rows of one group, shape (n_rows,).
        n_folds: number of folds.

    Raises:
        DataError: there are fewer groups than folds.
    """
    groups, sizes = np.unique_inverse(values).inverse_indices, np.unique_counts(values).counts
    if len(sizes) < n_folds:
        raise DataError(
            f"the training rows have {Counted(len(sizes)):group|groups}, too few for {n_folds} folds: lower `folds`"
        )
    fold_of_group = np.empty(len(sizes), dtype=np.uint8)
    # The fold that is least full comes first.
    filled = [(0, fold) for fold in range(n_folds)]
    for group in np.argsort(_random(len(sizes))):
        n_rows, fold = filled[0]
        fold_of_group[group] = fold
        heapq.heapreplace(filled, (n_rows + int(sizes[group]), fold))
    return fold_of_group[groups]


def cut_by_time(values: FloatVector, n_folds: int) -> RoleVector:
    """Cut the rows into periods of as equal size as whole points in time allow; fold 0 is the earliest.

    Args:
        values: times, shape (n_rows,).
        n_folds: number of folds.

    Raises:
        DataError: there are too few different times.
    """
    counts = np.unique_counts(values).counts
    ends = np.cumsum(counts)
    targets = len(values) * np.arange(1, n_folds) / n_folds
    # Each cut is after the time that ends nearest to its target.
    after = np.searchsorted(ends, targets)
    earlier = np.maximum(after - 1, 0)
    cuts = np.where(targets - ends[earlier] < ends[after] - targets, earlier, after)
    if (np.diff(cuts, prepend=-1, append=len(counts) - 1) < 1).any():
        raise DataError(
            f"too many training rows have the same time for {n_folds} folds of whole points in time: lower `folds`"
        )
    times = np.unique_inverse(values).inverse_indices
    return np.searchsorted(cuts, times).astype(np.uint8)


def _random(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(token_bytes(8 * count), np.uint64)


def _check_labels(labels: FloatVector, folds: RoleVector, n_folds: int) -> None:
    counts = [np.bincount(folds[labels == label], minlength=n_folds).min() for label in np.unique(labels)]
    least = int(min(counts))
    if least < MIN_FOLD_OF_LABEL:
        error = DataError(
            f"a fold has fewer than {MIN_FOLD_OF_LABEL} training rows of a label: lower `folds`, or set another"
            " `fold_by`; the log of the guest has the number"
        )
        error.add_note(f"a fold has {Counted(least):row|rows} of a label")
        raise error
