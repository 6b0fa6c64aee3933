"""The curvature pairs (s, v), v = Hessian times s (equation (6)), from which H is made."""

from collections import deque
from collections.abc import Iterator

from trilateral.common.base.arrays import FloatVector

Pair = tuple[FloatVector, FloatVector]

MIN_CURVATURE = 1e-12
"""The least s'v / s's of a pair. H is positive definite only if s'v > 0 for all of its pairs."""


class CurvaturePairs:
    """The last M pairs with enough curvature; iterates from the oldest."""

    def __init__(self, memory: int) -> None:
        """`memory` is M."""
        self._pairs: deque[Pair] = deque(maxlen=memory)

    def add(self, s: FloatVector, v: FloatVector) -> bool:
        """Keep the pair, or drop it and return False if s'v <= 1e-12 s's."""
        if not s @ v > MIN_CURVATURE * (s @ s):
            return False
        self._pairs.append((s, v))
        return True

    def clear(self) -> None:
        """Forget all pairs, so that H = I."""
        self._pairs.clear()

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)
