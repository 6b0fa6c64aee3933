"""When a training is evaluated, and what follows from it: the same rules for batches and for exact steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.training_driver import Run, drive_problem, exact, make_job, make_problem
from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.protocol.bounds import max_evaluations, max_rounds
from trilateral.coordinator.plan import Observation, RoundPlan

ALGORITHMS: dict[str, dict[str, Any]] = {
    "sgd": {"algorithm": Sgd(learning_rate=0.5), "batch": 100},
    "sqn": {"algorithm": Sqn(learning_rate=0.3, interval=2), "batch": 100},
    "lbfgs": {"algorithm": Lbfgs()},
    "sgd on shares": {"algorithm": Sgd(learning_rate=1.0), "batch": 100, "protocol": "shares"},
    "lbfgs on shares": {"algorithm": Lbfgs(), "protocol": "shares"},
}


class Evaluations:
    """Answers as the parties would, with hold-out losses from a list; the last goes on."""

    def __init__(self, job: JobConfig, losses: Sequence[float], void: int | None = None) -> None:
        self.problem = make_problem(job)
        self._exact = exact(self.problem)
        self._losses = losses
        self._void = void
        self.points: list[FloatVector] = []
        self.epochs: list[int] = []

    def __call__(self, plan: RoundPlan, w: FloatVector) -> Observation | None:
        seen = self._exact(plan, w)
        if plan.evaluate_at is None:
            return seen
        self.points.append(w + plan.evaluate_at)
        self.epochs.append(plan.batch.epoch)
        number = len(self.points) - 1
        if number == self._void:
            return None
        assert seen is not None
        return replace(seen, holdout_loss=self._losses[min(number, len(self._losses) - 1)])

    def run(self) -> Run:
        return drive_problem(self.problem, self)


def job_of(name: str, **settings: Any) -> JobConfig:
    return make_job(**{"epochs": 9, "tolerance": 1e-12, "evaluate_every": 1, "l2": 1e-3} | ALGORITHMS[name] | settings)


@pytest.mark.parametrize("name", ["sgd", "sqn", "sgd on shares"])
def test_the_first_round_after_every_n_epochs_is_evaluated(name: str) -> None:
    job = job_of(name, evaluate_every=2)
    evaluations = Evaluations(job, [0.5])
    run = evaluations.run()
    assert evaluations.epochs == [3, 5, 7, 9]
    assert max_evaluations(job) == 4
    for plan, point in zip(run.plans, run.points, strict=False):
        if plan.evaluate_at is not None:
            assert plan.batch.index == 0
            np.testing.assert_allclose(plan.evaluate_at, 0, atol=1e-15)
            np.testing.assert_allclose(evaluations.points.pop(0), point)


def test_exact_steps_are_evaluated_at_the_point_that_they_lead_to_and_not_at_the_origin() -> None:
    job = job_of("lbfgs")
    evaluations = Evaluations(job, [0.5])
    evaluations.run()
    problem = evaluations.problem
    losses = [problem.loss(point) for point in evaluations.points]
    assert evaluations.epochs[0] == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < np.log(2)


def test_unit_steps_are_evaluated_at_the_best_point_before_the_round_first_without_features() -> None:
    job = job_of("lbfgs on shares")
    evaluations = Evaluations(job, [0.5])
    run = evaluations.run()
    assert evaluations.epochs[0] == 2
    assert not evaluations.points[0][:-1].any()
    for evaluated, point in zip(evaluations.points[1:], run.points[1:], strict=False):
        np.testing.assert_allclose(evaluated, point)


@given(every=st.integers(1, 30), epochs=st.integers(1, 30), name=st.sampled_from(list(ALGORITHMS)))
def test_no_training_evaluates_more_often_or_takes_more_rounds_than_the_bounds(
    every: int, epochs: int, name: str
) -> None:
    job = job_of(name, evaluate_every=every, epochs=epochs, patience=2)
    evaluations = Evaluations(job, [0.5])
    run = evaluations.run()
    assert len(evaluations.points) <= max_evaluations(job)
    assert len(run.plans) <= max_rounds(job, evaluations.problem.n_batches)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_without_patience_evaluations_change_nothing(name: str) -> None:
    evaluated = Evaluations(job_of(name), [0.5, 0.4, 0.9, 1.9]).run()
    plain = drive_problem(make_problem(job_of(name, evaluate_every=None)))
    np.testing.assert_array_equal(np.array(evaluated.points), np.array(plain.points))
    assert evaluated.conclusion.reason == plain.conclusion.reason


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_stops_when_patience_runs_out_and_goes_back_to_the_best(name: str) -> None:
    evaluations = Evaluations(job_of(name, patience=2), [0.6, 0.5, 0.55, 0.52, 0.1])
    run = evaluations.run()
    assert len(evaluations.points) == 4
    np.testing.assert_allclose(run.points[-1], evaluations.points[1], atol=1e-12)
    assert run.conclusion.loss == pytest.approx(evaluations.problem.loss(evaluations.points[1]), abs=1e-12)
    assert run.conclusion.converged
    best = evaluations.epochs[1] - 1
    assert run.conclusion.reason == (
        f"the hold-out loss did not fall in 2 evaluations: the model is from epoch {best}, which has the lowest "
        "hold-out loss"
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_less_than_the_tolerance_is_no_improvement(name: str) -> None:
    evaluations = Evaluations(job_of(name, patience=3, tolerance=1e-9), [0.5, 0.5 - 5e-10, 0.5 - 9e-10, 0.5 - 9.9e-10])
    run = evaluations.run()
    assert len(evaluations.points) == 4
    np.testing.assert_allclose(run.points[-1], evaluations.points[0], atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_training_that_ends_past_its_best_point_goes_back_to_it(name: str) -> None:
    evaluations = Evaluations(job_of(name, epochs=5, patience=10), [0.6, 0.5, 0.7])
    run = evaluations.run()
    np.testing.assert_allclose(run.points[-1], evaluations.points[1], atol=1e-12)
    assert run.conclusion.reason.startswith("the training reached its limit of 5 epochs: the model is from epoch")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_training_whose_last_evaluation_is_the_best_ends_as_without_any(name: str) -> None:
    run = Evaluations(job_of(name, epochs=5, patience=10), [0.6, 0.5, 0.4, 0.3]).run()
    plain = drive_problem(make_problem(job_of(name, epochs=5, evaluate_every=None)))
    np.testing.assert_array_equal(run.points[-1], plain.points[-1])
    assert run.conclusion.reason == plain.conclusion.reason


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_void_round_has_no_evaluation(name: str) -> None:
    """Else the least of all losses would be the result."""
    evaluations = Evaluations(job_of(name, patience=2), [0.6, 0.0, 0.5, 0.55, 0.52], void=1)
    run = evaluations.run()
    assert len(evaluations.points) == 5
    np.testing.assert_allclose(run.points[-1], evaluations.points[2], atol=1e-12)


@pytest.mark.parametrize("asked", [True, False])
def test_an_observation_has_a_holdout_loss_where_the_plan_asks_for_it_and_nowhere_else(asked: bool) -> None:
    problem = make_problem(job_of("sgd", epochs=3, evaluate_every=1 if asked else None))

    def observe(plan: RoundPlan, w: FloatVector) -> Observation | None:
        seen = exact(problem)(plan, w)
        assert seen is not None
        return seen if asked else replace(seen, holdout_loss=0.5)

    with pytest.raises(ValueError, match="hold-out loss"):
        drive_problem(problem, observe)


def test_a_holdout_loss_that_is_not_finite_is_divergence() -> None:
    run = Evaluations(job_of("sgd"), [np.inf, 0.5]).run()
    assert any("left its range" in note for note in run.notes)
