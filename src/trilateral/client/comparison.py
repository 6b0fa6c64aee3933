"""Models in use and their comparison, on rows in memory; see docs/models-in-use.md."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from trilateral.client.errors import wrong_type
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import Counted, DataError
from trilateral.common.data.model import calibration_drift as by_labels
from trilateral.common.data.model.comparison import AucComparison, compare_auc, score_psi
from trilateral.common.data.model.distributions import Distributions, Shift, ShiftCounter, chance_psi
from trilateral.common.data.model.scoring import count_shift

if TYPE_CHECKING:
    from trilateral.common.config.dataset import DatasetConfig
    from trilateral.common.data.model.calibration_drift import CalibrationDrift
    from trilateral.common.data.model.model_file import PartyModel


@dataclass(frozen=True)
class Stability:
    """How far the scores of some rows have shifted.

    Attributes:
        psi: population stability index of the scores against those of the hold-out rows.
        by_chance: its mean for so many rows if nothing has shifted.
        n_rows: number of rows.
        n_holdout: number of hold-out rows.
    """

    psi: float
    by_chance: float
    n_rows: int
    n_holdout: int


@dataclass(frozen=True)
class ScoreComparison:
    """How two models score the same rows.

    Attributes:
        psi: population stability index of the second scores against the first.
        auc: both AUC, and DeLong's test of their difference; None without labels.
    """

    psi: float
    auc: AucComparison | None


def shift_of_table(model: "PartyModel", dataset: "DatasetConfig") -> pd.DataFrame:
    """Compare the columns of a table with the training rows; see `shift_frame`.

    Raises:
        DataError: the model file has no distributions, or the table cannot be used.
    """
    distributions = model.known_distributions
    counter = ShiftCounter(distributions)
    count_shift(model, dataset, counter)
    return shift_frame(distributions, counter.shift)


def shift_frame(distributions: Distributions, shift: Shift) -> pd.DataFrame:
    """Return the CSI of each column and its mean by chance, the largest first."""
    chance = [chance_psi(distributions.columns[name].counts, shift.n_rows) for name in shift.csi]
    index = pd.Index([*shift.csi], name="column")
    table = pd.DataFrame({"csi": [*shift.csi.values()], "by_chance": chance}, index=index, dtype=np.float64)
    return table.sort_values("csi", ascending=False, kind="stable")


def numbers_of(values: "pd.Series[Any]", name: str) -> FloatVector:
    """Return the values of a Series as numbers, NaN where one is missing.

    Raises:
        DataError: a value is not a number. The text does not quote it.
    """
    try:
        return values.to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        raise DataError(f"`{name}` has values that are not numbers") from None


def calibration_drift(
    probabilities: "pd.Series[float]", labels: "pd.Series[bool]", *, threshold: float = 0.5
) -> "CalibrationDrift":
    """Compare probabilities of scored rows with their labels, once these are known.

    Args:
        probabilities: of the positive label, or of one class, such as the column `probability` of a prediction.
        labels: whether each row has the label or class, also as 0 and 1, or -1 and 1. The index is that of the rows, in
            any order; labels of further rows do not count.
        threshold: rows with a higher probability count as positive, in the accuracy.

    Returns:
        Quality figures, the calibration intercept and slope with their intervals, and the Hosmer-Lemeshow test. All
        figures of the ranking are those of the probabilities.

    Raises:
        DataError: an index lacks rows or repeats an entry, or a value is missing, no probability or no label.
        TypeError: an argument is not a Series.

    Example:
        >>> scores = prediction.scores.set_index("id")  # doctest: +SKIP
        >>> trilateral.calibration_drift(scores["probability"], outcomes["left"]).ratio  # doctest: +SKIP
    """
    p = _numbers(probabilities, "probabilities")
    if not ((p >= 0) & (p <= 1)).all():
        raise DataError("`probabilities` has values outside 0 to 1")
    signs = _signs(labels, probabilities)
    odds = by_labels.log_odds_of(p)
    return by_labels.calibration_drift(odds, odds, signs, threshold)


def compare_scores(
    first: "pd.Series[float]", second: "pd.Series[float]", labels: "pd.Series[bool] | None" = None
) -> ScoreComparison:
    """Compare how two models score the same rows.

    Args:
        first: scores by the first model, such as the column `score` of a prediction, with the IDs as index.
        second: scores of the same rows by the second model, with the same index in any order.
        labels: whether each row has the positive label, with the same index in any order.

    Further rows of `second` and `labels` do not count.

    Raises:
        DataError: an index lacks rows of `first` or repeats an entry, a value is missing, or there are fewer than two
            rows of a label.
        TypeError: an argument is not a Series.
    """
    a = _numbers(first, "first")
    b = _numbers(_aligned(second, first, "second"), "second")
    return ScoreComparison(score_psi(a, b), None if labels is None else compare_auc(a, b, _signs(labels, first)))


def _signs(labels: "pd.Series[bool]", rows: "pd.Series[float]") -> FloatVector:
    numbers = _numbers(_aligned(labels, rows, "labels"), "labels")
    if not any(np.isin(numbers, [negative, 1]).all() for negative in (0, -1)):
        raise DataError(
            "`labels` has values other than True and False, 0 and 1, or -1 and 1: give True for the rows with the label"
        )
    return np.where(numbers > 0, 1.0, -1.0)


def _aligned(values: "pd.Series[Any]", rows: "pd.Series[float]", name: str) -> "pd.Series[Any]":
    """Return the values of the rows, in their order. Values of further rows do not count."""
    if not isinstance(values, pd.Series):
        raise wrong_type(name, "a pandas Series with the IDs of the rows as index", values)
    if values.index.has_duplicates or rows.index.has_duplicates:
        raise DataError(f"the index of `{name}` or of the scores repeats an entry: give each row once")
    if n_lacking := int((~rows.index.isin(values.index)).sum()):
        raise DataError(
            f"`{name}` lacks {Counted(n_lacking):row|rows} of {len(rows):,}: use the IDs as the index of both, and"
            " leave out rows that are not in both"
        )
    return values.reindex(rows.index)


def _numbers(values: "pd.Series[Any]", name: str) -> FloatVector:
    if not isinstance(values, pd.Series):
        raise wrong_type(name, "a pandas Series with the IDs of the rows as index", values)
    numbers = numbers_of(values, name)
    if not len(numbers) or not np.isfinite(numbers).all():
        raise DataError(f"`{name}` has no rows, misses some of the rows, or has values that are not finite")
    return numbers
