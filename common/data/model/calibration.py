"""Calibration: a map from scores to probabilities that match observed rates.

The Taylor loss pulls scores towards 2 and -2 where the logistic loss would let them grow, and weights by label shift
all scores. Therefore the sigmoid of a score is not the rate at which rows with that score are positive. The guest fits
a map from scores to probabilities on its own labels, which needs no message. It uses the hold-out rows, all with the
same weight, because no process knows the scores of other rows.

Where these rows are too few for a slope, or where there are none, the guest still knows the rate of positive rows. It
then fits an offset alone, so that the mean probability is this rate: calibration-in-the-large.
Source: Cox (1958), Two Further Applications of a Model for Binary Regression, with the slope fixed at 1.
"""

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.settings import Settings
from trilateral.common.protocol.logistic import probability

Method = Literal["platt", "isotonic", "none"]
"""Names of the methods, as in `LabelConfig.calibration`."""
FOLDS = 5
"""Folds of the cross-fitting, and the minimum number of rows of each label for fitting a slope."""
_SEED = 0
_TOLERANCE, _MAX_STEPS, _MIN_SIZE = 1e-12, 100, 1e-6
"""Newton's method ends at a derivative of this size, after this number of steps, or when even a step of this size does
not lower the loss."""
_LEAST_SHARE = 0.25
"""How much a step has to lower the loss, as a share of what the slope promises."""
_RIDGE = 1e-12
"""Added to the curvature, so that it has an inverse even where rounding leaves none."""
SAYS_NONE = "the dataset says `calibration: none`"

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A float that is neither infinite nor NaN."""


class Platt(Settings):
    """The map p = 1 / (1 + exp(-(a u + b))) of a score u."""

    method: Literal["platt"] = "platt"
    """Identifies the class in JSON."""
    a: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """The slope."""
    b: Finite
    """The offset."""


class Isotonic(Settings):
    """A non-decreasing map: linear between the thresholds, constant below the first and above the last."""

    method: Literal["isotonic"] = "isotonic"
    """Identifies the class in JSON."""
    thresholds: Annotated[list[Finite], Field(min_length=1)]
    """Scores in non-decreasing order."""
    values: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)]
    """The probability at each threshold, in non-decreasing order."""

    @model_validator(mode="after")
    def _check(self) -> "Isotonic":
        if len(self.thresholds) != len(self.values):
            raise ValueError("`values` and `thresholds` must have the same length")
        for numbers in (self.thresholds, self.values):
            if any(after < before for before, after in pairwise(numbers)):
                raise ValueError("`thresholds` and `values` must not decrease")
        return self


class InterceptOnly(Settings):
    """The map p = 1 / (1 + exp(-(u + b))) of a score u, whose mean is the rate of positive rows."""

    method: Literal["intercept"] = "intercept"
    """Identifies the class in JSON."""
    b: Finite
    """The offset."""
    reason: str
    """Why no slope was fitted."""


class Uncalibrated(Settings):
    """The plain sigmoid, p = 1 / (1 + exp(-u)) of a score u."""

    method: Literal["none"] = "none"
    """Identifies the class in JSON."""
    reason: str
    """Why no map was fitted."""


AnyCalibration = Platt | Isotonic | InterceptOnly | Uncalibrated
Calibration = Annotated[AnyCalibration, Field(discriminator="method")]
"""A map from scores to probabilities, as a field of settings."""


def logit(probabilities: FloatVector | float) -> FloatVector:
    """Return the log-odds log(p / (1 - p)) of probabilities p in (0, 1), in the same shape."""
    odds: FloatVector = np.log(probabilities) - np.log1p(-np.asarray(probabilities))
    return odds


def calibrate(scores: FloatVector, calibration: AnyCalibration) -> FloatVector:
    """Convert scores to probabilities.

    Args:
        scores: the scores u of both parties together, shape (n_rows,).
        calibration: the map.

    Returns:
        Probabilities of the positive label in [0, 1], shape (n_rows,).
    """
    return probability(log_odds(scores, calibration))


def log_odds(scores: FloatVector, calibration: AnyCalibration) -> FloatVector:
    """Convert scores to log-odds of calibrated probabilities, which stay finite where p rounds to 0 or 1.

    Args:
        scores: the scores u of both parties together, shape (n_rows,).
        calibration: the map.

    Returns:
        log(p / (1 - p)), shape (n_rows,).
    """
    match calibration:
        case Platt(a=a, b=b):
            return a * scores + b
        case Isotonic(thresholds=thresholds, values=values):
            return logit(np.interp(scores, thresholds, values))
        case InterceptOnly(b=b):
            return scores + b
        case Uncalibrated():
            return scores


def formula(calibration: AnyCalibration) -> str:
    """Return the map from a score u to a probability p, for people."""
    match calibration:
        case Platt(a=a, b=b):
            return f"p = 1 / (1 + exp(-({a:.6g} u {_signed(b)})))"
        case Isotonic(thresholds=thresholds):
            return f"isotonic: linear between {len(thresholds):,} points"
        case InterceptOnly(b=b):
            return f"p = 1 / (1 + exp(-(u {_signed(b)})))"
        case Uncalibrated():
            return "p = 1 / (1 + exp(-u))"


def _signed(number: float) -> str:
    return f"{'+' if number >= 0 else '-'} {abs(number):.6g}"


def fit_calibration(scores: FloatVector, labels: FloatVector, method: Method, rate: float) -> AnyCalibration:
    """Fit a map from scores to probabilities on hold-out rows.

    Args:
        scores: the scores u, shape (n_rows,), at least one.
        labels: -1 or +1, shape (n_rows,).
        method: the kind of map.
        rate: share of positive rows among the training and the hold-out rows, in (0, 1).

    Returns:
        The fitted map; `InterceptOnly` if fewer than `FOLDS` rows have the rarer label.
    """
    if method == "none":
        return Uncalibrated(reason=SAYS_NONE)
    if min((labels > 0).sum(), (labels < 0).sum()) < FOLDS:
        return InterceptOnly(
            b=fit_offset(scores, rate), reason=f"fewer than {FOLDS} hold-out rows have the rarer label"
        )
    return _fit(scores, labels, method)


def calibrate_by_rate(
    rate: float, method: Method, *, intercept: bool, is_logistic: bool = False, tilt: float = 0.0
) -> InterceptOnly | Uncalibrated:
    """Return a map for a model without hold-out rows.

    A model that minimises the logistic loss and has an intercept without a penalty needs no map: the mean of the
    sigmoid of its scores is the rate. If rows have weights, that holds for the weighted rows, and an offset of -`tilt`
    takes the odds back to rows of equal weight. Source: King and Zeng (2001), Logistic Regression in Rare Events Data,
    section 4.1, "prior correction".

    With the Taylor loss, no process knows a score of a training row, but the guest knows their mean. A minimum of
    log 2 - y u / 2 + u^2 / 8 and has an intercept without a penalty satisfies mean(u) = 2 mean(y) = 4 rate - 2, because
    the derivative by the intercept is 0. The offset b = logit(rate) - (4 rate - 2) takes this mean to the rate. The
    mean of the probabilities differs from the probability at the mean score: by half of the rate if the scores are 2
    and -2, as for labels that they separate completely, and by far less otherwise.

    Args:
        rate: share of positive training rows, in (0, 1).
        method: the kind of map that the dataset asks for.
        intercept: whether the model has an intercept.
        is_logistic: whether the model minimises the logistic loss and not the Taylor loss.
        tilt: logarithm of the mean weight of positive training rows over that of negative ones.
    """
    if method == "none":
        return Uncalibrated(reason=SAYS_NONE)
    if not intercept:
        return Uncalibrated(reason="there are no hold-out rows, and the model has no intercept")
    reason = "there are no hold-out rows; the offset presumes that the training has converged"
    offset = -tilt if is_logistic else float(logit(rate)) - (4 * rate - 2)
    return InterceptOnly(b=offset, reason=reason)


def cross_fitted(scores: FloatVector, labels: FloatVector, calibration: AnyCalibration) -> FloatVector:
    """Compute calibrated log-odds, each with a map that is fitted without the row.

    On the rows that it was fitted on, a map looks better than it is. The folds are stratified by label and depend only
    on the order of the rows. A map without a slope is used as it is: it depends on a row's label only by the rate.

    Args:
        scores: the scores u, shape (n_rows,).
        labels: -1 or +1, shape (n_rows,).
        calibration: the map that was fitted on all rows; it determines the method.

    Returns:
        log(p / (1 - p)), shape (n_rows,).
    """
    if not isinstance(calibration, Platt | Isotonic):
        return log_odds(scores, calibration)
    odds = np.empty(len(scores))
    folds = _folds(labels)
    for number in range(FOLDS):
        fold, others = folds == number, folds != number
        odds[fold] = log_odds(scores[fold], _fit(scores[others], labels[others], calibration.method))
    return odds


def _folds(labels: FloatVector) -> NDArray[np.int64]:
    """Return the number of each row's fold, shape (n_rows,); every fold has a share of the rows of each label.

    The folds are those of scikit-learn's `StratifiedKFold(FOLDS, shuffle=True, random_state=_SEED)`.
    """
    random = np.random.RandomState(_SEED)
    folds = np.empty(len(labels), dtype=np.int64)
    first = labels == labels[0]
    dealt = np.arange(len(labels)) % FOLDS
    for own, its_dealt in ((first, dealt[: first.sum()]), (~first, dealt[first.sum() :])):
        its_folds = np.sort(its_dealt)
        random.shuffle(its_folds)
        folds[own] = its_folds
    return folds


def _fit(scores: FloatVector, labels: FloatVector, method: Literal["platt", "isotonic"]) -> Platt | Isotonic:
    return _fit_platt(scores, labels) if method == "platt" else _fit_isotonic(scores, labels)


def fit_offset(scores: FloatVector, rate: float) -> float:
    """Return b so that the mean of 1 / (1 + exp(-(u + b))) over the scores u is `rate`."""
    from scipy.optimize import brentq

    odds = float(logit(rate))
    lowest, highest = odds - float(scores.max()), odds - float(scores.min())
    if lowest == highest:
        return lowest
    # At the ends, every probability is at most, or at least, the rate. A margin keeps rounding from moving a root out.
    return float(brentq(lambda b: float(probability(scores + b).mean()) - rate, lowest - 1, highest + 1))


def _fit_platt(scores: FloatVector, labels: FloatVector) -> Platt:
    """Minimise the logistic loss against Platt's targets, (n+ + 1)/(n+ + 2) and 1/(n- + 2) in place of 1 and 0.

    With these targets there is a minimum even if the scores separate the labels. A decreasing map would reverse the
    ranking. If it would fit best, the scores carry no information and the map is constant.

    Source: Platt (1999), Probabilistic Outputs for Support Vector Machines, section 2.2.
    """
    positive = labels > 0
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    targets = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    centre, spread = float(scores.mean()), float(scores.std())
    constant = Platt(a=0.0, b=float(logit(targets.mean())))
    if spread <= 1e-12 * float(np.abs(scores).max()):
        return constant
    slope, intercept = least_log_loss((scores - centre) / spread, targets)
    if slope <= 0:
        return constant
    return Platt(a=slope / spread, b=intercept - slope * centre / spread)


def least_log_loss(scores: FloatVector, targets: FloatVector) -> tuple[float, float]:
    """Return the a and b for which 1 / (1 + exp(-(a u + b))) has the least log loss against targets in (0, 1).

    Newton's method. A step is halved until it lowers the loss by a quarter of what the slope promises; the best step
    would by half. With a smaller share, a first step could take a few rows so far that their curvature is lost, and the
    method would end there. The loss is convex and has a minimum, because no target is 0 or 1.

    Source: Lin, Lin and Weng (2007), A Note on Platt's Probabilistic Outputs for Support Vector Machines.

    Args:
        scores: u, with mean 0 and mean square 1, shape (n_rows,).
        targets: shape (n_rows,).
    """
    columns = np.column_stack([scores, np.ones(len(scores))])

    def loss(coef: FloatVector) -> float:
        odds = columns @ coef
        return float(np.mean(np.logaddexp(0.0, odds) - targets * odds))

    coef = np.array([0.0, float(logit(targets.mean()))])
    for _ in range(_MAX_STEPS):
        p = probability(columns @ coef)
        gradient = columns.T @ (p - targets) / len(scores)
        if np.abs(gradient).max() <= _TOLERANCE:
            break
        hessian = (columns.T * (p * (1 - p))) @ columns / len(scores)
        step = np.linalg.solve(hessian + _RIDGE * np.eye(2), gradient)
        size, before, promised = 1.0, loss(coef), float(gradient @ step)
        while size > _MIN_SIZE and loss(coef - size * step) > before - _LEAST_SHARE * size * promised:
            size /= 2
        if size <= _MIN_SIZE:  # All that is left is rounding errors.
            break
        coef = coef - size * step
    return float(coef[0]), float(coef[1])


def _fit_isotonic(scores: FloatVector, labels: FloatVector) -> Isotonic:
    """Fit a non-decreasing map by least squares, within [1/(n + 2), 1 - 1/(n + 2)].

    The limits exist because n rows cannot show that a probability is 0 or 1.
    """
    from sklearn.isotonic import IsotonicRegression

    bound = 1 / (len(scores) + 2)
    model = IsotonicRegression(y_min=bound, y_max=1 - bound).fit(scores, labels > 0)
    return Isotonic(thresholds=model.X_thresholds_.tolist(), values=model.y_thresholds_.tolist())
