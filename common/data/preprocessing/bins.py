"""Columns in bins: fitting them on the training rows, and the fitted columns.

A column is first divided into *fine bins*, without a look at the labels: quantiles of numbers, or the frequent
categories. Then some of them are merged, by `common.protocol.binning`. A bin of numbers is [a, b), open to both ends.

Each bin has at least `MIN_ROWS` training rows. So a column of WOE values differs from its most frequent value in as
many rows, and a term of 0 and 1 is 1 in as many; see `fit`.
"""

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, model_validator

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.dataset import ColumnBinning
from trilateral.common.config.settings import Settings
from trilateral.common.data.features import Categories, Column
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.data.preprocessing.formulas import Filled, Formula, Lookup, Number, Piecewise
from trilateral.common.data.preprocessing.reasons import ConstantError
from trilateral.common.data.preprocessing.terms import CategoryColumn, FittedColumn, is_fraction
from trilateral.common.protocol.binning import (
    MAX_FINE_BINS,
    Counts,
    FineBins,
    MergeRule,
    choose_groups,
    information_values,
    keep_groups,
    merge_small,
    sum_groups,
    weight_of_evidence,
)

FEW_BINS = f"fewer than two bins of at least {MIN_ROWS} training rows (see `preprocessing.binning`)"


class Bin(Settings):
    """The training rows of a bin."""

    n_rows: Annotated[int, Field(ge=0)]
    """Number of training rows."""
    n_positive: Annotated[int, Field(ge=0)] | None = None
    """Number of positive rows among them; None if the party does not know it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_positive is not None and self.n_positive > self.n_rows:
            raise ValueError("a bin has more positive rows than rows")
        return self


class BinnedColumn(FittedColumn):
    """What binned columns of numbers and of categories have in common."""

    bins: Annotated[list[Bin], Field(min_length=2)]
    """The bins, in order."""
    missing: int | None = None
    """The number of the bin of missing values, from 0 up; None if no training row lacked a value."""
    woe: bool = True
    """Whether the column has one term, the WOE of its bin. Otherwise each bin but the largest has one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        known = [each.n_positive is not None and 0 < each.n_positive < each.n_rows for each in self.bins]
        if self.woe and not all(known):
            raise ValueError("a weight of evidence needs rows of both labels in each bin")
        if self.missing is not None and not 0 <= self.missing < len(self.bins):
            raise ValueError("`missing` is not the number of a bin")
        return self

    @property
    @abstractmethod
    def labels(self) -> list[str]:
        """For each bin, the values in it, in words."""

    @abstractmethod
    def formula(self, values: Sequence[float], other: float) -> Formula:
        """Return the formula that gives each bin a value.

        Args:
            values: a value for each bin.
            other: the value of what belongs to no bin.
        """

    @property
    def n_positive(self) -> Counts | None:
        """Positive rows of each bin; None if they are not known."""
        counts = [each.n_positive for each in self.bins if each.n_positive is not None]
        return np.array(counts) if len(counts) == len(self.bins) else None

    @property
    def n_negative(self) -> Counts | None:
        """Negative rows of each bin; None if they are not known."""
        positive = self.n_positive
        return None if positive is None else np.array([each.n_rows for each in self.bins]) - positive

    @property
    def woe_values(self) -> FloatVector | None:
        """The WOE of each bin; None if the counts are not known, or a bin has rows of one label only."""
        positive, negative = self.n_positive, self.n_negative
        if positive is None or negative is None or min(positive.min(), negative.min()) < 1:
            return None
        return weight_of_evidence(positive, negative)

    @property
    def iv_parts(self) -> FloatVector | None:
        """Each bin's part of the information value; None where `woe_values` is."""
        positive, negative = self.n_positive, self.n_negative
        if self.woe_values is None or positive is None or negative is None:
            return None
        return information_values(positive, negative)

    def bin_scores(self, weights: Sequence[float]) -> list[float]:
        """Return the part of the score of each bin, from the weights of the terms."""
        if self.woe:
            values = self.woe_values
            return [] if values is None else [weights[0] * float(value) for value in values]
        of_bin = dict(zip(self._with_term, weights, strict=True))
        return [of_bin.get(place, 0.0) for place in range(len(self.bins))]

    @property
    def _with_term(self) -> list[int]:
        """The bins that have a term, without WOE: all but the largest, which is the reference."""
        largest = max(range(len(self.bins)), key=lambda each: (self.bins[each].n_rows, -each))
        return [each for each in range(len(self.bins)) if each != largest]

    @property
    def reference_name(self) -> str | None:
        """See the base. Bins with WOE have none."""
        if self.woe:
            return None
        (reference,) = {*range(len(self.bins))} - {*self._with_term}
        label: str = self.labels[reference]
        return label

    @property
    def terms(self) -> list[str]:
        """Names of the terms."""
        return [f"{self.name} WOE"] if self.woe else [self.labels[each] for each in self._with_term]

    @property
    def binary(self) -> list[bool]:
        """For each term, whether it is 0 or 1 in every row."""
        return [False] if self.woe else [True] * (len(self.bins) - 1)

    @property
    def standardised(self) -> list[bool]:
        """For each term, whether it is standardised. A term of 0 and 1 never is."""
        return [not each for each in self.binary]

    @property
    def formulas(self) -> list[Formula]:
        """For each term, how it follows from the sources. What belongs to no bin has a WOE of 0."""
        if self.woe:
            values = self.woe_values
            return [self.formula([] if values is None else values.tolist(), 0.0)]
        places = range(len(self.bins))
        return [self.formula([float(place == each) for place in places], 0.0) for each in self._with_term]


