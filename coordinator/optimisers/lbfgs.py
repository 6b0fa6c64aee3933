"""Limited-memory BFGS with exact steps, for a quadratic objective: one gradient per round.

The objective f, the Taylor loss plus the L2 penalty over all training rows, is quadratic with
some Hessian Q. So the gradient g at a base point w and the gradient at a trial point w + t d
determine the rest of the line without another round:

    Q d = (g(w + t d) - g) / t           the best step   a = -g'd / d'Q d
    g(w + a d) = g + a Q d               f(w + a d) = f(w) + a g'd + a^2 d'Q d / 2

w + a d is the next base point; its gradient gives the next direction d = -H g by the
recursion of equation (8) over pairs (d, Q d). With exact steps these directions are those
of conjugate gradients (Nocedal and Wright, section 7.2), so a few rounds suffice if each
party has whitened its columns. The older pairs keep rounding from spoiling conjugacy.
"""

import math

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.coordinator.optimisers.inverse_hessian import CurvaturePairs, two_loop

FIRST_RATE = 4.0
"""The first trial step is -4 g: except for the correlation between the parties, whitened columns have Hessian I/4."""

SHORTEST_TRIAL = 1 / 64
"""Minimum length of a trial step. Q d is a difference of gradients divided by t, so near the end a natural step would
magnify the fixed-point error of the gradients. The trial point need not be good: only the base point is kept."""

CUT = 1 / 8
"""Factor that shortens a trial step that took a value out of range. The length of the step does not affect the
result."""


class Lbfgs:
    """The base point and the trial point of one training, relative to where it starts. A `FullBatchOptimiser`.

    Args:
        n_columns: columns of both parties together.
        memory: M, the number of pairs to keep.
    """

    is_observed = False
    """The rounds are at trial points, and none is at the base point after the start."""

    def __init__(self, n_columns: int, memory: int) -> None:
        self.base: FloatVector = np.zeros(n_columns)
        self.loss = math.inf
        """f at the base point."""
        self._gradient: FloatVector | None = None
        self._direction: FloatVector = np.zeros(n_columns)
        self._length = 0.0
        self._pairs = CurvaturePairs(memory)
        self._scaled_directions: list[FloatVector] = []
        self._flat = False
        self._losses: list[float] = []

    @property
    def trial(self) -> FloatVector:
        """The point where loss and gradient are needed next, shape (n_columns,). The first one is the base point."""
        return self.base + self._length * self._direction

    def learn(self, loss: float, gradient: FloatVector) -> bool:
        """Move the base point and choose the next trial point.

        Args:
            loss: f at the trial point.
            gradient: the gradient of f at the trial point, shape (n_columns,).

        Returns:
            True: an exact step always moves the base point.
        """
        if self._gradient is None:
            self.loss, self._gradient = loss, gradient
            self._aim(FIRST_RATE * gradient)
        else:
            self._step_exactly(self._gradient, (gradient - self._gradient) / self._length)
        self._losses.append(self.loss)
        return True

    def cut(self) -> None:
        """Bring the trial point closer to the base."""
        self._length *= CUT

    @property
    def result(self) -> tuple[FloatVector, float]:
        """The base point, and f there."""
        return self.base, self.loss

    @property
    def gap(self) -> float:
        """Estimate of how far f at the base point is above its minimum: g'Q^-1 g / 2.

        The estimate is g'g / 2 times the largest eigenvalue of the sum of d d' / d'Q d over the directions so far. For
        conjugate directions, that sum is Q^-1 on their span. So the estimate is too low only by what flatter
        directions, not yet seen, would add. On whitened columns it was within a factor of 3 of the truth on both of
        the paper's data sets. With a badly conditioned Q it can be far too low in the first rounds, like any decrease
        of the loss.

        It is infinite while no curvature is known, and 0 once the gradient consists of rounding errors only.
        """
        if self._gradient is None:
            return math.inf
        square = float(self._gradient @ self._gradient)
        if self._flat or square == 0:
            return 0.0
        if not self._scaled_directions:
            return math.inf
        # The largest singular value of the vectors d / sqrt(d'Q d), squared, is that eigenvalue.
        return square / 2 * float(np.linalg.norm(np.array(self._scaled_directions), 2)) ** 2

    def is_stalled(self, tolerance: float) -> bool:
        """Return whether the last two steps lowered f by less than the tolerance."""
        return len(self._losses) >= 3 and self._losses[-3] - self.loss < tolerance

    def _step_exactly(self, gradient: FloatVector, product: FloatVector) -> None:
        """Go to the minimum of f along the direction, whose product with Q is given."""
        direction = self._direction
        if not self._pairs.add(direction, product):
            # The gradient lies in the range of Q, so no line along it is flat or bends down: the
            # trial showed only rounding errors, and the base point cannot be improved.
            self._flat = True
            return
        slope, curvature = gradient @ direction, direction @ product
        step = -slope / curvature
        self._scaled_directions.append(direction / math.sqrt(curvature))
        self.base = self.base + step * direction
        self.loss += float(step * slope / 2)
        self._gradient = gradient + step * product
        self._aim(two_loop(self._gradient, self._pairs))

    def _aim(self, descent: FloatVector) -> None:
        """Put the trial point at base - descent, or beyond if that is too close."""
        length = float(np.linalg.norm(descent))
        if length > 0:
            self._direction = -descent / length
            self._length = max(length, SHORTEST_TRIAL)
