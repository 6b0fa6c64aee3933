"""The optimiser of the logistic loss: one object on small problems, and whole trainings with rounding errors."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracles.plain import Array, LogisticProblem
from tests.support.training_driver import Run, drive_problem, exact, make_job, problem_of, rounded
from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd
from trilateral.coordinator.optimisers.quasi_newton import CUT, MAX_FIRST_STEP, QuasiNewton
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.training import Training

JOB = make_job(Lbfgs(), protocol="shares", tolerance=1e-6)


def white(columns: Array) -> Array:
    columns = columns - columns.mean(axis=0)
    return np.asarray(np.linalg.svd(columns, full_matrices=False)[0] * math.sqrt(len(columns)), dtype=np.float64)


def make_logistic(
    job: JobConfig = JOB,
    *,
    n_samples: int = 2000,
    n_columns: int = 6,
    strength: float = 1.0,
    log_odds: float = 0.0,
    seed: int = 1,
    separable: bool = False,
    whiten: bool = True,
) -> LogisticProblem:
    """Two parties of `n_columns` columns each, tied by a common factor, and an intercept."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((n_samples, 2 * n_columns)) + 0.5 * random.standard_normal((n_samples, 1))
    scores = X @ random.standard_normal(2 * n_columns) * strength / math.sqrt(2 * n_columns) + log_odds
    threshold = 0.0 if separable else random.logistic(size=n_samples)
    y = np.where(scores > threshold, 1.0, -1.0)
    parts = [X[:, :n_columns], X[:, n_columns:]]
    columns = np.hstack([white(part) if whiten else part * 10.0 ** -np.arange(n_columns) for part in parts])
    penalty = np.eye(2 * n_columns + 1)
    penalty[-1, -1] = 0
    problem = problem_of(job, np.c_[columns, np.ones(n_samples)], y, penalty)
    assert isinstance(problem, LogisticProblem)
    return problem


def learn(optimiser: QuasiNewton, problem: LogisticProblem) -> bool:
    return optimiser.learn(problem.loss(optimiser.trial), problem.gradient(optimiser.trial))


def gap_of(run: Run, problem: LogisticProblem) -> float:
    return problem.gap(run.points[-1])


class TestStart:
    def test_is_at_the_origin(self) -> None:
        optimiser = QuasiNewton(3, 10, intercept=True)
        assert optimiser.trial.tolist() == [0.0] * 3
        assert optimiser.gap == math.inf
        assert optimiser.loss == math.inf

    @pytest.mark.parametrize("log_odds", [-4.0, -1.0, 0.0, 2.0])
    def test_knows_the_best_model_without_features_after_one_round(self, log_odds: float) -> None:
        problem = make_logistic(log_odds=log_odds)
        optimiser = QuasiNewton(13, 10, intercept=True)
        learn(optimiser, problem)
        rate = float(np.mean(problem.labels > 0))
        assert optimiser.base[:-1].tolist() == [0.0] * 12
        assert optimiser.base[-1] == pytest.approx(math.log(rate / (1 - rate)))
        assert optimiser.loss == pytest.approx(problem.loss(optimiser.base), abs=1e-12)
        assert not optimiser.is_observed

    @pytest.mark.parametrize("log_odds", [-4.0, -1.0, 0.0, 2.0])
    def test_leads_to_most_of_what_can_be_gained_in_the_second_round(self, log_odds: float) -> None:
        problem = make_logistic(log_odds=log_odds, n_samples=5000)
        optimiser = QuasiNewton(13, 10, intercept=True)
        learn(optimiser, problem)
        without_features = problem.gap(optimiser.base)
        assert learn(optimiser, problem)
        assert problem.gap(optimiser.base) < without_features / 5

    def test_limits_the_first_step(self) -> None:
        problem = make_logistic(strength=20.0)
        optimiser = QuasiNewton(13, 10, intercept=True)
        learn(optimiser, problem)
        assert np.linalg.norm(optimiser.trial[:-1]) == pytest.approx(MAX_FIRST_STEP)

    def test_without_intercept_takes_the_steepest_step_that_the_curvature_allows(self) -> None:
        optimiser = QuasiNewton(2, 10, intercept=False)
        optimiser.learn(math.log(2), np.array([0.03, -0.04]))
        assert optimiser.base.tolist() == [0.0, 0.0]
        assert optimiser.trial == pytest.approx([-0.12, 0.16])

    @pytest.mark.parametrize("gradient", [-0.5, 0.5])
    def test_survives_a_rate_that_rounding_has_made_0_or_1(self, gradient: float) -> None:
        optimiser = QuasiNewton(2, 10, intercept=True)
        optimiser.learn(math.log(2), np.array([1e-9, gradient]))
        assert np.isfinite(optimiser.trial).all()
        assert 0 < optimiser.loss < 1e-5


