"""Equation (8): curvature pairs (s, v), and the product of the inverse Hessian H with a vector.

v is the Hessian times s, equation (6); the parties compute it by equation (7). With rho_j = 1 / v_j's_j, H starts as
(s'v / v'v) I with s and v from the newest pair. Then each pair updates H, the oldest first:

    H <- (I - rho_j s_j v_j') H (I - rho_j v_j s_j') + rho_j s_j s_j'        (8)

H is never formed. `two_loop` is algorithm 7.4 of Nocedal and Wright, *Numerical Optimization*, 2nd edition.
"""

from collections import deque
from collections.abc import Iterator

from trilateral.common.base.arrays import FloatVector

Pair = tuple[FloatVector, FloatVector]
"""(s, v), each of shape (n_columns,)."""

MIN_CURVATURE = 1e-12
"""A pair is kept only if s'v / s's exceeds this. H is positive definite only if s'v > 0 for all of its pairs."""


class CurvaturePairs:
    """The last M pairs with enough curvature. Iteration starts at the oldest.

    Args:
        memory: M.
    """

    def __init__(self, memory: int) -> None:
        self._pairs: deque[Pair] = deque(maxlen=memory)

    def add(self, s: FloatVector, v: FloatVector) -> bool:
        """Keep a pair, or drop it and return False if s'v <= 1e-12 s's; both have shape (n_columns,)."""
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


def two_loop(gradient: FloatVector, pairs: CurvaturePairs) -> FloatVector:
    """Compute H g by the two-loop recursion.

    Args:
        gradient: g, shape (n_columns,).
        pairs: the pairs that define H; without a pair H = I.

    Returns:
        Shape (n_columns,).
    """
    product = gradient.copy()
    if not pairs:
        return product
    newest_first = list(pairs)[::-1]
    weights = []
    for s, v in newest_first:
        weight = (s @ product) / (v @ s)
        product -= weight * v
        weights.append(weight)
    s, v = newest_first[0]
    product *= (s @ v) / (v @ v)
    for (s, v), weight in zip(newest_first[::-1], weights[::-1], strict=True):
        product += (weight - (v @ product) / (v @ s)) * s
    return product
