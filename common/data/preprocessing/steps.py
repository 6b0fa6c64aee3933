"""The steps from a party's features to its training columns.

All parameters are fitted on the training rows only, stay with the party and can be written as JSON. In order, the steps
are:

    limit       limit a number at two fixed values
    fill        replace a missing number by the column's median or mean, or by a constant
    clip        limit the filled column at two quantiles
    transform   take a logarithm, a square root or a fitted power of a number
    bend        make several functions of a number, whose weighted sum is a smooth curve
    indicate    add terms of 0 and 1: is the number missing, is the text of this category
    encode      or make a category one number
    multiply    add products of two columns
    standardise scale to mean 0 and mean square 1: (x - mean) / scale; terms of 0 and 1 are not scaled
    whiten      Z T, where Z = U S V' is the centred block and T = V (S^2/n + 4 lambda I)^-1/2
    intercept   add a column of ones

The steps before `standardise` turn the table into *terms*, see `terms.py`.

Whitening turns the party's own block of the Hessian, T' (Z'Z/4n + lambda I) T, into a quarter of the identity, where
lambda is the job's L2 penalty on beta. Only the correlation between the two parties' blocks remains, so that training
needs far fewer rounds. Whitening changes the coordinates, not the model: weights w of the training columns correspond
to beta = T w in standardised terms. The column of ones is not part of the decomposition, because it is already
orthogonal to every centred column.

Without whitening, terms of 0 and 1 are not centred: as exponents, zeros cost nothing and ones next to nothing.

On the training rows, **the mean square of every training column is at most 1** (up to 1e-9). The width of a slot
depends on this bound: by Cauchy-Schwarz, the inner product of a column with a vector d is at most n * rms(d).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows, blocks_of
from trilateral.common.base.errors import DataError
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.features import Features
from trilateral.common.data.preprocessing.bins import AnyBinned, BinnedColumn
from trilateral.common.data.preprocessing.fit import N_PASSES, fit_columns, fit_scales, no_feature
from trilateral.common.data.preprocessing.terms import ROWS_AT_A_TIME, AnyColumn, CategoryColumn, FittedColumn
from trilateral.common.data.preprocessing.whitening import fit_whitening

_COLUMNS = TypeAdapter(tuple[Annotated[AnyColumn | AnyBinned, Field(discriminator="kind")], ...])

_SCORE_BITS = 17
"""Bits of a rounded score below 16; see `common.protocol.evaluation.round_scores`."""


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The fitted steps.

    A standardised term is (term - mean) / scale.
    """

    columns: tuple[FittedColumn, ...]
    """The fitted columns, in the order of the table."""
    mean: FloatVector
    """Shape (n_terms,); 0 for terms that are not centred."""
    scale: FloatVector
    """Shape (n_terms,); 1 for terms that are not standardised."""
    directions: FloatMatrix | None
    """T, shape (n_terms, rank); None without whitening."""
    intercept: bool
    """Whether the last training column consists of ones."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns of the table that were not fitted: the reason by name of the column. Only `fit` knows them."""

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # Overflows become values that are not finite and are reported below.
    def fit(
        cls,
        features: Features,
        config: PreprocessingConfig,
        intercept: bool,
        l2: float = 0.0,
        rows: Rows | None = None,
        *,
        labels: FloatVector | None = None,
        counted: Mapping[str, BinnedColumn] | None = None,
        separate: bool = False,
    ) -> Self:
        """Fit the steps on the training rows.

        Args:
            features: the table. It may be larger than memory, but not one of its columns.
            config: the settings of the party.
            intercept: whether to add a column of ones.
            l2: the job's L2 penalty lambda, which affects whitening.
            rows: the training rows, in ascending order; all rows by default.
            labels: of the training rows, for bins; None at the host.
            counted: see `fit_columns`.
            separate: whether each training column must be one term, as an L1 penalty needs. The terms are then centred
                as for whitening, and not whitened.

        Raises:
            DataError: columns cannot be used: too large or too small to be squared, or too large without
                standardisation; constant, if the settings refuse that. The text names them. Or no column is left.
        """
        columns, left_out = fit_columns(features, rows, config, labels=labels, counted=counted)
        if not columns:
            if not intercept:
                raise no_feature(left_out)
            return cls((), np.zeros(0), np.ones(0), None, intercept, left_out)
        whitened = config.whiten and not separate
        mean, scale = fit_scales(columns, features, rows, centred=config.whiten or separate, whitened=whitened)
        steps = cls(columns, mean, scale, None, intercept, left_out)
        if not whitened:
            return steps

        def blocks() -> Iterator[FloatMatrix]:
            n_done, n_rows = 0, len(features) if rows is None else len(rows)
            for block in steps.standardised(features, rows):
                report_progress(Stage.PREPARING, 2 + n_done / max(n_rows, 1), N_PASSES)
                yield block
                n_done += len(block)

        return replace(steps, directions=fit_whitening(blocks(), l2))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the table's columns that the terms follow from, each once."""
        return tuple(dict.fromkeys(source for column in self.columns for source in column.sources))

    @property
    def texts(self) -> tuple[CategoryColumn, ...]:
        """Those of the table's columns that are read as text, each once."""
        return tuple({text.name: text for column in self.columns for text in column.texts}.values())

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms, such as `age`, `age is missing` and `branch=north`."""
        return tuple(term for column in self.columns for term in column.terms)

    @property
    def n_columns(self) -> int:
        """Number of training columns, including the intercept."""
        return self._rank + self.intercept

    @property
    def n_row_values(self) -> int:
        """How many values of a row determine its training columns.

        Several terms may come from one column of the table, and whitening drops columns that depend on others. A column
        in bins counts for the bits of its bin: a score, of 17 bits, may show them all to somebody who knows the
        weights. The sum is rounded up.
        """
        bits = {
            column.name: math.log2(len(column.bins) + 1) for column in self.columns if isinstance(column, BinnedColumn)
        }
        n_values = sum(min(bits.get(name, _SCORE_BITS) / _SCORE_BITS, 1.0) for name in self.features)
        return min(math.ceil(round(n_values, 9)), self._rank)

    @property
    def _rank(self) -> int:
        return len(self.mean) if self.directions is None else int(self.directions.shape[1])

    @property
    def penalty(self) -> FloatMatrix:
        """P with ||beta||^2 = w' P w, shape (n_columns, n_columns). The intercept is not penalised."""
        rank = self._rank
        P = np.zeros((self.n_columns, self.n_columns))
        P[:rank, :rank] = np.eye(rank) if self.directions is None else self.directions.T @ self.directions
        return P

    def transform(self, features: Features) -> FloatMatrix:
        """Compute the training columns of any rows.

        Args:
            features: the rows. Columns are found by name.

        Returns:
            Shape (n_rows, n_columns).

        Raises:
            DataError: a feature is missing, has text in place of numbers, or numbers in place of text.
        """
        return np.concatenate(list(self.transform_blocks(features)))

    def transform_blocks(self, features: Features, rows: Rows | None = None) -> Iterator[FloatMatrix]:
        """Compute the training columns of the rows of a table that may be larger than memory.

        Args:
            features: the table. Columns are found by name.
            rows: the rows, in ascending order; all by default.

        Yields:
            The training columns of the next rows, shape (n_block_rows, n_columns); of no rows if there are none.

        Raises:
            DataError: as for `transform`.
        """
        for block in self.standardised(features, rows):
            columns: FloatMatrix = np.ones((len(block), self.n_columns))
            columns[:, : self._rank] = block if self.directions is None else block @ self.directions
            yield columns

    def expand(self, features: Features) -> FloatMatrix:
        """Compute the terms of any rows.

        Args:
            features: the rows. Columns are found by name.

        Returns:
            Shape (n_rows, n_terms).

        Raises:
            DataError: as for `transform`.
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
            column.expand(features.columns, terms[:, start:end])
            start = end
        return terms

    def standardised(self, features: Features, rows: Rows | None = None) -> Iterator[FloatMatrix]:
        """Yield standardised terms in blocks of rows; one empty block if there are no rows."""
        n_rows = len(features) if rows is None else len(rows)
        for part in blocks_of(n_rows, ROWS_AT_A_TIME) or [slice(0, 0)]:
            block = self.expand(features.take(part if rows is None else rows[part]))
            block -= self.mean
            block /= self.scale
            yield block

    def to_standardised(self, coef: FloatVector) -> FloatVector:
        """Convert training weights to weights of the standardised terms.

        Args:
            coef: w, shape (n_columns,).

        Returns:
            beta = T w, shape (n_terms,).
        """
        own = coef[: self._rank]
        beta: FloatVector = own.copy() if self.directions is None else self.directions @ own
        return beta

    def to_features(self, coef: FloatVector) -> tuple[FloatVector, float]:
        """Convert training weights to weights of the terms and a constant.

        transform(X) @ coef equals expand(X) @ weights + constant. The term of a numeric column is the value itself if
        that is present and within the clipping limits. The constant is not 0 even for a party without an intercept: it
        compensates for the subtracted means.

        Args:
            coef: w, shape (n_columns,).

        Returns:
            The weights, shape (n_terms,), in score per unit of the term; and the constant.
        """
        weights = self.to_standardised(coef) / self.scale
        own = float(coef[-1]) if self.intercept else 0.0
        return weights, own - float(self.mean @ weights)

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted steps as lists, strings and numbers, fit for JSON."""
        return {
            "columns": [column.model_dump() for column in self.columns],
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "directions": None if self.directions is None else self.directions.tolist(),
            "intercept": self.intercept,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore fitted steps, exactly, from what `to_dict` returned, possibly by way of JSON.

        Raises:
            DataError: this version cannot read `state`.
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
            raise DataError(f"this version cannot read the model's preprocessing{where}: train again") from None
        n_terms = len(steps.terms)
        T = steps.directions
        if steps.mean.shape != (n_terms,) or steps.scale.shape != (n_terms,) or (T is not None and len(T) != n_terms):
            raise DataError(f"the model's preprocessing has {n_terms} terms but a different number of means or scales")
        return steps
