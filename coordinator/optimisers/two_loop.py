"""Equation (8): H g, by the two-loop recursion instead of a dense n x n matrix.

With rho_j = 1 / v_j's_j, from H = (s'v / v'v) I of the newest pair, the oldest pair first,

    H <- (I - rho_j s_j v_j') H (I - rho_j v_j s_j') + rho_j s_j s_j'

The recursion is algorithm 7.4 of Nocedal and Wright, *Numerical Optimization*, 2nd edition.
"""

from trilateral.common.base.arrays import FloatVector
from trilateral.coordinator.optimisers.pairs import CurvaturePairs


def two_loop(gradient: FloatVector, pairs: CurvaturePairs) -> FloatVector:
    """H g, shape (n_columns,); H = I if there is no pair."""
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
