"""Training on the whole training set with exact steps (lbfgs): one gradient a round, no learning rate."""

import math

from common.config.job import JobConfig
from common.data.split import Batch
from coordinator.optimisers.lbfgs import Lbfgs
from coordinator.plan import Found, GivenUp, Probe, Search

MOST_CUTS = 5
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

    A high loss at a trial point is no divergence: the step that follows is exact all the same.
    """
    cuts = 0
    note = None
    reached_before: list[float] = []
    for epoch in range(1, job.epochs + 1):
        reached = None if math.isinf(optimiser.loss) else optimiser.loss
        seen = yield Probe(optimiser.trial, Batch(epoch), note=note, reached=reached)
        note = None
        if seen is None or seen.gradient is None or not seen.is_finite:
            cuts += 1
            if cuts > MOST_CUTS:
                return GivenUp(OUT_OF_RANGE)
            optimiser.cut()
            note = CUT
            continue
        optimiser.learn(seen.loss, seen.gradient)
        if optimiser.gap <= job.tolerance:
            reason = f"the loss is within about {job.tolerance:g} of its minimum"
            return Found(optimiser.base, optimiser.loss, epoch, converged=True, reason=reason)
        if len(reached_before) >= 2 and reached_before[-2] - optimiser.loss < job.tolerance:
            reason = f"the loss has fallen by less than {job.tolerance:g} in two rounds"
            return Found(optimiser.base, optimiser.loss, epoch, converged=True, reason=reason)
        reached_before.append(optimiser.loss)
    if math.isinf(optimiser.loss):
        return GivenUp(OUT_OF_RANGE)
    reason = f"the most epochs, {job.epochs}, were reached"
    return Found(optimiser.base, optimiser.loss, job.epochs, converged=False, reason=reason)
