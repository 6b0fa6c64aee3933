"""How values were distributed when a model was trained, and how far other rows have shifted since.

A distribution is a histogram. Each of its groups has at least `MIN_ROWS` training rows, so that a model file says
nothing about the values of fewer. A smaller group counts with a larger one.

The measure of a shift is the population stability index of two sets of shares, a of the new rows and e of the training
rows: PSI = sum over the groups of (a - e) log(a / e). Of a feature it is called characteristic stability index, CSI.
It is the sum of both Kullback-Leibler divergences. Source: Yurdakul (2018), Statistical Properties of Population
Stability Index.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, NonNegativeInt, model_validator

from trilateral.common.base.arrays import FloatArray, FloatVector, Rows
from trilateral.common.base.errors import DataError
from trilateral.common.config.settings import Settings
from trilateral.common.data.features import Categories, Column, Features
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS

MAX_BINS = 10
"""Bins of a column of numbers, apart from those of single frequent values."""
MAX_CATEGORIES = 50
"""Categories of a column that are groups of their own; all further ones are one group."""
_MAX_FLOOR = 0.01
"""In a PSI, a share below that of `MIN_ROWS` rows of the smaller table, or below this share if that is less, counts as
so much: the PSI of an empty group would be infinite, and a single row in it would change the PSI much."""

NOTEWORTHY, LARGE = 0.1, 0.25
"""By convention, a PSI below the first number is no shift, and one from the second number on is a large shift."""
MIN_REPORTED_ROWS = 1000
"""Minimum number of rows of a shift in log lines, metrics and files."""
_DECIMALS = 2
"""Decimals of a figure there."""

NO_DISTRIBUTIONS = (
    "the model file has no distributions, because an earlier release wrote it: train again to compare rows"
)
"""Why rows cannot be compared with those of the training."""

Counts = NDArray[np.int64]


class NumberDistribution(Settings):
    """A histogram of a column of numbers. A bin reaches from a bound, exclusive, to the next one, inclusive."""

    kind: Literal["number"] = "number"
    """Identifies the class in JSON."""
    bounds: list[FiniteFloat]
    """The bounds between the bins, in ascending order. Each is a value of a training row."""
    counts: list[NonNegativeInt]
    """Training rows in each bin, and at the end those without a value."""

    @model_validator(mode="after")
    def _check(self) -> "NumberDistribution":
        if len(self.counts) != len(self.bounds) + 2:
            raise ValueError("`counts` must have two entries more than `bounds`")
        if any(after <= before for before, after in pairwise(self.bounds)):
            raise ValueError("`bounds` must ascend")
        return self

    @classmethod
    def of(cls, values: FloatVector) -> Self:
        """Make the histogram of some rows.

        Args:
            values: one number a row, NaN where it is missing; shape (n_rows,).
        """
        missing = np.isnan(values)
        n_missing = int(np.count_nonzero(missing))
        present = values[~missing] if n_missing else values
        bounds = _bounds_of(present)
        counts = np.bincount(np.searchsorted(bounds, present), minlength=len(bounds) + 1).tolist()
        while len(bounds) and min(counts) < MIN_ROWS:
            small = counts.index(min(counts))
            left = small == len(bounds) or (small > 0 and counts[small - 1] < counts[small + 1])
            first = small - 1 if left else small
            counts[first : first + 2] = [counts[first] + counts[first + 1]]
            del bounds[first]
        return cls(bounds=bounds, counts=_without_small([*counts, n_missing]))

    def count(self, values: Column) -> Counts:
        """Count the rows of a column in each group, shape (n_groups,).

        Raises:
            DataError: the column holds text.
        """
        if isinstance(values, Categories):
            raise DataError("preprocessing mismatch: a column of numbers now holds text")
        numbers = values[:]
        groups = np.searchsorted(self.bounds, numbers)
        groups[np.isnan(numbers)] = len(self.bounds) + 1
        return np.bincount(groups, minlength=len(self.counts)).astype(np.int64)


class CategoryDistribution(Settings):
    """How many rows each category of a column has."""

    kind: Literal["category"] = "category"
    """Identifies the class in JSON."""
    categories: list[str]
    """The most frequent categories of the training rows, in ascending order."""
    counts: list[NonNegativeInt]
    """Training rows of each category, then of all other values, and at the end those without a value."""

    @model_validator(mode="after")
    def _check(self) -> "CategoryDistribution":
        if len(self.counts) != len(self.categories) + 2:
            raise ValueError("`counts` must have two entries more than `categories`")
        return self

    @classmethod
    def of(cls, values: Categories) -> Self:
        """Count the categories of some rows."""
        n_missing, *counts = np.bincount(values.codes[:] + 1, minlength=len(values.levels) + 1).tolist()
        frequent = sorted((-count, level) for level, count in zip(values.levels, counts, strict=True))[:MAX_CATEGORIES]
        kept = {level: -count for count, level in sorted(frequent, key=lambda each: each[1]) if -count >= MIN_ROWS}
        n_other = sum(counts) - sum(kept.values())
        return cls(categories=[*kept], counts=_without_small([*kept.values(), n_other, n_missing]))

    def count(self, values: Column) -> Counts:
        """Count the rows of a column in each group, shape (n_groups,).

        Raises:
            DataError: the column holds numbers.
        """
        if not isinstance(values, Categories):
            raise DataError("preprocessing mismatch: a column of categories now holds numbers")
        n_known = len(self.categories)
        group_of_level = np.full(len(values.levels) + 1, n_known)
        group_of_level[-1] = n_known + 1  # The code of a missing value is -1.
        for group, category in enumerate(self.categories):
            level = bisect_left(values.levels, category)
            if level < len(values.levels) and values.levels[level] == category:
                group_of_level[level] = group
        return np.bincount(group_of_level[values.codes[:]], minlength=len(self.counts)).astype(np.int64)


ColumnDistribution = Annotated[NumberDistribution | CategoryDistribution, Field(discriminator="kind")]


class Distributions(Settings):
    """How a party's values were distributed at training."""

    columns: dict[str, ColumnDistribution] = Field(default_factory=dict)
    """The columns that the model uses, on the training rows."""
    score: NumberDistribution | None = None
    """Guest only: the score of the whole model on the hold-out rows, if there are any. No process knows the scores of
    training rows."""


