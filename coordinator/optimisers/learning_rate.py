"""The learning rate of round k."""

import math


class LearningRate:
    """eta_k = eta / sqrt(1 + decay k), and half of that after each `halve`."""

    def __init__(self, rate: float, decay: float) -> None:
        self._rate = rate
        self._decay = decay

    def at(self, k: int) -> float:
        """Return eta_k for round k, from 1 up."""
        return self._rate / math.sqrt(1 + self._decay * k)

    def halve(self) -> None:
        """Halve this and every later rate."""
        self._rate /= 2
