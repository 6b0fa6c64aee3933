"""How good a model is on rows it has not seen."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector

_DISCLOSED_DECIMALS = 6

N_GROUPS = 10
"""Deciles."""


@dataclass(frozen=True)
class HoldoutMetrics:
    """Of scores, and of the probabilities of the positive label that come of them."""

    auc: float | None
    """Area under the ROC curve; None if the rows have only one of the two labels."""
    ks: float | None
    """Kolmogorov-Smirnov: the largest gap of true and false positive rate; None like `auc`."""
    gini: float | None
    """2 auc - 1; None like `auc`."""
    log_loss: float
    """Mean of -log of the probability of the label that a row has: the logistic loss itself, not its Taylor form."""
    threshold: float
    """A row counts as positive if its probability is above this."""
    accuracy: float
    """Share of rows on the right side of the threshold."""
    lift: tuple[float, ...] | None
    """By decile of the score, the highest first: the decile's rate of positives over that of all rows. None like
    `auc`; fewer than ten entries if there are fewer rows."""
    n_rows: int
    n_positive: int


def measure(
    scores: FloatVector, labels: FloatVector, log_odds: FloatVector | None = None, threshold: float = 0.5
) -> HoldoutMetrics:
    """Compare scores u with labels -1 or +1.

    Args:
        scores: what the rows are ranked by, shape (n_rows,).
        labels: shape (n_rows,).
        log_odds: log(p / (1 - p)) of the rows' probabilities p, shape (n_rows,). By default the scores themselves, as
            if nothing had been calibrated. Log-odds, since far from 0 probabilities round to 0 and 1.
        threshold: of a probability that counts as positive, in (0, 1).

    Raises:
        ValueError: there are no rows, or a score is not finite.
    """
    # A second and 75 MB to import, which only a guest that has hold-out rows has use for.
    from sklearn.metrics import roc_auc_score, roc_curve

    if log_odds is None:
        log_odds = scores
    if len(scores) == 0 or not (np.isfinite(scores).all() and np.isfinite(log_odds).all()):
        raise ValueError("metrics need at least one row, and finite scores")
    positive = labels > 0
    n_positive = int(positive.sum())
    auc = ks = lift = None
    if 0 < n_positive < len(labels):
        # Of scores, not of probabilities: the order is the same, but far from 0 the latter round to ties.
        auc = float(roc_auc_score(positive, scores))
        false_positives, true_positives, _ = roc_curve(positive, scores)
        ks = float(np.max(true_positives - false_positives))
        rates = [float(group.mean()) for group in equal_groups(positive.astype(np.float64), by=-scores)]
        lift = tuple(rate / float(positive.mean()) for rate in rates)
    return HoldoutMetrics(
        auc=auc,
        ks=ks,
        gini=None if auc is None else 2 * auc - 1,
        log_loss=log_loss(log_odds, labels),
        threshold=threshold,
        accuracy=float(np.mean((log_odds > np.log(threshold / (1 - threshold))) == positive)),
        lift=lift,
        n_rows=len(labels),
        n_positive=n_positive,
    )


def log_loss(log_odds: FloatVector, labels: FloatVector) -> float:
    """Mean of log(1 + exp(-y z)) for log-odds z and labels y of -1 or +1, both of shape (n_rows,)."""
    return float(np.logaddexp(0.0, -labels * log_odds).mean())


def round_for_disclosure(figure: float) -> float:
    """Round a log loss or an AUC before it leaves the guest. The training goes by the rounded figure.

    The full precision of a log loss at known scores would be an equation that few sets of labels solve.
    """
    return round(figure, _DISCLOSED_DECIMALS)


def equal_groups(values: FloatVector, by: FloatVector) -> list[NDArray[np.float64]]:
    """Cut `values` into at most ten groups of equal size, least `by` first; sizes differ by at most one.

    Rows with the same `by` count with their mean value, so that their order does not matter where a border
    between groups goes through them.
    """
    _, places, counts = np.unique(by, return_inverse=True, return_counts=True)
    means = np.bincount(places, weights=values) / counts
    ordered = means[places][np.argsort(by, kind="stable")]
    return np.array_split(ordered, min(N_GROUPS, len(values)))