class BinnedNumber(BinnedColumn):
    """A column of numbers in bins."""

    kind: Literal["bins"] = "bins"
    bounds: list[FiniteFloat]
    """b_1 < ... < b_m. Bin 0 has the values below b_1, bin k those in [b_k, b_k+1), bin m the values from b_m on."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if not all(a < b for a, b in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError("the bounds of bins must rise")
        if len(self.bins) - len(self.bounds) not in (1, 2):
            raise ValueError(f"{len(self.bounds)} bounds do not make {len(self.bins)} bins")
        return self

    @property
    def labels(self) -> list[str]:
        """See the base."""
        return [f"{self.name} {each}" for each in _intervals(self.bounds)] + (
            [f"{self.name} is missing"] if len(self.bins) == len(self.bounds) + 2 else []
        )

    def formula(self, values: Sequence[float], other: float) -> Formula:
        """See the base."""
        pieces = tuple((value,) for value in values[: len(self.bounds) + 1])
        missing = other if self.missing is None else values[self.missing]
        return Filled(Piecewise(Number(self.name), tuple(self.bounds), pieces), missing)


class BinnedCategory(BinnedColumn):
    """A column of categories in groups."""

    kind: Literal["groups"] = "groups"
    text: CategoryColumn
    """How the column is read. Its terms are not used."""
    groups: dict[str, int]
    """The number of the bin of each category."""
    other: int | None = None
    """The number of the bin of rare categories; None if there were none. Categories that the training rows did not have
    belong to no bin then."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        numbers = [*self.groups.values(), *([] if self.other is None else [self.other])]
        if not all(0 <= each < len(self.bins) for each in numbers):
            raise ValueError("a category belongs to a bin that does not exist")
        return self

    @property
    def texts(self) -> tuple[CategoryColumn, ...]:
        """Those of the sources that are read as text."""
        return (self.text,)

    @property
    def labels(self) -> list[str]:
        """See the base."""
        named = [
            [category for category, group in self.groups.items() if group == each] for each in range(len(self.bins))
        ]
        if self.other is not None:
            named[self.other].append("(other)")
        if self.missing is not None:
            named[self.missing].append("(missing)")
        return [f"{self.name}={'|'.join(each)}" for each in named]

    def formula(self, values: Sequence[float], other: float) -> Formula:
        """See the base."""
        of_group = {category: values[group] for category, group in self.groups.items()}
        missing, rest = (other if each is None else values[each] for each in (self.missing, self.other))
        return Lookup(self.name, of_group, missing, rest)


AnyBinned = Annotated[BinnedNumber | BinnedCategory, Field(discriminator="kind")]


def _intervals(bounds: Sequence[float]) -> list[str]:
    if not bounds:
        return ["has a value"]
    inner = [f"in [{low:.6g}, {high:.6g})" for low, high in itertools.pairwise(bounds)]
    return [f"< {bounds[0]:.6g}", *inner, f">= {bounds[-1]:.6g}"]


# --- fine bins


