"""Transforms of numbers: logarithms, the square root, and the power of Yeo and Johnson, which is fitted."""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.dataset import Transform

_LEAST = {"log": "above 0", "log1p": "above -1", "sqrt": "of at least 0"}


def outside(transform: Transform, smallest: float) -> str | None:
    """Return what values a transform needs if it is not defined for the smallest value of a column, else None."""
    with np.errstate(all="ignore"):
        is_defined = np.isfinite(transformed(np.array([smallest]), transform, 1.0)).all()
    return None if is_defined else _LEAST[transform]


def transformed(x: FloatVector, transform: Transform, power: float | None) -> FloatVector:
    """Compute a transform; what is not defined becomes NaN or infinite.

    Args:
        x: the values, shape (n_rows,).
        transform: which transform.
        power: lambda of `yeo_johnson`.

    Returns:
        Shape (n_rows,).
    """
    with np.errstate(all="ignore"):
        match transform:
            case "log":
                return np.log(x)
            case "log1p":
                return np.log1p(x)
            case "sqrt":
                return np.sqrt(x)
            case "yeo_johnson":
                if power is None:
                    raise ValueError("the transform of Yeo and Johnson needs a power")
                return _yeo_johnson(x < 0, np.log1p(np.abs(x)), power)


def fit_power(x: FloatVector) -> float:
    """Fit lambda of the transform of Yeo and Johnson by maximum likelihood, as scikit-learn's `PowerTransformer` does.

    Source: Yeo and Johnson (2000), A New Family of Power Transformations to Improve Normality or Symmetry, equation
    3.1. Without what is constant, the log-likelihood of a normal distribution is

        -n/2 log var(psi(x)) + (lambda - 1) sum sign(x) log(1 + |x|)

    Args:
        x: the training rows of one column, all of them: the sums are then the same wherever the column lies.

    Returns:
        lambda; NaN if the likelihood has no maximum.
    """
    from scipy.optimize import minimize_scalar  # The import takes time and memory, and few jobs need it.

    is_negative, size = x < 0, np.log1p(np.abs(x))
    slope = float(np.where(is_negative, -size, size).sum())

    def loss(power: float) -> float:
        values = _yeo_johnson(is_negative, size, power)
        return 0.5 * len(x) * float(np.log(np.var(values))) - (power - 1) * slope

    with np.errstate(all="ignore"):
        found = minimize_scalar(loss, bracket=(-2.0, 2.0), method="brent")
    return float(found.x) if np.isfinite(found.fun) else float("nan")


def _yeo_johnson(is_negative: NDArray[np.bool_], size: FloatVector, power: float) -> FloatVector:
    """Compute psi(lambda, x) of Yeo and Johnson, equation 2.1, from the sign of x and log(1 + |x|).

    For x >= 0 it is ((1 + x)^lambda - 1) / lambda, and for x < 0 it is -((1 - x)^(2 - lambda) - 1) / (2 - lambda). At
    an exponent of 0 it is the limit, a logarithm. `expm1` keeps all digits near that exponent.
    """
    values: FloatVector = _power(size, power)
    if is_negative.any():
        values = np.where(is_negative, -_power(size, 2 - power), values)
    return values


def _power(size: FloatVector, exponent: float) -> FloatVector:
    return size.copy() if exponent == 0 else np.expm1(exponent * size) / exponent
