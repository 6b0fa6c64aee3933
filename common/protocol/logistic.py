"""The logistic loss and its gradient, on plain numbers.

The rounds on secret shares compute the same values; this module is their reference. With labels y in {-1, +1}, scores
u = X w and sample weights c, the loss of a sample is c log(1 + exp(-y u)). Means divide by the sum of c.
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector


def logistic_loss(scores: FloatVector, labels: FloatVector, sample_weights: FloatVector | None = None) -> float:
    """Return the weighted mean of the logistic loss.

    Args:
        scores: u, shape (n_samples,).
        labels: y in {-1, +1}, shape (n_samples,).
        sample_weights: c, shape (n_samples,); None stands for ones.
    """
    return float(np.average(np.logaddexp(0, -labels * scores), weights=sample_weights))


def probability(scores: FloatVector) -> FloatVector:
    """Return sigma(u) = 1 / (1 + exp(-u)), shape (n_samples,), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -scores)), dtype=np.float64)


def residual(scores: FloatVector, labels: FloatVector) -> FloatVector:
    """Return d = sigma(u) - (1 + y) / 2, shape (n_samples,): the derivative of each sample's loss by its score."""
    return probability(scores) - (1 + labels) / 2


def gradient(
    columns: NDArray[np.float64], residual: FloatVector, sample_weights: FloatVector | None = None
) -> FloatVector:
    """Return g = X' (c d) / sum c, shape (n_columns,).

    Args:
        columns: X, shape (n_samples, n_columns).
        residual: d, shape (n_samples,).
        sample_weights: c, shape (n_samples,); None stands for ones.
    """
    if sample_weights is None:
        return columns.T @ residual / len(columns)
    return columns.T @ (sample_weights * residual) / float(np.sum(sample_weights))
