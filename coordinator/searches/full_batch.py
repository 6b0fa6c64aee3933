"""Training on the whole training set (lbfgs): one gradient per round, no learning rate."""

import math
from typing import Protocol

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batch
from trilateral.coordinator.plan import Found, GivenUp, Probe, Search
from trilateral.coordinator.searches.early_stopping import EarlyStopping

MAX_CUTS = 5
"""How often a training may bring a trial point closer to the base point. The last try is 8^5 times closer."""

MAX_FAILURES = 5
"""How many steps in a row may fail to lower the loss."""

CUT = "a value was out of range: the trial step is cut to an eighth"
USUAL_FALL = 0.1
"""A round near the minimum usually lowers the gap to less than this part of it."""

OUT_OF_RANGE = "values are out of range even after very short steps: let each party clip and whiten its columns"
AT_THE_EDGE = (
    "the loss still falls where values are out of range: if the features separate the labels, set l2 in the job"
)
FLAT = "the gradient is 0 except for rounding errors"
NOT_LOWER = f"{MAX_FAILURES + 1} steps in a row did not lower the loss"


class FullBatchOptimiser(Protocol):
    """An optimiser that works on the whole training set, from a base point by way of trial points.

    Points have shape (n_columns,). Under `paillier` they are relative to the guest's secret start.
    """

    @property
    def base(self) -> FloatVector:
        """The best point so far. At the start it is where the training begins."""
        ...

    @property
    def loss(self) -> float:
        """The loss f at the base point; infinite if that is not known yet."""
        ...

    @property
    def is_observed(self) -> bool:
        """Whether a round has shown that values are in range at the base point, and it is not the start."""
        ...

    @property
    def trial(self) -> FloatVector:
        """The point where loss and gradient are needed next. The first one is where the training begins."""
        ...

    @property
    def result(self) -> tuple[FloatVector, float]:
        """The point to end at if the gap is small, and f there."""
        ...

    @property
    def gap(self) -> float:
        """Estimate of how far f at `result` is above its minimum."""
        ...

    def is_stalled(self, tolerance: float) -> bool:
        """Return whether the last two steps lowered f by less than the tolerance, and more is not to be expected."""
        ...

    def learn(self, loss: float, gradient: FloatVector) -> bool:
        """Take f and its gradient at the trial point, and choose the next one; return whether the base has moved."""
        ...

    def cut(self) -> None:
        """Bring the trial point closer to the base point."""
        ...


def full_batch_search(optimiser: FullBatchOptimiser, job: JobConfig, fold: int = 0) -> Search:
    """Move the base point until the loss is estimated to be within the tolerance of the minimum.

    Each round is an epoch. The search stops when the optimiser's gap is within the tolerance. The paper stops on the
    decrease of the loss. That decrease is known only after the round that made it, which costs one more round when
    convergence is fast. When convergence is slow, the gap is overestimated. In that case two steps that together gain
    less than the tolerance are enough to stop; a single such step may be a plateau. The loss of the result needs no
    round: the optimiser knows it, or expects it with an error of the size of the gap.

    A high loss at a trial point is not divergence: the optimiser learns from it. The hold-out rows are evaluated at the
    base point, not at the trial point, and only once the base point has left the start.

    If values are out of range too often, the training has no result, unless a round has shown that values are in range
    at the base point.

    Args:
        optimiser: at the start.
        job: the job's settings.
        fold: the fold that is left out, from 1 up; 0 for none.
    """
    stopping = EarlyStopping(job)

    def found(epoch: int, reason: str, *, converged: bool, at_result: bool = False) -> Found:
        best = stopping.result
        point, loss = optimiser.result if at_result else (optimiser.base, optimiser.loss)
        if best is not None:
            point, loss = best.point, best.loss
        return Found(point, loss, epoch, converged=converged, reason=stopping.reason(reason))

    cuts = failures = 0
    note = None
    for epoch in range(1, job.epochs + 1):
        reached = None if math.isinf(optimiser.loss) else optimiser.loss
        base = optimiser.base
        evaluate = base if stopping.is_due(epoch) and base.any() and reached is not None else None
        seen = yield Probe(
            optimiser.trial,
            Batch(epoch, fold=fold),
            note=note,
            reached=reached,
            evaluate=evaluate,
            is_last=epoch == job.epochs or USUAL_FALL * optimiser.gap <= job.tolerance,
        )
        note = None
        if seen is None or seen.gradient is None or not seen.is_finite:
            cuts += 1
            if cuts > MAX_CUTS:
                return found(epoch, AT_THE_EDGE, converged=False) if optimiser.is_observed else GivenUp(OUT_OF_RANGE)
            optimiser.cut()
            note = CUT
            continue
        stopping.record(evaluate, seen, loss=optimiser.loss, epochs=epoch - 1)
        if stopping.is_over:
            return found(epoch, "", converged=True)
        failures = 0 if optimiser.learn(seen.loss, seen.gradient) else failures + 1
        if optimiser.gap == 0:
            return found(epoch, FLAT, converged=True, at_result=True)
        if optimiser.gap <= job.tolerance:
            reason = f"the loss is within an estimated {job.tolerance:g} of its minimum"
            return found(epoch, reason, converged=True, at_result=True)
        if failures > MAX_FAILURES:
            return found(epoch, NOT_LOWER, converged=True)
        if failures == 0 and optimiser.is_stalled(job.tolerance):
            less = f"by less than {job.tolerance:g}" if job.tolerance > 0 else "by no more than its rounding errors"
            return found(epoch, f"two rounds lowered the loss {less}", converged=True)
    if math.isinf(optimiser.loss):
        return GivenUp(OUT_OF_RANGE)
    return found(job.epochs, f"the training reached its limit of {job.epochs} epochs", converged=False)
