"""From a party's features to its training columns, and from training weights back.

Every number is fitted on the training rows alone, stays with the party, and is plain enough
for JSON. In order:

    fill        a missing value becomes the column's median or mean, or 0
    clip        at two quantiles of the filled column
    standardise mean 0 and mean square 1: (x - mean) / scale
    whiten      columns Z T, where Z = U S V' is the standardised block and T = V (S^2/n + 4 lambda)^-1/2
    intercept   a column of ones

Whitening makes the party's own block of the Hessian, T' (Z'Z/4n + lambda I) T, a quarter of the
identity: lambda is the job's L2 penalty on beta. Only the correlation between the two parties'
blocks is left, so a training needs far fewer rounds. It changes the coordinates, not the model: a weight vector w
of the training columns is beta = T w in standardised features. The column of ones is left out of the
decomposition, being orthogonal to every standardised column already.

On the training rows, **the mean square of every training column is at most 1** (to 1e-9). The
width of a slot relies on it: by Cauchy-Schwarz, no inner product of a column with a vector d is above
n * rms(d).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from common.arrays import FloatMatrix
from common.config.dataset import PreprocessingConfig
from common.errors import DataError

_CONSTANT = 1e-12
"""A column whose range is at most this share of its largest value varies by rounding only."""

_RANK = 1e-6
"""Directions shorter than this share of the longest are dropped by whitening.

