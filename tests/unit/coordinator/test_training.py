"""What `Training` does if all goes well, and what it does if not."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.training_driver import Observe, drive, drive_problem, exact, make_job, make_problem
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.config.job import Algorithm, Lbfgs, Sgd, Sqn
from trilateral.common.protocol.batches import WHOLE_SET, Batch
from trilateral.coordinator.numpy_training import train_plain
from trilateral.coordinator.plan import Observation, RoundPlan
from trilateral.coordinator.training import Training

ALGORITHMS = [Sgd(), Sqn(), Lbfgs()]


def quiet(loss: Callable[[int], float] = lambda k: 0.5) -> Observe:
    """Loss by round, unit gradient along the first column, unit curvature."""

    def observe(plan: RoundPlan, w: FloatVector) -> Observation:
        return Observation(loss(plan.round), np.eye(len(w))[0] if plan.gradient else None, plan.direction)

    return observe


def void_in(rounds: set[int], observe: Observe) -> Observe:
    """Out of range in these rounds."""
    return lambda plan, w: None if plan.round in rounds else observe(plan, w)


class TestRounds:
    def test_count_from_one_and_walk_through_the_batches_of_each_epoch(self) -> None:
        run = drive(make_job(Sgd(), batch=10, epochs=2, tolerance=0), 2, 3, quiet())
        assert [plan.round for plan in run.plans] == list(range(1, 9))
        assert [plan.batch for plan in run.plans[:6]] == [Batch(e, i) for e in (1, 2) for i in range(3)]
        assert [plan.batch for plan in run.plans[6:]] == [WHOLE_SET, WHOLE_SET]
        assert [plan.gradient for plan in run.plans] == [True] * 6 + [False] * 2
        assert run.conclusion.round == 9

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_begin_at_the_origin(self, algorithm: Algorithm) -> None:
        plan = Training(make_job(algorithm), 3, 1).begin()
        assert plan.round == 1
        assert plan.step.tolist() == [0.0, 0.0, 0.0]
        assert plan.gradient
        assert plan.note is None

    def test_ask_for_curvature_every_interval_from_the_second_on(self) -> None:
        run = drive(make_job(Sqn(interval=3), batch=10, epochs=3, tolerance=0), 2, 4, quiet())
        assert [plan.round for plan in run.plans if plan.direction is not None] == [6, 9, 12]
        assert {plan.curvature_draw for plan in run.plans} == {0}

    def test_ask_for_the_difference_of_the_means_of_the_points_up_to_this_one(self) -> None:
        run = drive(make_job(Sqn(interval=2), batch=10, epochs=1), 2, 4, quiet())
        w = run.points
        assert run.plans[3].direction == pytest.approx((w[2] + w[3]) / 2 - (w[0] + w[1]) / 2)

    def test_number_the_draws_of_the_curvature_batch(self) -> None:
        run = drive(make_job(Sqn(interval=2, curvature_batch=5), batch=10, epochs=2, tolerance=0), 2, 4, quiet())
        assert {plan.round: plan.curvature_draw for plan in run.plans if plan.curvature_draw} == {4: 1, 6: 2, 8: 3}

    def test_do_not_ask_for_the_curvature_of_no_direction(self) -> None:
        still = Observation(0.5, np.zeros(2))
        observe: Observe = lambda plan, w: still  # noqa: E731
        run = drive(make_job(Sqn(interval=1), batch=10, epochs=2), 2, 4, observe)
        assert all(plan.direction is None for plan in run.plans)
        assert run.conclusion.converged

    def test_are_the_same_again_for_the_same_observations(self) -> None:
        problem = make_problem(make_job(Sqn(), batch=60))
        first, again = drive_problem(problem), drive_problem(problem)
        assert all(np.array_equal(a.step, b.step) for a, b in zip(first.plans, again.plans, strict=True))

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_show_the_epoch_under_way(self, algorithm: Algorithm) -> None:
        training = Training(make_job(algorithm, epochs=3, tolerance=0), 2, 1)
        assert training.n_epochs == 3
        epochs = []
        plan = training.begin()
        while isinstance(plan, RoundPlan):
            epochs.append(training.epoch)
            plan = training.observe(quiet()(plan, np.zeros(2)))  # type: ignore[assignment]
        assert epochs == ([1, 2] if algorithm.name == "lbfgs" else [1, 2, 3, 3, 3])


class TestStop:
    def test_comes_when_the_mean_loss_of_an_epoch_is_within_the_tolerance_of_the_last(self) -> None:
        losses = [0.7, 0.5, 0.5, 0.4, 0.46, 0.449]  # means 0.6, 0.45, 0.4545
        run = drive(make_job(Sgd(), batch=10, tolerance=0.005), 1, 2, quiet(lambda k: (losses + [0.4] * 2)[k - 1]))
        assert run.conclusion.epochs == 3
        assert run.conclusion.converged
        assert "0.005" in run.conclusion.reason

    def test_comes_at_the_most_epochs(self) -> None:
        run = drive(make_job(Sgd(), batch=10, epochs=4), 1, 2, quiet(lambda k: 0.7 / k))
        assert run.conclusion.epochs == 4
        assert not run.conclusion.converged
        assert "4" in run.conclusion.reason

    def test_of_lbfgs_comes_at_the_most_epochs_with_the_best_point_so_far(self) -> None:
        problem = make_problem(make_job(Lbfgs(), epochs=3, tolerance=0))
        run = drive_problem(problem)
        assert len(run.plans) == run.conclusion.epochs == 3
        assert not run.conclusion.converged
        assert run.conclusion.loss == pytest.approx(problem.loss(run.points[-1]), abs=1e-12)
        assert run.conclusion.loss < problem.loss(np.zeros(6))

    def test_of_lbfgs_comes_at_once_where_the_gradient_vanishes(self) -> None:
        run = drive(make_job(Lbfgs(), tolerance=0), 2, 1, lambda plan, w: Observation(0.4, np.zeros(2)))
        assert len(run.plans) == 1
        assert run.conclusion.converged
        assert run.points[-1].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("bend", [0.0, -0.25])
    def test_of_lbfgs_comes_where_only_rounding_is_left_of_the_curvature(self, bend: float) -> None:
        observe: Observe = lambda plan, w: Observation(0.4, np.array([1e-9, 0.0]) + bend * w)  # noqa: E731
        run = drive(make_job(Lbfgs(), tolerance=0), 2, 1, observe)
        assert len(run.plans) == 2
        assert run.points[-1].tolist() == [0.0, 0.0]
        assert run.conclusion.loss == 0.4


class TestResult:
    """Round 1 and 2 are the only epoch, 3 evaluates the last point, 4 the mean of w_1 and w_2."""

    JOB = make_job(Sgd(learning_rate=1.0), batch=10, epochs=1)

    def run_with(self, last: float, mean: float) -> tuple[list[float], float]:
        run = drive(self.JOB, 1, 2, quiet(lambda k: {3: last, 4: mean}.get(k, 0.5)))
        return [float(w[0]) for w in run.points], run.conclusion.loss

    def test_is_the_last_point_if_that_has_the_lower_loss(self) -> None:
        assert self.run_with(last=0.3, mean=0.4) == ([0.0, -1.0, -2.0, -0.5, -2.0], 0.3)

    def test_is_the_mean_of_the_last_epoch_if_that_has_the_lower_loss(self) -> None:
        assert self.run_with(last=0.4, mean=0.3) == ([0.0, -1.0, -2.0, -0.5, -0.5], 0.3)

    @pytest.mark.parametrize("broken", [float("nan"), float("inf")])
    def test_is_the_other_if_one_has_no_finite_loss(self, broken: float) -> None:
        assert self.run_with(last=broken, mean=0.9)[0][-1] == -0.5
        assert self.run_with(last=0.9, mean=broken)[0][-1] == -2.0

    def test_is_the_other_if_one_is_out_of_range(self) -> None:
        run = drive(self.JOB, 1, 2, void_in({3}, quiet()))
        assert run.points[-1] == pytest.approx([-0.5])

    def test_does_not_exist_if_both_are_out_of_range(self) -> None:
        run = drive(self.JOB, 1, 2, void_in({3, 4}, quiet()))
        assert "learning_rate" in run.given_up.reason


class TestDivergence:
    JOB = make_job(Sgd(learning_rate=1.0), batch=10, epochs=4, tolerance=0)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.3 + 0.694])
    def test_in_the_loss_goes_back_to_the_best_point_with_half_the_rate(self, bad: float) -> None:
        losses = {1: 0.6, 2: 0.3, 3: 0.35, 4: bad}
        run = drive(self.JOB, 1, 3, quiet(lambda k: losses.get(k, 0.4)))
        assert [float(w[0]) for w in run.points[:6]] == [0.0, -1.0, -2.0, -3.0, -1.0, -1.5]
        assert [plan.round for plan in run.plans if plan.note] == [5]
        assert "halved" in run.notes[0]

    def test_goes_on_with_the_next_batch(self) -> None:
        run = drive(self.JOB, 1, 3, void_in({2}, quiet()))
        assert [plan.batch for plan in run.plans[:4]] == [Batch(1, 0), Batch(1, 1), Batch(1, 2), Batch(2, 0)]

    def test_is_not_a_loss_less_than_log_2_above_the_best(self) -> None:
        run = drive(self.JOB, 1, 3, quiet(lambda k: 0.3 if k == 1 else 0.3 + 0.693))
        assert not run.notes

    def test_with_sample_weights_is_not_the_loss_of_a_batch_of_heavy_rows(self) -> None:
        """One batch in three has most of the weight."""
        run = drive(self.JOB, 1, 3, quiet(lambda k: 2.0 if k % 3 == 2 else 0.03), is_weighted=True)
        assert not run.notes

    def test_with_sample_weights_is_a_mean_loss_of_an_epoch_far_above_the_lowest(self) -> None:
        run = drive(self.JOB, 1, 3, quiet(lambda k: 0.2 if k < 6 else 1.0), is_weighted=True)
        # The mean loss was lowest in rounds 3 to 5. That of rounds 6 to 8 is 0.8 above it.
        assert next(plan.round for plan in run.plans if plan.note) == 9
        assert run.points[8].tolist() == [-2.0]

    def test_with_sample_weights_in_the_first_epoch_is_a_loss_far_above_that_of_no_weights(self) -> None:
        run = drive(self.JOB, 1, 3, quiet(lambda k: 4.2 if k == 2 else 0.6), is_weighted=True)
        assert [plan.round for plan in run.plans if plan.note] == [3]
        assert run.points[2].tolist() == [0.0]

    def test_in_a_gradient_counts_too(self) -> None:
        def observe(plan: RoundPlan, w: FloatVector) -> Observation:
            return Observation(0.5, np.array([np.nan if plan.round == 2 else 1.0]))

        run = drive(self.JOB, 1, 3, observe)
        assert run.points[2].tolist() == [0.0]

    def test_before_any_loss_was_seen_goes_back_to_the_origin(self) -> None:
        run = drive(self.JOB, 1, 3, void_in({1}, quiet()))
        assert run.points[1].tolist() == [0.0]
        assert run.notes

    def test_keeps_its_epoch_from_being_compared(self) -> None:
        """Back at the best point a full batch has exactly the loss that it had there before: no sign of convergence."""
        run = drive(make_job(Sgd(learning_rate=1.0), epochs=9, tolerance=1e-3), 1, 1, void_in({2}, quiet()))
        assert [plan.batch.epoch for plan in run.plans if plan.gradient] == [1, 2, 3, 4]

    def test_in_the_last_round_leaves_the_best_point_alone_to_be_evaluated(self) -> None:
        losses = {1: 0.6, 2: 0.3}
        job = self.JOB.model_copy(update={"epochs": 1})
        run = drive(job, 1, 3, void_in({3}, quiet(lambda k: losses.get(k, 0.4))))
        assert [plan.batch for plan in run.plans[3:]] == [WHOLE_SET]
        assert run.plans[3].note
        assert run.points[-1].tolist() == [-1.0]

    def test_makes_sqn_forget_its_windows(self) -> None:
        job = make_job(Sqn(interval=2), batch=10, epochs=3, tolerance=0)
        run = drive(job, 2, 4, void_in({5}, quiet()))
        assert [plan.round for plan in run.plans if plan.direction is not None] == [4, 9, 11]

    def test_ends_in_a_good_model_where_the_rate_was_far_too_high(self) -> None:
        problem = make_problem(make_job(Sgd(learning_rate=30.0), batch=100, epochs=200, tolerance=1e-3))
        run = drive_problem(problem)
        assert run.notes
        assert run.conclusion.converged
        assert run.conclusion.loss - problem.loss(problem.optimum()) < 5e-3

    @pytest.mark.parametrize("algorithm", [Sgd(learning_rate=1e6), Sqn(learning_rate=1e6)])
    def test_again_and_again_is_given_up_with_the_way_out(self, algorithm: Algorithm) -> None:
        problem = make_problem(make_job(algorithm, batch=100))
        run = drive_problem(problem)
        assert len(run.notes) == 5
        assert "learning_rate" in run.given_up.reason
        with pytest.raises(OutOfRangeError, match="learning_rate"):
            train_plain(problem.job, problem.columns, problem.labels, problem.penalty)

    def test_count_is_not_forgotten_in_good_rounds(self) -> None:
        run = drive(self.JOB, 1, 3, void_in({2, 4, 6, 8, 10, 12}, quiet()))
        assert len(run.plans) == 12
        assert run.given_up


class TestLbfgsOutOfRange:
    def test_cuts_the_trial_step_and_ends_in_the_same_model(self) -> None:
        problem = make_problem(make_job(Lbfgs(), tolerance=1e-12))
        plain = drive_problem(problem)
        cut = drive_problem(problem, void_in({2, 4, 5}, exact(problem)))
        assert len(cut.notes) == 3
        assert len(cut.plans) == len(plain.plans) + 3
        assert cut.points[2] == pytest.approx(cut.points[1] / 8)
        np.testing.assert_allclose(cut.points[-1], plain.points[-1], rtol=0, atol=1e-9)

    def test_does_not_take_a_high_loss_for_it(self) -> None:
        problem = make_problem(make_job(Lbfgs(), tolerance=1e-12))
        problem.columns = 40 * problem.columns
        run = drive_problem(problem)
        assert max(loss for loss in run.losses if loss is not None) > 1e3
        assert not run.notes
        np.testing.assert_allclose(run.points[-1], problem.optimum(), rtol=0, atol=1e-6)

    def test_again_and_again_is_given_up_with_the_way_out(self) -> None:
        run = drive(make_job(Lbfgs()), 2, 1, lambda plan, w: None if w.any() else Observation(0.7, np.ones(2)))
        assert len(run.notes) == 5
        assert "clip" in run.given_up.reason

    def test_up_to_the_most_epochs_is_given_up_if_nothing_was_seen(self) -> None:
        run = drive(make_job(Lbfgs(), epochs=2), 2, 1, lambda plan, w: None)
        assert run.given_up


class TestWrongCallers:
    @pytest.mark.parametrize(("n_columns", "n_batches"), [(0, 1), (1, 0)])
    def test_need_a_column_and_a_batch(self, n_columns: int, n_batches: int) -> None:
        with pytest.raises(ValueError, match="at least one"):
            Training(make_job(Sgd()), n_columns, n_batches)

    def test_cannot_give_lbfgs_several_batches(self) -> None:
        with pytest.raises(ValueError, match="one batch"):
            Training(make_job(Lbfgs()), 2, 3)

    def test_cannot_begin_twice(self) -> None:
        training = Training(make_job(Sgd()), 1, 1)
        training.begin()
        with pytest.raises(ValueError, match="begun already"):
            training.begin()

    def test_cannot_observe_before_the_beginning(self) -> None:
        with pytest.raises(ValueError, match="not begun"):
            Training(make_job(Sgd()), 1, 1).observe(None)

    def test_cannot_observe_after_the_end(self) -> None:
        training = Training(make_job(Lbfgs(), epochs=1), 1, 1)
        training.begin()
        training.observe(Observation(0.5, np.ones(1)))
        with pytest.raises(ValueError, match="is over"):
            training.observe(Observation(0.5, np.ones(1)))

    @pytest.mark.parametrize("gradient", [None, np.ones(3)])
    def test_must_bring_the_gradient_that_was_asked_for(self, gradient: FloatVector | None) -> None:
        training = Training(make_job(Sgd()), 2, 1)
        training.begin()
        with pytest.raises(ValueError, match="asks for"):
            training.observe(Observation(0.5, gradient))

    def test_must_bring_the_curvature_that_was_asked_for(self) -> None:
        with pytest.raises(ValueError, match="asks for"):
            drive(make_job(Sqn(interval=1)), 2, 1, lambda plan, w: Observation(0.5, np.ones(2)))