def fit_distributions(features: Features, rows: Rows, names: tuple[str, ...]) -> dict[str, ColumnDistribution]:
    """Make the histograms of columns, one column in memory at a time.

    Args:
        features: the table.
        rows: the training rows, in ascending order.
        names: the columns that the model uses.
    """
    columns: dict[str, ColumnDistribution] = {}
    for name in names:
        values = features[name][rows]
        columns[name] = CategoryDistribution.of(values) if isinstance(values, Categories) else _of_numbers(values)
    return columns


@dataclass(frozen=True)
class Shift:
    """How far the values of some rows have shifted since the training."""

    n_rows: int
    """Number of rows of the table."""
    csi: Mapping[str, float]
    """The CSI of each column of the model; empty without rows."""
    n_scored: int = 0
    """Guest only: number of rows with a score of the whole model."""
    psi: float | None = None
    """Guest only: the PSI of that score, the largest one of several classes; None without rows or if the model file has
    no distribution of the score."""
    of_classes: tuple[float | None, ...] = ()
    """Guest only: the PSI of the score of each of several classes; empty without rows."""

    @property
    def reported(self) -> "Shift | None":
        """The shift as logs, metrics, files and reports have it; None without a figure of `MIN_REPORTED_ROWS` rows.

        The figures of a table of a few rows say in which groups these rows are. With a and e as at the top, n new rows
        and a >= 10/n, one row changes a term of the PSI by about |log(a/e) + 1 - e/a| / n, which is at most e/10 + 0.01
        for n >= 1000. So the two decimals seldom show a single row of a group with a tenth of the training rows.
        """
        csi = self.csi if self.n_rows >= MIN_REPORTED_ROWS else {}
        has_score = self.n_scored >= MIN_REPORTED_ROWS
        of_score = self.psi if has_score else None
        if not csi and of_score is None:
            return None
        return Shift(
            self.n_rows,
            {name: round(value, _DECIMALS) for name, value in csi.items()},
            self.n_scored,
            _rounded(of_score),
            tuple(map(_rounded, self.of_classes)) if has_score else (),
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DECIMALS)


