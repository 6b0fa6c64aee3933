"""Two models side by side: their weights, and how they rank the same rows."""

import math
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatArray, FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.model.distributions import NumberDistribution, psi
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.reasons import Places
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.tables.id_list import Ids

_Z95 = 1.959963984540054
"""The quantile of the normal distribution at 0.975."""


@dataclass(frozen=True)
class TermPair:
    """A term of two models, by its weights of the standardised values; None in a model that lacks the term."""

    term: str
    first: float | None
    second: float | None

    @property
    def difference(self) -> float | None:
        """The second weight minus the first."""
        return None if self.first is None or self.second is None else self.second - self.first


@dataclass(frozen=True)
class AucComparison:
    """The AUC of two models on the same rows."""

    first: float
    """AUC of the first model."""
    second: float
    """AUC of the second model."""
    error: float
    """Standard error of the difference; 0 if both models rank all pairs of rows equally."""
    n_rows: int
    n_positive: int

    @property
    def difference(self) -> float:
        """The second AUC minus the first."""
        return self.second - self.first

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of 95% of the difference."""
        return self.difference - _Z95 * self.error, self.difference + _Z95 * self.error

    @property
    def z(self) -> float:
        """The difference in standard errors; 0 if both models rank all pairs of rows equally."""
        return self.difference / self.error if self.error else 0.0

    @property
    def p_value(self) -> float:
        """The probability of so large a difference, in either direction, if both models are equally good."""
        return math.erfc(abs(self.z) / math.sqrt(2))


@dataclass(frozen=True)
class OwnScores:
    """How two models score the rows of a table by the columns of one party alone."""

    n_rows: int
    psi: float
    """PSI of the second model's part of the score against the first model's."""
    correlation: float | None
    """Pearson's correlation of both parts of the score; None if one of them is the same in all rows."""


def pair_terms(first: PartyModel, second: PartyModel) -> list[TermPair]:
    """Return the terms of both models by importance: by the largest weight in either model, the largest first.

    Raises:
        DataError: the models are parts of different parties.
    """
    _check_party(first, second)
    a, b = first.standardised_weights, second.standardised_weights
    pairs = [TermPair(term, a.get(term), b.get(term)) for term in dict.fromkeys([*a, *b])]
    return sorted(pairs, key=lambda each: max(abs(each.first or 0.0), abs(each.second or 0.0)), reverse=True)


def remarks_on(first: PartyModel, second: PartyModel) -> list[str]:
    """Return what makes weights of two models of one party incomparable, as sentences for people."""
    remarks = []
    losses = first.job.loss_name, second.job.loss_name
    if losses[0] != losses[1]:
        remarks.append(
            f"The first model minimises the {losses[0]} and the second the {losses[1]}: the sizes of their weights"
            " cannot be compared."
        )
    before = _references(first)
    for column, reference in _references(second).items():
        if before.get(column, reference) != reference:
            remarks.append(
                f"The terms of {column!r} compare with {before[column]} in the first model and with {reference} in the"
                " second: their weights cannot be compared one by one."
            )
    return remarks


def _references(model: PartyModel) -> dict[str, str]:
    return {each.name: each.reference_name for each in model.steps.columns if each.reference_name is not None}


def score_psi(first: FloatVector, second: FloatVector) -> float:
    """Return the PSI of the second model's scores against the first model's, of the same rows.

    The bounds of the groups lie between scores of the first model. A scorecard gives many rows the same score: on a
    bound, all of them would change the group with the last digit of a weight.

    Args:
        first: scores by the first model, whose deciles are the groups; shape (n_rows,).
        second: scores by the second model, shape (n_rows,).
    """
    deciles, values = NumberDistribution.of(first), np.unique(first)
    places = np.searchsorted(values, deciles.bounds)
    between = np.unique((values[places] + values[places + 1]) / 2)
    counts = [np.bincount(np.searchsorted(between, each), minlength=len(between) + 1) for each in (first, second)]
    return psi(*counts)


