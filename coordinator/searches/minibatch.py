"""Training on mini-batches (sgd and sqn): epochs, the paper's stop, and the way back from divergence."""

import math
from collections.abc import Generator, Sequence

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import WHOLE_SET, Batch
from trilateral.coordinator.optimisers.minibatch import MinibatchOptimiser
from trilateral.coordinator.plan import Found, GivenUp, Observation, Probe, Search
from trilateral.coordinator.searches.early_stopping import EarlyStopping

MARGIN = math.log(2)
"""A loss this much above the least so far is divergence: the loss at the origin is log 2, and the least possible
positive, so no model better than none gets there."""

MAX_RETURNS = 5
"""How often a training goes back to its best point; with the rate halved each time, 32 times less is the last try."""

BACK = "the loss left its range: back to the best point, learning rate halved"
DIVERGED_AGAIN = (
    f"the loss left its range {MAX_RETURNS + 1} times, although the learning rate was halved after each of them: "
    "set a much lower learning_rate in the job, or let each party clip and whiten its columns"
)
NO_RESULT = (
    "the trained model takes values out of range on the whole training set: "
    "set a lower learning_rate in the job, or let each party clip and whiten its columns"
)


def minibatch_search(optimiser: MinibatchOptimiser, job: JobConfig, n_columns: int, n_batches: int) -> Search:
    """Take a step a batch until the mean loss of an epoch is within the tolerance of the last one's.

    The result is the last point or the mean of the last epoch's points, w_k of its rounds,
    whichever has the lower loss on the whole training set: the mean is free of the noise
    that a constant learning rate leaves in the last point.

    A round is divergence if a value was out of range, or if its loss is not finite or more than
    log 2 above the least so far. Then the search returns to the point of the least loss with
    half the learning rate and an optimiser that remembers nothing, and goes on with the next
    batch. An epoch in which that happened is not compared with its neighbours. What such a round would have
    shown of the hold-out rows is not looked at.
    """
    stopping = EarlyStopping(job)
    point = best_point = np.zeros(n_columns)
    best_loss = math.inf
    last_mean: float | None = None
    returns = 0
    note = None
    converged = False
    epoch = k = 0
    while epoch < job.epochs and not converged and not stopping.is_over:
        epoch += 1
        losses: list[float] = []
        points: list[FloatVector] = []
        for index in range(n_batches):
            k += 1
            direction = optimiser.direction(point)
            evaluate = point if index == 0 and stopping.is_due(epoch) else None
            seen = yield Probe(point, Batch(epoch, index), direction=direction, note=note, evaluate=evaluate)
            note = None
            if seen is None or seen.gradient is None or not seen.is_finite or seen.loss > best_loss + MARGIN:
                returns += 1
                if returns > MAX_RETURNS:
                    return GivenUp(DIVERGED_AGAIN)
                optimiser.restart()
                point, note = best_point, BACK
                losses, points = [], []
                continue
            stopping.take(evaluate, seen, loss=seen.loss, epochs=epoch - 1)
            if stopping.is_over:
                break
            losses.append(seen.loss)
            points.append(point)
            if seen.loss < best_loss:
                best_loss, best_point = seen.loss, point
            point = point - optimiser.step(k, seen.gradient, seen.curvature)
        mean = float(np.mean(losses)) if len(losses) == n_batches else None
        converged = mean is not None and last_mean is not None and abs(mean - last_mean) < job.tolerance
        last_mean = mean
    reason = (
        f"the mean loss of an epoch changed by less than {job.tolerance:g}"
        if converged
        else f"the most epochs, {job.epochs}, were reached"
    )
    candidates = [point, np.mean(points, axis=0)] if points else [point]
    if stopping.result is not None:
        candidates = [stopping.result.point]
    whole_set_losses = yield from _losses_on_whole_set(candidates, note)
    least = int(np.argmin(whole_set_losses))
    if math.isinf(whole_set_losses[least]):
        return GivenUp(NO_RESULT)
    loss, reason = whole_set_losses[least], stopping.reason(reason)
    return Found(candidates[least], loss, epoch, converged=converged or stopping.is_over, reason=reason)


def _losses_on_whole_set(
    points: Sequence[FloatVector], note: str | None
) -> Generator[Probe, Observation | None, list[float]]:
    losses = []
    for point in points:
        seen = yield Probe(point, WHOLE_SET, gradient=False, note=note)
        note = None
        losses.append(seen.loss if seen is not None and seen.is_finite else math.inf)
    return losses
