"""The intake of the host's part of the scores of the hold-out rows, and of the further sets at the end."""

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.messages import HoldoutScores, RoundKey


class HoldoutIntake:
    """Collects the scores of the newest attempt for which the host has sent any. Older attempts are over.

    Args:
        n_rows: how many hold-out rows there are, of which an evaluation has scores.
        n_results: how many rows are scored at the end, those of the further sets included.
    """

    def __init__(self, n_rows: int, n_results: int) -> None:
        self._n_rows = n_rows
        self._n_results = n_results
        self._key = RoundKey(0, 0)
        self._received = self._total = 0
        self._scores: FloatVector = np.empty(n_results)

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
            self._key, self._received, self._total = message.key, 0, message.total
        received = self._received
        if message.offset < received:
            return False
        end = received + len(message.scores)
        total = self._total
        if (
            total not in {self._n_rows, self._n_results}
            or message.total != total
            or message.offset != received
            or end > total
        ):
            raise self._other_rows
        self._scores[received:end] = message.scores
        self._received = end
        return True

    def scores(self, key: RoundKey) -> FloatVector | None:
        """Return the host's part of the scores for an attempt, shape (n_rows,); None until all of it has arrived.

        Raises:
            ProtocolError: the host sent the scores of other rows.
        """
        return self._of(key, self._n_rows)

    def result(self, key: RoundKey) -> FloatVector | None:
        """Return the host's part of the scores at the end, shape (n_results,); see `scores`."""
        return self._of(key, self._n_results)

    def _of(self, key: RoundKey, n_rows: int) -> FloatVector | None:
        if n_rows == 0:
            return np.zeros(0)
        if key != self._key:
            return None
        if self._total != n_rows:
            raise self._other_rows
        return self._scores[:n_rows].copy() if self._received == n_rows else None

    @property
    def _other_rows(self) -> ProtocolError:
        return ProtocolError(f"the host sent hold-out scores for other rows than the guest's {self._n_rows}")
