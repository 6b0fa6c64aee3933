"""The evaluation rows in groups of neighbouring scores: all that charts of a model's quality are drawn from.

A group has at least `MIN_ROWS` rows of each label, and rows of equal scores belong to the same group. So the groups and
what follows from them do not say which label a row has. A group ends where it has enough rows of each label, so its end
depends on labels. If it ended with the very row that completed it, whoever knows the scores of people would know this
row's label. Therefore the rows are first cut into *cells* without a look at the labels, and groups consist of whole
cells: the end of a group says no more than that one of the `CELL_ROWS` or more rows of its last cell has a label.

A curve has a corner at each
border between two groups and is straight between them; the figures of `HoldoutMetrics` are those of all rows.
"""

import math
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, NonNegativeInt, model_validator

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.settings import Settings
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.protocol.logistic import probability

CELL_ROWS = MIN_ROWS
"""The fewest rows of a cell."""
_MAX_CELLS = 2000
MAX_GROUPS = 200
"""Enough corners for a ROC curve that looks smooth. A group ends as soon as it has enough rows of each label and 1/200
of all rows, where both labels count one half, so that the corners are evenly spread over the curve."""
_Z95 = 1.959963984540054
"""The quantile of the normal distribution at 0.975."""


class Curve(NamedTuple):
    """Points of a curve, from the left to the right."""

    x: FloatVector
    y: FloatVector


class KsCurves(NamedTuple):
    """The shares of both labels up to a score, and where they differ most."""

    score: FloatVector
    """The bounds between the groups, shape (n_groups - 1,)."""
    negative: FloatVector
    """Share of the negative rows with at most this score, in the same shape."""
    positive: FloatVector
    """The same of the positive rows."""
    widest: int
    """Place of the bound at which the difference is largest."""


class CalibrationPoints(NamedTuple):
    """Predicted probabilities and observed rates of groups of rows."""

    predicted: FloatVector
    """Mean probability of each group, shape (n_points,)."""
    observed: FloatVector
    """Share of positive rows."""
    lower: FloatVector
    """Lower end of the 95% confidence interval of this share, by Wilson."""
    upper: FloatVector
    """Upper end of it."""
    n_rows: NDArray[np.int64]
    """Rows of each group."""


class Confusion(NamedTuple):
    """The rows of each label on both sides of a threshold: those with a higher score are predicted to be positive."""

    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int


