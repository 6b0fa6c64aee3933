"""Cross-validation of penalties in one job: fits without each fold, their losses on it, and a last fit on all rows.

For each fold, the fits go along the penalties from strong to weak, each from the result of the one before. All fits of
the job share what they learn about the curvature; see `optimisers.proximal`.
"""

import math
from collections.abc import Sequence

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.config.job import JobConfig, Penalty
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import ComparedPenalty
from trilateral.coordinator.optimisers.elastic_net import ElasticNet
from trilateral.coordinator.optimisers.proximal import Curvature, ProximalNewton, Start
from trilateral.coordinator.plan import Found, GivenUp, Probe, Search
from trilateral.coordinator.searches.full_batch import full_batch_search

NO_LOSS = "no penalty has a loss on every fold: values are out of range there; set stronger penalties"


class Fits:
    """The fits of one job, and what they share.

    Args:
        job: the job's settings.
        diagonal: of P, shape (n_columns,).
        gradient_error: standard deviation of the rounding error of a component of a gradient over all training rows.
    """

    def __init__(self, job: JobConfig, diagonal: FloatVector, gradient_error: float) -> None:
        self._job = job
        self._diagonal = diagonal
        self._error = gradient_error
        self._curvature = Curvature(len(diagonal), job.algorithm.memory if job.algorithm.name == "lbfgs" else 1)

    def optimiser(self, penalty: Penalty, start: Start | None = None, share: float = 1.0) -> ProximalNewton:
        """Return the optimiser of a fit.

        Args:
            penalty: of the fit.
            start: where it begins; None for w = 0.
            share: of the training rows that the fit is on. The parties drop the same bits from every sum.
        """
        return ProximalNewton(
            ElasticNet.of(penalty, self._diagonal),
            self._curvature,
            intercept=self._job.intercept,
            gradient_error=self._error / share,
            start=start,
        )

    def of_features(self, point: FloatVector) -> FloatVector:
        """Return the weights of features, without the intercept."""
        return point[:-1] if self._job.intercept else point

    def search(self, optimiser: ProximalNewton, fold: int = 0) -> Search:
        """Fit on the rows outside of a fold, or on all rows; without a round if the fit begins at its minimum."""
        if optimiser.gap <= self._job.tolerance:
            point, loss = optimiser.result
            return Found(point, loss, 0, converged=True, reason="the fit began within the tolerance of its minimum")
        return (yield from full_batch_search(optimiser, self._job, fold))


def cross_validated_search(job: JobConfig, fits: Fits, fold_sizes: Sequence[int]) -> Search:
    """Choose the penalty by its mean loss or AUC on the folds, then fit all training rows with it.

    Args:
        job: the job's settings.
        fits: makes and leads the fits.
        fold_sizes: rows of each fold.
    """
    penalties, n_train = job.penalties, sum(fold_sizes)
    losses: FloatMatrix = np.full((len(penalties), len(fold_sizes)), math.inf)
    areas = losses.copy()
    """1 - AUC, of which less is better as well."""
    n_terms = np.zeros(len(penalties))
    means: list[FloatVector] = []
    first: Start | None = None
    for fold, size in enumerate(fold_sizes, 1):
        start, share = first, 1 - size / n_train
        for number, penalty in enumerate(penalties):
            optimiser = fits.optimiser(penalty, start, share)
            found = yield from fits.search(optimiser, fold)
            if isinstance(found, GivenUp):
                return found
            start = optimiser.end
            if number == 0:
                first = Start(found.point)
            part = found.point * (size / n_train)
            if fold == 1:
                means.append(part)
            else:
                means[number] = means[number] + part
            n_terms[number] += np.count_nonzero(fits.of_features(found.point)) / len(fold_sizes)
            batch = Batch(max(found.epochs, 1), fold=fold, held_out=True)
            seen = yield Probe(found.point, batch, gradient=False, reached=found.loss)
            if seen is not None and seen.is_finite:
                losses[number, fold - 1] = seen.loss
                areas[number, fold - 1] = 1 - (seen.auc or 0)
    by_auc = job.choose == "auc"
    mean, error = mean_and_error(losses, fold_sizes)
    area, area_error = mean_and_error(areas, fold_sizes)
    if not np.isfinite(mean).any():
        return GivenUp(NO_LOSS)
    measured = (area, area_error) if by_auc else (mean, error)
    chosen = choose(*measured, one_standard_error=job.one_standard_error)
    found = yield from fits.search(fits.optimiser(penalties[chosen], Start(means[chosen])))
    if isinstance(found, GivenUp):
        return found
    table = [
        ComparedPenalty(
            each.l1,
            each.l2,
            float(mean[i]) if np.isfinite(mean[i]) else None,
            float(error[i]) if np.isfinite(mean[i]) else None,
            float(1 - area[i]) if by_auc and np.isfinite(mean[i]) else None,
            float(area_error[i]) if by_auc and np.isfinite(mean[i]) else None,
            float(n_terms[i]),
            is_chosen=i == chosen,
        )
        for i, each in enumerate(penalties)
    ]
    return Found(found.point, found.loss, found.epochs, found.converged, found.reason, table)


def mean_and_error(losses: FloatMatrix, fold_sizes: Sequence[int]) -> tuple[FloatVector, FloatVector]:
    """Return the mean loss of each penalty over the folds, and its standard error; or that of 1 - AUC.

    Folds weigh by their rows, as in R's glmnet: the variance of the mean is the weighted variance of the folds' losses,
    divided by the number of folds less 1.

    Args:
        losses: infinite where a fit has none, shape (n_penalties, n_folds).
        fold_sizes: rows of each fold.
    """
    weights = np.asarray(fold_sizes, dtype=np.float64) / sum(fold_sizes)
    mean: FloatVector = losses @ weights
    with np.errstate(invalid="ignore"):
        variance = np.square(losses - mean[:, np.newaxis]) @ weights / (len(fold_sizes) - 1)
    return mean, np.sqrt(np.where(np.isfinite(mean), variance, math.inf))


def choose(mean: FloatVector, error: FloatVector, *, one_standard_error: bool) -> int:
    """Return the number of the penalty to take: of the lowest loss, or the strongest within one standard error of it.

    Args:
        mean: mean losses, the strongest penalty first, shape (n_penalties,).
        error: their standard errors.
        one_standard_error: which rule to apply.
    """
    best = int(np.argmin(mean))
    return int(np.argmax(mean <= mean[best] + error[best])) if one_standard_error else best
