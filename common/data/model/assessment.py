"""What the guest finds out about a model on its hold-out rows: figures, a calibration, and what that is worth."""

from typing import Self

import numpy as np
from scipy.special import expit

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.config.settings import Settings
from trilateral.common.data.model.calibration import (
    Calibration,
    Isotonic,
    Platt,
    Uncalibrated,
    cross_fitted,
    fit_calibration,
)
from trilateral.common.protocol.evaluation import HoldoutMetrics, equal_groups, log_loss, measure

NO_HOLDOUT = "there are no hold-out rows: set `holdout` in the job"


class ReliabilityBin(Settings):
    """Rows with about the same probability."""

    n: int
    mean_predicted: float
    observed_rate: float
    """Share of positive labels."""


class Reliability(Settings):
    """Whether rows of probability p are positive at the rate p."""

    log_loss: float
    bins: list[ReliabilityBin]
    """Ten of equal size by rising probability, or fewer if there are fewer rows."""

    @classmethod
    def of(cls, log_odds: FloatVector, labels: FloatVector) -> Self:
        """Of the probabilities with these log-odds and labels -1 or +1, both of shape (n_rows,)."""
        predicted = equal_groups(expit(log_odds), by=log_odds)
        observed = equal_groups((labels > 0).astype(np.float64), by=log_odds)
        bins = [
            ReliabilityBin(n=len(group), mean_predicted=float(group.mean()), observed_rate=float(rates.mean()))
            for group, rates in zip(predicted, observed, strict=True)
        ]
        return cls(log_loss=log_loss(log_odds, labels), bins=bins)


class CalibrationReport(Settings):
    """The same rows by the sigmoid of their scores, and by calibrated probabilities."""

    before: Reliability
    after: Reliability
    """Each row by a map that was fitted without it."""


class Assessment(Settings):
    """All of it."""

    metrics: HoldoutMetrics | None
    """None without hold-out rows. Log loss and accuracy are of calibrated probabilities, each row's by a map
    that was fitted without it."""
    calibration: Calibration
    """Fitted on all of the hold-out rows."""
    report: CalibrationReport | None
    """None if nothing was calibrated."""


def assess(scores: FloatVector, labels: FloatVector, config: LabelConfig) -> Assessment:
    """Measure and calibrate a model by scores and labels -1 or +1 of the hold-out rows, of shape (n_holdout,)."""
    if len(scores) == 0:
        return Assessment(metrics=None, calibration=Uncalibrated(reason=NO_HOLDOUT), report=None)
    calibration = fit_calibration(scores, labels, config.calibration)
    odds = cross_fitted(scores, labels, calibration)
    report = None
    if isinstance(calibration, Platt | Isotonic):
        report = CalibrationReport(before=Reliability.of(scores, labels), after=Reliability.of(odds, labels))
    metrics = measure(scores, labels, odds, config.threshold)
    return Assessment(metrics=metrics, calibration=calibration, report=report)
