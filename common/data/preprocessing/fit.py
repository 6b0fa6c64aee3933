"""Fitting a party's columns on its training rows.

The parameters are those of scikit-learn's `SimpleImputer`, `StandardScaler` and `OneHotEncoder`, to the last bit. Here
they take a few lines of numpy each, while the import of scikit-learn takes a second and 75 MB.

A table may be larger than memory, but a column is not: medians and quantiles are exact, and each column is read as a
whole, one at a time.

Columns that say nothing, or that would say too much about a few rows (`few_rows.py`), are left out, or refused if the
settings say so.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows, blocks_of
from trilateral.common.base.errors import DataError
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.config.dataset import (
    FOR_CATEGORIES,
    ColumnBinning,
    ColumnPreprocessing,
    PreprocessingConfig,
    SplineConfig,
    SplineKind,
    Transform,
)
from trilateral.common.data.features import Categories, Column, Features
from trilateral.common.data.preprocessing.bins import BinnedCategory, BinnedColumn, BinnedNumber, fit_bins
from trilateral.common.data.preprocessing.categories import fit_text
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS, Leverage, is_constant, is_too_rare, leverage
from trilateral.common.data.preprocessing.formulas import evaluate
from trilateral.common.data.preprocessing.interactions import product_of, without_small_cells
from trilateral.common.data.preprocessing.reasons import (
    NO_VALUE,
    SAME_VALUE,
    SHOWS_ROWS,
    TOO_RARE,
    ConstantError,
    UnusableError,
)
from trilateral.common.data.preprocessing.splines import make_spline
from trilateral.common.data.preprocessing.terms import (
    ROWS_AT_A_TIME,
    CategoryColumn,
    FittedColumn,
    InteractionColumn,
    NumberColumn,
)
from trilateral.common.data.preprocessing.transforms import fit_power, outside, transformed

_LARGEST_CORRECTION = 1e-10
"""The largest share of a variance by which it is corrected for the rounding error of the mean."""

_LEAST_DISTANCE = 1e-9
"""The least distance of two knots, as a share of that of the ends of the curve. Closer ones are rounding errors."""

N_PASSES = 4
"""How often the training rows are read, for reports of progress: to fit the columns, the means and scales, and the
directions, and to transform the rows."""


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
        The fitted columns, in the order of the table, and then the interactions; and why the other columns are left
        out, by name.

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
                columns.append(fit_text(name, values, config))
            else:
                columns.append(_fit_number(name, values[:], config.of_column(name)))
        except ConstantError as error:
            constant.setdefault(str(error), []).append(name)
        except UnusableError as error:
            unusable.setdefault(str(error), []).append(name)
    by_name = {column.name: column for column in columns}
    for pair in config.interactions:
        name = ":".join(pair)
        try:
            if not by_name.keys() >= {*pair}:
                raise ConstantError("a factor that is left out itself")
            sources = {each: _of_rows(features[each], rows) for each in pair}
            columns.append(_fit_interaction(name, by_name[pair[0]], by_name[pair[1]], sources))
        except ConstantError as error:
            constant.setdefault(str(error), []).append(name)
        except UnusableError as error:
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
            if not config.columns[name].suits_categories:
                raise DataError(f"`preprocessing.columns` names {name!r}, which is categorical: {FOR_CATEGORIES}")
        elif "encoding" in config.columns[name].model_fields_set:
            raise DataError(
                f"`preprocessing.columns` names {name!r}, which is numeric: `encoding` is for columns in `categorical`"
            )
    for one, other in config.interactions:
        for name in (one, other):
            if name not in features.columns:
                raise DataError(f"`preprocessing.interactions` names {name!r}, which is not a feature")
            if config.binning is not None and config.binning.of_column(name).method != "none":
                raise DataError(
                    f"`preprocessing.interactions` names {name!r}, which has bins: set `method: none` for it in"
                    " `preprocessing.binning.columns`"
                )
        if isinstance(features[one], Categories) and isinstance(features[other], Categories):
            raise DataError(
                f"`preprocessing.interactions` names {one!r} and {other!r}, which are both categorical: one of them"
                " must be a column of numbers"
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
        raise UnusableError(
            "bins that depend on labels, which this party does not have: name a bins job in"
            " `preprocessing.binning.job`, or set `method: quantile` and `woe: false`"
        )
    if name not in counted:
        raise ConstantError("no bins in the bins job of `preprocessing.binning.job`")
    found = counted[name]
    is_divided = False
    if isinstance(found, BinnedNumber) and config.bounds is not None:
        is_divided = not {*found.bounds} <= {*config.bounds}
    elif isinstance(found, BinnedCategory) and config.groups is not None:
        is_divided = any(len({found.groups.get(each) for each in group}) > 1 for group in config.groups)
    if is_divided:
        raise UnusableError(
            "other bins in `preprocessing.binning.columns` than in the bins job of `preprocessing.binning.job`: run a"
            " bins job again, and name that one"
        )
    return found.model_copy(update={"woe": config.woe})


def fit_scales(
    columns: tuple[FittedColumn, ...], features: Features, rows: Rows | None, *, centred: bool, whitened: bool
) -> tuple[FloatVector, FloatVector]:
    """Fit the mean that is subtracted from each term and the scale that it is divided by.

    Args:
        columns: the columns, fitted on the same rows.
        features: the table.
        rows: the training rows, in ascending order; None for all.
        centred: whether to centre the terms that are not standardised, too.
        whitened: whether the terms are whitened after that, which scales them.

    Returns:
        Means and scales, both of shape (n_terms,).

    Raises:
        DataError: a term that is neither standardised nor whitened has a mean square above 1, or two terms have the
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
    if not whitened:
        too_large = np.flatnonzero(~standardised & (np.square(0.0 if centred else mean) + variance > 1))
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
        raise ConstantError(NO_VALUE)
    lower, upper = config.limits or (None, None)
    # Of a column of many rows, each array takes much memory. No array is made that is not needed.
    if config.limits is not None:
        values = np.clip(values, lower, upper)
    fill = _fit_fill(values[~missing] if n_missing else values, config)
    filled = np.where(missing, fill, values) if n_missing else values
    if config.limits is not None:
        filled = np.clip(filled, lower, upper)  # Only a constant fill can lie outside.
    smallest, largest = float(filled.min()), float(filled.max())
    if is_constant(smallest, largest):
        raise ConstantError(SAME_VALUE)
    quantiles = None if config.clip is None else _fit_clip(filled, config.clip)
    if quantiles is not None:
        lower, upper = quantiles
        filled = filled.clip(lower, upper)
    if is_too_rare(filled):
        raise ConstantError(TOO_RARE)
    power = None
    if config.transform is not None:
        power = _fit_power(filled, config.transform)
        filled = transformed(filled, config.transform, power)
        if is_constant(float(filled.min()), float(filled.max())):
            raise ConstantError(SAME_VALUE)
    indicator = config.missing_indicator and MIN_ROWS <= n_missing <= len(values) - MIN_ROWS
    variance = float(np.var(filled))
    if not math.isfinite(fill) or not math.isfinite(variance) or variance == 0:
        raise UnusableError("values too large or too small to be squared: change its unit, or exclude it")
    column = NumberColumn(
        name=name,
        fill=fill,
        lower=lower,
        upper=upper,
        missing_indicator=indicator,
        standardise=config.standardise,
        transform=config.transform,
        power=power,
    )
    if config.spline is not None:
        knots = _inner_knots(filled, config.spline, column)
        column = _fit_spline(column, config.spline.kind, knots, filled, {name: values})
    if column.transform is not None and column.spline is None and _leverage(column, {name: values}).shows_rows:
        raise ConstantError(SHOWS_ROWS)
    return column


