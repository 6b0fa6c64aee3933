"""Stochastic gradient descent, the baseline in the paper's table."""

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import Sgd as SgdSettings
from trilateral.coordinator.optimisers.learning_rate import LearningRate


class Sgd:
    """A `MinibatchOptimiser` with g~_k = eta_k g_k."""

    def __init__(self, settings: SgdSettings) -> None:
        self._rate = LearningRate(settings.learning_rate, settings.decay)

    def direction(self, point: FloatVector) -> None:
        """Ask for no curvature."""

    def step(self, k: int, gradient: FloatVector, curvature: FloatVector | None) -> FloatVector:
        """Return g~_k."""
        return self._rate.at(k) * gradient

    def restart(self) -> None:
        """Halve the learning rate."""
        self._rate.halve()
