"""The elastic net penalty, and the exact minimum of a quadratic model plus this penalty.

    r(w) = sum of l1_j |w_j| + l2_j w_j^2 / 2

`minimise` is the feature-sign search of Lee, Battle, Raina and Ng, *Efficient sparse coding algorithms*, 2006,
algorithm 1. It guesses the signs of the weights that are not 0, solves for these weights, and moves to the best point
on the line to the solution at which a weight becomes 0. Each step lowers the objective, so no guess occurs twice and
the search ends. Weights are exactly 0 where the minimum has them at 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows
from trilateral.common.config.job import Penalty

SLACK = 1e-10
"""A weight of 0 stays 0 while its slope exceeds l1 by less than this share of the largest slope."""
STEPS_PER_COLUMN = 20
"""The most steps for each column. Searches take about one for each weight that becomes 0 or stops being 0."""


@dataclass(frozen=True, eq=False)
class ElasticNet:
    """The penalty r of one fit."""

    l1: FloatVector
    """Shape (n_columns,); 0 for a column without penalty."""
    l2: FloatVector
    """Shape (n_columns,)."""

    @classmethod
    def of(cls, penalty: Penalty, diagonal: FloatVector) -> Self:
        """Return the penalty of a fit.

        Args:
            penalty: its strengths.
            diagonal: of P, with ||beta||^2 = w'P w. With an L1 part, every column that is penalised is a term, and so P
                is 1 there.
        """
        l1: FloatVector = np.where(diagonal > 0, penalty.l1, 0.0)
        return cls(l1, penalty.l2 * diagonal)

    def value(self, w: FloatVector) -> float:
        """Return r(w)."""
        return float(self.l1 @ np.abs(w) + self.l2 @ (w * w) / 2)

    def slope(self, w: FloatVector, gradient: FloatVector) -> FloatVector:
        """Return the shortest subgradient of f + r at w, for the gradient of f; 0 at the minimum."""
        smooth = gradient + self.l2 * w
        at_zero: FloatVector = np.sign(smooth) * np.maximum(np.abs(smooth) - self.l1, 0.0)
        return np.where(w == 0, at_zero, smooth + self.l1 * np.sign(w))


def minimise(hessian: FloatMatrix, gradient: FloatVector, base: FloatVector, penalty: ElasticNet) -> FloatVector:
    """Minimise m(w) + r(w) for m(w) = g'(w - b) + (w - b)'B(w - b) / 2.

    Args:
        hessian: B, symmetric and positive definite, shape (n_columns, n_columns).
        gradient: g, shape (n_columns,).
        base: b, where the search begins.
        penalty: r.

    Returns:
        The minimum, shape (n_columns,).
    """
    H: FloatMatrix = hessian + np.diag(penalty.l2)
    c: FloatVector = gradient - hessian @ base
    l1 = penalty.l1
    if not l1.any():
        return np.asarray(np.linalg.solve(H, -c), dtype=np.float64)

    def objective(w: FloatVector) -> float:
        return float(c @ w + w @ (H @ w) / 2 + l1 @ np.abs(w))

    w, signs = base.copy(), np.sign(base)
    active = (l1 == 0) | (w != 0)
    for _ in range(STEPS_PER_COLUMN * len(w)):
        rows = np.flatnonzero(active)
        goal = np.zeros(len(w))
        goal[rows] = np.linalg.solve(H[np.ix_(rows, rows)], -(c + l1 * signs)[rows])
        crossing = rows[(l1[rows] > 0) & (signs[rows] * goal[rows] < 0)]
        if len(crossing):
            w, arrived = _best_on_line(objective, w, goal, crossing), False
        else:
            w, arrived = goal, True
        signs = np.sign(w)
        active = (l1 == 0) | (w != 0)
        if not arrived:
            continue
        smooth = c + H @ w
        excess = np.where(active, -np.inf, np.abs(smooth) - l1)
        largest = int(np.argmax(excess))
        if active.all() or excess[largest] <= SLACK * max(float(np.abs(smooth).max()), float(l1.max())):
            return w
        active[largest], signs[largest] = True, -np.sign(smooth[largest])
    return w


def _best_on_line(
    objective: Callable[[FloatVector], float], w: FloatVector, goal: FloatVector, crossing: Rows
) -> FloatVector:
    """Return the best of the goal and the points on the line to it at which a weight is 0."""
    best, least = goal, objective(goal)
    for column in crossing:
        if w[column] == 0:
            continue
        point = w + w[column] / (w[column] - goal[column]) * (goal - w)
        point[column] = 0.0
        value = objective(point)
        if value < least:
            best, least = point, value
    return best
