"""The host's part of the scores of the hold-out rows, as it comes in."""

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.messages import HoldoutScores, RoundKey


class HoldoutIntake:
    """Those of the newest attempt that the host has sent any for: whatever is older is not waited for any more.

    Args:
        n_rows: how many hold-out rows there are.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._key = RoundKey(0, 0)
        self._pieces: list[FloatVector] = []

    def take(self, message: HoldoutScores) -> bool:
        """Take the next scores; False if they are of an older attempt, or have come before.

        Raises:
            ProtocolError: they are of other rows, or out of order.
        """
        if message.key < self._key:
            return False
        if message.key > self._key:
            self._key, self._pieces = message.key, []
        received = sum(map(len, self._pieces))
        if message.offset < received:
            return False
        beyond = received + len(message.scores) > self._n_rows
        if message.total != self._n_rows or message.offset != received or beyond:
            raise ProtocolError(f"the host sent hold-out scores for other rows than the guest's {self._n_rows}")
        self._pieces.append(message.scores)
        return True

    def scores(self, key: RoundKey) -> FloatVector | None:
        """The host's part of all rows, shape (n_rows,), once it is there for that attempt."""
        if self._n_rows == 0:
            return np.zeros(0)
        if key != self._key or sum(map(len, self._pieces)) < self._n_rows:
            return None
        return np.concatenate(self._pieces)
