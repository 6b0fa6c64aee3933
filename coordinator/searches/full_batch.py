"""Training on the whole training set with exact steps (lbfgs): one gradient a round, no learning rate."""

import math

from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batch
from trilateral.coordinator.optimisers.lbfgs import Lbfgs
from trilateral.coordinator.plan import Found, GivenUp, Probe, Search
from trilateral.coordinator.searches.early_stopping import EarlyStopping

MAX_CUTS = 5
"""How often a training brings a trial point closer to its base: 8^5 times closer is the last try."""

CUT = "a value was out of range: the trial step is cut to an eighth"
OUT_OF_RANGE = "values stay out of range however short the trial step: let each party clip and whiten its columns"


def full_batch_search(optimiser: Lbfgs, job: JobConfig) -> Search:
    """Move the base point until its loss is within the tolerance of the minimum, as far as is known.

    Each round is an epoch. The stop is on `Lbfgs.gap` where that is small enough: the paper's, on
    the decrease, is known only after the round that made it, so it costs a round more where
    convergence is fast. Where it is slow the gap is overestimated, and two rounds that together
    gain less than the tolerance are enough: one alone may be a plateau of conjugate gradients.
    The loss of the result needs no round: it is that of the quadratic itself.

    A high loss at a trial point is no divergence: the step that follows is exact all the same. What is
    evaluated on the hold-out rows is the base point and not the trial point, and not before it has left the origin.
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
        stopping.take(evaluate, seen, loss=optimiser.loss, epochs=epoch - 1)
        if stopping.is_over:
            return found(epoch, "", converged=True)
        optimiser.learn(seen.loss, seen.gradient)
        if optimiser.gap <= job.tolerance:
            return found(epoch, f"the loss is within about {job.tolerance:g} of its minimum", converged=True)
        if len(reached_before) >= 2 and reached_before[-2] - optimiser.loss < job.tolerance:
            return found(epoch, f"the loss has fallen by less than {job.tolerance:g} in two rounds", converged=True)
        reached_before.append(optimiser.loss)
    if math.isinf(optimiser.loss):
        return GivenUp(OUT_OF_RANGE)
    return found(job.epochs, f"the most epochs, {job.epochs}, were reached", converged=False)
