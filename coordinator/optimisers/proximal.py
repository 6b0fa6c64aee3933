"""A proximal quasi-Newton method for the logistic loss with an elastic net: one gradient per round.

The objective is F = f + r with the mean loss f of some training rows and the penalty r, which the coordinator knows.
The model of f at a base point b is g'(w - b) + (w - b)'B(w - b) / 2. Its minimum together with r is the next trial
point; see `elastic_net`. B is updated by the direct BFGS formula (Nocedal and Wright, *Numerical Optimization*, 2nd
edition, equation 6.19). For the method see Lee, Sun and Saunders, *Proximal Newton-type methods for minimizing
composite functions*, 2014. As in `quasi_newton`, no round searches along a line: a trial point that is not better
teaches B how f bends, and the next step is shorter.

**A path and folds share what they learn.** f does not depend on the penalty. So a fit that begins where another one on
the same rows has ended needs no round to know f and its gradient there. And the Hessians of different folds and
penalties are nearly the same, so all fits of a job update one B.
"""

import math
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.coordinator.optimisers.elastic_net import ElasticNet, minimise
from trilateral.coordinator.optimisers.inverse_hessian import CurvaturePairs
from trilateral.coordinator.optimisers.quasi_newton import (
    CUT,
    LOSS_ERROR,
    MAX_FIRST_STEP,
    MIN_CHANGE,
    MIN_GAIN,
    MIN_RATE,
    largest_inverse_curvature,
    within,
)

MIN_CURVATURE_SHARE = 1e-4
"""A pair updates B only if its curvature is at least this share of what B expects: B then stays well conditioned."""


class Curvature:
    """B, the Hessian of f that all fits of a job learn together.

    Args:
        n_columns: columns of both parties together.
        memory: of how many of the latest pairs `flattest` is the flattest.
    """

    def __init__(self, n_columns: int, memory: int) -> None:
        self.matrix: FloatMatrix = np.eye(n_columns) / 4
        self._pairs = CurvaturePairs(memory)
        self._scale = 4.0

    def start(self, curvature: float) -> None:
        """Set B to a multiple of I, because no pair is known."""
        self.matrix = np.eye(len(self.matrix)) * curvature
        self._scale = 1 / curvature

    def restart(self) -> None:
        """Forget all pairs: they were wrong."""
        self._pairs.clear()
        self.start(1 / self._scale)

    def add(self, step: FloatVector, change: FloatVector) -> None:
        """Learn that the gradient of f changes by `change` along a step."""
        product = self.matrix @ step
        expected, seen = float(step @ product), float(step @ change)
        if seen < MIN_CURVATURE_SHARE * expected or not self._pairs.add(step, change):
            return
        self.matrix = self.matrix - np.outer(product, product) / expected + np.outer(change, change) / seen

    @property
    def flattest(self) -> float:
        """The largest inverse curvature that the pairs have shown."""
        return largest_inverse_curvature(self._pairs) if self._pairs else self._scale


@dataclass(frozen=True, eq=False)
class Start:
    """A point at which a fit begins, and what is known there."""

    point: FloatVector
    loss: float = math.inf
    """f at the point."""
    gradient: FloatVector | None = None
    """Gradient of f there; None if no round has shown it."""


