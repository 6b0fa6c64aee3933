"""Whether a model's probabilities still match the labels, once the labels of scored rows are known."""

from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.model.assessment import Reliability, ReliabilityBin
from trilateral.common.data.model.calibration import fit_offset, least_log_loss
from trilateral.common.protocol.evaluation import HoldoutMetrics, measure
from trilateral.common.protocol.logistic import probability


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error."""

    value: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of 95%."""
        return self.value - _Z95 * self.error, self.value + _Z95 * self.error


@dataclass(frozen=True)
class CalibrationDrift:
    """How well probabilities p match labels."""

    metrics: HoldoutMetrics
    """Quality figures of the rows."""
    n_expected: float
    """Sum of the probabilities: how many rows should have the positive label."""
    intercept: Estimate | None
    """b in logit P(positive) = logit(p) + b; 0 if the mean probability is right. None without rows of both labels."""
    slope: Estimate | None
    """a in logit P(positive) = a logit(p) + b; 1 if the spread of the probabilities is right. None without rows of both
    labels, or if the scores separate them."""
    hosmer_lemeshow: float
    """Sum over the groups of (O - E)^2 / (E (1 - E/n)), for O observed and E expected positives of n rows."""
    degrees: int
    """Its degrees of freedom: the number of groups, because the model was fitted on other rows."""
    p_value: float
    """Probability of so large a sum if all probabilities are right."""
    groups: tuple[ReliabilityBin, ...]
    """Groups of equal size in order of the probability."""

    @property
    def ratio(self) -> float:
        """Observed positives over expected ones."""
        return self.metrics.n_positive / self.n_expected


_Z95 = 1.959963984540054
"""The quantile of the normal distribution at 0.975."""
_MIN_PROBABILITY = 1e-15
_MIN_VARIANCE = 1e-12
"""A probability may round to 1."""


def calibration_drift(
    scores: FloatVector, log_odds: FloatVector, labels: FloatVector, threshold: float
) -> CalibrationDrift:
    """Compare the probabilities of scored rows with their labels.

    Sources: Cox (1958), Two Further Applications of a Model for Binary Regression, for intercept and slope; Hosmer,
    Lemeshow and Sturdivant (2013), Applied Logistic Regression, section 5.2.2, for the groups.

    Args:
        scores: the scores u of the whole model, shape (n_rows,), at least one row.
        log_odds: logit(p) of the calibrated probabilities, shape (n_rows,).
        labels: -1 or +1, shape (n_rows,).
        threshold: rows with a higher probability count as positive, in the accuracy.
    """
    from scipy.special import gammaincc

    groups = tuple(Reliability.of(log_odds, labels).bins)
    chi_square = sum(
        group.n * (group.observed_rate - group.mean_predicted) ** 2 / _variance(group.mean_predicted)
        for group in groups
    )
    positive = labels > 0
    is_mixed = bool(positive.any() and not positive.all())
    return CalibrationDrift(
        metrics=measure(scores, labels, log_odds, threshold),
        n_expected=float(probability(log_odds).sum()),
        intercept=_intercept(log_odds, float(positive.mean())) if is_mixed else None,
        slope=_slope(log_odds, labels) if is_mixed else None,
        hosmer_lemeshow=float(chi_square),
        degrees=len(groups),
        p_value=float(gammaincc(len(groups) / 2, chi_square / 2)),
        groups=groups,
    )


def log_odds_of(probabilities: FloatVector) -> FloatVector:
    """Return log(p / (1 - p)), finite where p is 0 or 1; shape (n_rows,)."""
    p = np.clip(probabilities, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    odds: FloatVector = np.log(p) - np.log1p(-p)
    return odds


def _variance(p: float) -> float:
    return max(p * (1 - p), _MIN_VARIANCE)


def _intercept(log_odds: FloatVector, rate: float) -> Estimate:
    offset = fit_offset(log_odds, rate)
    p = probability(log_odds + offset)
    return Estimate(offset, float(np.sum(p * (1 - p)) ** -0.5))


def _slope(log_odds: FloatVector, labels: FloatVector) -> Estimate | None:
    """Fit the slope by maximum likelihood; its error follows from the information matrix of slope and intercept."""
    positive, negative = log_odds[labels > 0], log_odds[labels < 0]
    centre, spread = float(log_odds.mean()), float(log_odds.std())
    is_constant = spread <= 1e-12 * float(np.abs(log_odds).max())
    if is_constant or positive.min() >= negative.max() or negative.min() >= positive.max():
        return None
    z = (log_odds - centre) / spread
    slope, offset = least_log_loss(z, (labels > 0).astype(np.float64))
    p = probability(slope * z + offset)
    columns = np.column_stack([z, np.ones(len(z))])
    covariance = np.linalg.inv((columns.T * (p * (1 - p))) @ columns)
    return Estimate(slope / spread, float(np.sqrt(covariance[0, 0])) / spread)