class TestSteps:
    def test_lower_the_loss_at_the_base(self) -> None:
        problem = make_logistic(strength=3.0, log_odds=-2.0)
        optimiser = QuasiNewton(13, 10, intercept=True)
        losses = []
        for _ in range(12):
            learn(optimiser, problem)
            losses.append(optimiser.loss)
            assert optimiser.loss == pytest.approx(problem.loss(optimiser.base), abs=1e-6)
        assert losses == sorted(losses, reverse=True)

    def test_that_do_not_lower_it_leave_the_base_and_are_followed_by_shorter_ones(self) -> None:
        """f = |w - 1|, smoothed: a step far beyond the kink."""
        optimiser = QuasiNewton(1, 10, intercept=False)
        optimiser.learn(1.0, np.array([-0.2]))
        optimiser.learn(0.9, np.array([-0.19]))
        base, far = optimiser.base, optimiser.trial
        assert far - base > 1
        assert not optimiser.learn(5.0, np.array([0.9]))
        assert optimiser.base is base
        assert 0 < optimiser.trial[0] - base[0] <= (far - base)[0] / 2
        assert optimiser.gap == math.inf

    def test_learn_no_curvature_from_a_gradient_that_left_the_range_of_the_ring(self) -> None:
        """f rises by 20, so its slope along the step cannot be 0.2 at its end: 1.0 has become 1.0 - 2."""
        optimiser = QuasiNewton(2, 10, intercept=False)
        optimiser.learn(10.0, np.array([-0.1, -0.1]))
        optimiser.learn(9.9, np.array([-0.09, -0.09]))
        base, far = optimiser.base, optimiser.trial
        assert not optimiser.learn(30.0, np.array([-1.0, 1.05]))
        assert optimiser.trial == pytest.approx(base + (far - base) / 2)

    def test_are_cut_to_an_eighth(self) -> None:
        optimiser = QuasiNewton(13, 10, intercept=True)
        learn(optimiser, make_logistic())
        base, trial = optimiser.base, optimiser.trial
        optimiser.cut()
        assert optimiser.trial - base == pytest.approx(CUT * (trial - base))

    def test_spend_a_round_on_the_model_without_features_if_its_assumed_gradient_is_wrong(self) -> None:
        """The columns have a mean far from 0, and a few rows are positive."""
        problem = make_logistic(log_odds=-3.0)
        problem.columns[:, 0] = 3.0 + 0.1 * problem.columns[:, 0]
        optimiser = QuasiNewton(13, 10, intercept=True)
        visited = []
        for _ in range(5):
            visited.append(optimiser.trial)
            learn(optimiser, problem)
        rate = float(np.mean(problem.labels > 0))
        assert visited[3] == pytest.approx([0.0] * 12 + [math.log(rate / (1 - rate))])
        assert optimiser.loss < problem.loss(visited[3])