class ProximalNewton:
    """The base point and the trial point of one fit, relative to where the job starts. A `FullBatchOptimiser`.

    `loss`, `result` and `gap` are those of F. `learn` takes f, without the penalty.

    Args:
        penalty: r.
        curvature: B, which other fits may have updated.
        intercept: whether the last column is all ones.
        gradient_error: standard deviation of the rounding error of a component of a gradient.
        start: where to begin; None for w = 0, and the best model without features after it.
    """

    def __init__(
        self,
        penalty: ElasticNet,
        curvature: Curvature,
        *,
        intercept: bool,
        gradient_error: float,
        start: Start | None = None,
    ) -> None:
        n_columns = len(penalty.l2)
        self.base: FloatVector = np.zeros(n_columns)
        self.loss = math.inf
        self.trial: FloatVector = self.base if start is None else start.point
        self.is_observed = False
        self._penalty = penalty
        self._curvature = curvature
        self._intercept = intercept and start is None
        self._error = gradient_error * math.sqrt(n_columns)
        self._f = math.inf
        self._gradient: FloatVector | None = None
        self._is_assumed = False
        self._minimum: FloatVector = self.base
        self._expected_fall = 0.0
        self._gaps: list[float] = []
        self._losses: list[float] = []
        self._failures = 0
        if start is not None and start.gradient is not None:
            self._move(start.point, start.loss, start.gradient)
            self._aim()

    @property
    def end(self) -> Start:
        """The base point, as the start of another fit on the same rows."""
        return Start(self.base, self._f, self._gradient if self.is_observed else None)

    def learn(self, loss: float, gradient: FloatVector) -> bool:
        """Move the base point to the trial point if F is lower there, and choose the next trial point.

        Args:
            loss: f at the trial point.
            gradient: the gradient of f at the trial point, shape (n_columns,).

        Returns:
            Whether the base point has moved.
        """
        if self._gradient is None:
            if self._intercept:
                self._start(gradient)
            else:
                self._move(self.trial, loss, gradient)
                self._aim()
            return True
        step, rise = self.trial - self.base, loss - self._f
        if self._is_assumed and not step.any():
            self._curvature.restart()  # The gradient that was assumed was wrong, and so is what was learnt from it.
        elif rise <= LOSS_ERROR or gradient @ step >= rise - LOSS_ERROR:  # See `QuasiNewton.learn`.
            change = gradient - self._gradient
            if np.linalg.norm(change) >= MIN_CHANGE * math.sqrt(2) * self._error:
                self._curvature.add(step, change)
        if abs(rise) <= LOSS_ERROR and not self._is_assumed:
            rise = float((self._gradient + gradient) @ step) / 2
        total = rise + self._penalty.value(self.trial) - self._penalty.value(self.base)
        moved = total <= 0 or not step.any()
        if moved:
            self._move(self.trial, self._f + rise, gradient)
        else:
            self._failures += 1
        self._aim()
        return moved

    def cut(self) -> None:
        """Bring the trial point closer to the base."""
        self.trial = self.base + CUT * (self.trial - self.base)

    @property
    def gap(self) -> float:
        """Estimate of how far F at `result` is above its minimum.

        At the base point it is the fall of F that the model expects, or |v|^2 / 2 times the largest inverse curvature
        that was seen, whichever is larger, with the shortest subgradient v of F. `result` is one step further, and is
        credited as in `QuasiNewton.gap`.
        """
        if not self.is_observed or self._failures or not self._gaps:
            return math.inf
        if self._is_flat:
            return 0.0
        gaps = self._gaps[-3:]
        if len(gaps) < 3 or 0.0 in gaps:  # With an L1 penalty, the slope may be exactly 0.
            return gaps[-1]
        return gaps[2] * min(1.0, max(gaps[2] / gaps[1], math.sqrt(gaps[2] / gaps[0])))

    def is_stalled(self, tolerance: float) -> bool:
        """See `QuasiNewton.is_stalled`."""
        if len(self._gaps) < 5 or self._gaps[-1] <= self._gaps[-5] / 2:
            return False
        return self._losses[-3] - self.loss < max(tolerance, MIN_GAIN)

    @property
    def result(self) -> tuple[FloatVector, float]:
        """The minimum of the model, and what F is expected to be there; the base point if it has no slope to follow."""
        if self._gradient is None or self._is_flat:
            return self.base, self.loss
        return self._minimum, self.loss - self._expected_fall

    @property
    def _is_flat(self) -> bool:
        if self._gradient is None or not self.is_observed:
            return False
        return bool(np.linalg.norm(self._penalty.slope(self.base, self._gradient)) <= 2 * self._error)

    def _move(self, point: FloatVector, f: float, gradient: FloatVector) -> None:
        """Make a point that a round has shown the base point."""
        self.base, self._f, self._gradient = point, f, gradient
        self.loss = f + self._penalty.value(point)
        self.is_observed, self._is_assumed = True, False
        self._failures = 0
        self._losses.append(self.loss)

    def _start(self, gradient: FloatVector) -> None:
        """Choose the first step from the gradient at w = 0; see `quasi_newton`."""
        rate = float(np.clip(0.5 - gradient[-1], MIN_RATE, 1 - MIN_RATE))
        self.base = np.append(np.zeros(len(gradient) - 1), math.log(rate / (1 - rate)))
        self._f = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        self.loss = self._f + self._penalty.value(self.base)
        self._gradient = np.append(gradient[:-1], 0.0)
        self._is_assumed = True
        self._curvature.start(rate * (1 - rate))
        self._aim()
        step = within(MAX_FIRST_STEP, self.trial - self.base)
        step[-1] = (rate - 0.5) * float(step @ step)
        self.trial = self.base + step

    def _aim(self) -> None:
        """Choose the trial point for the base point."""
        gradient, base = self._gradient, self.base
        if gradient is None:
            raise RuntimeError("no round has shown a gradient")
        last = float(np.linalg.norm(self.trial - base))
        self._minimum = minimise(self._curvature.matrix, gradient, base, self._penalty)
        step = self._minimum - base
        model = float(gradient @ step + step @ self._curvature.matrix @ step / 2)
        self._expected_fall = max(0.0, self._penalty.value(base) - self._penalty.value(self._minimum) - model)
        if self._failures == 0:
            slope = self._penalty.slope(base, gradient)
            self._gaps.append(max(self._expected_fall, self._curvature.flattest * float(slope @ slope) / 2))
        else:
            step = within(last / 2, step)
        self.trial = base + step if self._failures else self._minimum
        if self._is_assumed and self._failures >= 2:
            self.trial = base
