import numpy as np
import pytest

from trilateral.common.protocol.taylor import gradient, hessian_product, residual, taylor_loss

RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((50, 4))
Y = np.where(RANDOM.random(50) < 0.4, 1.0, -1.0)
W = RANDOM.standard_normal(4)


def loss_at(w: np.ndarray) -> float:
    return taylor_loss(X @ w, Y)


def gradient_at(w: np.ndarray) -> np.ndarray:
    return gradient(X, residual(X @ w, Y))


def test_loss_without_a_model_is_log_2() -> None:
    assert taylor_loss(np.zeros(50), Y) == pytest.approx(np.log(2), rel=1e-15)


def test_loss_of_one_sample_is_equation_2() -> None:
    assert taylor_loss(np.array([3.0]), np.array([-1.0])) == pytest.approx(np.log(2) + 1.5 + 9 / 8, rel=1e-15)


def test_loss_is_near_the_logistic_loss_for_small_scores() -> None:
    scores = np.linspace(-0.1, 0.1, 50)
    # The next term of the series is u^4 / 192.
    assert taylor_loss(scores, Y) == pytest.approx(np.mean(np.log1p(np.exp(-Y * scores))), abs=0.1**4 / 192)


def test_gradient_is_the_slope_of_the_loss() -> None:
    step = 1e-5
    differences = [(loss_at(W + step * e) - loss_at(W - step * e)) / (2 * step) for e in np.eye(4)]
    assert gradient_at(W) == pytest.approx(np.array(differences), abs=1e-9)


def test_hessian_product_is_the_change_of_the_gradient() -> None:
    direction = RANDOM.standard_normal(4)
    assert hessian_product(X, direction) == pytest.approx(gradient_at(W + direction) - gradient_at(W), abs=1e-14)
