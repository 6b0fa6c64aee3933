"""The accuracy of a party's weights: standard errors, tests and intervals per term, and at the guest of the model.

The formulas are those of maximum likelihood: see A. Agresti, Categorical Data Analysis, 3rd edition, 2013, sections
5.2 and 5.4.
"""

import math
from statistics import NormalDist
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.config.settings import Settings
from trilateral.common.data.model.calibration import Finite
from trilateral.common.data.model.elimination import Criterion, EliminatedColumn, eliminate
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.protocol.logistic import logistic_loss
from trilateral.common.protocol.separation import SEPARATION
from trilateral.common.shares.information import unpack

CONFIDENCE = 0.95
"""Probability that an interval covers the weight."""
LARGE_ERROR = 10.0
"""A standard error from which on the term probably separates the labels: of a term of 0 and 1, or per standard
deviation of another one."""


LARGE_WEIGHT = 5.0
"""The same for a weight, if there are no standard errors: the odds change by a factor of 148."""
IN_DOUBT = ", which say nothing if features separate the labels: see the warnings"
"""For the titles of tables whose figures are in doubt; see `Inference.may_be_separated`."""


class TermInference(Settings):
    """The accuracy of one weight."""

    weight: Finite
    """In score per unit of the table."""
    std_error: Finite
    """Its standard error."""
    z: Finite
    """weight / std_error."""
    p_value: Finite
    """Of the Wald test that the weight is 0, two-sided."""
    lower: Finite
    """Lower end of the 95% confidence interval."""
    upper: Finite
    """Upper end of the interval."""

    @classmethod
    def of(cls, weight: float, std_error: float) -> Self:
        """Return the figures of a weight, from its standard error above 0."""
        z = weight / std_error
        width = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * std_error
        return cls(
            weight=weight,
            std_error=std_error,
            z=z,
            p_value=math.erfc(abs(z) / math.sqrt(2)),
            lower=weight - width,
            upper=weight + width,
        )


class ChiSquareTest(Settings):
    """A test whose statistic has a chi-square distribution if nothing is there to find."""

    statistic: Finite
    """The test statistic."""
    df: int
    """Degrees of freedom."""
    p_value: Finite
    """Probability of at least this statistic."""

    @classmethod
    def of(cls, statistic: float, df: int) -> Self:
        """Return the test of a statistic."""
        from scipy.special import chdtrc  # Only jobs with inference need it.

        return cls(statistic=statistic, df=df, p_value=float(chdtrc(df, statistic)))


class ModelFit(Settings):
    """How well the whole model fits the training rows. Sample weights count relative to their mean."""

    n_rows: int
    """Training rows."""
    n_parameters: int
    """Weights of both parties, with the intercept."""
    deviance: Finite
    """Minus twice the log-likelihood."""
    null_deviance: Finite
    """The same for a model with an intercept only."""
    aic: Finite
    """Akaike's information criterion: the deviance plus 2 for each parameter."""
    bic: Finite
    """Schwarz's criterion: the deviance plus log(n_rows) for each parameter."""
    mcfadden_r2: Finite
    """McFadden's R-squared, 1 - deviance / null_deviance."""
    likelihood_ratio: ChiSquareTest | None
    """The test of the model against the intercept; None for a model without intercept or without features."""


class Inference(Settings):
    """What a job with `inference` tells a party about the accuracy of its part of the model."""

    terms: dict[str, TermInference] = Field(default_factory=dict)
    """By term. Empty if the standard errors could not be computed."""
    intercept: TermInference | None = None
    """Guest only: of the intercept at the mean of the host's terms. The constant of `PartyModel.intercept` of the host
    is not part of it."""
    columns: dict[str, ChiSquareTest] = Field(default_factory=dict)
    """For each column with several terms, the Wald test that all their weights are 0."""
    elimination: dict[Criterion, list[EliminatedColumn]] = Field(default_factory=dict)
    """This party's columns in the order in which a backward elimination leaves them out, by p-value and by AIC."""
    fit: ModelFit | None = None
    """Guest only: the fit of the whole model."""
    may_be_separated: bool = False
    """Whether features of either party separate the labels, completely or in part, or may do so: then the likelihood
    has no maximum, and the figures say nothing. The warnings have the details."""
    warnings: list[str] = Field(default_factory=list)
    """Why the figures are missing or may be wrong."""


