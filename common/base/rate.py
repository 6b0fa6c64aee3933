"""A limit on how often something may happen: a bucket of tokens that fills at a constant rate."""

from collections.abc import Callable


class Rate:
    """A bucket that holds the tokens of two seconds, and is full at the start.

    Args:
        per_second: tokens that come in a second.
        clock: returns seconds since a fixed moment.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._most = 2 * per_second
        self._left, self._filled_at = self._most, clock()

    def take(self, count: int) -> bool:
        """Take tokens if there are enough, and return whether there were.

        A full bucket gives more than it holds, and then fills from below zero. So a request for many tokens passes
        under any rate, and the rate holds all the same.

        Args:
            count: how many tokens to take.
        """
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._left < min(count, self._most):
            return False
        self._left -= count
        return True
