"""How good a model is on rows that it was not trained on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.protocol.logistic import probability

_DISCLOSED_DECIMALS = 6
_MAX_DISCLOSED_LOG_ODDS = 32.0
"""Beyond this, a row's log-odds count as this in a log loss that leaves the guest. Its 6 decimals then have 25 bits at
most. Without a limit, a host could choose scores so large that the digits of the mean spell out all labels."""
_SCORE_BITS = 16
"""Significant bits of a score that leaves the host."""
_SCORE_FRACTION_BITS = 12
"""Bits of such a score behind the binary point."""

N_GROUPS = 10
"""Deciles."""


@dataclass(frozen=True)
class HoldoutMetrics:
    """How well the scores rank the rows, and how good the probabilities of the positive label are."""

    auc: float | None
    """Area under the ROC curve; None if all rows have the same label."""
    ks: float | None
    """Kolmogorov-Smirnov: the largest gap between true and false positive rate; None like `auc`."""
    gini: float | None
    """2 auc - 1; None like `auc`."""
    log_loss: float
    """Mean of -log of the probability of each row's label: the logistic loss itself, not its Taylor form."""
    threshold: float
    """Rows with a higher probability count as positive."""
    accuracy: float
    """Share of rows on the right side of the threshold."""
    lift: tuple[float, ...] | None
    """For each decile of the score, the highest first: its rate of positives divided by the rate of all rows. None like
    `auc`; fewer than ten entries if there are fewer than ten rows."""
    n_rows: int
    n_positive: int
    brier: float | None = None
    """Mean squared difference between the probability and 1 or 0, for a positive or a negative row. Older files lack
    it."""

    @property
    def n_rarer(self) -> int:
        """Number of rows with the rarer label."""
        return min(self.n_positive, self.n_rows - self.n_positive)


def measure(
    scores: FloatVector, labels: FloatVector, log_odds: FloatVector | None = None, threshold: float = 0.5
) -> HoldoutMetrics:
    """Compare scores u with labels y in {-1, +1}.

    Args:
        scores: u, by which the rows are ranked, shape (n_rows,).
        labels: y, shape (n_rows,).
        log_odds: log(p / (1 - p)) of the rows' probabilities p, shape (n_rows,). The default, the scores, is right
            without calibration. Log-odds are used because probabilities far from even odds would round to 0 and 1.
        threshold: rows with a higher probability count as positive; in (0, 1).

    Raises:
        ValueError: there are no rows, or a score is not finite.
    """
    if log_odds is None:
        log_odds = scores
    if len(scores) == 0 or not (np.isfinite(scores).all() and np.isfinite(log_odds).all()):
        raise ValueError("metrics need at least one row, and finite scores")
    positive = labels > 0
    n_positive = int(positive.sum())
    auc = ks = lift = None
    if 0 < n_positive < len(labels):
        # Use the scores: probabilities have the same order, but for scores far from 0 they round to ties.
        false_positives, true_positives = _roc_curve(positive, scores)
        auc = float(np.trapezoid(true_positives, false_positives))
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
        brier=float(np.mean(np.square(probability(log_odds) - positive))),
    )


def _roc_curve(positive: NDArray[np.bool_], scores: FloatVector) -> tuple[FloatVector, FloatVector]:
    """Return the false and the true positive rate at falling thresholds, from (0, 0) to (1, 1).

    The result has the corners of the curve only, and the same bits as scikit-learn's `roc_curve`, whose import takes a
    second and 75 MB.

    Args:
        positive: shape (n_rows,), with both values.
        scores: shape (n_rows,).
    """
    order = np.argsort(scores, kind="stable")[::-1]
    # Rows of equal scores are on the same side of every threshold.
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true = np.cumsum(positive[order], dtype=np.float64)[last]
    false = 1 + last - true
    # Further points on a straight line would add nothing but rounding errors to the area.
    corner = np.ones(len(last), dtype=bool)
    corner[1:-1] = (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0)
    return np.append(0.0, false[corner]) / false[-1], np.append(0.0, true[corner]) / true[-1]


def log_loss(log_odds: FloatVector, labels: FloatVector) -> float:
    """Return the mean of log(1 + exp(-y z)) for log-odds z and labels y in {-1, +1}, both of shape (n_rows,)."""
    return float(np.logaddexp(0.0, -labels * log_odds).mean())


def disclosed_log_loss(log_odds: FloatVector, labels: FloatVector) -> float:
    """Return a log loss that may leave the guest; see `log_loss` for the arguments. The training uses this figure.

    A log loss at full precision and known scores would be an equation that only few sets of labels solve.
    """
    limited = np.clip(log_odds, -_MAX_DISCLOSED_LOG_ODDS, _MAX_DISCLOSED_LOG_ODDS)
    return round(log_loss(limited, labels), _DISCLOSED_DECIMALS)


def disclosed_auc(auc: float | None) -> float | None:
    """Return an AUC that may leave the guest."""
    return None if auc is None else round(auc, _DISCLOSED_DECIMALS)


def round_scores(scores: FloatVector) -> FloatVector:
    """Round scores of single rows before they leave the host, to what ranking and calibration can use.

    A score is rounded to a multiple of 2^-12 and, from 16 upwards, to 16 significant bits. So a score below 16 has at
    most 17 bits, one of them its sign, and an error of at most 2^-13. This changes a probability by at most 2^-15,
    which is 0.00003. The result depends on the score alone, so the same model always gives the same row the same score.

    Args:
        scores: u_A, shape (n_rows,).

    Returns:
        The rounded scores, shape (n_rows,).
    """
    _, exponents = np.frexp(scores)
    shift = np.minimum(_SCORE_FRACTION_BITS, _SCORE_BITS - exponents)
    # Adding 0 turns -0.0 into 0.0: otherwise its sign would tell the sign of a score that was rounded to 0.
    rounded: FloatVector = np.ldexp(np.rint(np.ldexp(scores, shift)), -shift) + 0.0
    return rounded


def equal_groups(values: FloatVector, by: FloatVector) -> list[NDArray[np.float64]]:
    """Cut `values` into at most ten groups, ordered by `by`, the lowest first; sizes differ by at most one.

    Rows with the same `by` count with their mean value. Their order then does not matter if a border between groups
    divides them.
    """
    _, places, counts = np.unique(by, return_inverse=True, return_counts=True)
    means = np.bincount(places, weights=values) / counts
    ordered = means[places][np.argsort(by, kind="stable")]
    return np.array_split(ordered, min(N_GROUPS, len(values)))
