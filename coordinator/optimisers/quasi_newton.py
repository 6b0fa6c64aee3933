"""Limited-memory BFGS for the logistic loss: one gradient per round, at the point that is the next base point.

The objective f is the logistic loss plus the L2 penalty over all training rows. A unit step w - H g, with H by the
recursion of equation (8), usually lowers f, and then the round that shows f and g there is a step and a curvature pair
at once. Pairs are differences of points and of gradients (Nocedal and Wright, *Numerical Optimization*, 2nd edition,
section 7.2). No round searches along a line. If f is not lower, the base point stays, and the pair teaches H how much
the gradient changes along this step, so the next step is shorter.

**The start needs no round.** With an intercept, the last column is all ones. So the gradient at w = 0 shows there the
rate of positives p, and with it the best model without features, e = (0, logit p), and its loss. If the other columns
have mean 0, which whitening and standardising ensure, the gradient at e is that at w = 0, except for the intercept,
where it is 0. Whitened columns have about the Hessian p(1-p) I at e. So round 2 is at

    v = -g / p(1-p), cut to length 1            b = logit p - (1/2 - p) v'v

v'v is about the variance of the scores. Longer steps leave the region in which p(1-p) is the curvature. b keeps the
mean of the predictions at p if the scores are normally distributed, because E exp(u) = exp(b + v'v / 2) for rare
positives; for p = 1/2 nothing needs to be corrected. Fisher's discriminant gives nearly the same b. If the columns are
not centred, only the gradient assumed at e is wrong: steps from e then fail, and a round at e replaces it.

Rounds to within 1e-4 and 1e-6 of the minimum on the paper's data, with the errors that gradients have in the protocol
(`benchmarks/optimiser.py` repeats the first line):

| | credit1 | credit2 |
| --- | --- | --- |
| this start | 4, 6 | 5, 8 |
| this start without the limit of 1 and the correction of b | 5, 8 | 8, 9 |
| step -4 g from w = 0, as for the Taylor loss | 5, 8 | 7, 10 |
| step -g / p(1-p) from w = 0 | 5, 7 | 7, 10 |

**A warm start** begins at weights w_0 of an earlier model. Round 1 shows f and g there. The first step is half of
-g / p(1-p) for the p whose entropy is f: at a model with the loss f, the mean curvature is about that of a constant
probability with this loss. The differences between two samples of rows are largest in the steepest directions, so that
a whole step would often go too far. If g consists of rounding errors, or the step is estimated to gain less than the
tolerance, round 1 is the only one. Rounds to within an estimated 1e-5, if the earlier model lacks a share of the rows
and has as many others (`benchmarks/optimiser.py --warm SHARE`):

| | start at zero | half of the rows are new | a tenth | a fiftieth |
| --- | --- | --- | --- | --- |
| credit1 | 6 | 5 | 3 | 2 |
| credit2 | 7 | 4 | 2 | 3 |

Other candidates save at most one round and were left out. Pairs made conjugate to each other reach 1e-6 in one round
less where f is nearly quadratic, and fail where it is not. A Hessian modelled from the moments of normal scores, in
place of a multiple of I, changes nothing. Neither does the loss as a third condition on the pairs, and it would bring
the errors of the loss into H.
"""

import math

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.coordinator.optimisers.inverse_hessian import CurvaturePairs, two_loop

GRADIENT_ERROR = 1e-6
"""Typical rounding error of a component of a gradient, if no other is given. It is new in each round."""

LOSS_ERROR = 5e-4
"""A difference of two losses that is not larger may be rounding errors. They are largest in small tables with sample
weights, and some 4e-6 in a table of 24,000 rows."""

MIN_GAIN = 1e-7
"""Where convergence is slow, two steps that gain less than this are enough to stop. This ends a training whose rounding
errors are larger than expected."""

MIN_CHANGE = 1.5
"""A pair is kept if the gradients differ by at least this many times the difference that rounding errors cause. Rough
pairs still help: with 5, trainings with errors of 3e-5 took twice as many rounds."""

MAX_FIRST_STEP = 1.0
"""Limit of ||v|| in the first step."""

MIN_RATE = 1e-7
"""Limit of p and 1 - p: rounding must not make a rate of 0 of a few positives among very many rows."""

MAX_FAILURES_AT_START = 2
"""Steps from e that may fail before a round is spent on e itself."""

WARM_FLATTEST = 2.0
"""From a warm start, the first steps are short and few. They show less of the flat directions than those from zero, so
in the estimate of the gap these are taken to be at least this many times as flat as the mean."""

