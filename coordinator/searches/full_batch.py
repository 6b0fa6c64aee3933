"""Training on the whole training set with exact steps (lbfgs): one gradient per round, no learning rate."""

import math

from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batch
from trilateral.coordinator.optimisers.lbfgs import Lbfgs
from trilateral.coordinator.plan import Found, GivenUp, Probe, Search
from trilateral.coordinator.searches.early_stopping import EarlyStopping

MAX_CUTS = 5
"""How often a training may bring a trial point closer to the base point. The last try is 8^5 times closer."""

CUT = "a value was out of range: the trial step is cut to an eighth"
OUT_OF_RANGE = "values are out of range even after very short steps: let each party clip and whiten its columns"


def full_batch_search(optimiser: Lbfgs, job: JobConfig) -> Search:
    """Move the base point until its loss is estimated to be within the tolerance of the minimum.

    Each round is an epoch. The search stops when `Lbfgs.gap` is within the tolerance. The paper stops on the decrease
    of the loss. That decrease is known only after the round that made it, which costs one more round when convergence
    is fast. When convergence is slow, the gap is overestimated. In that case two rounds that together gain less than
    the tolerance are enough to stop; a single such round may be a plateau of conjugate gradients. The loss of the
    result needs no round: it is the value of the quadratic itself.

    A high loss at a trial point is not divergence, because the step that follows is exact. The hold-out rows are
    evaluated at the base point, not at the trial point, and only once the base point has left the start.

    Args:
        optimiser: at the start.
        job: the job's settings.
    """
    stopping = EarlyStopping(job)

    def found(epoch: int, reason: str, *, converged: bool) -> Found:
        best = stopping.result
        point, loss = (optimiser.base, optimiser.loss) if best is None else (best.point, best.loss)
        return Found(point, loss, epoch, converged=converged, reason=stopping.reason(reason))

    cuts = 0
    note = None
    reached_before: list[float] = []
    for epoch in range(1, job.epochs + 1):
        reached = None if math.isinf(optimiser.loss) else optimiser.loss
        base = optimiser.base
        evaluate = base if stopping.is_due(epoch) and base.any() else None
        seen = yield Probe(optimiser.trial, Batch(epoch), note=note, reached=reached, evaluate=evaluate)
        note = None
        if seen is None or seen.gradient is None or not seen.is_finite:
            cuts += 1
            if cuts > MAX_CUTS:
                return GivenUp(OUT_OF_RANGE)
            optimiser.cut()
            note = CUT
            continue
        stopping.record(evaluate, seen, loss=optimiser.loss, epochs=epoch - 1)
        if stopping.is_over:
            return found(epoch, "", converged=True)
        optimiser.learn(seen.loss, seen.gradient)
        if optimiser.gap <= job.tolerance:
            return found(epoch, f"the loss is within an estimated {job.tolerance:g} of its minimum", converged=True)
        if len(reached_before) >= 2 and reached_before[-2] - optimiser.loss < job.tolerance:
            return found(epoch, f"two rounds lowered the loss by less than {job.tolerance:g}", converged=True)
        reached_before.append(optimiser.loss)
    if math.isinf(optimiser.loss):
        return GivenUp(OUT_OF_RANGE)
    return found(job.epochs, f"the training reached its limit of {job.epochs} epochs", converged=False)
