"""The Taylor loss of logistic regression and its derivatives, on plain numbers.

The encrypted rounds compute the same values; this module is their reference. With labels y in {-1, +1} and scores
u = X w, the paper's equation (2) is, for each sample,

    log(1 + exp(-y u))  ~  log 2 - y u / 2 + u^2 / 8

Where the paper's displayed formulas differ from its text, the text is right: see docs/paper.md.
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector


def taylor_loss(scores: FloatVector, labels: FloatVector) -> float:
    """Return the mean Taylor loss, equations (2) and (3).

    Args:
        scores: u, shape (n_samples,).
        labels: y in {-1, +1}, shape (n_samples,).
    """
    return float(np.mean(np.log(2) - labels * scores / 2 + scores**2 / 8))


def residual(scores: FloatVector, labels: FloatVector) -> FloatVector:
    """Return d = u/4 - y/2 of equation (4), shape (n_samples,): the derivative of each sample's loss by its score."""
    return scores / 4 - labels / 2


def gradient(columns: NDArray[np.float64], residual: FloatVector) -> FloatVector:
    """Return g = X' d / n_samples, equation (4), shape (n_columns,).

    Args:
        columns: X, shape (n_samples, n_columns).
        residual: d, shape (n_samples,).
    """
    return columns.T @ residual / len(columns)


def hessian_product(columns: NDArray[np.float64], direction: FloatVector) -> FloatVector:
    """Return v = X' X s / (4 n_samples), equation (6), shape (n_columns,): the Hessian, the same at every w, times s.

    Args:
        columns: X, shape (n_samples, n_columns).
        direction: s, shape (n_columns,).
    """
    return columns.T @ (columns @ direction) / (4 * len(columns))
