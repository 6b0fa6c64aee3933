"""How many IDs the other party may try out here: `policy.max_ids`."""

from collections import deque
from collections.abc import Callable

from common.errors import PolicyError
from common.roles import Role

WINDOW = 24 * 3600.0
"""Seconds for which IDs count."""


class IdBudget:
    """Counts the IDs of alignments within `WINDOW`, as long as the process lives.

    Args:
        role: of this party.
        most: IDs within the window.
        clock: seconds from some moment.
    """

    def __init__(self, role: Role, most: int, clock: Callable[[], float]) -> None:
        self._role = role
        self._most = most
        self._clock = clock
        self._taken: deque[tuple[float, int]] = deque()

    def take(self, n_ids: int) -> None:
        """Take so many off what is left; they count even if nothing comes of the alignment.

        Raises:
            PolicyError: that many are not left.
        """
        now = self._clock()
        while self._taken and now - self._taken[0][0] >= WINDOW:
            self._taken.popleft()
        used = sum(n for _, n in self._taken)
        if used + n_ids > self._most:
            raise PolicyError(
                f"the {self._role} refuses the alignment by policy.max_ids: {self._most} IDs within 24 hours is the "
                f"most, {used} were brought already and {n_ids} are to come"
            )
        self._taken.append((now, n_ids))
