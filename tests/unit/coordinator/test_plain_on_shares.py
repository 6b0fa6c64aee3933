"""`train_plain` with protocol `shares`, against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.oracles.plain import Array
from tests.support.training_driver import make_job, make_problem
from trilateral.common.config.job import Lbfgs, Sgd
from trilateral.coordinator.numpy_training import train_plain

JOB = make_job(Lbfgs(), protocol="shares", tolerance=1e-12, l2=0.01)
PROBLEM = make_problem(JOB)
X, Y = PROBLEM.columns, PROBLEM.labels
PENALTY = np.diag([1.0] * 5 + [0.0])
WEIGHTS = np.random.default_rng(3).exponential(2.0, len(Y))


def scikit_learn(weights: Array | None) -> Array:
    total = len(Y) if weights is None else weights.sum()
    model = LogisticRegression(C=1 / (JOB.l2 * total), tol=1e-12, solver="newton-cholesky")
    model.fit(X[:, :-1], Y, sample_weight=weights)
    return np.append(model.coef_[0], model.intercept_)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_gives_scikit_learns_model(weights: Array | None) -> None:
    plain = train_plain(JOB, X, Y, PENALTY, sample_weights=weights)
    np.testing.assert_allclose(plain.coef, scikit_learn(weights), rtol=0, atol=1e-4)
    assert plain.converged
    assert plain.losses[0] == pytest.approx(np.log(2))
    assert plain.loss == pytest.approx(min(plain.losses), abs=1e-6)


def test_sgd_on_batches_comes_near_it() -> None:
    job = make_job(Sgd(learning_rate=0.5, decay=0.1), protocol="shares", batch=100, tolerance=1e-6, l2=0.01, epochs=200)
    plain = train_plain(job, X, Y, PENALTY, sample_weights=WEIGHTS)
    best = train_plain(JOB, X, Y, PENALTY, sample_weights=WEIGHTS)
    assert plain.loss - best.loss < 1e-3


def test_stops_early_by_the_log_loss_of_the_holdout_rows() -> None:
    job = make_job(Lbfgs(), protocol="shares", tolerance=0.0, evaluate_every=1, patience=2)
    random = np.random.default_rng(5)
    few = random.permutation(len(Y))[:30]
    noisy = np.c_[random.standard_normal((len(Y), 12)), X]
    plain = train_plain(job, noisy[few], Y[few], np.zeros((18, 18)), (noisy, Y))
    assert "hold-out loss did not fall" in plain.reason
    assert np.abs(plain.coef).max() < 10


def test_refuses_what_only_the_other_protocol_has() -> None:
    with pytest.raises(ValueError, match="start"):
        train_plain(JOB, X, Y, PENALTY, start=np.ones(2))
    with pytest.raises(ValueError, match="weights"):
        train_plain(JOB.model_copy(update={"protocol": "paillier"}), X, Y, PENALTY, sample_weights=WEIGHTS)
    with pytest.raises(ValueError, match="hold-out"):
        train_plain(JOB.model_copy(update={"evaluate_every": 1}), X, Y, PENALTY)
