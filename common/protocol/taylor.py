"""The Taylor loss of logistic regression and its derivatives, on plain numbers.

What the encrypted rounds compute, for reports and as the measure of them. With labels y in
{-1, +1} and scores u = X w, the paper's equation (2) is, for each sample,

    log(1 + exp(-y u))  ~  log 2 - y u / 2 + u^2 / 8

Its formulas are taken from the text around them where the printed ones differ: see the
gradient and the Hessian above equation (3).
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector


def taylor_loss(scores: FloatVector, labels: FloatVector) -> float:
    """Mean Taylor loss, equations (2) and (3); both arguments of shape (n_samples,)."""
    return float(np.mean(np.log(2) - labels * scores / 2 + scores**2 / 8))


def residual(scores: FloatVector, labels: FloatVector) -> FloatVector:
    """D = u/4 - y/2, shape (n_samples,): the derivative of each sample's loss by its score."""
    return scores / 4 - labels / 2


def gradient(columns: NDArray[np.float64], residual: FloatVector) -> FloatVector:
    """Equation (4), g = X' d / n_samples: columns X (n_samples, n_columns), result (n_columns,)."""
    return columns.T @ residual / len(columns)


def hessian_product(columns: NDArray[np.float64], direction: FloatVector) -> FloatVector:
    """Equation (6), v = X' X s / (4 n_samples): the Hessian, the same at every w, times s."""
    return columns.T @ (columns @ direction) / (4 * len(columns))