They are what rounding leaves of linearly dependent columns. Scaled up, their rounding errors
of about 1e-16 / 1e-6 stay below the 1e-9 of the bound above.
"""


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The fitted steps. Arrays have shape (n_features,) unless said otherwise."""

    features: tuple[str, ...]
    """Names of the features, in the order of the arrays."""
    fill: FloatMatrix
    lower: FloatMatrix | None
    """Clipping limits; None without clipping."""
    upper: FloatMatrix | None
    mean: FloatMatrix
    scale: FloatMatrix
    directions: FloatMatrix
    """T, shape (n_features, rank): the identity without whitening."""
    intercept: bool
    """Whether the last training column is ones."""

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # What overflows is not finite in the end, and named.
    def fit(cls, features: pd.DataFrame, config: PreprocessingConfig, intercept: bool, l2: float = 0.0) -> Self:
        """Fit on the training rows, shape (n_train, n_features), NaN where a value is missing.

        `l2` is the job's lambda, which whitening takes into account.

        Raises:
            DataError: a column has no value, is constant, or is too large or small to be squared.
        """
        names = tuple(str(name) for name in features.columns)
        X = features.to_numpy(np.float64)
        _refuse(names, np.isnan(X).all(axis=0), "no value in any training row: exclude it")
        fill = _fit_fill(features, config)
        X = np.where(np.isnan(X), fill, X)
        _refuse(names, _is_constant(X), "the same value in all training rows: exclude it")
        lower = upper = None
        if config.clip is not None:
            lower, upper = np.quantile(X, config.clip, axis=0)
            X = X.clip(lower, upper)
            _refuse(
                names,
                _is_constant(X),
                f"the same value in all training rows once clipped at the quantiles {config.clip[0]} and "
                f"{config.clip[1]}: exclude it, or set `preprocessing.clip` to null or wider",
            )
        mean, scale = X.mean(axis=0), X.std(axis=0)
        squarable = np.isfinite(fill) & np.isfinite(scale) & (scale > 0)
        _refuse(names, ~squarable, "values too large or too small to be squared: change its unit, or exclude it")
        Z = (X - mean) / scale
        directions = _fit_whitening(Z, l2) if config.whiten else np.eye(len(names))
        return cls(names, fill, lower, upper, mean, scale, directions, intercept)

    @property
    def n_columns(self) -> int:
        """Training columns."""
        return int(self.directions.shape[1]) + self.intercept

    @property
    def penalty(self) -> FloatMatrix:
        """P, shape (n_columns, n_columns), with ||beta||^2 = w' P w: the intercept is not penalised."""
        rank = self.directions.shape[1]
        P = np.zeros((self.n_columns, self.n_columns))
        P[:rank, :rank] = self.directions.T @ self.directions
        return P

    def transform(self, features: pd.DataFrame) -> FloatMatrix:
        """Training columns of any rows, shape (n_rows, n_columns). Columns are taken by name.

        Raises:
            DataError: a feature is not there.
        """
        gone = [name for name in self.features if name not in features.columns]
        if gone:
            raise DataError(f"the table lacks columns that the model was fitted on: {', '.join(map(repr, gone))}")
        X = features[list(self.features)].to_numpy(np.float64)
        X = np.where(np.isnan(X), self.fill, X)
        if self.lower is not None and self.upper is not None:
            X = X.clip(self.lower, self.upper)
        columns: FloatMatrix = (X - self.mean) / self.scale @ self.directions
        return np.column_stack([columns, np.ones(len(X))]) if self.intercept else columns

    def to_standardised(self, coef: FloatMatrix) -> FloatMatrix:
        """Training weights (n_columns,) to beta, the weights of the standardised features (n_features,)."""
        beta: FloatMatrix = self.directions @ coef[: self.directions.shape[1]]
        return beta

    def to_features(self, coef: FloatMatrix) -> tuple[FloatMatrix, float]:
        """Training weights (n_columns,) to weights in units of the features (n_features,), and a constant.

        transform(X) @ coef equals X @ weights + constant for rows X that miss no value and lie inside
        the clipping limits. A party without an intercept has a constant too: it makes up for its means.
        """
        weights = self.to_standardised(coef) / self.scale
        own = float(coef[-1]) if self.intercept else 0.0
        return weights, own - float(self.mean @ weights)

    def to_dict(self) -> dict[str, Any]:
        """The state in lists, strings and numbers."""
        return {
            "features": list(self.features),
            "fill": self.fill.tolist(),
            "lower": None if self.lower is None else self.lower.tolist(),
            "upper": None if self.upper is None else self.upper.tolist(),
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "directions": self.directions.tolist(),
            "intercept": self.intercept,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, exact to the last bit also through JSON."""

        def array(name: str) -> FloatMatrix:
            return np.array(state[name], dtype=np.float64)

        return cls(
            features=tuple(state["features"]),
            fill=array("fill"),
            lower=None if state["lower"] is None else array("lower"),
            upper=None if state["upper"] is None else array("upper"),
            mean=array("mean"),
            scale=array("scale"),
            directions=array("directions"),
            intercept=state["intercept"],
        )


def _fit_fill(features: pd.DataFrame, config: PreprocessingConfig) -> FloatMatrix:
    if config.fill == "zero":
        return np.zeros(features.shape[1])
    return (features.median() if config.fill == "median" else features.mean()).to_numpy(np.float64)


def _is_constant(X: FloatMatrix) -> NDArray[np.bool_]:
    constant: NDArray[np.bool_] = np.ptp(X, axis=0) <= _CONSTANT * np.abs(X).max(axis=0)
    return constant


def _fit_whitening(Z: FloatMatrix, l2: float) -> FloatMatrix:
    """T = V (S^2/n + 4 lambda)^-1/2 for Z = U S V', shape (n_features, rank).

    S and V are those of the small triangle R of Z = Q R. The largest entry of each column of V is made
    positive, so that the same table always gives the same columns.
    """
    _, s, Vt = np.linalg.svd(np.linalg.qr(Z, mode="r"), full_matrices=False)
    largest = Vt[np.arange(len(s)), np.abs(Vt).argmax(axis=1)]
    V = (Vt * np.sign(largest)[:, None]).T
    kept = s > _RANK * s[0]
    T: FloatMatrix = V[:, kept] / np.sqrt(s[kept] ** 2 / len(Z) + 4 * l2)
    return T


def _refuse(names: tuple[str, ...], bad: NDArray[np.bool_], reason: str) -> None:
    """Name every column with a fault at once: a user mends them all in one go."""
    if bad.any():
        found = [repr(name) for name, is_bad in zip(names, bad, strict=True) if is_bad]
        many = f"each of the columns {', '.join(found)} has" if len(found) > 1 else f"column {found[0]} has"
        raise DataError(f"{many} {reason}")
