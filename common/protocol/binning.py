"""Merging of neighbouring bins by their labels, weight of evidence and information value. Pure.

With P positive and N negative rows, of which p_b and n_b are in bin b, and d_b = p_b / P - n_b / N:

    WOE_b = ln((p_b / P) / (n_b / N))        IV = sum_b d_b WOE_b

A positive WOE means more positive rows than on average. So a logistic regression on WOE values has weights of about 1.
The convention and the sign are those of Siddiqi (2017), Intelligent Credit Scoring, chapter 10, with the positive label
in place of "good": the score is the log-odds of the positive label.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector

MAX_FINE_BINS = 20
"""The most bins of a column before they are merged. Missing values have a further one."""

Counts = NDArray[np.int64]
"""Numbers of rows, shape (n_bins,)."""

_SAME = 1e-12
"""Information values that differ by less are equal: the partition with fewer bins is chosen."""


@dataclass(frozen=True)
class MergeRule:
    """What each bin needs after merging, and how many there may be."""

    max_bins: int
    """The most bins, those of missing values not counted."""
    min_rows: int = 1
    """The fewest rows of a bin."""
    min_of_label: int = 1
    """The fewest rows of each label in a bin. With 1, every WOE is finite."""


def weight_of_evidence(n_positive: Counts, n_negative: Counts) -> FloatVector:
    """Return the WOE of each bin, shape (n_bins,).

    Args:
        n_positive: positive rows of each bin, all of them at least 1.
        n_negative: negative rows of each bin, all of them at least 1.
    """
    shares = n_positive / n_positive.sum(), n_negative / n_negative.sum()
    woe: FloatVector = np.log(shares[0] / shares[1])
    return woe


def information_values(n_positive: Counts, n_negative: Counts) -> FloatVector:
    """Return each bin's part of the information value; see `weight_of_evidence` for the arguments."""
    difference: FloatVector = n_positive / n_positive.sum() - n_negative / n_negative.sum()
    return difference * weight_of_evidence(n_positive, n_negative)


def merge_bins(
    n_rows: Counts, n_positive: Counts, rule: MergeRule, *, totals: tuple[int, int] | None = None
) -> list[int]:
    """Merge neighbours so that the share of positive rows rises or falls from bin to bin, with the largest IV.

    The result is exact. For each direction, it comes from dynamic programming over the last bin and the bin before
    it: the best partition that ends with the bin [i, j) extends the best one that ends with some bin [h, i) whose share
    of positive rows is not on the wrong side. This takes about `max_bins` K^3 steps for K bins.

    Args:
        n_rows: rows of each bin, in order, shape (K,).
        n_positive: positive rows of each bin, shape (K,).
        rule: what the merged bins need.
        totals: P and N of the information value, if further rows count for them; by default those of the bins.

    Returns:
        The end of each merged bin, as a number of bins: `[2, 5]` merges bins 0 and 1, and bins 2 to 4. One merged bin
        if there is no partition into more, even if that one does not follow the rule.
    """
    K = len(n_rows)
    rows = np.concatenate([[0], np.cumsum(n_rows)])
    positive = np.concatenate([[0], np.cumsum(n_positive)])
    of_rows, of_positive = rows[None, :] - rows[:, None], positive[None, :] - positive[:, None]
    of_negative = of_rows - of_positive
    least = max(rule.min_of_label, 1)
    allowed = (of_rows >= max(rule.min_rows, 1)) & (of_positive >= least) & (of_negative >= least)
    allowed &= np.arange(K + 1)[:, None] < np.arange(K + 1)[None, :]
    value = np.full((K + 1, K + 1), -np.inf)
    P, N = totals or (int(positive[-1]), int(rows[-1] - positive[-1]))
    p, n = of_positive[allowed] / max(P, 1), of_negative[allowed] / max(N, 1)
    value[allowed] = (p - n) * np.log(p / n)
    best_value, best_ends = _SAME, [K]
    for sign in (1, -1):
        for reached, ends in _partitions(value, sign * of_positive, of_rows, rule.max_bins):
            if reached > best_value + _SAME or (reached > best_value - _SAME and len(ends) < len(best_ends)):
                best_value, best_ends = reached, ends
    return best_ends


