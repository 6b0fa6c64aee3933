"""The intake of the host's part of the scores of the hold-out rows."""

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.messages import HoldoutScores, RoundKey


class HoldoutIntake:
    """Collects the scores of the newest attempt for which the host has sent any. Older attempts are over.

    Args:
        n_rows: how many hold-out rows there are.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._key = RoundKey(0, 0)
        self._received = 0
        self._scores: FloatVector = np.empty(n_rows)

    def add(self, message: HoldoutScores) -> bool:
        """Add the next scores.

        Returns:
            False if they belong to an older attempt, or have come before.

        Raises:
            ProtocolError: the scores belong to other rows, or are out of order.
        """
        if message.key < self._key:
            return False
        if message.key > self._key:
            self._key, self._received = message.key, 0
        received = self._received
        if message.offset < received:
            return False
        end = received + len(message.scores)
        if message.total != self._n_rows or message.offset != received or end > self._n_rows:
            raise ProtocolError(f"the host sent hold-out scores for other rows than the guest's {self._n_rows}")
        self._scores[received:end] = message.scores
        self._received = end
        return True

    def scores(self, key: RoundKey) -> FloatVector | None:
        """Return the host's part of the scores for an attempt, shape (n_rows,); None until all of it has arrived."""
        if self._n_rows == 0:
            return np.zeros(0)
        if key != self._key or self._received < self._n_rows:
            return None
        return self._scores.copy()
