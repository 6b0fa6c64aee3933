"""The paper's stochastic quasi-Newton method, the coordinator's lines of Algorithm 1."""

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import Sqn as SqnSettings
from trilateral.coordinator.optimisers.learning_rate import LearningRate
from trilateral.coordinator.optimisers.pairs import CurvaturePairs
from trilateral.coordinator.optimisers.two_loop import two_loop
from trilateral.coordinator.optimisers.window_means import WindowMeans


class Sqn:
    """A `MinibatchOptimiser` with g~_k = eta_k H g_k, H from the pairs known before round k."""

    def __init__(self, settings: SqnSettings) -> None:
        first_rate = settings.first_learning_rate
        self._rate = LearningRate(settings.learning_rate, settings.decay)
        self._first_rate = LearningRate(settings.learning_rate if first_rate is None else first_rate, settings.decay)
        self._means = WindowMeans(settings.interval)
        self._pairs = CurvaturePairs(settings.memory)
        self._asked: FloatVector | None = None

    def direction(self, point: FloatVector) -> FloatVector | None:
        """Take w_k; every L rounds from the second time on, return s_t."""
        self._asked = self._means.add(point)
        return self._asked

    def step(self, k: int, gradient: FloatVector, curvature: FloatVector | None) -> FloatVector:
        """Return g~_k, then add the pair (s_t, v_t) if this round brought v_t."""
        rate = self._rate if self._pairs else self._first_rate
        step = rate.at(k) * two_loop(gradient, self._pairs)
        if self._asked is not None and curvature is not None:
            self._pairs.add(self._asked, curvature)
        return step

    def restart(self) -> None:
        """Halve the learning rates; drop the windows and the pairs, which may be what went wrong."""
        self._rate.halve()
        self._first_rate.halve()
        self._means.clear()
        self._pairs.clear()
