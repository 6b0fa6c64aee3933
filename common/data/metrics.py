"""How good a model is on rows it has not seen."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class HoldoutMetrics:
    """Of the probability 1 / (1 + exp(-u)) of the positive label."""

    auc: float | None
    """Area under the ROC curve; None if the rows have only one of the two labels."""
    ks: float | None
    """Kolmogorov-Smirnov: the largest gap of true and false positive rate; None like `auc`."""
    accuracy: float
    """Share of rows on the right side of probability 1/2."""
    log_loss: float
    """Mean of log(1 + exp(-y u)): the logistic loss itself, not its Taylor form."""
    n_rows: int
    n_positive: int


def measure(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> HoldoutMetrics:
    """Compare scores u with labels -1 or +1, both of shape (n_rows,).

    Raises:
        ValueError: there are no rows, or a score is not finite.
    """
    # A second and 75 MB to import, which only a guest at the end of a job has use for.
    from sklearn.metrics import accuracy_score, roc_auc_score, roc_curve

    if len(scores) == 0 or not np.isfinite(scores).all():
        raise ValueError("metrics need at least one row, and finite scores")
    positive = labels > 0
    n_positive = int(positive.sum())
    auc = ks = None
    if 0 < n_positive < len(labels):
        # Of scores, not of probabilities: the order is the same, but far from 0 the latter round to ties.
        auc = float(roc_auc_score(positive, scores))
        false_positives, true_positives, _ = roc_curve(positive, scores)
        ks = float(np.max(true_positives - false_positives))
    return HoldoutMetrics(
        auc=auc,
        ks=ks,
        accuracy=float(accuracy_score(positive, scores > 0)),
        log_loss=float(np.logaddexp(0.0, -labels * scores).mean()),
        n_rows=len(labels),
        n_positive=n_positive,
    )