def compare_own_scores(first: PartyModel, second: PartyModel, dataset: DatasetConfig) -> OwnScores:
    """Compare two of a party's parts of a score on the rows of a table. No other party is needed.

    Args:
        first: a model of one score.
        second: another one, of the same party. It may have other columns.
        dataset: the settings of the table. Only the ID and the features of the models are read.

    Raises:
        DataError: the models are parts of different parties, or the table cannot be used.
    """
    _check_party(first, second)
    a, b = _own_scores(first, dataset), _own_scores(second, dataset)
    is_constant = min(float(np.ptp(a)), float(np.ptp(b))) == 0
    return OwnScores(len(a), score_psi(a, b), None if is_constant else float(np.corrcoef(a, b)[0, 1]))


def _own_scores(model: PartyModel, dataset: DatasetConfig) -> FloatVector:
    """Return a party's part of the score of each row, in the order of the table; shape (n_rows,)."""
    rows = _Scores()
    score_table(model, dataset, rows, lambda _: None)
    return np.concatenate(rows.parts)


class _Scores:
    """Takes the scores of a table; see `ScoreSink`."""

    def __init__(self) -> None:
        self.parts: list[FloatArray] = []

    @property
    def n_ids(self) -> int:
        return sum(map(len, self.parts))

    def add(self, ids: Ids, written: Ids, scores: FloatArray, reasons: Places | None) -> None:
        del ids, written, reasons
        self.parts.append(scores)

    def finish(self) -> None:
        """Nothing is left to do."""


def _check_party(first: PartyModel, second: PartyModel) -> None:
    if first.role is not second.role:
        raise DataError(
            f"the first model is the {first.role}'s part, and the second is the {second.role}'s: compare two parts of"
            " your own organisation"
        )


def compare_auc(first: FloatVector, second: FloatVector, labels: FloatVector) -> AucComparison:
    """Compare the AUC of two models by DeLong's test, which allows for the correlation of their scores.

    The placement of a positive row is the share of negative rows with a lower score, ties counting half; that of a
    negative row, the share of positive rows with a higher one. The AUC is the mean placement of either kind, and its
    covariance is that of the placements over their numbers. Sources: DeLong, DeLong and Clarke-Pearson (1988),
    Comparing the Areas under Two or More Correlated Receiver Operating Characteristic Curves, equation 5; Sun and Xu
    (2014), Fast Implementation of DeLong's Algorithm, for placements by ranks.

    Args:
        first: scores by the first model, shape (n_rows,).
        second: scores by the second model, shape (n_rows,).
        labels: -1 or +1, shape (n_rows,).

    Raises:
        DataError: there are fewer than two rows of a label.
    """
    positive = labels > 0
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if min(n_positive, n_negative) < 2:
        raise DataError("a comparison of the AUC needs two rows of each label")
    of_positive, of_negative = np.empty((2, n_positive)), np.empty((2, n_negative))
    for model, scores in enumerate((first, second)):
        ranks = _midranks(scores)
        of_positive[model] = (ranks[positive] - _midranks(scores[positive])) / n_negative
        of_negative[model] = 1 - (ranks[~positive] - _midranks(scores[~positive])) / n_positive
    covariance = np.cov(of_positive) / n_positive + np.cov(of_negative) / n_negative
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    areas = of_positive.mean(axis=1)
    # Equal rankings leave a variance of rounding errors.
    is_equal = bool((of_positive[0] == of_positive[1]).all() and (of_negative[0] == of_negative[1]).all())
    return AucComparison(
        float(areas[0]), float(areas[1]), 0.0 if is_equal else math.sqrt(max(variance, 0.0)), len(labels), n_positive
    )


def _midranks(values: FloatVector) -> FloatVector:
    """Return the rank of each value from 1, equal values sharing the mean of their ranks; shape (n_values,)."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks: FloatVector = middle[places]
    return ranks
