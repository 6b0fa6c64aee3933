"""The evaluation rows in groups of neighbouring scores: all that charts of a model's quality are drawn from.

A group has at least `MIN_ROWS` rows of each label, and rows of equal scores belong to the same group. So the groups and
what follows from them do not say which label a row has. A group ends where it has enough rows of each label, so its end
depends on labels. If it ended with the very row that completed it, whoever knows the scores of people would know this
row's label. Therefore the rows are first cut into *cells* without a look at the labels, and groups consist of whole
cells: the end of a group says no more than that one of the `CELL_ROWS` or more rows of its last cell has a label.

A model that nearly separates the labels has too few such groups, because both labels meet at a few scores only. Then
the rows at both ends of the order, up to the first cell with both labels, make groups with a single label. They show
where the other label begins, on the grid of the cells, and nothing else: a cut inside an end depends on no label.

A curve has a corner at each border between two groups and is straight between them. The figures of `HoldoutMetrics` are
those of all rows.
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
_ENOUGH_GROUPS = 5
"""With this many groups of both labels, no group has a single label."""
_MAX_PURE_GROUPS = 50
"""The most groups with a single label. Curves are straight there."""
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
        if any(0 < n < MIN_ROWS for n in (*self.n_positive, *self.n_negative)) or self.n_rows.min() < MIN_ROWS:
            raise ValueError(f"each group must have at least {MIN_ROWS} rows of each label, or of one label alone")
        if min(sum(self.n_positive), sum(self.n_negative)) < MIN_ROWS:
            raise ValueError(f"all groups together must have at least {MIN_ROWS} rows of each label")
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
        up_to = np.append(0, np.cumsum(is_positive, dtype=np.int64))[ends]
        borders = [int(ends[place]) for place in _cut(np.diff(np.array([up_to, ends - up_to]), prepend=0))]
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

    def accuracy(self, threshold: float) -> float:
        """Return the share of the rows that are on their side of a threshold on the probability, by whole groups.

        The accuracy of all rows counts labels on both sides of the threshold, of which one may have a single row.

        Args:
            threshold: a group of a larger mean probability is predicted to be positive.
        """
        is_above = np.array(self.mean_probability) > threshold
        return float(np.where(is_above, self.n_positive, self.n_negative).sum() / self.n_rows.sum())

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


def _cut(counts: NDArray[np.int64]) -> list[int]:
    """Return the last cell of each group but the highest one, in ascending order.

    Args:
        counts: of positive and negative rows of each cell, shape (2, n_cells), in ascending order of the scores.
    """
    if counts.sum(axis=1).min() < 2 * MIN_ROWS:
        return []
    shares = (counts / (2 * counts.sum(axis=1, keepdims=True))).sum(axis=0)
    mixed = _joined(counts, shares, 1 / MAX_GROUPS, MIN_ROWS)
    if len(mixed) + 1 >= _ENOUGH_GROUPS:
        return mixed
    low, high = _between_ends(counts)
    places = []
    for first, last, share, least in (
        (0, low, 1 / _MAX_PURE_GROUPS, 0),
        (low, high, 1 / MAX_GROUPS, MIN_ROWS),
        (high, counts.shape[1], 1 / _MAX_PURE_GROUPS, 0),
    ):
        if first < last:
            part = _joined(counts[:, first:last], shares[first:last], share, least)
            places += [first + each for each in part] + [last - 1]
    return places[:-1]


def _joined(counts: NDArray[np.int64], shares: FloatVector, least_share: float, least_rows: int) -> list[int]:
    """Join neighbouring cells to groups; see `_cut`.

    Groups are cut from the highest scores down, where positive rows are frequent. What remains at the end belongs to
    the lowest group.

    Args:
        counts: see `_cut`.
        shares: of each cell in all rows, if both labels count one half.
        least_share: of a group.
        least_rows: of each label in a group.
    """
    ends, share, n = [], 0.0, np.zeros(2, np.int64)
    left = counts.sum(axis=1)
    for place in range(counts.shape[1] - 1, 0, -1):
        n, share = n + counts[:, place], share + shares[place]
        if n.min() < least_rows or share < least_share:
            continue
        left = left - n
        if left.min() < least_rows:
            break
        ends.append(place - 1)
        n, share = np.zeros(2, np.int64), 0.0
    return ends[::-1]


def _between_ends(counts: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first and, exclusive, the last cell between both ends with a single label each; see `_cut`.

    Between them are at least `MIN_ROWS` rows of each label, or no row.
    """
    n_cells = counts.shape[1]
    alone = [np.cumprod(each == 0, axis=1).sum(axis=1).max() for each in (counts, counts[:, ::-1])]
    low, high = int(alone[0]), n_cells - int(alone[1])
    while low < high and (n := counts[:, low:high].sum(axis=1)).min() < MIN_ROWS:
        # The cells beside it that have more of what is missing.
        if high < n_cells and counts[n.argmin(), high]:
            high += 1
        else:
            low -= 1
    return low, high


def _between(low: float, high: float) -> float:
    """Return a short decimal x with low < x < high, or `low` if no float is between them."""
    middle = (low + high) / 2
    for digits in range(1, 18):
        x = float(f"{middle:.{digits}g}")
        if low < x < high:
            return x
    return low
