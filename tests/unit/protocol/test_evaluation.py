"""Measures of a model on the hold-out rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import ks_2samp
from sklearn.metrics import log_loss, roc_auc_score, roc_curve

from trilateral.common.protocol.evaluation import measure, round_scores


def test_known_values() -> None:
    metrics = measure(np.array([2.0, 1.0, -1.0, -2.0, 0.5]), np.array([1.0, -1.0, 1.0, -1.0, 1.0]))

    assert metrics.auc == pytest.approx(4 / 6)
    assert metrics.ks == pytest.approx(1 / 2)
    assert metrics.gini == pytest.approx(2 * 4 / 6 - 1)
    assert metrics.accuracy == pytest.approx(3 / 5)
    assert metrics.lift == pytest.approx((5 / 3, 0, 5 / 3, 5 / 3, 0))
    assert (metrics.n_rows, metrics.n_positive) == (5, 3)


@given(st.integers(0, 2**32 - 1), st.integers(4, 50))
def test_measures_agree_with_independent_formulas(seed: int, n_rows: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.array([1.0, -1.0, *rng.choice([-1.0, 1.0], n_rows - 2)])
    scores = np.round(rng.standard_normal(n_rows) + labels, 1)  # rounded: ties count half
    positive, negative = scores[labels > 0], scores[labels < 0]
    gaps = np.sign(positive[:, None] - negative)

    metrics = measure(scores, labels)

    assert metrics.auc == pytest.approx(np.mean((gaps + 1) / 2))
    assert metrics.ks == pytest.approx(max(0.0, ks_2samp(negative, positive, alternative="greater").statistic))
    assert metrics.log_loss == pytest.approx(log_loss(labels > 0, expit(scores), labels=[False, True]))


@given(st.lists(st.tuples(st.booleans(), st.integers(-9, 9)), min_size=2, max_size=60))
def test_the_curve_has_the_bits_of_scikit_learns(rows: list[tuple[bool, int]]) -> None:
    positive, scores = np.array([True, False, *(one for one, _ in rows)]), np.array([0, 1, *(n for _, n in rows)]) / 7
    metrics = measure(scores, np.where(positive, 1.0, -1.0))
    false_positives, true_positives, _ = roc_curve(positive, scores)
    assert metrics.auc == roc_auc_score(positive, scores)
    assert metrics.ks == np.max(true_positives - false_positives)


def test_lift_is_of_deciles_and_ties_count_with_their_mean() -> None:
    scores = np.repeat([3.0, 2.0, 1.0], [10, 20, 70])
    labels = np.concatenate([np.ones(10), np.tile([1.0, -1.0], 10), -np.ones(70)])

    for order in (np.arange(100), np.arange(100)[::-1], np.random.default_rng(0).permutation(100)):
        lift = measure(scores[order], labels[order]).lift
        assert lift == pytest.approx((5, 2.5, 2.5, *[0] * 7))


def test_the_threshold_is_of_the_probability_that_is_given() -> None:
    scores, labels = np.array([0.0, 1.0, 2.0, 3.0]), np.array([-1.0, -1.0, 1.0, 1.0])

    assert measure(scores, labels, threshold=0.8).accuracy == 1.0
    assert measure(scores, labels, scores - 3, threshold=0.2).accuracy == 1.0
    assert measure(scores, labels, scores - 3).accuracy == 0.5


def test_scores_far_from_zero_are_no_ties_and_no_infinite_loss() -> None:
    metrics = measure(np.array([900.0, 800.0, -800.0]), np.array([1.0, -1.0, -1.0]))

    assert metrics.auc == 1.0
    assert metrics.log_loss == pytest.approx(800 / 3)


@pytest.mark.parametrize("label", [1.0, -1.0])
def test_rows_of_one_label_have_no_curve(label: float) -> None:
    metrics = measure(np.array([1.0, 2.0, -1.0]), np.full(3, label))

    assert metrics.auc is None
    assert metrics.ks is None
    assert metrics.gini is None
    assert metrics.lift is None
    assert metrics.accuracy == pytest.approx(2 / 3 if label > 0 else 1 / 3)
    assert metrics.n_positive == (3 if label > 0 else 0)


@pytest.mark.parametrize("scores", [[], [np.nan], [np.inf]])
def test_scores_that_cannot_be_measured_are_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one row, and finite scores"):
        measure(np.array(scores), np.ones(len(scores)))


@given(st.floats(-1e100, 1e100))
def test_a_disclosed_score_has_17_bits_and_is_close(score: float) -> None:
    (rounded,) = round_scores(np.array([score]))
    size = abs(score)
    step = 2.0**-12 if size < 16 else 2.0 ** (np.floor(np.log2(size)) - 15)
    assert abs(rounded - score) <= step / 2
    assert (rounded / step).is_integer()
    assert abs(rounded / step) <= 2**16
    assert round_scores(np.array([rounded])) == rounded


def test_a_score_that_is_rounded_to_0_has_no_sign() -> None:
    assert not np.signbit(round_scores(np.array([-1e-9, -0.0, 1e-9]))).any()


def test_each_row_is_rounded_by_itself() -> None:
    scores = np.random.default_rng(1).normal(scale=10, size=1000)
    alone = [round_scores(scores[row : row + 1])[0] for row in range(len(scores))]
    np.testing.assert_array_equal(round_scores(scores), alone)


def test_rounded_scores_have_nearly_the_same_figures() -> None:
    rng = np.random.default_rng(2)
    labels = rng.choice([-1.0, 1.0], 500)
    scores = 2 * rng.standard_normal(500) + labels
    exact, rounded = measure(scores, labels), measure(round_scores(scores), labels)
    assert exact.auc is not None
    assert rounded.auc == pytest.approx(exact.auc, abs=1e-5)
    assert rounded.log_loss == pytest.approx(exact.log_loss, abs=1e-5)