def _partitions(
    value: NDArray[np.float64], of_positive: Counts, of_rows: Counts, max_bins: int
) -> list[tuple[float, list[int]]]:
    """Return the best partition into each number of bins from 2 up with rising shares, and its value."""
    K = len(value) - 1
    # Of the partitions of [0, j) whose last bin is [i, j): the largest value, and the start of the bin before.
    reached = np.full((K + 1, K + 1), -np.inf)
    reached[0] = value[0]
    before: list[NDArray[np.int64]] = []
    found = []
    for _ in range(2, min(max_bins, K) + 1):
        following = np.full((K + 1, K + 1), -np.inf)
        came_from = np.zeros((K + 1, K + 1), np.int64)
        for i in range(1, K):
            for j in range(i + 1, K + 1):
                if value[i, j] == -np.inf:
                    continue
                # Shares are compared as fractions, exactly.
                rising = of_positive[:i, i] * of_rows[i, j] <= of_positive[i, j] * of_rows[:i, i]
                candidates = np.where(rising, reached[:i, i], -np.inf)
                h = int(candidates.argmax())
                following[i, j], came_from[i, j] = candidates[h] + value[i, j], h
        reached = following
        before.append(came_from)
        i = int(reached[:, K].argmax())
        if reached[i, K] == -np.inf:
            break
        found.append((float(reached[i, K]), _ends(before, i, K)))
    return found


def _ends(before: Sequence[NDArray[np.int64]], i: int, j: int) -> list[int]:
    ends = [j]
    for came_from in reversed(before):
        ends.append(i)
        i, j = int(came_from[i, j]), i
    return ends[::-1]


def merge_small(n_rows: Counts, n_positive: Counts | None, rule: MergeRule) -> list[int]:
    """Merge each bin that lacks rows with the smaller of its neighbours, the smallest bin first.

    Args:
        n_rows: rows of each bin, in order, shape (K,).
        n_positive: positive rows of each bin; None if labels do not matter.
        rule: what the merged bins need. `max_bins` is not looked at.

    Returns:
        The end of each merged bin, as from `merge_bins`.
    """
    ends = list(range(1, len(n_rows) + 1))
    rows = n_rows.tolist()
    positive: list[int | None] = [None] * len(rows) if n_positive is None else n_positive.tolist()
    while len(rows) > 1:
        lacking = [(rows[place], place) for place in range(len(rows)) if _lacks(rows[place], positive[place], rule)]
        if not lacking:
            break
        _, place = min(lacking)
        neighbours = [each for each in (place - 1, place + 1) if 0 <= each < len(rows)]
        first = min(place, min(neighbours, key=lambda each: (rows[each], each)))
        rows[first : first + 2] = [rows[first] + rows[first + 1]]
        one, other = positive[first : first + 2]
        positive[first : first + 2] = [None if one is None or other is None else one + other]
        del ends[first]
    return ends


def _lacks(n_rows: int, n_positive: int | None, rule: MergeRule) -> bool:
    """Return whether a bin has too few rows; `n_positive` is None if labels do not matter."""
    if n_rows < max(rule.min_rows, 1):
        return True
    return n_positive is not None and min(n_positive, n_rows - n_positive) < rule.min_of_label


@dataclass(frozen=True)
class FineBins:
    """The bins of a column before they are merged: all that merging needs to know besides the labels."""

    n_rows: tuple[int, ...]
    """Training rows of each bin."""
    ordered: bool
    """Whether the bins have an order, as those of numbers. Groups of categories are ordered by their labels."""
    has_missing: bool = False
    """Whether the last bin is that of missing values."""
    keep_from: int = 0
    """The rows from which a bin is kept as it is, in a column whose bins are not chosen by their labels; 0 if they
    are."""

    @property
    def n_present(self) -> int:
        """Number of the bins that are not that of missing values."""
        return len(self.n_rows) - self.has_missing