@dataclass(frozen=True, eq=False)
class FineColumn:
    """A column in fine bins, which do not depend on labels."""

    name: str
    bins: FineBins
    codes: NDArray[np.uint8] = field(repr=False)
    """The fine bin of each training row, shape (n_train,)."""
    bounds: FloatVector = field(repr=False)
    """Of numbers: see `BinnedNumber`."""
    missing: int | None
    """The fine bin of missing values; None if there are none."""
    text: CategoryColumn | None = None
    """Of text: how it is read."""
    other: int | None = None
    """Of text: the fine bin of rare categories; None if there are none."""
    places: tuple[int, ...] = ()
    """Of text: the fine bin of each known category."""

    def positive(self, labels: FloatVector) -> Counts:
        """Return the number of positive rows of each fine bin.

        Args:
            labels: of the training rows, in {-1, +1}, shape (n_train,).
        """
        counts: Counts = np.bincount(self.codes[labels > 0], minlength=len(self.bins.n_rows))
        return counts

    def merged(self, groups: Sequence[int], n_positive: Counts | None, *, woe: bool) -> BinnedNumber | BinnedCategory:
        """Return the fitted column.

        Args:
            groups: the merged bin of each fine bin, as from `choose_groups`.
            n_positive: positive rows of each *merged* bin; None if they are not known.
            woe: whether its term is the WOE.

        Raises:
            ConstantError: all fine bins are merged into one, or a WOE needs labels that a bin does not have.
        """
        n_rows = sum_groups(np.array(self.bins.n_rows), groups)
        if len(n_rows) < 2:
            raise ConstantError(FEW_BINS)
        if n_positive is not None and woe and (n_positive.min() < 1 or (n_rows - n_positive).min() < 1):
            raise ConstantError("a bin with rows of one label only")
        positive: Sequence[int | None] = [None] * len(n_rows) if n_positive is None else n_positive.tolist()
        bins = [Bin(n_rows=rows, n_positive=each) for rows, each in zip(n_rows.tolist(), positive, strict=True)]
        missing, other = (None if each is None else groups[each] for each in (self.missing, self.other))
        if self.text is None:
            ends = [place for place in range(1, self.bins.n_present) if groups[place] != groups[place - 1]]
            bounds = [float(self.bounds[end - 1]) for end in ends]
            return BinnedNumber(name=self.name, bins=bins, missing=missing, woe=woe, bounds=bounds)
        of_categories = {category: groups[place] for category, place in zip(self.text.known, self.places, strict=True)}
        return BinnedCategory(
            name=self.name, bins=bins, missing=missing, woe=woe, text=self.text, groups=of_categories, other=other
        )


def divide(name: str, values: Column, config: ColumnBinning) -> FineColumn:
    """Divide a column into the fine bins from which its bins are made.

    Args:
        name: name of the column.
        values: its training rows, in memory.
        config: its settings; the method is not `none`.

    Raises:
        ConstantError: there are fewer than two bins.
    """
    if config.method == "supervised":
        return fit_fine(name, values, "quantile", MAX_FINE_BINS)
    if config.groups is not None and isinstance(values, Categories):
        fine = _fine_text(name, values, config.groups)
    else:
        by_rows: Literal["quantile", "width"] = "width" if config.method == "width" else "quantile"
        fine = fit_fine(name, values, config.bounds or by_rows, config.max_bins)
    return replace(fine, bins=replace(fine.bins, keep_from=_least_rows(config, len(values))))


def fit_fine(
    name: str, values: Column, method: Literal["quantile", "width"] | Sequence[float], max_bins: int
) -> FineColumn:
    """Divide a column into fine bins.

    Args:
        name: name of the column.
        values: its training rows, in memory.
        method: how numbers are divided, or the bounds at which they are.
        max_bins: the most bins, those of missing values and rare categories included for text. It has no effect on
            bounds.

    Raises:
        ConstantError: there are fewer than two bins.
    """
    if isinstance(values, Categories):
        return _fine_text(name, values, _frequent(values, max_bins))
    numbers = values[:]
    missing = np.isnan(numbers)
    present = numbers[~missing]
    if len(present) < MIN_ROWS:
        raise ConstantError(FEW_BINS)
    smallest, largest = float(present.min()), float(present.max())
    if method == "quantile":
        cuts = np.quantile(present, np.arange(1, max_bins) / max_bins)
    elif method == "width":
        cuts = np.linspace(smallest, largest, max_bins + 1)[1:-1]
    else:
        cuts = np.array(method, np.float64)
    bounds = np.unique(cuts)
    bounds = bounds[(bounds > smallest) & (bounds <= largest)]
    counts = np.bincount(np.searchsorted(bounds, present, side="right"), minlength=len(bounds) + 1)
    ends = merge_small(counts, None, MergeRule(MAX_FINE_BINS, MIN_ROWS))
    bounds = bounds[[end - 1 for end in ends[:-1]]]
    codes = np.searchsorted(bounds, numbers, side="right").astype(np.uint8)
    n_missing = int(np.count_nonzero(missing))
    return _fine(name, codes, missing if n_missing else None, len(bounds) + 1, bounds=bounds)