def infer(
    steps: Preprocessing,
    coef: FloatVector,
    covariance: FloatVector,
    warnings: list[str],
    *,
    may_be_separated: bool = False,
) -> Inference:
    """Return the accuracy of a party's weights.

    Args:
        steps: its fitted preprocessing.
        coef: its weights in training units, shape (n_columns,).
        covariance: of these weights, packed; empty if it is not known.
        warnings: what is known to be wrong with it.
        may_be_separated: see `Inference`.
    """
    found = list(warnings)
    if not len(covariance):
        if may_be_separated:
            found += _suspects(steps, np.abs(steps.to_standardised(coef)) > LARGE_WEIGHT, "weight")
        return Inference(may_be_separated=may_be_separated, warnings=found)
    L = _to_features(steps)
    values = L @ coef
    C = L @ unpack(covariance, len(coef)) @ L.T
    variance = np.diag(C)
    n_terms = len(steps.terms)
    if not (np.isfinite(variance) & (variance > 0)).all():
        found.append("a variance is not positive, so there are no standard errors")
        return Inference(may_be_separated=may_be_separated, warnings=found)
    errors = np.sqrt(variance)
    each = [TermInference.of(float(value), float(error)) for value, error in zip(values, errors, strict=True)]
    binary = np.array([each for column in steps.columns for each in column.binary], dtype=bool)
    found += _suspects(steps, np.where(binary, 1.0, steps.scale) * errors[:n_terms] > LARGE_ERROR, "standard error")
    if steps.directions is not None and steps.directions.shape[1] < n_terms:
        found.append(
            "some terms depend on the others, so that only combinations of their weights are determined: the standard"
            " errors are those of the smallest such weights"
        )
    return Inference(
        terms=dict(zip(steps.terms, each, strict=False)),
        intercept=each[-1] if steps.intercept else None,
        columns=_wald_tests(steps, values, C),
        elimination={
            by: eliminate(values, C, [(column.name, len(column.terms)) for column in steps.columns], by)
            for by in get_args(Criterion)
        },
        may_be_separated=may_be_separated,
        warnings=found,
    )


def _suspects(steps: Preprocessing, are_large: NDArray[np.bool_], what: str) -> list[str]:
    """Return a warning that names the terms with a large figure, if there are any."""
    named = ", ".join(repr(term) for term, is_large in zip(steps.terms, are_large, strict=True) if is_large)
    return [
        f"the {what} of {named} is so large that the term probably separates the labels ({SEPARATION}), or almost"
        " depends on other terms: leave it out, or merge its categories"
    ] * bool(named)


def _to_features(steps: Preprocessing) -> FloatMatrix:
    """Return L with (weights of the terms, constant) = L w; the constant at the guest only. See `to_features`."""
    n_columns = steps.n_columns
    rows = [steps.to_features(unit) for unit in np.eye(n_columns)]
    weights = np.array([weights for weights, _ in rows]).reshape(n_columns, len(steps.terms)).T
    if not steps.intercept:
        return weights
    return np.vstack([weights, [constant for _, constant in rows]])


def _wald_tests(steps: Preprocessing, values: FloatVector, C: FloatMatrix) -> dict[str, ChiSquareTest]:
    tests, start = {}, 0
    for column in steps.columns:
        part = slice(start, start + len(column.terms))
        start = part.stop
        if len(column.terms) < 2:
            continue
        block = C[part, part]
        df = int(np.linalg.matrix_rank(block, hermitian=True))
        statistic = float(values[part] @ np.linalg.pinv(block, hermitian=True) @ values[part])
        if df:
            tests[column.name] = ChiSquareTest.of(statistic, df)
    return tests


def fit_of(
    loss: float,
    labels: FloatVector,
    sample_weights: FloatVector | None,
    n_parameters: int,
    *,
    intercept: bool,
) -> ModelFit:
    """Return how well the whole model fits.

    Args:
        loss: mean logistic loss of the training rows.
        labels: y in {-1, +1}, shape (n_train,).
        sample_weights: shape (n_train,); None if all rows count alike.
        n_parameters: training columns of both parties.
        intercept: whether the model has one.
    """
    n = len(labels)
    weights = None if sample_weights is None else sample_weights / sample_weights.mean()
    rate = float(np.average(labels > 0, weights=weights))
    null = logistic_loss(np.full(n, math.log(rate / (1 - rate))), labels, weights)
    # The loss is rounded, and may be below 0 if features separate the labels.
    deviance, null_deviance = 2 * n * max(0.0, loss), 2 * n * null
    df = n_parameters - 1
    is_nested = intercept and df > 0
    return ModelFit(
        n_rows=n,
        n_parameters=n_parameters,
        deviance=deviance,
        null_deviance=null_deviance,
        aic=deviance + 2 * n_parameters,
        bic=deviance + math.log(n) * n_parameters,
        mcfadden_r2=1 - deviance / null_deviance,
        likelihood_ratio=ChiSquareTest.of(max(0.0, null_deviance - deviance), df) if is_nested else None,
    )