def _inner_knots(prepared: FloatVector, config: SplineConfig, column: NumberColumn) -> list[float]:
    """Return the knots between the ends of a spline, in units of the transformed values."""
    if isinstance(config.knots, int):
        knots = np.quantile(prepared, np.linspace(0, 1, config.knots + 2)[1:-1])
    elif column.transform is not None:
        knots = transformed(np.array(config.knots), column.transform, column.power)
    else:
        knots = np.array(config.knots)
    lowest, highest = float(prepared.min()), float(prepared.max())
    least = _LEAST_DISTANCE * (highest - lowest)
    inner: list[float] = []
    for knot in knots:
        if knot - (inner[-1] if inner else lowest) > least and highest - knot > least:
            inner.append(float(knot))
    return inner


def _fit_spline(
    column: NumberColumn, kind: SplineKind, inner: list[float], prepared: FloatVector, sources: Mapping[str, Column]
) -> NumberColumn:
    """Fit a spline without a combination of terms that a training row dominates.

    While there is such a row, or the rows have too few different values for so many terms, the knot next to the row
    with the largest leverage is left out. If no knot is left, the number is a term itself.

    Args:
        column: the column without a spline.
        kind: which spline.
        inner: the knots between the ends.
        prepared: the transformed values of the training rows.
        sources: the column of the table.
    """
    ends = float(prepared.min()), float(prepared.max())
    while inner or kind == "bspline":
        curved = column.model_copy(update={"spline": make_spline(kind, [ends[0], *inner, ends[1]])})
        found = _leverage(curved, sources)
        if found.rank == len(curved.terms) and not found.shows_rows:
            return curved
        if not inner:
            break
        at = float(prepared[found.row])
        inner.remove(min(inner, key=lambda knot: abs(knot - at)))
    return column


