"""Fitting a party's columns on its training rows.

The parameters are those of scikit-learn's `SimpleImputer`, `StandardScaler` and `OneHotEncoder`, to the last bit. Here
they take a few lines of numpy each, while the import of scikit-learn takes a second and 75 MB.

A table may be larger than memory, but a column is not: medians and quantiles are exact, and each column is read as a
whole, one at a time.

A term that is 1 for a few rows only would make a gradient a sum over these rows, and a sum over one row is that row.
The same holds for a number that is equal in all rows but a few. `MIN_ROWS` excludes both.

Columns that say nothing, or that would say too much about a few rows, are left out, or refused if the settings say so.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows, blocks_of
from trilateral.common.base.errors import DataError
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.config.dataset import ColumnBinning, ColumnPreprocessing, PreprocessingConfig
from trilateral.common.data.features import Categories, Column, Features
from trilateral.common.data.preprocessing.bins import BinnedColumn, NoBinsError, fit_bins
from trilateral.common.data.preprocessing.terms import (
    MIN_ROWS,
    ROWS_AT_A_TIME,
    CategoryColumn,
    FittedColumn,
    NumberColumn,
    is_fraction,
)

_CONSTANT = 1e-12
"""A column counts as constant if its range is at most this share of its largest absolute value: rounding errors."""

_LARGEST_CORRECTION = 1e-10
"""The largest share of a variance by which it is corrected for the rounding error of the mean."""

N_PASSES = 4
"""How often the training rows are read, for reports of progress: to fit the columns, the means and scales, and the
directions, and to transform the rows."""

NO_VALUE = "no value in any training row"
SAME_VALUE = "the same value in all training rows"
TOO_RARE = f"the same value in all but fewer than {MIN_ROWS} training rows, so that training would reveal those rows"


class _UnusableError(Exception):
    """A column cannot be used, and the user must decide. The text continues the words "column 'name' has"."""


class _ConstantError(Exception):
    """A column has too few different values. The text continues the words "column 'name' has"."""


def fit_columns(
    features: Features,
    rows: Rows | None,
    config: PreprocessingConfig,
    *,
    labels: FloatVector | None = None,
    counted: Mapping[str, BinnedColumn] | None = None,
) -> tuple[tuple[FittedColumn, ...], dict[str, str]]:
    """Fit every column of the table on the training rows.

    Args:
        features: the table.
        rows: the training rows, in ascending order; None for all.
        config: the settings of the party.
        labels: of the training rows, in {-1, +1}; None at the host.
        counted: at the host, its columns in bins from a bins job, by name; None without such a job.

    Returns:
        The fitted columns, in the order of the table; and why the other columns are left out, by name.

    Raises:
        DataError: columns cannot be used; the text names all of them.
    """
    _check_names(features, config)
    columns: list[FittedColumn] = []
    constant: dict[str, list[str]] = {}
    unusable: dict[str, list[str]] = {}
    for number, (name, column) in enumerate(features.columns.items()):
        report_progress(Stage.PREPARING, number, N_PASSES * len(features.columns))
        values = _of_rows(column, rows)
        try:
            if config.binning is not None and config.binning.of_column(name).method != "none":
                columns.append(_fit_bins(name, values, config.binning.of_column(name), labels, counted))
            elif isinstance(values, Categories):
                columns.append(_fit_category(name, values, config.rare))
            else:
                columns.append(_fit_number(name, values[:], config.of_column(name)))
        except (_ConstantError, NoBinsError) as error:
            constant.setdefault(str(error), []).append(name)
        except _UnusableError as error:
            unusable.setdefault(str(error), []).append(name)
    refuse(unusable)
    if constant and config.constant == "refuse":
        exclude = "exclude it" if sum(map(len, constant.values())) == 1 else "exclude these columns"
        raise DataError(f"{_described(constant)}: {exclude}, or set `preprocessing.constant: exclude`")
    return tuple(columns), {name: what for what, names in constant.items() for name in names}


def no_feature(left_out: Mapping[str, str]) -> DataError:
    """Return the error for a model without any training column.

    Args:
        left_out: why columns of the table were left out, by name.
    """
    if not left_out:
        return DataError("the table has no features, so a model needs the intercept: remove `intercept: false`")
    reasons: dict[str, list[str]] = {}
    for name, what in left_out.items():
        reasons.setdefault(what, []).append(name)
    return DataError(
        f"no feature is left: {_described(reasons)}; add a column that varies, or choose other columns in `features`"
    )


def refuse(unusable: Mapping[str, list[str]]) -> None:
    """Raise one error for all unusable columns, so that a user can fix them all at once.

    Args:
        unusable: names of columns by what they have; a text that continues the words "column 'name' has".

    Raises:
        DataError: there is an unusable column.
    """
    if unusable:
        raise DataError(_described(unusable))


def _described(columns: Mapping[str, list[str]]) -> str:
    parts = []
    for what, names in columns.items():
        listed = ", ".join(map(repr, names))
        parts.append(f"each of the columns {listed} has {what}" if len(names) > 1 else f"column {listed} has {what}")
    return "; ".join(parts)


def _check_names(features: Features, config: PreprocessingConfig) -> None:
    for name in config.columns:
        if name not in features.columns:
            raise DataError(f"`preprocessing.columns` names {name!r}, which is not a feature")
        if isinstance(features[name], Categories):
            raise DataError(
                f"`preprocessing.columns` names {name!r}, which is categorical: its options are for numeric columns"
            )
    for name in config.binning.columns if config.binning is not None else ():
        if name not in features.columns:
            raise DataError(f"`preprocessing.binning.columns` names {name!r}, which is not a feature")


def _fit_bins(
    name: str,
    values: Column,
    config: ColumnBinning,
    labels: FloatVector | None,
    counted: Mapping[str, BinnedColumn] | None,
) -> BinnedColumn:
    """Fit a column in bins, or take it from a bins job, which has counted the labels in its bins."""
    if labels is not None or not config.needs_labels:
        return fit_bins(name, values, config, labels)
    if counted is None:
        raise _UnusableError(
            "bins that depend on labels, which this party does not have: name a bins job in"
            " `preprocessing.binning.job`, or set `method: quantile` and `woe: false`"
        )
    if name not in counted:
        raise _ConstantError("no bins in the bins job of `preprocessing.binning.job`")
    return counted[name].model_copy(update={"woe": config.woe})


def fit_scales(
    columns: tuple[FittedColumn, ...], features: Features, rows: Rows | None, *, centred: bool
) -> tuple[FloatVector, FloatVector]:
    """Fit the mean that is subtracted from each term and the scale that it is divided by.

    Args:
        columns: the columns, fitted on the same rows.
        features: the table.
        rows: the training rows, in ascending order; None for all.
        centred: whether to centre the terms that are not standardised, too.

    Returns:
        Means and scales, both of shape (n_terms,).

    Raises:
        DataError: a term that is neither standardised nor centred has a mean square above 1, or two terms have the
            same name.
    """
    names = [name for column in columns for name in column.terms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"several columns have a term with the same name, {twice[0]!r}: rename one of the columns")
    # Process one column at a time, because all terms of all rows take far more memory than the table.
    moments = []
    for number, column in enumerate(columns):
        report_progress(Stage.PREPARING, len(columns) + number, N_PASSES * len(columns))
        moments.append(_moments(column, {name: _of_rows(features[name], rows) for name in column.sources}))
    mean, variance = (np.concatenate(each) for each in zip(*moments, strict=True))
    standardised = np.array([each for column in columns for each in column.standardised], dtype=bool)
    if not centred:
        too_large = np.flatnonzero(~standardised & (np.square(mean) + variance > 1))
        if len(too_large):
            reason = (
                "a mean square above 1, which is not allowed for a column that is neither standardised nor whitened: "
                "change its unit, or remove `standardise: false`"
            )
            refuse({reason: [names[term] for term in too_large]})
    return np.where(standardised | centred, mean, 0.0), np.where(standardised, np.sqrt(variance), 1.0)


def _of_rows(column: Column, rows: Rows | None) -> Column:
    """Read the rows of a column into memory."""
    return column[:] if rows is None else column[rows]


def _moments(column: FittedColumn, sources: Mapping[str, Column]) -> tuple[FloatVector, FloatVector]:
    """Return the mean and variance of each term of a column, shape (n_column_terms,).

    Source of the variance of numbers: Chan, Golub and LeVeque (1983), Algorithms for Computing the Sample Variance,
    equation 1.7, the two-pass algorithm with a correction for the rounding error of the mean.
    """
    n_rows, n_terms = len(sources[column.sources[0]]), len(column.terms)
    if all(column.binary):
        share = _sum_over_rows(column, sources, ROWS_AT_A_TIME) / n_rows
        return share, share * (1 - share)
    # The terms of one block take no more memory than two columns.
    n_block_rows = max(2 * n_rows // n_terms, ROWS_AT_A_TIME)
    mean = _sum_over_rows(column, sources, n_block_rows) / n_rows
    correction, squares = np.zeros(n_terms), np.zeros(n_terms)
    for block in _blocks_of_terms(column, sources, n_block_rows):
        np.subtract(block, mean, out=block)
        correction += block.sum(axis=0)
        np.square(block, out=block)
        squares += block.sum(axis=0)
    correction = correction**2 / n_rows
    # If a column hardly varies for its size, the mean itself is not exact enough. The scale must then be that of the
    # differences from the mean that is subtracted, or their mean square would exceed 1.
    correction[correction > _LARGEST_CORRECTION * squares] = 0
    return mean, (squares - correction) / n_rows


def _sum_over_rows(column: FittedColumn, sources: Mapping[str, Column], n_block_rows: int) -> FloatVector:
    total = np.zeros(len(column.terms))
    for terms in _blocks_of_terms(column, sources, n_block_rows):
        total += terms.sum(axis=0)
    return total


def _blocks_of_terms(column: FittedColumn, sources: Mapping[str, Column], n_block_rows: int) -> Iterator[FloatMatrix]:
    for rows in blocks_of(len(sources[column.sources[0]]), n_block_rows):
        part = {name: values[rows] for name, values in sources.items()}
        terms: FloatMatrix = np.empty((rows.stop - rows.start, len(column.terms)), order="F")
        column.expand(part, terms)
        yield terms


# --- numbers


def _fit_number(name: str, values: FloatVector, config: ColumnPreprocessing) -> NumberColumn:
    missing = np.isnan(values)
    n_missing = int(np.count_nonzero(missing))
    if n_missing == len(values):
        raise _ConstantError(NO_VALUE)
    lower, upper = config.limits or (None, None)
    # Of a column of many rows, each array takes much memory. No array is made that is not needed.
    if config.limits is not None:
        values = values.clip(lower, upper)
    fill = _fit_fill(values[~missing] if n_missing else values, config)
    filled = np.where(missing, fill, values) if n_missing else values
    if config.limits is not None:
        filled = filled.clip(lower, upper)  # Only a constant fill can lie outside.
    smallest, largest = float(filled.min()), float(filled.max())
    if _is_constant(smallest, largest):
        raise _ConstantError(SAME_VALUE)
    quantiles = None if config.clip is None else _fit_clip(filled, config.clip)
    if quantiles is not None:
        lower, upper = quantiles
        filled = filled.clip(lower, upper)
    if _is_too_rare(filled):
        raise _ConstantError(TOO_RARE)
    indicator = config.missing_indicator and MIN_ROWS <= n_missing <= len(values) - MIN_ROWS
    variance = float(np.var(filled))
    if not math.isfinite(fill) or not math.isfinite(variance) or variance == 0:
        raise _UnusableError("values too large or too small to be squared: change its unit, or exclude it")
    return NumberColumn(
        name=name,
        fill=fill,
        lower=lower,
        upper=upper,
        missing_indicator=indicator,
        standardise=config.standardise,
    )


def _fit_fill(present: FloatVector, config: ColumnPreprocessing) -> float:
    if not isinstance(config.fill, str):
        return float(config.fill)
    return float(np.median(present) if config.fill == "median" else np.mean(present))


def _fit_clip(filled: FloatVector, quantiles: tuple[float, float]) -> tuple[float, float] | None:
    """Fit the clipping limits of a column; None if it is not clipped.

    A column of two values has no tail and is not clipped. If both quantiles are the most frequent value, the quantiles
    of the other values are used instead, because clipping must not make a column constant.
    """
    smallest, largest = float(filled.min()), float(filled.max())
    if ((filled == smallest) | (filled == largest)).all():
        return None
    lower, upper = (float(limit) for limit in np.quantile(filled, quantiles))
    if not _is_constant(*np.clip([smallest, largest], lower, upper)):
        return lower, upper
    values, counts = np.unique(filled, return_counts=True)
    usual = float(values[counts.argmax()])
    lower, upper = (float(limit) for limit in np.quantile(filled[filled != usual], quantiles))
    lower, upper = min(lower, usual), max(upper, usual)
    return None if _is_constant(*np.clip([smallest, largest], lower, upper)) else (lower, upper)


def _is_constant(smallest: float, largest: float) -> bool:
    """Return whether the values of a column, from its smallest to its largest, count as equal."""
    return bool(largest - smallest <= _CONSTANT * max(abs(smallest), abs(largest)))


def _is_too_rare(values: FloatVector) -> bool:
    """Return whether most values are equal and fewer than `MIN_ROWS` differ."""
    error = _CONSTANT * max(abs(values.min()), abs(values.max()))
    # If so, more than half of any 2 `MIN_ROWS` values are equal, and their median is one of them. This is fast to test,
    # and few columns pass.
    some = np.sort(values[: 2 * MIN_ROWS])
    n_equal = np.count_nonzero(np.abs(some - some[len(some) // 2]) <= 2 * error)
    if len(some) == 2 * MIN_ROWS and math.isfinite(error) and n_equal <= MIN_ROWS:
        return False
    # If more than half of the values are equal, so is the median.
    usual = np.partition(values, len(values) // 2)[len(values) // 2]
    distances = values - usual
    np.abs(distances, out=distances)
    n_others = int(np.count_nonzero(distances > error))
    return n_others < MIN_ROWS and 2 * n_others < len(values)


# --- categories


def _fit_category(name: str, values: Categories, rare: float) -> CategoryColumn:
    if values.missing.all():
        raise _ConstantError(NO_VALUE)
    least = max(MIN_ROWS, math.ceil(round(rare * len(values), 6)))
    n_missing, *counts = np.bincount(values.codes[:] + 1, minlength=len(values.levels) + 1).tolist()
    levels = {level: count for level, count in zip(values.levels, counts, strict=True) if count}
    frequent = {level: count for level, count in levels.items() if count >= least}
    if n_missing < least:
        n_missing = 0
    n_other = len(values) - sum(frequent.values()) - n_missing
    column = _choose_terms(name, frequent, n_missing, n_other, least)
    return column.model_copy(update={"fractions": any(map(is_fraction, levels))})


def _choose_terms(name: str, frequent: dict[str, int], n_missing: int, n_other: int, least: int) -> CategoryColumn:
    """Give each group of rows a term, except the largest. Of equal ones, the first here is the reference."""
    most = max([*frequent.values(), n_missing, n_other])
    reference = next((category for category, count in frequent.items() if count == most), None)
    missing_is_reference = reference is None and n_missing == most
    other_is_reference = reference is None and not missing_is_reference
    column = CategoryColumn(
        name=name,
        reference=reference,
        categories=[category for category in frequent if category != reference],
        missing="reference" if missing_is_reference else "term" if n_missing else "other",
        other="reference" if other_is_reference or n_other < MIN_ROWS else "term",
    )
    if not column.terms:
        raise _ConstantError(
            f"fewer than two categories with at least {least} training rows (see `preprocessing.rare`)"
        )
    return column
