"""The logistic loss and its gradient, on plain numbers.

The rounds on secret shares compute the same values; this module is their reference. With labels y in {-1, +1}, scores
u = X w and sample weights c, the loss of a sample is c log(1 + exp(-y u)). The weights have mean 1 over the training
rows, so that means over a batch divide by its number of rows.
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector


def logistic_loss(scores: FloatVector, labels: FloatVector, sample_weights: FloatVector | None = None) -> float:
    """Return the mean of the weighted logistic loss.

    Args:
        scores: u, shape (n_samples,).
        labels: y in {-1, +1}, shape (n_samples,).
        sample_weights: c, shape (n_samples,); None stands for ones.
    """
    losses = np.logaddexp(0, -labels * scores)
    return float(np.mean(losses if sample_weights is None else sample_weights * losses))


def probability(scores: FloatVector) -> FloatVector:
    """Return sigma(u) = 1 / (1 + exp(-u)), shape (n_samples,), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -scores)), dtype=np.float64)


def slope(scores: FloatVector) -> FloatVector:
    """Return sigma'(u) = sigma(u) sigma(-u), shape (n_samples,): the second derivative of each sample's loss."""
    return probability(scores) * probability(-scores)


def residual(scores: FloatVector, labels: FloatVector) -> FloatVector:
    """Return d = sigma(u) - (1 + y) / 2, shape (n_samples,): the derivative of each sample's loss by its score."""
    return probability(scores) - (1 + labels) / 2


def gradient(
    columns: NDArray[np.float64], residual: FloatVector, sample_weights: FloatVector | None = None
) -> FloatVector:
    """Return g = X' (c d) / n_samples, shape (n_columns,).

    Args:
        columns: X, shape (n_samples, n_columns).
        residual: d, shape (n_samples,).
        sample_weights: c, shape (n_samples,); None stands for ones.
    """
    return columns.T @ (residual if sample_weights is None else sample_weights * residual) / len(columns)
