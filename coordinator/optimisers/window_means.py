"""Equation (5): s_t, the change of the mean of w from one window of L rounds to the next."""

import numpy as np

from trilateral.common.base.arrays import FloatVector


class WindowMeans:
    """s_t = w-bar_t - w-bar_{t-1},  w-bar_t = mean(w_{k-L+1} .. w_k) in every L-th round k.

    Algorithm 1 writes s_t with the directions g~ in the place of w; (5) is right.
    """

    def __init__(self, interval: int) -> None:
        """`interval` is L."""
        self._interval = interval
        self._window: list[FloatVector] = []
        self._last_mean: FloatVector | None = None

    def add(self, point: FloatVector) -> FloatVector | None:
        """Take w_k, and return s_t if this round ends the second window or a later one.

        A direction of exact zeros, from which no curvature can be learnt, is not returned.
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
