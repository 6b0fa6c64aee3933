"""The same training in plain numpy on joined columns: what encryption is held against.

It drives `Training` like the encrypted rounds do, with exact observations in the place of
decrypted ones. So it takes the columns of both parties, which in a real job nobody holds.
"""

from dataclasses import dataclass

import numpy as np

from common.arrays import FloatMatrix, FloatVector
from common.config.job import JobConfig
from common.data.split import Batches
from common.errors import OutOfRangeError
from common.protocol.taylor import gradient, hessian_product, residual, taylor_loss
from coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from coordinator.training import Training


@dataclass(frozen=True, eq=False)
class PlainResult:
    """The outcome of `train_plain`."""

    coef: FloatVector
    """Training weights, shape (n_columns,), from the origin."""
    loss: float
    """Taylor loss and penalty on all training rows."""
    losses: tuple[float, ...]
    """Loss of each round's batch, the final evaluations included."""
    epochs: int
    converged: bool
    reason: str


def train_plain(job: JobConfig, columns: FloatMatrix, labels: FloatVector, penalty: FloatMatrix) -> PlainResult:
    """Train on the training rows in canonical order, as the parties number them.

    Args:
        job: the algorithm, its bounds and the seed of its batches; nothing about keys is read.
        columns: the host's, then the guest's training columns, shape (n_train, n_columns).
        labels: in {-1, +1}, shape (n_train,).
        penalty: P of the penalty w'Pw job.l2 / 2, symmetric, shape (n_columns, n_columns).

    Raises:
        OutOfRangeError: when the training is given up; the text says what to change.
    """
    batches = Batches.of(job, len(columns))
    penalty_hessian = job.l2 * penalty

    def observe(plan: RoundPlan, coef: FloatVector) -> Observation:
        rows = batches.rows(plan.batch)
        X, y = columns[rows], labels[rows]
        scores = X @ coef
        loss = taylor_loss(scores, y) + float(coef @ penalty_hessian @ coef) / 2
        slope = gradient(X, residual(scores, y)) + penalty_hessian @ coef if plan.gradient else None
        if plan.direction is None:
            return Observation(loss, slope)
        X = columns[batches.curvature_rows(plan.batch, plan.curvature_draw)]
        return Observation(loss, slope, hessian_product(X, plan.direction) + penalty_hessian @ plan.direction)

    training = Training(job, columns.shape[1], batches.count)
    coef = np.zeros(columns.shape[1])
    losses = []
    plan: RoundPlan | Conclusion | GivenUp = training.begin()
    while isinstance(plan, RoundPlan):
        coef = coef - plan.step
        observation = observe(plan, coef)
        losses.append(observation.loss)
        plan = training.observe(observation)
    if isinstance(plan, GivenUp):
        raise OutOfRangeError(plan.reason)
    return PlainResult(coef - plan.step, plan.loss, tuple(losses), plan.epochs, plan.converged, plan.reason)