def find_groups(fine: FineBins, n_positive: Counts, rule: MergeRule) -> list[int]:
    """Merge the bins of a column of another party as it asks for: see `choose_groups` and `keep_groups`.

    Args:
        fine: the bins.
        n_positive: positive rows of each, shape (n_bins,).
        rule: what the merged bins need. For bins that are kept, `keep_from` takes the place of its `min_rows`.
    """
    if fine.keep_from:
        return keep_groups(fine, n_positive, replace(rule, min_rows=fine.keep_from))
    return choose_groups(fine, n_positive, rule)


def choose_groups(fine: FineBins, n_positive: Counts, rule: MergeRule) -> list[int]:
    """Merge the bins of a column, supervised by the labels; see `merge_bins`.

    Missing values keep a bin of their own if it follows the rule. Otherwise they join the largest bin, which does not
    depend on labels. They also join if all other values together do not follow the rule. So each merged bin follows it,
    or there is only one.

    Args:
        fine: the bins.
        n_positive: positive rows of each, shape (n_bins,).
        rule: what the merged bins need.

    Returns:
        The number of the merged bin of each bin, from 0 up. The numbers follow the order of the bins, or for bins
        without an order that of their shares of positive rows, and missing values come last.
    """
    n_rows, n_present = np.array(fine.n_rows), fine.n_present
    order = np.arange(n_present)
    if not fine.ordered:
        order = np.argsort(n_positive[:n_present] / np.maximum(n_rows[:n_present], 1), kind="stable")
    totals = int(n_positive.sum()), int((n_rows - n_positive).sum())
    ends = merge_bins(n_rows[order], n_positive[order], rule, totals=totals)
    return _grouped(fine, n_positive, rule, order, ends)


def keep_groups(fine: FineBins, n_positive: Counts | None, rule: MergeRule) -> list[int]:
    """Keep the bins of a column as they are, but for those that lack rows; see `merge_small` and `choose_groups`."""
    n_rows, n_present = np.array(fine.n_rows), fine.n_present
    order = np.arange(n_present)
    if not fine.ordered:
        rates = -n_rows if n_positive is None else n_positive / np.maximum(n_rows, 1)
        order = np.argsort(rates[:n_present], kind="stable")
    ends = merge_small(n_rows[order], None if n_positive is None else n_positive[order], rule)
    return _grouped(fine, n_positive, rule, order, ends)


def _grouped(
    fine: FineBins, n_positive: Counts | None, rule: MergeRule, order: Counts, ends: Sequence[int]
) -> list[int]:
    n_rows = np.array(fine.n_rows)
    groups = np.zeros(len(n_rows), np.int64)
    groups[order] = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
    if fine.has_missing:
        missing = fine.n_rows[-1], None if n_positive is None else int(n_positive[-1])
        present = sum(fine.n_rows[:-1]), None if n_positive is None else int(n_positive[:-1].sum())
        # A single bin of all values that are present may lack rows too: nothing was left to merge it with.
        if _lacks(*missing, rule) or (len(ends) == 1 and _lacks(*present, rule)):
            sizes = np.bincount(groups[:-1], weights=n_rows[:-1])
            groups[-1] = int(sizes.argmax())
        else:
            groups[-1] = len(ends)
    return [int(group) for group in groups]


def sum_groups(counts: Counts, groups: Sequence[int]) -> Counts:
    """Return the counts of merged bins by the number of each bin's, shape (max(groups) + 1,)."""
    sums = np.zeros(max(groups) + 1, np.int64)
    np.add.at(sums, np.asarray(groups), counts)
    return sums
