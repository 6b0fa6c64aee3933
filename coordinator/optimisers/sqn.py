"""The paper's stochastic quasi-Newton method: equation (5), and the coordinator's lines of Algorithm 1."""

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import Sqn as SqnSettings
from trilateral.coordinator.optimisers.inverse_hessian import CurvaturePairs, two_loop
from trilateral.coordinator.optimisers.sgd import LearningRate


class WindowMeans:
    """Equation (5): s_t = w-bar_t - w-bar_{t-1} with w-bar_t = mean(w_{k-L+1} .. w_k), in every L-th round k.

    Algorithm 1 of the paper has the directions g~ in place of w in s_t. Equation (5) is right.

    Args:
        interval: L, the number of rounds in a window.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._window: list[FloatVector] = []
        self._last_mean: FloatVector | None = None

    def add(self, point: FloatVector) -> FloatVector | None:
        """Add the point of the next round.

        Args:
            point: w_k, shape (n_columns,).

        Returns:
            s_t, shape (n_columns,), if this round ends the second window or a later one; else None. Also None if s_t
            is zero, because that direction shows no curvature.
        """
        self._window.append(point)
        if len(self._window) < self._interval:
            return None
        mean = np.mean(self._window, axis=0)
        change = None if self._last_mean is None else mean - self._last_mean
        self._window = []
        self._last_mean = mean
        return change if change is not None and change.any() else None

    def clear(self) -> None:
        """Forget all rounds so far."""
        self._window = []
        self._last_mean = None


class Sqn:
    """Algorithm 1: a `MinibatchOptimiser` with g~_k = eta_k H g_k, H from the pairs known before round k."""

    def __init__(self, settings: SqnSettings) -> None:
        first_rate = settings.first_learning_rate
        self._rate = LearningRate(settings.learning_rate, settings.decay)
        self._first_rate = LearningRate(settings.learning_rate if first_rate is None else first_rate, settings.decay)
        self._means = WindowMeans(settings.interval)
        self._pairs = CurvaturePairs(settings.memory)
        self._asked: FloatVector | None = None

    def direction(self, point: FloatVector) -> FloatVector | None:
        """Take w_k; return s_t in every L-th round from the second window on."""
        self._asked = self._means.add(point)
        return self._asked

    def step(self, k: int, gradient: FloatVector, curvature: FloatVector | None) -> FloatVector:
        """Return g~_k, then add the pair (s_t, v_t) if this round measured v_t; see `MinibatchOptimiser.step`."""
        rate = self._rate if self._pairs else self._first_rate
        step = rate.at(k) * two_loop(gradient, self._pairs)
        if self._asked is not None and curvature is not None:
            self._pairs.add(self._asked, curvature)
        return step

    def restart(self) -> None:
        """Halve the learning rates; drop the windows and the pairs, which may have caused the divergence."""
        self._rate.halve()
        self._first_rate.halve()
        self._means.clear()
        self._pairs.clear()
