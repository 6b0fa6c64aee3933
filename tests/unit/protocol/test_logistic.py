import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from trilateral.common.protocol.logistic import gradient, logistic_loss, probability, residual

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((50, 4))
Y = np.where(RANDOM.random(50) < 0.4, 1.0, -1.0)
C = RANDOM.exponential(size=50)
C /= C.mean()
W = RANDOM.standard_normal(4)
WEIGHTS = pytest.mark.parametrize("weights", [None, C])


@WEIGHTS
def test_loss_without_a_model_is_log_2(weights: np.ndarray | None) -> None:
    assert logistic_loss(np.zeros(50), Y, weights) == pytest.approx(np.log(2), rel=1e-15)


@WEIGHTS
def test_loss_is_scikit_learns(weights: np.ndarray | None) -> None:
    expected = log_loss(Y, probability(X @ W), sample_weight=weights)
    assert logistic_loss(X @ W, Y, weights) == pytest.approx(expected, rel=1e-12)


def test_far_scores_do_not_overflow() -> None:
    scores = np.array([-1e4, -800.0, 800.0, 1e4])
    assert logistic_loss(scores, np.array([-1.0, 1.0, -1.0, 1.0])) == pytest.approx(400)
    assert probability(scores).tolist() == [0, 0, 1, 1]


@WEIGHTS
def test_gradient_is_the_slope_of_the_loss(weights: np.ndarray | None) -> None:
    step = 1e-5
    rise = [logistic_loss(X @ (W + step * e), Y, weights) for e in np.eye(4)]
    fall = [logistic_loss(X @ (W - step * e), Y, weights) for e in np.eye(4)]
    found = gradient(X, residual(X @ W, Y), weights)
    assert found == pytest.approx((np.array(rise) - np.array(fall)) / (2 * step), abs=1e-9)


def test_a_weight_of_two_counts_a_row_twice() -> None:
    weights = np.where(np.arange(50) < 10, 2.0, 1.0) * 50 / 60
    rows = np.r_[:10, :50]
    assert logistic_loss(X @ W, Y, weights) == pytest.approx(logistic_loss(X[rows] @ W, Y[rows]))
    twice = gradient(X[rows], residual(X[rows] @ W, Y[rows]))
    assert gradient(X, residual(X @ W, Y), weights) == pytest.approx(twice)


@WEIGHTS
def test_gradient_vanishes_at_scikit_learns_optimum(weights: np.ndarray | None) -> None:
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    coef = model.fit(X, Y, sample_weight=weights).coef_[0]
    assert np.abs(gradient(X, residual(X @ coef, Y), weights)).max() < 1e-8