class TestGap:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("log_odds", [-3.0, 0.0])
    def test_is_within_a_factor_of_10_of_the_truth_or_above_it(self, seed: int, log_odds: float) -> None:
        problem = make_logistic(log_odds=log_odds, seed=seed)
        optimiser = QuasiNewton(13, 10, intercept=True)
        learn(optimiser, problem)
        for _ in range(5):
            learn(optimiser, problem)
            assert optimiser.gap > problem.gap(optimiser.result[0]) / 10

    def test_is_0_once_the_gradient_is_rounding_errors(self) -> None:
        optimiser = QuasiNewton(2, 10, intercept=False)
        optimiser.learn(0.6, np.array([0.1, 0.0]))
        optimiser.learn(0.5, np.array([1e-6, -1e-6]))
        assert optimiser.gap == 0

    def test_of_the_result_includes_a_step_that_no_round_has_seen(self) -> None:
        problem = make_logistic()
        optimiser = QuasiNewton(13, 10, intercept=True)
        for _ in range(5):
            learn(optimiser, problem)
        point, loss = optimiser.result
        assert problem.gap(point) < problem.gap(optimiser.base) / 2
        assert loss == pytest.approx(problem.loss(point), abs=problem.gap(optimiser.base))


class TestTraining:
    @pytest.mark.parametrize("log_odds", [-5.0, -2.0, 0.0])
    @pytest.mark.parametrize("l2", [0.0, 0.01])
    def test_ends_within_the_tolerance_of_the_optimum_in_few_rounds(self, log_odds: float, l2: float) -> None:
        problem = make_logistic(JOB.model_copy(update={"l2": l2}), log_odds=log_odds, n_samples=10_000)
        run = drive_problem(problem, rounded(problem))
        assert run.conclusion.converged
        # The gap that the stop goes by is an estimate: 1.1 times the tolerance is the worst of these.
        assert gap_of(run, problem) < 1.2 * JOB.tolerance
        assert len(run.plans) <= 8
        assert run.conclusion.loss == pytest.approx(problem.loss(run.points[-1]), abs=2e-5)

    @pytest.mark.parametrize("seed", range(3))
    def test_never_loops_on_rounding_errors(self, seed: int) -> None:
        """A tolerance that cannot be met: the weights get as close as the errors of gradients allow."""
        problem = make_logistic(make_job(Lbfgs(), protocol="shares", tolerance=0.0, epochs=100), seed=seed)
        run = drive_problem(problem, rounded(problem, seed))
        assert len(run.plans) < 25
        assert run.conclusion.converged
        w = problem.optimum()
        standard_errors = np.sqrt(np.diag(np.linalg.inv(problem.hessian_at(w))) / len(problem.labels))
        assert np.abs((run.points[-1] - w) / standard_errors).max() < 1e-3

    def test_never_loops_on_rounding_errors_that_are_larger_than_expected(self) -> None:
        problem = make_logistic(make_job(Lbfgs(), protocol="shares", tolerance=0.0, epochs=100))
        run = drive_problem(problem, rounded(problem, gradient_error=1e-5, loss_error=1e-5))
        assert len(run.plans) < 40
        assert gap_of(run, problem) < 1e-5

    def test_ends_sooner_if_it_knows_that_its_gradients_are_rough(self) -> None:
        problem = make_logistic(make_job(Lbfgs(), protocol="shares", tolerance=0.0))
        runs = {}
        for known in (1e-6, 1e-4):
            training = Training(problem.job, 13, 1, gradient_error=known)
            answer = rounded(problem, gradient_error=1e-4)
            following: RoundPlan | Conclusion | GivenUp = training.begin()
            while isinstance(following, RoundPlan):
                runs[known] = following.round
                following = training.observe(answer(following, following.point))
            assert isinstance(following, Conclusion)
        assert runs[1e-4] <= 12
        assert runs[1e-4] < runs[1e-6]

    def test_leaves_out_points_that_are_out_of_range(self) -> None:
        problem = make_logistic(strength=3.0)
        limit = 0.8 * float(np.abs(problem.optimum()).sum()) + 1
        training = Training(problem.job, 13, 1, lambda point: bool(np.abs(point).sum() < limit))
        following: RoundPlan | Conclusion | GivenUp = training.begin()
        while isinstance(following, RoundPlan):
            assert np.abs(following.point).sum() < limit
            following = training.observe(exact(problem)(following, following.point))
        assert isinstance(following, Conclusion)
        assert following.loss < problem.loss(np.zeros(13)) - 0.1
        assert following.reason

    def test_takes_the_same_rounds_again_for_the_same_observations(self) -> None:
        problem = make_logistic(strength=4.0)
        first, again = (drive_problem(problem, rounded(problem)) for _ in range(2))
        for one, other in zip(first.points, again.points, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_of_separable_labels_ends_with_l2(self) -> None:
        problem = make_logistic(JOB.model_copy(update={"l2": 1e-3}), separable=True)
        run = drive_problem(problem, rounded(problem))
        assert run.conclusion.converged
        assert gap_of(run, problem) < 1e-5

    def test_of_separable_labels_without_l2_ends_at_the_limit_of_epochs(self) -> None:
        problem = make_logistic(separable=True)
        run = drive_problem(problem, rounded(problem))
        assert not run.conclusion.converged
        assert "epochs" in run.conclusion.reason
        assert run.conclusion.loss < 0.02

    def test_at_the_edge_of_the_range_keeps_its_best_point_and_names_the_way_out(self) -> None:
        problem = make_logistic(separable=True)
        answer = rounded(problem)
        run = drive_problem(problem, lambda plan, w: None if np.abs(w).sum() > 50 else answer(plan, w))
        assert not run.conclusion.converged
        assert "l2" in run.conclusion.reason
        assert np.abs(run.points[-1]).sum() <= 50
        assert run.conclusion.loss < 0.1

    def test_cuts_a_step_out_of_range_and_ends_in_the_same_model(self) -> None:
        problem = make_logistic()
        answer = rounded(problem)
        run = drive_problem(problem, lambda plan, w: None if plan.round in (2, 3, 6) else answer(plan, w))
        assert len(run.notes) == 3
        assert gap_of(run, problem) < JOB.tolerance

    def test_is_given_up_if_no_round_was_in_range(self) -> None:
        problem = make_logistic()
        run = drive_problem(problem, lambda plan, w: None if w.any() else exact(problem)(plan, w))
        assert "clip" in run.given_up.reason

    def test_stops_where_no_step_lowers_the_loss(self) -> None:
        """The answers contradict each other: the loss is higher wherever the gradient leads."""
        problem = make_logistic()

        def observe(plan: RoundPlan, w: FloatVector) -> Observation:
            loss = problem.loss(w) if plan.round < 3 else 0.7 + plan.round
            return Observation(loss, problem.gradient(w))

        run = drive_problem(problem, observe)
        assert run.conclusion.reason == "6 steps in a row did not lower the loss"
        assert problem.loss(run.points[-1]) < 0.65

    @pytest.mark.parametrize("l2", [1.0, 1e3])
    def test_takes_few_rounds_with_a_strong_penalty_on_columns_that_are_not_whitened(self, l2: float) -> None:
        problem = make_logistic(JOB.model_copy(update={"l2": l2}), whiten=False)
        run = drive_problem(problem, rounded(problem))
        assert len(run.plans) <= 6
        assert gap_of(run, problem) < JOB.tolerance

    def test_of_an_intercept_alone_takes_two_rounds(self) -> None:
        y = np.where(np.arange(100) < 20, 1.0, -1.0)
        problem = problem_of(JOB, np.ones((100, 1)), y, np.zeros((1, 1)))
        run = drive_problem(problem)
        assert len(run.plans) == 2
        assert run.points[-1] == pytest.approx([math.log(0.25)], abs=1e-6)

    @given(
        seed=st.integers(0, 2**32 - 1),
        n_columns=st.integers(1, 12),
        strength=st.floats(0, 30),
        log_odds=st.floats(-4, 4),
        l2=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
        whiten=st.booleans(),
    )
    @example(seed=262, n_columns=9, strength=0.0, log_odds=-2.96875, l2=0.0, whiten=False)
    @example(seed=7377, n_columns=7, strength=0.0, log_odds=4.0, l2=1.0, whiten=True)  # all labels are equal
    @example(seed=7051, n_columns=4, strength=29.515932460014373, log_odds=-4.0, l2=0.0, whiten=True)  # separable
    def test_never_ends_above_the_model_without_features_and_always_says_why(
        self, seed: int, n_columns: int, strength: float, log_odds: float, l2: float, whiten: bool
    ) -> None:
        problem = make_logistic(
            JOB.model_copy(update={"l2": l2}),
            n_samples=300,
            n_columns=n_columns,
            strength=strength,
            log_odds=log_odds,
            seed=seed,
            whiten=whiten,
        )
        run = drive_problem(problem, rounded(problem, seed))
        rate = float(np.mean(problem.labels > 0))
        entropy = -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)
        assert problem.loss(run.points[-1]) <= entropy + 1e-5
        assert run.conclusion.reason
        assert len(run.plans) <= JOB.epochs