CUT = 1 / 8
"""Factor that shortens a step that took a value out of range."""


class QuasiNewton:
    """The base point and the trial point of one training. A `FullBatchOptimiser`.

    Args:
        n_columns: columns of both parties together.
        memory: M, the number of pairs to keep.
        intercept: whether the last column is all ones.
        gradient_error: standard deviation of the rounding error of a component of a gradient.
        start: the first point, shape (n_columns,); None for zero.
    """

    def __init__(
        self,
        n_columns: int,
        memory: int,
        *,
        intercept: bool,
        gradient_error: float = GRADIENT_ERROR,
        start: FloatVector | None = None,
    ) -> None:
        self.base: FloatVector = np.zeros(n_columns) if start is None else start
        self.loss = math.inf
        """f at the base point. Short steps add the difference that the gradients show, so it is less noisy than f."""
        self.trial: FloatVector = self.base
        """The point where loss and gradient are needed next, shape (n_columns,). The first one is the start."""
        self.is_observed = False
        """Whether a round has shown the base point, and it is not zero."""
        self._gradient: FloatVector | None = None
        self._pairs = CurvaturePairs(memory)
        self._intercept = intercept
        self._error = gradient_error * math.sqrt(n_columns)
        self._is_assumed = False
        self._scale = 4.0
        self._least_flattest = 0.0
        self._descent: FloatVector = np.zeros(n_columns)
        self._gaps: list[float] = []
        self._losses: list[float] = []
        self._failures = 0

    def learn(self, loss: float, gradient: FloatVector) -> bool:
        """Move the base point to the trial point if the loss is lower there, and choose the next trial point.

        Args:
            loss: f at the trial point.
            gradient: the gradient of f at the trial point, shape (n_columns,).

        Returns:
            Whether the base point has moved.
        """
        if self._gradient is None:
            self._start(loss, gradient)
            return True
        step, rise = self.trial - self.base, loss - self.loss
        if not step.any():
            # The gradient that was assumed at the start was wrong, and so is what was learnt from it.
            self._pairs.clear()
        # f is convex, so it rises along the step at the trial point at least as fast as on average. A gradient that
        # says otherwise left the range of the ring, which only a sum at a high loss can do; see `shares.format`.
        elif rise <= LOSS_ERROR or gradient @ step >= rise - LOSS_ERROR:
            self._add_pair(step, gradient - self._gradient)
        if abs(rise) <= LOSS_ERROR and not self._is_assumed:
            # The mean slope along a short step says more than the losses: its error is that of a gradient times the
            # length of the step. The gradient that was assumed at the start may be far off.
            rise = float((self._gradient + gradient) @ step) / 2
        moved = rise <= 0 or not step.any()
        if moved:
            self.base, self.loss, self._gradient = self.trial, self.loss + rise, gradient
            self.is_observed, self._is_assumed = True, False
            self._failures = 0
            self._losses.append(self.loss)
        else:
            self._failures += 1
        self._aim(self._gradient)
        return moved

    def cut(self) -> None:
        """Bring the trial point closer to the base."""
        self.trial = self.base + CUT * (self.trial - self.base)

    @property
    def gap(self) -> float:
        """Estimate of how far f at `result` is above its minimum.

        At the base point, the estimate is g'Hg / 2, or g'g / 2 times the largest eigenvalue of the sum of s s' / s'y
        over the pairs, whichever is larger. H knows nothing about directions that no pair has shown; the second form
        takes them for as flat as the flattest that was seen. `result` is one step further. That step is credited with
        the factor by which the estimate fell in the last round, or in the mean of the last two rounds, whichever is
        worse.

        On whitened columns, the estimate at the base point was between 0.6 and 9 times the truth on both of the paper's
        data sets, and above it from the fifth round on. With badly scaled columns it can be too low in the first
        rounds.

        It is infinite while no curvature is known, and 0 once the gradient consists of rounding errors only.
        """
        if not self.is_observed or self._failures:
            return math.inf
        if self._is_flat:
            return 0.0
        gaps = self._gaps[-3:]
        if len(gaps) < 3:
            return gaps[-1]
        return gaps[2] * min(1.0, max(gaps[2] / gaps[1], math.sqrt(gaps[2] / gaps[0])))

    def is_stalled(self, tolerance: float) -> bool:
        """Return whether the last two steps lowered f by less than the tolerance or 1e-7, and convergence is slow.

        It is slow if the estimated gap at the base point has not halved in four steps. The losses alone do not say:
        they may stay where they are for two steps and fall after that.
        """
        if len(self._gaps) < 5 or self._gaps[-1] <= self._gaps[-5] / 2:
            return False
        return self._losses[-3] - self.loss < max(tolerance, MIN_GAIN)

    @property
    def result(self) -> tuple[FloatVector, float]:
        """The next trial point, and what f is expected to be there: if the gap is small, a round there is not needed.

        The expected loss is that of a quadratic with the inverse Hessian H. Its error is of the size of the gap.

        A gradient that consists of rounding errors gives no step. Where f is nearly flat, because the labels are all
        equal or the columns separate them, H is so large that such a step would leave the minimum far behind.
        """
        if self._gradient is None or self._is_flat:
            return self.base, self.loss
        return self.base - self._descent, self.loss - float(self._gradient @ self._descent) / 2

    @property
    def _is_flat(self) -> bool:
        """Whether the gradient at the base point, which a round has shown, consists of rounding errors only."""
        if self._gradient is None or not self.is_observed:
            return False
        return bool(np.linalg.norm(self._gradient) <= 2 * self._error)

    def _start(self, loss: float, gradient: FloatVector) -> None:
        """Choose the first step from f and its gradient at the start."""
        self.loss, self._gradient = loss, gradient
        if self.base.any():
            rate = _rate_with_entropy(loss)
            flat = 1 / (rate * (1 - rate))
            self._scale, self._least_flattest = flat / 2, WARM_FLATTEST * flat
            self.is_observed = True
            self._losses.append(loss)
            self._aim(gradient)
            return
        rate = 0.5
        if self._intercept:
            rate = float(np.clip(0.5 - gradient[-1], MIN_RATE, 1 - MIN_RATE))
            self.base = np.append(np.zeros(len(gradient) - 1), math.log(rate / (1 - rate)))
            self.loss += -rate * math.log(rate) - (1 - rate) * math.log(1 - rate) - math.log(2)
            self._gradient = np.append(gradient[:-1], 0.0)
            self._is_assumed = True
        self._scale = 1 / (rate * (1 - rate))
        step = within(MAX_FIRST_STEP, -self._scale * self._gradient)
        if self._intercept:
            step[-1] = (rate - 0.5) * float(step @ step)
        self.trial = self.base + step

    def _add_pair(self, step: FloatVector, change: FloatVector) -> None:
        """Keep a pair, unless rounding errors make up too much of it."""
        if np.linalg.norm(change) >= MIN_CHANGE * math.sqrt(2) * self._error:
            self._pairs.add(step, change)

    def _aim(self, gradient: FloatVector) -> None:
        """Choose the trial point for the base point, whose gradient is given."""
        if self._pairs:
            self._descent = two_loop(gradient, self._pairs)
            flattest = largest_inverse_curvature(self._pairs)
        else:
            self._descent = within(MAX_FIRST_STEP, self._scale * gradient)
            flattest = self._scale
        flattest = max(flattest, self._least_flattest)
        if self._failures == 0:
            self._gaps.append(max(float(gradient @ self._descent), flattest * float(gradient @ gradient)) / 2)
        else:
            # With H right along the step that failed, the new one is shorter. This bounds it if H is wrong elsewhere.
            self._descent = within(float(np.linalg.norm(self.trial - self.base)) / 2, self._descent)
        self.trial = self.base - self._descent
        if self._is_assumed and self._failures >= MAX_FAILURES_AT_START:
            self.trial = self.base


def _rate_with_entropy(loss: float) -> float:
    """Return the p <= 1/2 for which -p log p - (1-p) log(1-p) is the loss; 1/2 for a larger loss."""
    low, high = MIN_RATE, 0.5
    for _ in range(60):
        rate = (low + high) / 2
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        low, high = (rate, high) if entropy < loss else (low, rate)
    return high


def largest_inverse_curvature(pairs: CurvaturePairs) -> float:
    """Return the largest eigenvalue of the sum of s s' / s'y over the pairs, of which there is at least one."""
    # The nonzero eigenvalues are those of the small matrix of the products between the vectors s / sqrt(s'y).
    scale = np.sqrt([s @ y for s, y in pairs])
    products = np.array([[s @ other for other, _ in pairs] for s, _ in pairs])
    return float(np.linalg.eigvalsh(products / np.outer(scale, scale))[-1])


def within(limit: float, step: FloatVector) -> FloatVector:
    """Return the step, shortened to the limit if it is longer."""
    length = float(np.linalg.norm(step))
    return step * (limit / length) if length > limit else step
