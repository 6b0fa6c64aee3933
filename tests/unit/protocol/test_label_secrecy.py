"""The start and the entropy of labels, against exact integers and plain linear algebra."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.base.arrays import FloatVector
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.label_secrecy import (
    MAX_START_SCORE,
    START_SCORE,
    LabelSecrecy,
    draw_start,
    effective_rank,
    shown_bits,
    start_score,
    subset_bits,
)


@given(n=st.integers(1, 3000), share=st.floats(0, 1))
def test_the_bits_of_a_subset_are_those_of_the_exact_binomial(n: int, share: float) -> None:
    k = round(share * n)
    assert subset_bits(n, k) == pytest.approx(math.log2(math.comb(n, k)), abs=1e-8)


def test_the_bits_of_a_subset_are_never_below_zero() -> None:
    assert subset_bits(10**6, 0) == subset_bits(10**6, 10**6) == 0
    assert subset_bits(10**6, 1) == pytest.approx(math.log2(10**6), abs=1e-6)


def columns_of_rank(rank: int, n_columns: int, n_rows: int = 200) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    rng = np.random.default_rng(rank)
    return rng.normal(size=(n_rows, rank)) @ rng.normal(size=(rank, n_columns))


def test_dependent_columns_do_not_count_and_weak_ones_neither() -> None:
    assert effective_rank(np.linalg.qr(columns_of_rank(5, 5))[0]) == 5
    assert effective_rank(np.c_[columns_of_rank(3, 3), np.ones(200)]) == 3
    assert effective_rank(columns_of_rank(2, 6)) <= 2
    assert effective_rank(np.ones((10, 1))) == 0
    assert effective_rank(np.zeros((10, 2))) == 0
    assert effective_rank(np.empty((10, 0))) == 0
    orthogonal = np.linalg.qr(columns_of_rank(2, 2))[0]
    assert effective_rank(orthogonal * [1, 0.07]) == 2
    assert effective_rank(orthogonal * [1, 0.06]) == 1


# --- the start


def test_starts_give_scores_of_the_chosen_size_and_are_never_the_same() -> None:
    columns = np.c_[np.linalg.qr(columns_of_rank(4, 4))[0] * np.sqrt(200), np.ones(200)]
    starts = np.array([draw_start(columns) for _ in range(2000)])
    assert len(np.unique(starts)) == starts.size
    mean_squares = np.mean((starts @ columns.T) ** 2, axis=1)
    assert np.mean(mean_squares) == pytest.approx(START_SCORE**2, rel=0.05)
    # Their own sizes differ: a known size would be an equation about a start.
    assert np.std(mean_squares) > 0.3 * START_SCORE**2
    np.testing.assert_allclose(starts.mean(axis=0), 0, atol=0.02)


def test_an_extreme_row_makes_the_start_smaller_but_no_round_void() -> None:
    columns = np.zeros((100_000, 2))
    columns[:, 0], columns[7, 1] = 1, np.sqrt(100_000)
    scores = np.array([columns @ draw_start(columns) for _ in range(100)])
    assert np.abs(scores).max() <= MAX_START_SCORE


def test_there_is_a_start_for_columns_of_zeros() -> None:
    assert draw_start(np.zeros((10, 2))).shape == (2,)
    assert shown_bits(np.zeros((10, 2))) == 28


def test_a_smaller_start_hides_fewer_bits() -> None:
    usual = np.linalg.qr(columns_of_rank(4, 4))[0] * np.sqrt(200)
    assert start_score(usual) == START_SCORE
    assert shown_bits(usual) == 6
    extreme = np.full((100_000, 1), 1e-4)
    extreme[7] = 1
    # The starts are drawn anew in each run. The estimate has a standard deviation of 1.4%.
    starts = np.array([draw_start(extreme) for _ in range(1000)])
    mean_square = np.mean(starts**2) * np.mean(extreme**2)
    assert np.sqrt(mean_square) == pytest.approx(start_score(extreme), rel=0.1)
    assert start_score(extreme) < START_SCORE / 2
    assert shown_bits(extreme) == pytest.approx(4 - math.log2(start_score(extreme)))
    labels = np.repeat([-1.0, 1.0], 50_000)
    found = LabelSecrecy.of(extreme, labels, Batches(100_000, "all", seed=0), secret_start=True)
    assert found.shown_bits == shown_bits(extreme)


# --- the rule


def secrecy(
    n_rows: int, n_positive: int, n_guest: int, *, batch: int | None = None, start: bool = True
) -> LabelSecrecy:
    """Each batch has its share of the positive rows, up to one."""
    rng = np.random.default_rng(1)
    columns = np.c_[np.linalg.qr(rng.normal(size=(n_rows, n_guest)))[0] * np.sqrt(n_rows), np.ones(n_rows)]
    batches = Batches(n_rows, batch or "all", seed=0)
    labels = -np.ones(n_rows)
    order = np.concatenate(batches._parts)
    labels[order[np.linspace(0, n_rows - 1, n_positive).astype(int)]] = 1
    return LabelSecrecy.of(columns, labels, batches, secret_start=start)


def test_one_batch_has_a_secret_number_for_each_feature_but_one() -> None:
    assert secrecy(400, 100, 5).n_secret == 4
    assert secrecy(400, 100, 1).n_secret == 0
    assert secrecy(400, 100, 0).n_secret == 0


def test_each_batch_takes_one_secret_number_because_its_loss_is_known() -> None:
    assert secrecy(400, 100, 5, batch=100).n_secret == 1
    assert secrecy(400, 100, 5, batch=50).n_secret == 0
    assert secrecy(400, 100, 2, batch=50).n_secret == 0


def test_a_job_that_starts_at_zero_has_no_secret_number() -> None:
    assert secrecy(400, 100, 5, start=False).n_secret == 0


def test_without_secret_numbers_each_equation_needs_its_bits_in_every_batch() -> None:
    labels = secrecy(1000, 100, 3, start=False)
    bits = math.log2(math.comb(1000, 100))
    assert list(labels.batch_bits) == pytest.approx([bits])
    assert labels.n_equations(12) == 12
    assert labels.max_equations(56) == labels.max_host_columns(labels.max_equations(56)) == int(bits // 56) == 8
    several = LabelSecrecy([500.0, 100.0], 0)
    assert several.n_equations(5) == 10
    assert several.max_equations(56) == 3
    assert several.max_host_columns(3) == 1


def test_secret_numbers_cover_equations_except_for_some_bits_of_each() -> None:
    labels = LabelSecrecy([100.0], 4)
    for n_host in range(1, 9):
        assert labels.n_equations(n_host) == math.ceil(n_host - 22 / 28 * min(n_host, 4))
    assert labels.max_host_columns(labels.max_equations(28)) == 6
    # They serve all batches together.
    several = LabelSecrecy([100.0, 100.0], 4)
    assert several.n_equations(5) == math.ceil(10 - 4 * 22 / 28)
    assert several.max_host_columns(several.max_equations(28)) == 5
    assert LabelSecrecy([100.0], 4, shown_bits=28.0).n_equations(5) == 5


def test_each_training_counts_for_an_equation_at_least_however_many_numbers_are_secret() -> None:
    assert LabelSecrecy([100.0], 1000).n_equations(1) == 1
    assert LabelSecrecy([100.0], 1000).n_equations(13) == 3


def test_labels_of_one_kind_allow_no_column() -> None:
    for n_secret in (0, 14):
        labels = LabelSecrecy([0.0], n_secret)
        assert labels.max_host_columns(labels.max_equations(56)) == 0


def test_on_shares_the_labels_have_the_entropy_of_all_training_rows_and_nothing_hides_behind_a_start() -> None:
    labels = -np.ones(1000)
    labels[:100] = 1
    found = LabelSecrecy.of_result(labels, None)
    bits = math.log2(math.comb(1000, 100))
    assert list(found.batch_bits) == pytest.approx([bits])
    assert found.n_secret == 0
    assert found.n_equations(12) == 13
    assert found.max_host_columns(found.max_equations(56)) == int(bits // 56) - 1 == 7


def test_with_inference_each_pair_of_columns_is_an_equation_too() -> None:
    """With 13 columns, 13 weights, the loss and 91 elements of their covariance."""
    labels = LabelSecrecy([10_000.0], 0, n_told=1, has_inference=True)
    assert labels.n_equations(13) == 105
    assert [labels.max_host_columns(n_left) for n_left in (104, 105, 119, 120)] == [12, 13, 13, 14]


def test_rows_of_small_weight_do_not_add_to_the_entropy_of_the_labels() -> None:
    labels = -np.ones(1000)
    labels[::10] = 1
    whole = LabelSecrecy.of_result(labels, None).batch_bits[0]

    def share(weights: FloatVector) -> float:
        return LabelSecrecy.of_result(labels, weights).batch_bits[0] / whole

    assert share(np.ones(1000)) == 1
    assert share(np.where(labels > 0, 9.0, 1.0)) == pytest.approx(1)  # weights by label say nothing new
    half = np.where(np.arange(1000) % 20 < 10, 1.0, 0.0)
    assert share(half) == pytest.approx(0.5)
    heavy = np.where(np.arange(1000) < 20, 30.0, 1.0)  # two of the rarer label among 100
    assert share(heavy) < 0.2
    assert share(np.where(labels > 0, 0.0, 1.0)) == 0


@given(
    bits=st.lists(st.floats(0, 1e5), min_size=1, max_size=5),
    n_secret=st.integers(0, 50),
    each=st.floats(1, 500),
    n_given=st.integers(0, 200),
    n_told=st.integers(0, 2),
)
def test_the_largest_number_of_columns_is_the_last_that_the_rule_allows(
    bits: list[float], n_secret: int, each: float, n_given: int, n_told: int
) -> None:
    labels = LabelSecrecy(bits, n_secret, n_told=n_told)
    n_left = labels.max_equations(each) - n_given
    most = labels.max_host_columns(n_left)
    assert most == 0 or labels.n_equations(most) <= n_left
    assert labels.n_equations(most + 1) > n_left
    # In each batch, the labels have the bits that the equations about them need.
    assert most == 0 or each * labels.n_equations(most) / len(bits) <= min(bits) * (1 + 1e-9)
