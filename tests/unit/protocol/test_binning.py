"""Merging of bins: the exact largest IV against all partitions, and what every merged bin has."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.protocol.binning import (
    FineBins,
    MergeRule,
    find_groups,
    information_values,
    merge_bins,
    merge_small,
    weight_of_evidence,
)

BINS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=8)


def sum_merged(counts: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    return np.asarray(np.add.reduceat(counts, [0, *ends[:-1]]))


def total_iv(positive: np.ndarray, negative: np.ndarray) -> float:
    if len(positive) == 1:
        return 0.0
    return math.fsum(
        (p / positive.sum() - n / negative.sum()) * math.log((p / positive.sum()) / (n / negative.sum()))
        for p, n in zip(positive, negative, strict=True)
    )


def best_of_all(positive: np.ndarray, negative: np.ndarray, rule: MergeRule) -> float:
    """Try every partition."""
    K, best = len(positive), 0.0
    for n_cuts in range(1, min(rule.max_bins, K)):
        for cuts in combinations(range(1, K), n_cuts):
            p, n = sum_merged(positive, [*cuts, K]), sum_merged(negative, [*cuts, K])
            if min(p.min(), n.min()) < max(rule.min_of_label, 1) or (p + n).min() < rule.min_rows:
                continue
            shares = p / (p + n)
            if (np.diff(shares) >= 0).all() or (np.diff(shares) <= 0).all():
                best = max(best, total_iv(p, n))
    return best


@given(bins=BINS, max_bins=st.integers(1, 8), min_rows=st.integers(1, 9), min_of_label=st.integers(0, 4))
def test_merging_finds_the_largest_iv_of_all_monotone_partitions(
    bins: list[tuple[int, int]], max_bins: int, min_rows: int, min_of_label: int
) -> None:
    positive, negative = (np.array(each) for each in zip(*bins, strict=True))
    rule = MergeRule(max_bins, min_rows, min_of_label)

    ends = merge_bins(positive + negative, positive, rule)

    p, n = sum_merged(positive, ends), sum_merged(negative, ends)
    assert ends[-1] == len(bins)
    assert sorted(set(ends)) == ends
    assert len(ends) <= max(max_bins, 1)
    found = total_iv(p, n)
    assert found == pytest.approx(best_of_all(positive, negative, rule), abs=1e-9)
    if len(ends) > 1:
        assert (p + n).min() >= min_rows
        assert min(p.min(), n.min()) >= max(min_of_label, 1)
        assert (np.diff(p / (p + n)) >= -1e-12).all() or (np.diff(p / (p + n)) <= 1e-12).all()


def test_of_equal_partitions_the_one_with_fewer_bins_is_chosen() -> None:
    # The first two bins have the same share: apart or together, the IV is the same.
    assert merge_bins(np.array([20, 40, 40]), np.array([2, 4, 20]), MergeRule(3)) == [2, 3]


def test_bins_without_a_partition_become_one() -> None:
    assert merge_bins(np.array([10, 10]), np.array([0, 0]), MergeRule(2)) == [2]
    assert merge_bins(np.array([10, 10]), np.array([10, 10]), MergeRule(2)) == [2]
    assert merge_bins(np.array([3]), np.array([1]), MergeRule(2)) == [1]


@given(bins=BINS, min_rows=st.integers(1, 30), min_of_label=st.integers(0, 10))
def test_small_bins_are_merged_until_none_is_left(
    bins: list[tuple[int, int]], min_rows: int, min_of_label: int
) -> None:
    positive, negative = (np.array(each) for each in zip(*bins, strict=True))
    ends = merge_small(positive + negative, positive, MergeRule(8, min_rows, min_of_label))
    p, n = sum_merged(positive, ends), sum_merged(negative, ends)
    assert ends[-1] == len(bins)
    assert len(ends) == 1 or ((p + n).min() >= min_rows and min(p.min(), n.min()) >= min_of_label)


def test_large_bins_stay_as_they_are() -> None:
    assert merge_small(np.array([50, 60, 70]), None, MergeRule(3, 50)) == [1, 2, 3]
    assert merge_small(np.array([50, 6, 70]), None, MergeRule(3, 50)) == [2, 3]


def test_woe_is_the_log_of_the_odds_relative_to_all_rows() -> None:
    positive, negative = np.array([30, 10]), np.array([70, 90])
    woe = weight_of_evidence(positive, negative)
    # The bin with more positive rows than on average has the positive value.
    assert woe == pytest.approx([math.log((30 / 70) / (40 / 160)), math.log((10 / 90) / (40 / 160))])
    assert information_values(positive, negative).sum() == pytest.approx(total_iv(positive, negative))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=8),
    st.integers(1, 60),
    st.integers(1, 30),
    st.sampled_from([0, 1, 30]),
    st.booleans(),
    st.booleans(),
)
def test_each_bin_that_is_told_follows_the_rule_or_is_the_only_one(
    counts: list[tuple[int, int]], min_rows: int, min_of_label: int, keep_from: int, ordered: bool, has_missing: bool
) -> None:
    positive, negative = np.array(counts).T
    fine = FineBins(tuple((positive + negative).tolist()), ordered, has_missing, keep_from)

    groups = find_groups(fine, positive, MergeRule(8, min_rows, min_of_label))

    assert sorted({*groups}) == list(range(max(groups) + 1))
    if max(groups):
        of_label = [np.bincount(groups, weights=each) for each in (positive, negative)]
        assert np.min(of_label) >= min_of_label
        assert np.sum(of_label, axis=0).min() >= (keep_from or min_rows)


@pytest.mark.parametrize("keep_from", [0, 1])
def test_few_values_beside_many_missing_ones_have_no_bin_of_their_own(keep_from: int) -> None:
    fine = FineBins((10, 990), True, True, keep_from)
    assert find_groups(fine, np.array([3, 300]), MergeRule(8, 5, 20)) == [0, 0]
    assert find_groups(fine, np.array([3, 300]), MergeRule(8, 5, 3)) == [0, 1]