class ScoreGroups(Settings):
    """The rows of an evaluation set in groups of neighbouring scores, the lowest first.

    Lists with an entry for each group have the same length, at least 2. All rows count alike.
    """

    bounds: list[FiniteFloat]
    """Scores between the groups, in ascending order. A group reaches from a bound, exclusive, to the next, inclusive.
    Each is a short decimal between the scores of two rows, so that it is the score of no row."""
    n_positive: list[NonNegativeInt]
    """Rows with the positive label in each group."""
    n_negative: list[NonNegativeInt]
    """Rows with the negative label."""
    mean_score: list[FiniteFloat]
    """Mean score u of the rows."""
    mean_probability: list[FiniteFloat]
    """Mean of their calibrated probabilities. On the set on which the calibration was fitted, each is from a map that
    was fitted without the row."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        n_groups = len(self.n_positive)
        lengths = {len(self.n_negative), len(self.mean_score), len(self.mean_probability), len(self.bounds) + 1}
        if n_groups < 2 or lengths != {n_groups}:
            raise ValueError("all lists must have an entry for each of at least 2 groups, and `bounds` one fewer")
        if (np.diff(self.bounds) <= 0).any():
            raise ValueError("`bounds` must ascend")
        if min(*self.n_positive, *self.n_negative) < MIN_ROWS:
            raise ValueError(f"each group must have at least {MIN_ROWS} rows of each label")
        return self

    @classmethod
    def of(cls, scores: FloatVector, labels: FloatVector, log_odds: FloatVector) -> Self | None:
        """Group the rows of an evaluation set.

        Args:
            scores: u, shape (n_rows,).
            labels: -1 or +1, shape (n_rows,).
            log_odds: log(p / (1 - p)) of the calibrated probabilities, shape (n_rows,).

        Returns:
            The groups; None if there are too few rows for two groups.
        """
        order = np.argsort(scores, kind="stable")
        ordered = scores[order]
        is_positive = labels[order] > 0
        ends = _cells(np.append(np.flatnonzero(np.diff(ordered) > 0) + 1, len(scores)))
        borders = _cut(ends, np.cumsum(is_positive, dtype=np.int64)[ends - 1])
        if not borders:
            return None
        sizes = np.diff([0, *borders, len(scores)])
        n_positive = np.add.reduceat(is_positive.astype(np.int64), [0, *borders])
        predicted = probability(log_odds[order])
        return cls(
            bounds=[_between(float(ordered[end - 1]), float(ordered[end])) for end in borders],
            n_positive=n_positive.tolist(),
            n_negative=(sizes - n_positive).tolist(),
            mean_score=(np.add.reduceat(ordered, [0, *borders]) / sizes).tolist(),
            mean_probability=(np.add.reduceat(predicted, [0, *borders]) / sizes).tolist(),
        )

    @property
    def n_rows(self) -> NDArray[np.int64]:
        """Rows of each group, shape (n_groups,)."""
        return np.array(self.n_positive, np.int64) + np.array(self.n_negative, np.int64)

    @property
    def rate(self) -> float:
        """Share of positive rows among all rows."""
        return sum(self.n_positive) / int(self.n_rows.sum())

    @property
    def roc(self) -> Curve:
        """True positive rate by false positive rate at falling thresholds, from (0, 0) to (1, 1)."""
        return Curve(_share_above(self.n_negative), _share_above(self.n_positive))

    @property
    def precision_recall(self) -> Curve:
        """Precision by recall at falling thresholds. The highest group alone is the first point."""
        positive, rows = np.cumsum(self.n_positive[::-1]), np.cumsum(self.n_rows[::-1])
        return Curve(positive / positive[-1], positive / rows)

    @property
    def ks(self) -> KsCurves:
        """The shares of both labels up to each bound."""
        negative, positive = (np.cumsum(each)[:-1] / sum(each) for each in (self.n_negative, self.n_positive))
        return KsCurves(np.array(self.bounds), negative, positive, int(np.argmax(negative - positive)))

    @property
    def gain(self) -> Curve:
        """Share of all positive rows among the share x of rows with the highest scores, from (0, 0) to (1, 1)."""
        return Curve(_share_above(self.n_rows.tolist()), _share_above(self.n_positive))

    @property
    def lift(self) -> Curve:
        """Rate of positives among the share x of rows with the highest scores, over the rate of all rows."""
        share, found = self.gain
        return Curve(share[1:], found[1:] / share[1:])

    def calibration(self, max_points: int = 10) -> CalibrationPoints:
        """Compare predicted probabilities with observed rates, in groups of about equal size.

        Source of the intervals: Wilson (1927), Probable Inference, the Law of Succession, and Statistical Inference.

        Args:
            max_points: maximum number of groups.
        """
        groups = self.merged(max_points)
        n, z = groups.n_rows, _Z95
        observed = np.array(groups.n_positive) / n
        centre = (observed + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z * np.sqrt(observed * (1 - observed) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
        return CalibrationPoints(np.array(groups.mean_probability), observed, centre - half, centre + half, n)

    def confusion(self, place: int) -> Confusion:
        """Count the rows on both sides of a threshold.

        Args:
            place: of the threshold in `bounds`.
        """
        low, high = slice(None, place + 1), slice(place + 1, None)
        return Confusion(
            true_positive=sum(self.n_positive[high]),
            false_positive=sum(self.n_negative[high]),
            false_negative=sum(self.n_positive[low]),
            true_negative=sum(self.n_negative[low]),
        )

    def merged(self, max_groups: int) -> Self:
        """Return fewer groups, of about equal size: neighbours count together.

        Args:
            max_groups: maximum number of groups, at least 2.
        """
        if len(self.n_positive) <= max_groups:
            return self
        ends = np.cumsum(self.n_rows)
        middles = (ends[:-1] + ends[1:]) / 2  # A group belongs to the side on which most of its rows are.
        cuts = np.searchsorted(middles, ends[-1] * np.arange(1, max_groups) / max_groups) + 1
        cuts = np.unique(np.clip(cuts, 1, len(ends) - 1))
        starts = [0, *cuts.tolist()]
        n = np.add.reduceat(self.n_rows, starts)

        def mean(values: list[float]) -> list[float]:
            means: list[float] = (np.add.reduceat(np.array(values) * self.n_rows, starts) / n).tolist()
            return means

        return self.model_copy(
            update={
                "bounds": [self.bounds[cut - 1] for cut in cuts],
                "n_positive": np.add.reduceat(self.n_positive, starts).tolist(),
                "n_negative": np.add.reduceat(self.n_negative, starts).tolist(),
                "mean_score": mean(self.mean_score),
                "mean_probability": mean(self.mean_probability),
            }
        )


def _share_above(counts: list[int]) -> FloatVector:
    """Return the share of rows in the groups above each bound, the highest first, from 0 to 1."""
    return np.append(0.0, np.cumsum(counts[::-1]) / sum(counts))


def _cells(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ends of the cells, from the ends of all ties: both are numbers of rows up to there, in order."""
    n_rows = int(ends[-1])
    least = max(CELL_ROWS, math.ceil(n_rows / _MAX_CELLS))
    cells = []
    end = 0
    while n_rows - end >= 2 * least:
        end = int(ends[np.searchsorted(ends, end + least)])
        cells.append(end)
    # What remains belongs to the last cell if it is too small for one of its own.
    if cells and n_rows - end < least:
        cells.pop()
    return np.array([*cells, n_rows])


def _cut(ends: NDArray[np.int64], positive: NDArray[np.int64]) -> list[int]:
    """Return the borders between the groups: numbers of rows below them, in ascending order.

    Groups are cut from the highest scores down, where positive rows are frequent. What remains at the end belongs to
    the lowest group.

    Args:
        ends: number of rows up to the end of each cell, in ascending order of the scores.
        positive: number of positive rows among them.
    """
    n_rows, n_positive = int(ends[-1]), int(positive[-1])
    n_negative = n_rows - n_positive
    if min(n_positive, n_negative) < 2 * MIN_ROWS:
        return []
    negative = ends - positive
    spread = positive / (2 * n_positive) + negative / (2 * n_negative)
    borders: list[int] = []
    above = (n_positive, n_negative, 1.0)
    while True:
        wanted = [
            (positive, above[0] - MIN_ROWS),
            (negative, above[1] - MIN_ROWS),
            (spread, above[2] - 1 / MAX_GROUPS),
        ]
        place = min(int(np.searchsorted(each, most, side="right")) for each, most in wanted) - 1
        if place < 0 or positive[place] < MIN_ROWS or negative[place] < MIN_ROWS:
            return borders[::-1]
        borders.append(int(ends[place]))
        above = (int(positive[place]), int(negative[place]), float(spread[place]))


def _between(low: float, high: float) -> float:
    """Return a short decimal x with low < x < high, or `low` if no float is between them."""
    middle = (low + high) / 2
    for digits in range(1, 18):
        x = float(f"{middle:.{digits}g}")
        if low < x < high:
            return x
    return low
