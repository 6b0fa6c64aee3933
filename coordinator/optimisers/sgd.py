"""Stochastic gradient descent, the baseline in the paper's table, and the parts that the paper's own method shares."""

import math
from typing import Protocol

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import Sgd as SgdSettings


class MinibatchOptimiser(Protocol):
    """An optimiser that works on mini-batches. In each round the search calls `direction`, then `step`."""

    def direction(self, point: FloatVector) -> FloatVector | None:
        """Take w_k, once a round; return s_t if the round is to measure curvature along s_t.

        Both have shape (n_columns,).
        """
        ...

    def step(self, k: int, gradient: FloatVector, curvature: FloatVector | None) -> FloatVector:
        """Choose the step that leads to w_{k+1} = w_k - g~_k.

        Args:
            k: the round, from 1 up.
            gradient: g_k, the gradient of the round's batch at w_k, shape (n_columns,).
            curvature: v_t, shape (n_columns,), if `direction` asked for it.

        Returns:
            g~_k, shape (n_columns,).
        """
        ...

    def restart(self) -> None:
        """Halve the learning rate and forget everything learnt from earlier rounds."""
        ...


class LearningRate:
    """eta_k = eta / sqrt(1 + decay k), and half of that after each `halve`.

    Args:
        rate: eta.
        decay: 0 for a constant rate, as in the paper.
    """

    def __init__(self, rate: float, decay: float) -> None:
        self._rate = rate
        self._decay = decay

    def at(self, k: int) -> float:
        """Return eta_k for round k, from 1 up."""
        return self._rate / math.sqrt(1 + self._decay * k)

    def halve(self) -> None:
        """Halve this and every later rate."""
        self._rate /= 2


class Sgd:
    """A `MinibatchOptimiser` with g~_k = eta_k g_k."""

    def __init__(self, settings: SgdSettings) -> None:
        self._rate = LearningRate(settings.learning_rate, settings.decay)

    def direction(self, point: FloatVector) -> None:
        """Ask for no curvature."""

    def step(self, k: int, gradient: FloatVector, curvature: FloatVector | None) -> FloatVector:
        """Return g~_k; see `MinibatchOptimiser.step`."""
        return self._rate.at(k) * gradient

    def restart(self) -> None:
        """Halve the learning rate."""
        self._rate.halve()