class ShiftCounter:
    """Counts rows in the groups of a model's distributions, piece by piece.

    Args:
        distributions: of the model; None if its file has none, so that nothing is counted.
        of_classes: in a model of several classes, the distribution of the score of each.
    """

    def __init__(
        self, distributions: Distributions | None, of_classes: Sequence[NumberDistribution | None] = ()
    ) -> None:
        self._distributions = distributions or Distributions()
        columns = self._distributions.columns
        self._counts = {name: np.zeros(len(each.counts), np.int64) for name, each in columns.items()}
        self._n_rows = self._n_scored = 0
        self._scores = [*of_classes] or [self._distributions.score]
        self._of_scores = [np.zeros(0 if each is None else len(each.counts), np.int64) for each in self._scores]

    def add(self, features: Features) -> None:
        """Count further rows, with the columns that the model uses."""
        self._n_rows += len(features)
        for name, distribution in self._distributions.columns.items():
            self._counts[name] += distribution.count(features[name])

    def add_scores(self, scores: FloatArray) -> None:
        """Count further rows by the score of the whole model, shape (n_added,), or (n_added, n_classes)."""
        self._n_scored += len(scores)
        of_models = scores.reshape(len(scores), len(self._scores)).T
        for place, (distribution, values) in enumerate(zip(self._scores, of_models, strict=True)):
            if distribution is not None:
                self._of_scores[place] += distribution.count(values)

    @property
    def shift(self) -> Shift:
        """The shift of all rows so far."""
        columns = self._distributions.columns
        of_scores = [
            psi(each.counts, counts) if each is not None and self._n_scored else None
            for each, counts in zip(self._scores, self._of_scores, strict=True)
        ]
        csi = {name: psi(each.counts, self._counts[name]) for name, each in columns.items()}
        return Shift(
            self._n_rows,
            csi if self._n_rows else {},
            self._n_scored,
            max((each for each in of_scores if each is not None), default=None),
            tuple(of_scores) if len(of_scores) > 1 and self._n_scored else (),
        )


def describe_shift(shift: Shift) -> str | None:
    """Return a sentence about a shift, for this party only; None for too few rows, or without any figure."""
    reported = shift.reported
    if reported is None:
        return None
    parts = [] if reported.psi is None else [f"PSI of the score {reported.psi:.2f}"]
    if reported.csi:
        shifted = sorted((-value, name) for name, value in reported.csi.items() if value >= NOTEWORTHY)
        listed = ", ".join(f"{name!r} {-value:.2f}" for value, name in shifted)
        parts.append(f"CSI of {NOTEWORTHY} or more: {listed}" if shifted else f"CSI of each column below {NOTEWORTHY}")
    return f"shift since the training: {'; '.join(parts)}"


def describe_grade(value: float) -> str:
    """Return how large a PSI is, in a word."""
    return "small" if value < NOTEWORTHY else "some" if value < LARGE else "large"


def psi(expected: list[int] | Counts, actual: list[int] | Counts) -> float:
    """Return the population stability index of two sets of rows.

    Args:
        expected: training rows in each group, shape (n_groups,); at least one row.
        actual: new rows in each group, shape (n_groups,); at least one row to make sense.
    """
    n_rows = [max(int(np.sum(each)), 1) for each in (expected, actual)]
    floor = min(MIN_ROWS / min(n_rows), _MAX_FLOOR)
    e, a = (np.maximum(np.asarray(each) / n, floor) for each, n in zip((expected, actual), n_rows, strict=True))
    return float(np.sum((a - e) * np.log(a / e)))


def expected_psi(n_groups: int, n_expected: int, n_actual: int) -> float:
    """Return the mean PSI of two samples of one distribution, (k - 1)(1/n + 1/m).

    Source: Yurdakul (2018): PSI divided by 1/n + 1/m is nearly chi-square with k - 1 degrees of freedom.
    """
    return (n_groups - 1) * (1 / n_expected + 1 / n_actual)


def chance_psi(expected: list[int], n_actual: int) -> float:
    """Return `expected_psi` of so many rows against a distribution with these counts."""
    return expected_psi(sum(count > 0 for count in expected), sum(expected), n_actual)


def _of_numbers(values: Column) -> NumberDistribution:
    return NumberDistribution.of(np.asarray(values[:], np.float64))


def _bounds_of(present: FloatVector) -> list[float]:
    """Return bounds at the deciles. A value with more than a tenth of the rows has a bin of its own."""
    if not len(present):
        return []
    cuts = np.quantile(present, np.arange(1, MAX_BINS) / MAX_BINS, method="inverted_cdf")
    bounds = set(cuts.tolist())
    values, n_cuts = np.unique(cuts, return_counts=True)
    for value in values[n_cuts > 1]:
        smaller = present[present < value]
        if len(smaller):
            bounds.add(float(smaller.max()))
    bounds.discard(float(present.max()))
    return sorted(bounds)


def _without_small(counts: list[int]) -> list[int]:
    """Count groups of fewer than `MIN_ROWS` rows with the largest group."""
    largest = counts.index(max(counts))
    kept = [count if count >= MIN_ROWS else 0 for count in counts]
    kept[largest] += sum(counts) - sum(kept)
    return kept