def test_hundreds_of_columns_do_not_disturb_it() -> None:
    problem = make_logistic(n_columns=150, n_samples=3000)
    run = drive_problem(problem, rounded(problem))
    assert run.conclusion.converged
    assert gap_of(run, problem) < 1e-4


class TestWarmStart:
    def warm(self, problem: LogisticProblem, start: FloatVector, seed: int = 0) -> Run:
        return drive_problem(problem, rounded(problem, seed), start=start)

    @pytest.mark.parametrize("log_odds", [0.0, -2.0, -4.0])
    def test_the_minimum_itself_takes_one_round(self, log_odds: float) -> None:
        problem = make_logistic(log_odds=log_odds)
        start = np.rint(drive_problem(problem, exact(problem)).points[-1] * 4096) / 4096
        run = self.warm(problem, start)
        assert run.conclusion.converged
        assert len(run.plans) == 1
        assert gap_of(run, problem) < 3e-6

    @pytest.mark.parametrize("log_odds", [0.0, -2.0, -4.0])
    def test_a_model_of_other_rows_saves_rounds_and_leads_to_the_same_minimum(self, log_odds: float) -> None:
        job = JOB.model_copy(update={"tolerance": 1e-5})
        every = make_logistic(job, n_samples=20_000, log_odds=log_odds)
        most = problem_of(job, every.columns[:19_000], every.labels[:19_000], every.penalty)
        start = drive_problem(most, rounded(most)).points[-1]
        cold, run = drive_problem(every, rounded(every)), self.warm(every, start)
        assert run.conclusion.converged
        assert len(run.plans) < len(cold.plans)
        assert gap_of(run, every) < 2 * job.tolerance

    @pytest.mark.parametrize("seed", range(5))
    def test_a_wrong_start_leads_to_the_same_minimum(self, seed: int) -> None:
        problem = make_logistic(log_odds=-2.0)
        start: FloatVector = np.random.default_rng(seed).normal(size=(problem.columns.shape[1],))
        run = self.warm(problem, start, seed)
        assert run.conclusion.converged
        assert gap_of(run, problem) < 3e-6

    def test_a_start_where_the_parties_cannot_compute_is_left_out(self) -> None:
        training = Training(JOB, 3, 1, lambda point: not point.any(), start=np.ones(3))
        assert not training.begin().point.any()

    def test_hold_out_rows_are_evaluated_once_the_loss_of_the_base_is_known(self) -> None:
        job = make_job(Lbfgs(), protocol="shares", evaluate_every=1, tolerance=0.0, epochs=4)
        training = Training(job, 3, 1, start=np.ones(3))
        assert training.begin().evaluate_at is None
        following = training.observe(Observation(0.5, np.full(3, 0.1)))
        assert isinstance(following, RoundPlan)
        assert following.evaluate_at is not None

    def test_sgd_begins_there_too(self) -> None:
        job = make_job(Sgd(), protocol="shares", batch=10)
        assert Training(job, 3, 5, start=np.ones(3)).begin().point.tolist() == [1.0, 1.0, 1.0]