def _leverage(column: FittedColumn, sources: Mapping[str, Column]) -> Leverage:
    return leverage(lambda: _blocks_of_terms(column, sources, ROWS_AT_A_TIME))


def _fit_power(filled: FloatVector, transform: Transform) -> float | None:
    """Fit the power of a transform, if it has one, and check that the transform is defined for all values."""
    needed = outside(transform, float(filled.min()))
    if needed is not None:
        raise UnusableError(
            f"values for which `transform: {transform}` is not defined, which needs values {needed}: set `limits`, or"
            " use `transform: yeo_johnson`"
        )
    if transform != "yeo_johnson":
        return None
    power = fit_power(filled)
    if not math.isfinite(power):
        raise UnusableError("values to which `transform: yeo_johnson` cannot be fitted: choose another one")
    return power


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
    if not is_constant(*np.clip([smallest, largest], lower, upper)):
        return lower, upper
    values, counts = np.unique(filled, return_counts=True)
    usual = float(values[counts.argmax()])
    lower, upper = (float(limit) for limit in np.quantile(filled[filled != usual], quantiles))
    lower, upper = min(lower, usual), max(upper, usual)
    return None if is_constant(*np.clip([smallest, largest], lower, upper)) else (lower, upper)


# --- interactions


def _fit_interaction(
    name: str, one: FittedColumn, other: FittedColumn, sources: Mapping[str, Column]
) -> InteractionColumn:
    """Fit the product of two columns.

    Args:
        name: of the product.
        one: a fitted column.
        other: another one.
        sources: their columns of the table, all training rows.
    """
    number, other = (one, other) if isinstance(one, NumberColumn) else (other, one)
    if not isinstance(number, NumberColumn) or not isinstance(other, NumberColumn | CategoryColumn):
        raise UnusableError("a factor that is divided into bins or encoded as a number: remove the interaction")
    product = product_of(name, number, other)
    if isinstance(other, CategoryColumn):
        spread = without_small_cells(product, sources)
        if spread is None:
            raise ConstantError(SHOWS_ROWS)
        return spread
    values = evaluate(product.formulas[0], sources, {})
    if not math.isfinite(float(np.var(values))):
        raise UnusableError("values too large to be multiplied: change the unit of a factor, or exclude it")
    if is_constant(float(values.min()), float(values.max())):
        raise ConstantError(SAME_VALUE)

    def blocks() -> Iterator[FloatMatrix]:
        parts = (_blocks_of_terms(part, sources, ROWS_AT_A_TIME) for part in (product.number, product.other, product))
        return map(np.hstack, zip(*parts, strict=True))

    if leverage(blocks).shows_rows:
        raise ConstantError(SHOWS_ROWS)
    return product
