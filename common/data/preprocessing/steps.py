"""The steps from a party's features to its training columns.

Every number is fitted on the training rows alone, stays with the party, and is plain enough
for JSON. In order:

    fill        a missing number becomes the column's median or mean, or a constant
    clip        at two quantiles of the filled column
    indicate    1 where a number is missing, 1 where a text is of a category, and else 0
    standardise mean 0 and mean square 1: (x - mean) / scale; what is 0 or 1 by nature is left as it is
    whiten      columns Z T, where Z = U S V' is the centred block and T = V (S^2/n + 4 lambda)^-1/2
    intercept   a column of ones

What the first three steps make of the table are its *terms*: see `columns`. Whitening makes the party's own block of
the Hessian, T' (Z'Z/4n + lambda I) T, a quarter of the
identity: lambda is the job's L2 penalty on beta. Only the correlation between the two parties'
blocks is left, so a training needs far fewer rounds. It changes the coordinates, not the model: a weight vector w
of the training columns is beta = T w in standardised terms. The column of ones is left out of the
decomposition, being orthogonal to every centred column already.

Without whitening nothing of 0 and 1 is centred: as exponents, zeros cost nothing and ones next to nothing.

On the training rows, **the mean square of every training column is at most 1** (to 1e-9). The
width of a slot relies on it: by Cauchy-Schwarz, no inner product of a column with a vector d is above
n * rms(d).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing.terms import ROWS_AT_A_TIME, CategoryColumn, Column, NumberColumn
from trilateral.common.data.preprocessing.whitening import fit_whitening

_COLUMNS = TypeAdapter(tuple[Column, ...])


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The fitted steps."""

    columns: tuple[NumberColumn | CategoryColumn, ...]
    """What each column of the table becomes."""
    mean: FloatVector
    """Standardised term = (term - mean) / scale. Shape (n_terms,); 0 where a term is left as it is."""
    scale: FloatVector
    """Shape (n_terms,); 1 where a term is left as it is."""
    directions: FloatMatrix | None
    """T, shape (n_terms, rank); None without whitening."""
    intercept: bool
    """Whether the last training column is ones."""

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # What overflows is not finite in the end, and named.
    def fit(cls, features: pd.DataFrame, config: PreprocessingConfig, intercept: bool, l2: float = 0.0) -> Self:
        """Fit on the training rows: numbers, NaN where a value is missing, and text.

        `l2` is the job's lambda, which whitening takes into account.

        Raises:
            DataError: a column has no value, is constant, is too large or small to be squared, or is to be left as
                it is and too large for that.
        """
        from trilateral.common.data.preprocessing.fit import fit_columns, fit_scales

        columns = fit_columns(features, config)
        mean, scale = fit_scales(columns, features, centred=config.whiten)
        steps = cls(columns, mean, scale, None, intercept)
        if not config.whiten:
            return steps
        return replace(steps, directions=fit_whitening(steps._standardised_blocks(features), l2))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the table's columns, in the order of `columns`."""
        return tuple(column.name for column in self.columns)

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of what the weights belong to, such as `age`, `age is missing` and `branch=north`."""
        return tuple(term for column in self.columns for term in column.terms)

    @property
    def n_columns(self) -> int:
        """Training columns."""
        return self._rank + self.intercept

    @property
    def _rank(self) -> int:
        return len(self.mean) if self.directions is None else int(self.directions.shape[1])

    @property
    def penalty(self) -> FloatMatrix:
        """P, shape (n_columns, n_columns), with ||beta||^2 = w' P w: the intercept is not penalised."""
        rank = self._rank
        P = np.zeros((self.n_columns, self.n_columns))
        P[:rank, :rank] = np.eye(rank) if self.directions is None else self.directions.T @ self.directions
        return P

    def transform(self, features: pd.DataFrame) -> FloatMatrix:
        """Training columns of any rows, shape (n_rows, n_columns). Columns are taken by name.

        Raises:
            DataError: a feature is not there, or has text where there were numbers, or numbers where there was text.
        """
        columns: FloatMatrix = np.ones((len(features), self.n_columns))
        start = 0
        for block in self._standardised_blocks(features):
            end = start + len(block)
            columns[start:end, : self._rank] = block if self.directions is None else block @ self.directions
            start = end
        return columns

    def expand(self, features: pd.DataFrame) -> FloatMatrix:
        """Terms of any rows, shape (n_rows, n_terms).

        Raises:
            DataError: as `transform`.
        """
        gone = [name for name in self.features if name not in features.columns]
        if gone:
            raise DataError(
                "preprocessing mismatch: the table lacks columns that the model was fitted on: "
                f"{', '.join(map(repr, gone))}"
            )
        terms: FloatMatrix = np.empty((len(features), len(self.terms)), order="F")
        start = 0
        for column in self.columns:
            end = start + len(column.terms)
            column.expand(features[column.name], terms[:, start:end])
            start = end
        return terms

    def _standardised_blocks(self, features: pd.DataFrame) -> Iterator[FloatMatrix]:
        """Standardised terms, some rows at a time; without any rows, one block of none."""
        for start in range(0, max(len(features), 1), ROWS_AT_A_TIME):
            block = self.expand(features.iloc[start : start + ROWS_AT_A_TIME])
            block -= self.mean
            block /= self.scale
            yield block

    def to_standardised(self, coef: FloatVector) -> FloatVector:
        """Training weights (n_columns,) to beta, the weights of the standardised terms (n_terms,)."""
        own = coef[: self._rank]
        beta: FloatVector = own.copy() if self.directions is None else self.directions @ own
        return beta

    def to_features(self, coef: FloatVector) -> tuple[FloatVector, float]:
        """Training weights (n_columns,) to weights in units of the terms (n_terms,), and a constant.

        transform(X) @ coef equals expand(X) @ weights + constant. For a column of numbers, its term is the value
        itself where that is not missing and inside the clipping limits. A party without an intercept has a constant
        too: it makes up for its means.
        """
        weights = self.to_standardised(coef) / self.scale
        own = float(coef[-1]) if self.intercept else 0.0
        return weights, own - float(self.mean @ weights)

    def to_dict(self) -> dict[str, Any]:
        """The state in lists, strings and numbers."""
        return {
            "columns": [column.model_dump() for column in self.columns],
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "directions": None if self.directions is None else self.directions.tolist(),
            "intercept": self.intercept,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, exact to the last bit also through JSON.

        Raises:
            DataError: it is none that this version has made.
        """
        try:
            columns = _COLUMNS.validate_python(state["columns"])
            directions = state["directions"]
            steps = cls(
                columns=columns,
                mean=np.array(state["mean"], dtype=np.float64),
                scale=np.array(state["scale"], dtype=np.float64),
                directions=None if directions is None else np.array(directions, dtype=np.float64),
                intercept=bool(state["intercept"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            where = f": look at columns.{error.errors()[0]['loc']}" if isinstance(error, ValidationError) else ""
            raise DataError(f"the model's preprocessing is none that this version reads{where}: train again") from None
        n_terms = len(steps.terms)
        T = steps.directions
        if steps.mean.shape != (n_terms,) or steps.scale.shape != (n_terms,) or (T is not None and len(T) != n_terms):
            raise DataError(f"the model's preprocessing has {n_terms} terms, and not as many means and scales")
        return steps
