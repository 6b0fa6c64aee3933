"""`Training`, with plain numbers as answers, against an independent implementation of the paper's training."""

from typing import Any

import numpy as np
import pytest

from tests.oracles.plain import Array, Problem, train
from tests.support.training_driver import drive_problem, make_job, make_problem, problem_of
from trilateral.common.config.job import Lbfgs, Sgd, Sqn
from trilateral.coordinator.numpy_training import train_plain

SHARES: dict[str, dict[str, Any]] = {
    "sgd on shares": {"algorithm": Sgd(learning_rate=0.6), "batch": 60, "protocol": "shares"},
    "sgd with decay on shares": {"algorithm": Sgd(learning_rate=1.6, decay=0.2), "batch": 90, "protocol": "shares"},
}
JOBS: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": Sgd(learning_rate=0.3), "batch": 60},
    "sgd with decay": {"algorithm": Sgd(learning_rate=0.8, decay=0.2), "batch": 90},
    "sgd on all rows": {"algorithm": Sgd(learning_rate=0.4), "batch": "all"},
    "sqn": {"algorithm": Sqn(), "batch": 60},
    "sqn with a first rate": {"algorithm": Sqn(learning_rate=0.2, first_learning_rate=0.5), "batch": 60},
    "sqn with few pairs": {"algorithm": Sqn(memory=2, interval=2), "batch": 60},
    "sqn in every round": {"algorithm": Sqn(memory=3, interval=1), "batch": 100},
    "sqn with its own curvature batch": {"algorithm": Sqn(interval=3, curvature_batch=120), "batch": 60},
    "sqn on all rows": {"algorithm": Sqn(interval=2), "batch": "all"},
    "lbfgs": {"algorithm": Lbfgs()},
    "lbfgs with few pairs": {"algorithm": Lbfgs(memory=1)},
    **SHARES,
}


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("bounds", [{"tolerance": 0.0, "epochs": 5}, {"tolerance": 1e-3, "epochs": 60}])
@pytest.mark.parametrize("name", JOBS)
def test_gives_the_oracles_model(name: str, bounds: dict[str, Any], l2: float) -> None:
    problem = make_problem(make_job(**JOBS[name], **bounds, l2=l2, seed=3))
    expected = train(problem)
    run = drive_problem(problem)
    np.testing.assert_allclose(run.points[-1], expected.coef, rtol=0, atol=1e-10)
    assert run.conclusion.loss == pytest.approx(expected.loss, abs=1e-10)
    assert run.conclusion.epochs == expected.epochs
    assert run.conclusion.converged == expected.converged
    assert run.conclusion.converged == (bounds["epochs"] == 60)
    if problem.job.algorithm.name != "lbfgs":
        assert run.losses[:-2] == pytest.approx(expected.losses, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "start"),
    [(name, start) for name in JOBS for start in ([], [-0.7, 0.4, 1.1]) if not start or name not in SHARES],
)
def test_plain_training_gives_the_oracles_model_from_the_same_start(name: str, start: list[float]) -> None:
    problem = make_problem(make_job(**JOBS[name], l2=0.3))
    whole = np.zeros(problem.columns.shape[1])
    whole[len(whole) - len(start) :] = start
    expected = train(problem, whole)
    guests = np.array(start) if start else None
    plain = train_plain(problem.job, problem.columns, problem.labels, problem.penalty, start=guests)
    np.testing.assert_allclose(plain.coef, expected.coef, rtol=0, atol=1e-10)
    assert plain.loss == pytest.approx(expected.loss, abs=1e-10)
    assert (plain.epochs, plain.converged) == (expected.epochs, expected.converged)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_lbfgs_finds_the_least_squares_optimum(l2: float) -> None:
    problem = make_problem(make_job(Lbfgs(), tolerance=1e-18, epochs=30, l2=l2))
    run = drive_problem(problem)
    np.testing.assert_allclose(run.points[-1], problem.optimum(), rtol=0, atol=1e-8)
    assert run.conclusion.converged


def whitened_problem(seed: int) -> Problem:
    """Two parties of 12 strongly correlated columns, whitened by each; three factors tie the parties together."""
    random = np.random.default_rng(seed)
    factors = random.standard_normal((3000, 3))
    blocks = []
    for _ in range(2):
        own = random.standard_normal((3000, 12)) + 0.3 * factors @ random.standard_normal((3, 12))
        columns = own @ random.standard_normal((12, 12))
        blocks.append(np.linalg.svd(columns, full_matrices=False)[0] * np.sqrt(3000))
    X = np.hstack(blocks)
    y = np.where(X @ random.standard_normal(24) / 5 + random.standard_normal(3000) > 0, 1.0, -1.0)
    return problem_of(make_job(Lbfgs()), X, y, np.zeros((24, 24)))


@pytest.mark.parametrize("seed", range(5))
def test_lbfgs_takes_few_rounds_on_columns_that_each_party_has_whitened(seed: int) -> None:
    problem = whitened_problem(seed)
    run = drive_problem(problem)
    # The gap that the stop goes by is an estimate: 1.3 times the tolerance is the worst of these.
    assert problem.loss(run.points[-1]) - problem.loss(problem.optimum()) < 2 * problem.job.tolerance
    assert len(run.plans) <= 6


@pytest.mark.parametrize("memory", [1, 10])
def test_lbfgs_bears_gradients_with_fixed_point_errors(memory: int) -> None:
    """Rounding of 1e-6 and a tolerance that it cannot meet: the result stays as good as the rounding allows."""
    problem = make_problem(make_job(Lbfgs(memory=memory), tolerance=0.0, epochs=40), n_columns=12)
    random = np.random.default_rng(0)
    exact_gradient = problem.gradient

    def rough_gradient(w: Array, rows: Any = slice(None)) -> Array:
        return exact_gradient(w, rows) + random.uniform(-1e-6, 1e-6, len(w))

    problem.gradient = rough_gradient  # type: ignore[method-assign]
    run = drive_problem(problem)
    problem.gradient = exact_gradient  # type: ignore[method-assign]
    assert problem.loss(run.points[-1]) - problem.loss(problem.optimum()) < 1e-8
    assert run.conclusion.loss == pytest.approx(problem.loss(run.points[-1]), abs=1e-6)
