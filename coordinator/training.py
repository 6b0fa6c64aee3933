"""A whole training as the coordinator sees it: what each round does, from the start to the result.

No keys, messages or clocks: observations go in, plans come out. The same observations give
the same plans, so replaying the observations restores a training that was cut off.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import WHOLE_SET
from trilateral.common.protocol.bounds import MAX_INFERENCE_STEPS
from trilateral.coordinator.inference import newton_step
from trilateral.coordinator.optimisers.lbfgs import Lbfgs
from trilateral.coordinator.optimisers.quasi_newton import GRADIENT_ERROR, QuasiNewton
from trilateral.coordinator.optimisers.sgd import Sgd
from trilateral.coordinator.optimisers.sqn import Sqn
from trilateral.coordinator.plan import Conclusion, Found, GivenUp, Observation, Probe, RoundPlan, Search
from trilateral.coordinator.searches.classes import class_search
from trilateral.coordinator.searches.cross_validation import Fits, cross_validated_search
from trilateral.coordinator.searches.full_batch import full_batch_search
from trilateral.coordinator.searches.minibatch import minibatch_search


class Training:
    """Turns the points that a search asks about into rounds and steps.

    It knows only p = w - w_0, the sum of the steps that it has issued, and not the guest's secret part of w_0. It adds
    the steps in the same order and arithmetic as the parties.

    Args:
        job: the job's settings.
        n_columns: columns of both parties together.
        n_batches: batches in an epoch, which is 1 for lbfgs.
        is_in_range: whether the parties can compute at a point. A point where they cannot becomes no round: the search
            learns at once that it is void. Replayed observations lead to the same points, so the same points are left
            out. By default, the parties themselves say that a round is void.
        is_measurable: whether the parties can compute the step of inference at a point.
        gradient_error: standard deviation of the rounding error of a component of a gradient, under `shares`.
        is_weighted: whether samples have weights.
        penalty: the diagonal of P, shape (n_columns,), for a job with folds or an L1 penalty.
        fold_sizes: rows of each fold, if the job has folds.
        start: the point w at which the training begins, shape (n_columns,), under `shares`; None for zero. If the
            parties cannot compute there, the training begins at zero.

    Raises:
        ValueError: a count is below 1, or lbfgs has several batches.
    """

    def __init__(
        self,
        job: JobConfig,
        n_columns: int,
        n_batches: int,
        is_in_range: Callable[[FloatVector], bool] = lambda _: True,
        gradient_error: float = GRADIENT_ERROR,
        *,
        is_measurable: Callable[[FloatVector], bool] = lambda _: True,
        is_weighted: bool = False,
        penalty: FloatVector | None = None,
        fold_sizes: Sequence[int] = (),
        start: FloatVector | None = None,
    ) -> None:
        if n_columns < 1 or n_batches < 1:
            raise ValueError("a training needs at least one column and one batch")
        self.n_epochs = job.epochs
        """Maximum number of epochs."""
        self.epoch = 0
        """The current epoch, from 1 up. While the result is chosen, it is the last one. With folds, that of a fit."""
        self.fits_done = 0
        """Fits of a cross-validation that are over."""
        self._job = job
        self._is_in_range = is_in_range
        self._is_measurable = is_measurable
        if start is None or not is_in_range(start):
            start = np.zeros(n_columns)
        if job.has_l1 or job.folds is not None:
            fits = Fits(job, np.zeros(n_columns) if penalty is None else penalty, gradient_error)
            if job.folds is None:
                self._search = fits.search(fits.optimiser(job.penalties[0]))
            else:
                self._search = cross_validated_search(job, fits, fold_sizes)
        else:
            search = partial(_search, job, start, n_batches, gradient_error, is_weighted=is_weighted)
            self._search = search() if job.classes is None else class_search(search, job.classes)
        self._position: FloatVector = np.zeros(n_columns)
        self._round = self._reached = 0
        self._draws = 0
        self._plan: RoundPlan | None = None
        self._found: Found | None = None
        """The result of the search, and then of each step of inference, while the next one is under way."""
        self._information: FloatVector | None = None
        """What the newest step of inference has shown."""
        self._n_inferred = 0
        """Steps of inference that have begun."""

    def begin(self, reached: int = 0) -> RoundPlan:
        """Start the training.

        Args:
            reached: the newest round that a party has reached in earlier sessions. The training ends in no earlier
                round, because a party takes no last step before rounds that it knows. Under `shares`, sums differ in
                their last bits from session to session, so a search that has lost its place may need fewer rounds.

        Returns:
            The plan of round 1.

        Raises:
            ValueError: the training has begun before.
        """
        if self._round > 0:
            raise ValueError("the training has begun already")
        self._reached = reached
        return self._next_round(next(self._search))

    def observe(self, observation: Observation | None) -> RoundPlan | Conclusion | GivenUp:
        """Learn from the current round.

        Args:
            observation: what the round has shown; None if a party's value was out of range.

        Returns:
            The next round, or the end of the training.

        Raises:
            ValueError: before `begin`, after the end, or if the observation lacks what the plan asked for.
        """
        plan = self._plan
        if plan is None:
            raise ValueError("the training has not begun, or is over")
        self.fits_done += plan.batch.held_out
        if observation is not None:
            self._check(observation.gradient, asked=plan.gradient or plan.information)
            self._check(observation.curvature, asked=plan.direction is not None)
            if (observation.holdout_loss is None) != (plan.evaluate_at is None):
                raise ValueError("the observation must have a hold-out loss exactly if the plan asks for one")
            if (observation.information is None) == plan.information:
                raise ValueError("the observation must have the information exactly if the plan asks for it")
        if self._found is not None:
            self._plan = None
            return self._learn_information(self._found, observation)
        try:
            probe = self._search.send(observation)
            while not all(self._is_in_range(point) for point in probe.points):
                probe = self._search.send(None)
        except StopIteration as end:
            self._plan = None
            return self._end(end.value)
        return self._next_round(probe)

    def _check(self, vector: FloatVector | None, asked: bool) -> None:
        if asked and (vector is None or vector.shape != self._position.shape):
            raise ValueError("the observation lacks a vector that the plan asks for, or has one of the wrong length")

    def _next_round(self, probe: Probe) -> RoundPlan:
        self._round += 1
        self.epoch = probe.batch.epoch if self._job.folds is not None else max(self.epoch, probe.batch.epoch)
        draw = 0
        if probe.direction is not None and self._job.curvature_batch is not None:
            draw = self._draws = self._draws + 1
        step = self._step_to(probe.point)
        self._plan = RoundPlan(
            round=self._round,
            step=step,
            point=self._position,
            batch=probe.batch,
            gradient=probe.gradient,
            direction=probe.direction,
            curvature_draw=draw,
            note=probe.note,
            reached=probe.reached,
            evaluate_at=None if probe.evaluate is None else probe.evaluate - self._position,
            information=probe.information,
            is_last=probe.is_last and self._job.classes is None,
        )
        return self._plan

    def _end(self, outcome: Found | GivenUp) -> RoundPlan | Conclusion | GivenUp:
        if isinstance(outcome, GivenUp):
            return outcome
        return self._infer(outcome)

    def _infer(self, outcome: Found) -> RoundPlan | Conclusion:
        """Take the next step of inference, if the job has one."""
        is_due = self._job.inference and self._n_inferred < MAX_INFERENCE_STEPS
        if not is_due or not self._is_measurable(outcome.point):
            return self._conclude(outcome)
        self._found = outcome
        self._n_inferred += 1
        return self._next_round(Probe(outcome.point, WHOLE_SET, gradient=False, reached=outcome.loss, information=True))

    def _learn_information(self, found: Found, observation: Observation | None) -> RoundPlan | Conclusion:
        """Make the weights exact by steps of Newton's method, if they are near the maximum of the likelihood.

        The information is that of the point before the last step, so another one is taken unless that step is short.
        """
        if observation is None or observation.information is None or observation.gradient is None:
            return self._conclude(found)
        self._information = observation.information
        if not found.converged:
            # Far from the maximum, neither the gradient nor the loss is known.
            return self._conclude(found)
        found = replace(found, loss=observation.loss)
        newton = newton_step(observation.information, observation.gradient)
        if newton is None or not self._is_in_range(found.point - newton.step):
            return self._conclude(found)
        found = replace(found, point=found.point - newton.step)
        return self._conclude(found) if newton.is_exact else self._infer(found)

    def _conclude(self, outcome: Found) -> Conclusion:
        # With classes, each model has a position of its own, and no step leads to all of them.
        step = np.zeros(0) if self._job.classes is not None else self._step_to(outcome.point)
        return Conclusion(
            round=max(self._round, self._reached) + 1,
            step=step,
            point=outcome.point,
            loss=outcome.loss,
            epochs=outcome.epochs,
            converged=outcome.converged,
            reason=outcome.reason,
            compared=outcome.compared,
            information=self._information,
        )

    def _step_to(self, point: FloatVector) -> FloatVector:
        step = self._position - point
        self._position = self._position - step
        return step


def _search(job: JobConfig, start: FloatVector, n_batches: int, gradient_error: float, *, is_weighted: bool) -> Search:
    algorithm, n_columns = job.algorithm, len(start)
    if algorithm.name == "lbfgs":
        if n_batches != 1:
            raise ValueError("lbfgs works on the whole training set, as one batch")
        if job.protocol == "shares":
            quasi_newton = QuasiNewton(
                n_columns, algorithm.memory, intercept=job.intercept, gradient_error=gradient_error, start=start
            )
            return full_batch_search(quasi_newton, job)
        return full_batch_search(Lbfgs(n_columns, algorithm.memory), job)
    optimiser = Sgd(algorithm) if algorithm.name == "sgd" else Sqn(algorithm)
    return minibatch_search(optimiser, job, start, n_batches, is_weighted=is_weighted)
