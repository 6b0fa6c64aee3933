"""Confidence intervals of the quality figures, by the bootstrap.

The evaluation rows are drawn again and again with replacement, and each figure is computed anew from how often each row
was drawn. An interval goes from one quantile of these figures to another (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993, section 13.3). The calibration stays as it is: the intervals say how much chance there is in the
choice of the rows, and not how much there is in the model.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.settings import Settings
from trilateral.common.protocol.logistic import probability

LEVEL = 0.95
"""How often an interval holds the figure of all such rows."""
N_RESAMPLES = 1000
MIN_OF_LABEL = 5
"""With fewer rows of a label, some resamples have none, and AUC and KS have no interval."""
MAX_GROUPS = 4096
"""Rows of neighbouring scores form one group if there are more rows. Each group has at most n / `MAX_GROUPS` rows more
than its largest tie. To count rows of a group as ties moves AUC and KS by less than 1 / `MAX_GROUPS`, by nearly the
same in each resample, so the intervals are moved back. In a million rows, the AUC has a standard error of 0.0005."""
_RESAMPLES_AT_A_TIME = 50

Interval = tuple[float, float]
"""Lower and upper end."""


class Intervals(Settings):
    """Intervals of the figures of one evaluation set."""

    level: float = LEVEL
    """How often an interval holds the figure of all such rows."""
    resamples: int = N_RESAMPLES
    """How often the rows were drawn."""
    auc: Interval | None
    """Of the area under the ROC curve; None with fewer than 5 rows of a label."""
    gini: Interval | None
    """Of 2 auc - 1; None like `auc`."""
    ks: Interval | None
    """Of the largest gap between true and false positive rate; None like `auc`."""
    log_loss: Interval
    """Of the mean logistic loss."""
    brier: Interval
    """Of the mean squared error of the probabilities."""

    @classmethod
    def of(cls, scores: FloatVector, labels: FloatVector, odds: FloatVector, seed: int) -> Self:
        """Draw the rows of an evaluation set again and again.

        Args:
            scores: u, by which the rows are ranked, shape (n_rows,).
            labels: -1 or +1, shape (n_rows,).
            odds: log-odds of the predicted probabilities, shape (n_rows,).
            seed: makes the intervals reproducible.
        """
        groups = _Groups(scores, labels, odds)
        rng = np.random.default_rng(seed)
        parts = [
            groups.figures(groups.draw(rng, min(_RESAMPLES_AT_A_TIME, N_RESAMPLES - first)), rng)
            for first in range(0, N_RESAMPLES, _RESAMPLES_AT_A_TIME)
        ]
        auc, ks, log_loss, brier = (np.concatenate(each) for each in zip(*parts, strict=True))
        n_positive = int((labels > 0).sum())
        is_ranked = min(n_positive, len(labels) - n_positive) >= MIN_OF_LABEL
        of_auc = _interval(auc + groups.auc_shift) if is_ranked else None
        return cls(
            auc=of_auc,
            gini=None if of_auc is None else (2 * of_auc[0] - 1, 2 * of_auc[1] - 1),
            ks=_interval(ks + groups.ks_shift) if is_ranked else None,
            log_loss=_interval(log_loss),
            brier=_interval(brier),
        )


def _interval(figures: FloatVector) -> Interval:
    # A resample with one label only has no AUC.
    low, high = np.nanquantile(figures, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class _Groups:
    """The rows of an evaluation set in order of their scores, with neighbours taken together if there are many.

    A cell is one label of one group. Of each cell, the number of rows, and the mean and variance of their losses are
    enough: the losses of the rows that are drawn from it have nearly a normal distribution where there are many.

    Args:
        scores: shape (n_rows,).
        labels: -1 or +1, shape (n_rows,).
        odds: log-odds, shape (n_rows,).

    Attributes:
        auc_shift: by how much the grouping has changed the AUC; 0 if each score is a group.
        ks_shift: the same of KS.
    """

    def __init__(self, scores: FloatVector, labels: FloatVector, odds: FloatVector) -> None:
        _, places = np.unique(scores, return_inverse=True)
        is_positive = labels > 0
        losses = np.stack([np.logaddexp(0.0, -labels * odds), np.square(probability(odds) - is_positive)])
        self._n_rows = len(scores)
        exact, self.auc_shift, self.ks_shift = places, 0.0, 0.0
        if places.max() >= MAX_GROUPS:
            # The middle of a tie's ranks decides to which group it belongs.
            ends = np.cumsum(np.bincount(places))
            middle = ends - np.bincount(places) / 2
            _, places = np.unique((middle * MAX_GROUPS / self._n_rows).astype(np.int64)[places], return_inverse=True)
        cells = 2 * places + is_positive
        self._n_groups = int(places.max()) + 1
        n_cells = 2 * self._n_groups
        self._counts = np.bincount(cells, minlength=n_cells)
        per_row = np.maximum(self._counts, 1)
        self._means = np.stack([np.bincount(cells, each, n_cells) / per_row for each in losses])
        spread = [np.square(each - mean[cells]) for each, mean in zip(losses, self._means, strict=True)]
        self._variances = np.stack([np.bincount(cells, each, n_cells) / per_row for each in spread])
        if exact is not places:
            of_rows = np.bincount(2 * exact + is_positive, minlength=2 * int(exact.max()) + 2)
            true_auc, true_ks = _ranking(of_rows[None, :])
            auc, ks = _ranking(self._counts[None, :])
            self.auc_shift, self.ks_shift = float(true_auc[0] - auc[0]), float(true_ks[0] - ks[0])

    def draw(self, rng: np.random.Generator, n_resamples: int) -> NDArray[np.int64]:
        """Draw as many rows as there are, with replacement; return the rows of each cell, (n_resamples, n_cells)."""
        return rng.multinomial(self._n_rows, self._counts / self._n_rows, n_resamples)

    def figures(self, counts: NDArray[np.int64], rng: np.random.Generator) -> tuple[FloatVector, ...]:
        """Return AUC, KS, log loss and Brier score of each resample, each of shape (n_resamples,)."""
        noise = rng.standard_normal((len(self._means), len(counts)))
        losses = [
            (counts @ means + np.sqrt(counts @ variances) * random) / self._n_rows
            for means, variances, random in zip(self._means, self._variances, noise, strict=True)
        ]
        return (*_ranking(counts), *losses)


def _ranking(counts: NDArray[np.int64]) -> tuple[FloatVector, FloatVector]:
    """Return AUC and KS, NaN without rows of a label.

    Args:
        counts: the negative and the positive rows of each group, in ascending order of the scores; shape
            (n_resamples, 2 n_groups).

    Returns:
        Both of shape (n_resamples,).
    """
    negative, positive = counts[:, ::2], counts[:, 1::2]
    below = np.cumsum(negative, axis=1)
    n_negative, n_positive = below[:, -1], positive.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A pair with equal scores counts half.
        auc = np.einsum("rg,rg->r", positive, below - negative / 2) / (n_negative * n_positive)
        gaps = below / n_negative[:, None] - np.cumsum(positive, axis=1) / n_positive[:, None]
    return auc, np.where(np.isnan(auc), np.nan, np.maximum(gaps.max(axis=1), 0))
