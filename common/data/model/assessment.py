"""The guest's assessment of a model on the hold-out rows: quality figures, a calibration and its reliability."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.config.settings import Settings
from trilateral.common.data.model.calibration import (
    Calibration,
    Isotonic,
    Platt,
    calibrate_by_rate,
    cross_fitted,
    fit_calibration,
    log_odds,
)
from trilateral.common.data.model.intervals import Intervals
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.protocol.evaluation import HoldoutMetrics, equal_groups, log_loss, measure
from trilateral.common.protocol.logistic import probability


class ReliabilityBin(Settings):
    """A group of rows with similar predicted probabilities."""

    n: int
    """Number of rows."""
    mean_predicted: float
    """Mean of the predicted probabilities."""
    observed_rate: float
    """Share of rows with the positive label."""


class Reliability(Settings):
    """Whether a share p of the rows with predicted probability p is positive."""

    log_loss: float
    """Mean logistic loss of the predicted probabilities."""
    bins: list[ReliabilityBin]
    """Ten groups of equal size in order of probability, or fewer if there are fewer than ten rows."""

    @classmethod
    def of(cls, log_odds: FloatVector, labels: FloatVector) -> Self:
        """Compare predicted probabilities with labels.

        Args:
            log_odds: log-odds of the predicted probabilities, shape (n_rows,).
            labels: -1 or +1, shape (n_rows,).
        """
        predicted = equal_groups(probability(log_odds), by=log_odds)
        observed = equal_groups((labels > 0).astype(np.float64), by=log_odds)
        bins = [
            ReliabilityBin(n=len(group), mean_predicted=float(group.mean()), observed_rate=float(rates.mean()))
            for group, rates in zip(predicted, observed, strict=True)
        ]
        return cls(log_loss=log_loss(log_odds, labels), bins=bins)


class CalibrationReport(Settings):
    """The reliability of the same rows without and with calibration."""

    before: Reliability
    """With the sigmoid of the scores."""
    after: Reliability
    """With calibrated probabilities, each from a map that was fitted without the row."""


@dataclass(frozen=True)
class Assessment:
    """Quality figures and calibration of a model."""

    metrics: HoldoutMetrics | None
    """Quality figures; None without hold-out rows. Log loss and accuracy use calibrated probabilities, each from a map
    that was fitted without the row."""
    log_odds: FloatVector = field(compare=False, repr=False)
    """Of these probabilities, shape (n_holdout,)."""
    calibration: Calibration
    """The map from scores to probabilities."""
    report: CalibrationReport | None
    """The reliability before and after calibration; None unless a slope or curve was fitted."""


class EvaluatedSet(Settings):
    """The quality of the whole model on one evaluation set."""

    name: str
    """`holdout` if the seed drew the rows; otherwise `valid`, `test` or `out_of_time`."""
    metrics: HoldoutMetrics
    """Quality figures with calibrated probabilities."""
    intervals: Intervals
    """How much chance there is in the figures."""
    score_groups: ScoreGroups | None = None
    """The rows in groups of neighbouring scores, for charts; None with too few rows. Older files lack it. In a model of
    several classes, a share of the rows for each class alone, in groups of neighbouring log-odds of its probability."""


def assess(
    scores: FloatVector,
    labels: FloatVector,
    config: LabelConfig,
    train_labels: FloatVector,
    *,
    intercept: bool,
    is_logistic: bool = False,
    sample_weights: FloatVector | None = None,
) -> Assessment:
    """Measure and calibrate a model on the hold-out rows.

    Args:
        scores: the scores u of both parties together, shape (n_holdout,).
        labels: -1 or +1, shape (n_holdout,).
        config: the method of calibration and the threshold of the accuracy.
        train_labels: -1 or +1, shape (n_train,). With `labels` they give the rate of positive rows.
        intercept: whether the model has an intercept.
        is_logistic: whether the model minimises the logistic loss and not the Taylor loss.
        sample_weights: weights of the training rows, shape (n_train,); None if all count alike. Hold-out rows do.
    """
    n_rows = len(labels) + len(train_labels)
    positive = int((labels > 0).sum() + (train_labels > 0).sum())
    # n rows cannot show that a rate is 0 or 1.
    rate = min(max(positive / n_rows, 1 / (n_rows + 2)), 1 - 1 / (n_rows + 2))
    if len(scores) == 0:
        tilt = 0.0
        if sample_weights is not None:
            means = [sample_weights[train_labels == label].mean() for label in (1, -1)]
            tilt = float(np.log(means[0] / means[1]))
        by_rate = calibrate_by_rate(rate, config.calibration, intercept=intercept, is_logistic=is_logistic, tilt=tilt)
        return Assessment(metrics=None, log_odds=scores, calibration=by_rate, report=None)
    calibration = fit_calibration(scores, labels, config.calibration, rate)
    odds = cross_fitted(scores, labels, calibration)
    report = None
    if isinstance(calibration, Platt | Isotonic):
        report = CalibrationReport(before=Reliability.of(scores, labels), after=Reliability.of(odds, labels))
    metrics = measure(scores, labels, odds, config.threshold)
    return Assessment(metrics=metrics, log_odds=odds, calibration=calibration, report=report)


def evaluate_sets(
    sets: Mapping[str, int],
    scores: FloatVector,
    labels: FloatVector,
    assessment: Assessment,
    *,
    threshold: float,
    seed: int,
) -> list[EvaluatedSet]:
    """Measure a model on each evaluation set.

    The calibration was fitted on the first set, whose probabilities are cross-fitted. It is applied to the others as it
    is applied to new rows.

    Args:
        sets: the number of rows of each set, in order; the first is that of `assessment`.
        scores: the scores u of both parties together of all sets, one after the other.
        labels: -1 or +1, of the same rows.
        assessment: of the first set.
        threshold: of the accuracy.
        seed: of the intervals.
    """
    evaluated = []
    first = 0
    for name, n_rows in sets.items():
        of_set = slice(first, first + n_rows)
        u, y = scores[of_set], labels[of_set]
        odds = assessment.log_odds if first == 0 else log_odds(u, assessment.calibration)
        metrics = assessment.metrics if first == 0 else None
        evaluated.append(
            EvaluatedSet(
                name=name,
                metrics=measure(u, y, odds, threshold) if metrics is None else metrics,
                intervals=Intervals.of(u, y, odds, seed),
                score_groups=ScoreGroups.of(u, y, odds),
            )
        )
        first += n_rows
    return evaluated


def evaluate_class(
    name: str,
    scores: FloatVector,
    labels: FloatVector,
    odds: FloatVector,
    rows: Rows,
    *,
    threshold: float,
    seed: int,
) -> EvaluatedSet:
    """Measure the model of one class against the rest, with its probabilities among those of all classes.

    Args:
        name: of the set.
        scores: the scores u of the class, by which the rows are ranked, shape (n_rows,).
        labels: +1 for the rows of the class and -1 for all others, shape (n_rows,).
        odds: log-odds of the probability of the class, shape (n_rows,).
        rows: the rows that count in the groups of this class, and of no other one. The groups are by `odds`.
        threshold: of the accuracy.
        seed: of the intervals.
    """
    return EvaluatedSet(
        name=name,
        metrics=measure(scores, labels, odds, threshold),
        intervals=Intervals.of(scores, labels, odds, seed),
        score_groups=ScoreGroups.of(odds[rows], labels[rows], odds[rows]),
    )