def _frequent(values: Categories, max_bins: int) -> list[list[str]]:
    """Return the most frequent categories, each as a group, in their order; there is one more bin for all others."""
    counts = _level_counts(values)
    frequent = np.flatnonzero(counts >= MIN_ROWS)
    frequent = np.sort(frequent[np.argsort(-counts[frequent], kind="stable")][: max_bins - 1])
    return [[values.levels[place]] for place in frequent]


def _level_counts(values: Categories) -> Counts:
    """Return the rows of each level."""
    counts: Counts = np.bincount(values.codes[:] + 1, minlength=len(values.levels) + 1)[1:]
    return counts


def _fine_text(name: str, values: Categories, groups: Sequence[Sequence[str]]) -> FineColumn:
    """Make a bin of each group of categories with enough rows, and one of all others."""
    counts = dict(zip(values.levels, _level_counts(values).tolist(), strict=True))
    sizes = [sum(counts.get(category, 0) for category in group) for group in groups]
    kept = [group for group, size in zip(groups, sizes, strict=True) if size >= MIN_ROWS]
    if not kept:
        raise ConstantError(FEW_BINS)
    bin_of = {category: number for number, group in enumerate(kept) for category in group}
    # The last place is that of the code -1, a missing value.
    place_of = np.array([*(bin_of.get(level, len(kept)) for level in values.levels), len(kept)], np.uint8)
    codes, missing = place_of[values.codes[:]], values.missing
    is_other = (codes == len(kept)) & ~missing
    n_other = int(np.count_nonzero(is_other))
    other: int | None = None
    if n_other >= MIN_ROWS:
        other = len(kept)
    elif n_other:
        other = int(np.argmax([size for size in sizes if size >= MIN_ROWS]))
        codes[is_other] = other
    text = CategoryColumn(
        name=name,
        reference=None,
        categories=list(bin_of),
        missing="other",
        other="reference",
        fractions=any(is_fraction(level) for level, count in counts.items() if count),
    )
    n_present = len(kept) + (n_other >= MIN_ROWS)
    fine = _fine(name, codes, missing if missing.any() else None, n_present, text=text, other=other)
    return replace(fine, places=tuple(bin_of.values()))


def _fine(
    name: str,
    codes: NDArray[np.uint8],
    missing: NDArray[np.bool_] | None,
    n_present: int,
    *,
    bounds: FloatVector | None = None,
    text: CategoryColumn | None = None,
    other: int | None = None,
) -> FineColumn:
    """Give missing values a bin of their own if they are many, and else the largest one."""
    place: int | None = None
    has_missing = False
    if missing is not None:
        has_missing = int(np.count_nonzero(missing)) >= MIN_ROWS
        place = n_present if has_missing else int(np.bincount(codes[~missing], minlength=n_present).argmax())
        codes[missing] = place
    n_rows = np.bincount(codes, minlength=n_present + has_missing)
    if len(n_rows) < 2:
        raise ConstantError(FEW_BINS)
    sizes = FineBins(tuple(n_rows.tolist()), ordered=text is None, has_missing=has_missing)
    return FineColumn(name, sizes, codes, np.zeros(0) if bounds is None else bounds, place, text, other)


def merge_rule(config: ColumnBinning, n_rows: int, min_of_label: int) -> MergeRule:
    """Return what merged bins need.

    Args:
        config: the settings of the column.
        n_rows: number of training rows.
        min_of_label: the fewest rows of each label.
    """
    return MergeRule(config.max_bins, _least_rows(config, n_rows), min_of_label)


def _least_rows(config: ColumnBinning, n_rows: int) -> int:
    """Return the fewest rows of a bin. Somebody who gives the bounds of the bins means them."""
    share = 0.0 if isinstance(config.method, list) else config.min_share
    return max(MIN_ROWS, math.ceil(round(share * n_rows, 6)))


def fit_bins(
    name: str, values: Column, config: ColumnBinning, labels: FloatVector | None
) -> BinnedNumber | BinnedCategory:
    """Fit a column in bins on a party's own labels, or without labels.

    Args:
        name: name of the column.
        values: its training rows, in memory.
        config: its settings; the method is not `none`.
        labels: of the training rows, in {-1, +1}; None at a party without labels.

    Raises:
        ConstantError: there are fewer than two bins.
    """
    fine = divide(name, values, config)
    positive = None if labels is None else fine.positive(labels)
    rule = merge_rule(config, len(values), 1 if config.needs_labels else 0)
    if config.method == "supervised" and positive is not None:
        groups = choose_groups(fine.bins, positive, rule)
    else:
        groups = keep_groups(fine.bins, positive if config.needs_labels else None, rule)
    return fine.merged(groups, None if positive is None else sum_groups(positive, groups), woe=config.woe)


Counted = Mapping[str, BinnedColumn]
"""Columns of a host that a bins job has counted, by name."""
