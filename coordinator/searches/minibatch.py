"""Training on mini-batches (sgd and sqn): epochs, the paper's stopping rule, and the return from divergence."""

import math
from collections import deque
from collections.abc import Generator, Sequence

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import WHOLE_SET, Batch
from trilateral.coordinator.optimisers.sgd import MinibatchOptimiser
from trilateral.coordinator.plan import Found, GivenUp, Observation, Probe, Search
from trilateral.coordinator.searches.early_stopping import EarlyStopping

MARGIN = math.log(2)
"""A loss this much above the lowest so far is divergence.

Every loss is positive, and the loss of a model without weights is log 2. So no model that is better than that one has
such a loss."""

MAX_RETURNS = 5
"""How often a training may go back to its best point. The rate is halved each time, down to a 32nd."""

BACK = "the loss left its range: back to the best point, learning rate halved"
DIVERGED_AGAIN = (
    f"the loss left its range {MAX_RETURNS + 1} times, although the learning rate was halved each time: "
    "set a much lower learning_rate in the job, or let each party clip and whiten its columns"
)
NO_RESULT = (
    "the trained model takes values out of range on the whole training set: "
    "set a lower learning_rate in the job, or let each party clip and whiten its columns"
)


def minibatch_search(
    optimiser: MinibatchOptimiser, job: JobConfig, start: FloatVector, n_batches: int, *, is_weighted: bool = False
) -> Search:
    """Take one step per batch until the mean loss of an epoch is within the tolerance of the previous epoch's.

    The result is the last point or the mean of the last epoch's points, whichever has the lower loss on the whole
    training set. The mean is free of the noise that a constant learning rate leaves in the last point.

    A round diverges if a value is out of range, or if its loss is not finite or more than log 2 above the lowest so
    far. Then the search returns to the point of the lowest loss, halves the learning rate, clears the optimiser's
    memory, and continues with the next batch. An epoch in which that happens is not compared with its neighbours, and
    the round's evaluation on the hold-out rows is ignored.

    With sample weights, the loss of a batch also depends on how much weight its rows have. There the mean loss of as
    many rounds as an epoch has batches takes the place of the round's loss. Losses are positive, so while there are
    fewer rounds, their sum divided by that number is at most the mean.

    Args:
        optimiser: chooses the steps.
        job: the job's settings.
        start: the first point, shape (n_columns,), with the columns of both parties.
        n_batches: batches in an epoch.
        is_weighted: whether samples have weights.
    """
    stopping = EarlyStopping(job)
    point = best_point = start
    window = n_batches if is_weighted else 1
    recent: deque[float] = deque(maxlen=window)
    best_loss = math.inf if window == 1 else MARGIN  # The loss of a model without weights.
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
            recent.append(math.nan if seen is None else seen.loss)
            level = math.fsum(recent) / window
            if seen is None or seen.gradient is None or not seen.is_finite or level > best_loss + MARGIN:
                returns += 1
                if returns > MAX_RETURNS:
                    return GivenUp(DIVERGED_AGAIN)
                optimiser.restart()
                recent.clear()
                point, note = best_point, BACK
                losses, points = [], []
                continue
            stopping.record(evaluate, seen, loss=seen.loss, epochs=epoch - 1)
            if stopping.is_over:
                break
            losses.append(seen.loss)
            points.append(point)
            if level < best_loss and len(recent) == window:
                best_loss, best_point = level, point
            point = point - optimiser.step(k, seen.gradient, seen.curvature)
        mean = float(np.mean(losses)) if len(losses) == n_batches else None
        converged = mean is not None and last_mean is not None and abs(mean - last_mean) < job.tolerance
        last_mean = mean
    reason = (
        f"the mean loss of an epoch changed by less than {job.tolerance:g}"
        if converged
        else f"the training reached its limit of {job.epochs} epochs"
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
