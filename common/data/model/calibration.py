"""From scores to probabilities that mean something.

The Taylor loss draws scores towards 2 and -2 where the logistic loss would let them grow, so their sigmoid is not
the rate at which rows of that score are positive. The guest fits a map from scores to probabilities on its own
labels, which needs no message. It is fitted on the hold-out rows: no others' scores are known to anyone.
"""

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator
from scipy.special import expit, logit

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.settings import Settings

Method = Literal["platt", "isotonic", "none"]
FOLDS = 5
"""Also the least rows of each label that a map is fitted on."""
_SEED = 0

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Platt(Settings):
    """p = 1 / (1 + exp(-(a u + b)))."""

    method: Literal["platt"] = "platt"
    a: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    b: Finite


class Isotonic(Settings):
    """A rising function: linear between the thresholds, constant below the first and above the last."""

    method: Literal["isotonic"] = "isotonic"
    thresholds: Annotated[list[Finite], Field(min_length=1)]
    """Scores, rising."""
    values: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)]
    """The probability at each of them."""

    @model_validator(mode="after")
    def _check(self) -> "Isotonic":
        if len(self.thresholds) != len(self.values):
            raise ValueError("as many `values` belong there as `thresholds`")
        for numbers in (self.thresholds, self.values):
            if any(after < before for before, after in pairwise(numbers)):
                raise ValueError("`thresholds` and `values` must be rising")
        return self


class Uncalibrated(Settings):
    """p = 1 / (1 + exp(-u))."""

    method: Literal["none"] = "none"
    reason: str
    """Why nothing was fitted."""


Calibration = Annotated[Platt | Isotonic | Uncalibrated, Field(discriminator="method")]


def calibrate(scores: FloatVector, calibration: Platt | Isotonic | Uncalibrated) -> FloatVector:
    """Probabilities of the positive label, each in [0, 1], of scores of the same shape."""
    probabilities: FloatVector = expit(log_odds(scores, calibration))
    return probabilities


def log_odds(scores: FloatVector, calibration: Platt | Isotonic | Uncalibrated) -> FloatVector:
    """log(p / (1 - p)) of the calibrated probabilities p: finite also where p rounds to 0 or 1."""
    match calibration:
        case Platt(a=a, b=b):
            return a * scores + b
        case Isotonic(thresholds=thresholds, values=values):
            odds: FloatVector = logit(np.interp(scores, thresholds, values))
            return odds
        case Uncalibrated():
            return scores


def fit_calibration(scores: FloatVector, labels: FloatVector, method: Method) -> Platt | Isotonic | Uncalibrated:
    """Fit a map on rows with scores u and labels -1 or +1, both of shape (n_rows,).

    Without enough rows of each label nothing is fitted, and the result says so.
    """
    if method == "none":
        return Uncalibrated(reason="the dataset says `calibration: none`")
    least = int(min((labels > 0).sum(), (labels < 0).sum()))
    if least < FOLDS:
        return Uncalibrated(
            reason=f"there are {len(labels)} hold-out rows, {least} of the rarer label: at least {FOLDS} are needed"
        )
    return _fit(scores, labels, method)


def cross_fitted(scores: FloatVector, labels: FloatVector, calibration: Platt | Isotonic | Uncalibrated) -> FloatVector:
    """Calibrated log-odds of the rows that a map was fitted on, each by a map fitted without it; shape (n_rows,).

    A map looks better on its own rows than it is. The folds hold the same share of each label and depend on the
    order of the rows alone.
    """
    if isinstance(calibration, Uncalibrated):
        return scores
    from sklearn.model_selection import StratifiedKFold

    odds = np.empty(len(scores))
    for others, fold in StratifiedKFold(FOLDS, shuffle=True, random_state=_SEED).split(scores[:, np.newaxis], labels):
        odds[fold] = log_odds(scores[fold], _fit(scores[others], labels[others], calibration.method))
    return odds


def _fit(scores: FloatVector, labels: FloatVector, method: Literal["platt", "isotonic"]) -> Platt | Isotonic:
    return _fit_platt(scores, labels) if method == "platt" else _fit_isotonic(scores, labels)


def _fit_platt(scores: FloatVector, labels: FloatVector) -> Platt:
    """The least logistic loss against Platt's targets, (n+ + 1)/(n+ + 2) and 1/(n- + 2) in the place of 1 and 0.

    With them there is a minimum also where the scores separate the labels. A falling map would turn the ranking
    round: where it would fit better, it is made constant, since such scores tell nothing.

    Source: Platt (1999), Probabilistic Outputs for Support Vector Machines, section 2.2.
    """
    from sklearn.linear_model import LogisticRegression

    positive = labels > 0
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    targets = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    centre, spread = float(scores.mean()), float(scores.std())
    constant = Platt(a=0.0, b=float(logit(targets.mean())))
    if spread <= 1e-12 * float(np.abs(scores).max()):
        return constant
    # A row with a target t between 0 and 1 is t of a positive row and 1 - t of a negative one.
    columns = np.tile((scores - centre) / spread, 2)[:, np.newaxis]
    classes = np.repeat([1, 0], len(scores))
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
    model.fit(columns, classes, sample_weight=np.concatenate([targets, 1 - targets]))
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    if slope <= 0:
        return constant
    return Platt(a=slope / spread, b=intercept - slope * centre / spread)


def _fit_isotonic(scores: FloatVector, labels: FloatVector) -> Isotonic:
    """The rising map of least squares, no more certain than 1/(n + 2): n rows cannot show that p is 0 or 1."""
    from sklearn.isotonic import IsotonicRegression

    bound = 1 / (len(scores) + 2)
    model = IsotonicRegression(y_min=bound, y_max=1 - bound).fit(scores, labels > 0)
    return Isotonic(thresholds=model.X_thresholds_.tolist(), values=model.y_thresholds_.tolist())
