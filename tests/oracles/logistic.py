"""The logistic loss in floating point, written on its own: the oracle of the protocol on shares."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def loss_sum(X: Array, y: Array, w: Array, weights: Array | None = None) -> float:
    """Sum over the rows of c (log(1 + exp(u)) - y u) for labels 0 and 1."""
    u = X @ w
    c = np.ones(len(y)) if weights is None else weights
    return float(c @ (np.logaddexp(0, u) - y * u))


def gradient_sum(X: Array, y: Array, w: Array, weights: Array | None = None) -> Array:
    """Its gradient, shape (n_columns,)."""
    c = np.ones(len(y)) if weights is None else weights
    gradient: Array = X.T @ (c * (1 / (1 + np.exp(-(X @ w))) - y))
    return gradient
