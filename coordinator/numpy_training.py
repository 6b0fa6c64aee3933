"""The same training in plain numpy on joined columns: the reference for encrypted training.

It drives `Training` in the same way as the encrypted rounds, with exact observations in place of decrypted ones. It
needs the columns of both parties, which no single party of a real job has.
"""

from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.evaluation import disclosed_log_loss, round_scores
from trilateral.common.protocol.taylor import gradient, hessian_product, residual, taylor_loss
from trilateral.coordinator.plan import Conclusion, GivenUp, Observation, RoundPlan
from trilateral.coordinator.training import Training


@dataclass(frozen=True, eq=False)
class JoinedTable:
    """The training columns of both parties side by side, the host's first."""

    columns: FloatMatrix
    """Shape (n_train, n_columns)."""
    labels: FloatVector
    """-1 or +1, shape (n_train,)."""
    holdout_columns: FloatMatrix
    """Shape (n_holdout, n_columns)."""
    holdout_labels: FloatVector
    penalty: FloatMatrix
    """P of both parties, shape (n_columns, n_columns)."""
    n_host: int
    """Number of the host's columns."""

    def holdout_scores(self, coef: FloatVector) -> FloatVector:
        """Return u of the hold-out rows at w = coef as the guest gets them, shape (n_holdout,)."""
        return _scores_at_guest(self.holdout_columns, coef, self.n_host)


def join(host: TrainingBlock, guest: TrainingBlock) -> JoinedTable:
    """Put two blocks of the same rows side by side.

    Raises:
        ValueError: the guest's block has no labels.
    """
    if guest.labels is None or guest.holdout_labels is None:
        raise ValueError("the guest's block has no labels")
    n_host, n_columns = len(host.penalty), len(host.penalty) + len(guest.penalty)
    penalty = np.zeros((n_columns, n_columns))
    penalty[:n_host, :n_host] = host.penalty
    penalty[n_host:, n_host:] = guest.penalty
    return JoinedTable(
        columns=np.hstack([host.columns, guest.columns]),
        labels=guest.labels,
        holdout_columns=np.hstack([host.holdout_columns, guest.holdout_columns]),
        holdout_labels=guest.holdout_labels,
        penalty=penalty,
        n_host=n_host,
    )


@dataclass(frozen=True, eq=False)
class PlainResult:
    """The outcome of `train_plain`."""

    coef: FloatVector
    """w in training units, shape (n_columns,)."""
    loss: float
    """Taylor loss and penalty on all training rows."""
    losses: tuple[float, ...]
    """Loss of each round's batch, including the final evaluations."""
    epochs: int
    converged: bool
    reason: str


def train_plain(
    job: JobConfig,
    columns: FloatMatrix,
    labels: FloatVector,
    penalty: FloatMatrix,
    holdout: tuple[FloatMatrix, FloatVector] | None = None,
    *,
    n_host: int = 0,
    start: FloatVector | None = None,
) -> PlainResult:
    """Train on the training rows in canonical order.

    Args:
        job: the algorithm, its bounds and the seed of its batches. Settings of the key are ignored.
        columns: X, the host's and then the guest's training columns, shape (n_train, n_columns).
        labels: y in {-1, +1}, shape (n_train,).
        penalty: P in the penalty w'Pw job.l2 / 2, symmetric, shape (n_columns, n_columns).
        holdout: columns and labels of the hold-out rows, for a job that evaluates on them during training.
        n_host: number of the host's columns, whose part of the hold-out scores is rounded before it leaves the host.
        start: the guest's first weights, those of the last columns. The host's are 0, and so are the guest's if this is
            left out.

    Raises:
        OutOfRangeError: the training is given up. The text says what to change.
        ValueError: the job evaluates on hold-out rows and there are none.
    """
    if job.evaluate_every is not None and (holdout is None or not len(holdout[1])):
        raise ValueError("the job evaluates on hold-out rows: give their columns and labels")
    batches = Batches.of(job, len(columns))
    penalty_hessian = job.l2 * penalty

    def observe(plan: RoundPlan, coef: FloatVector) -> Observation:
        rows = batches.rows(plan.batch)
        X, y = columns[rows], labels[rows]
        scores = X @ coef
        loss = taylor_loss(scores, y) + float(coef @ penalty_hessian @ coef) / 2
        slope = gradient(X, residual(scores, y)) + penalty_hessian @ coef if plan.gradient else None
        holdout_loss = None
        if plan.evaluate_at is not None and holdout is not None:
            scores = _scores_at_guest(holdout[0], coef + plan.evaluate_at, n_host)
            holdout_loss = disclosed_log_loss(scores, holdout[1])
        if plan.direction is None:
            return Observation(loss, slope, holdout_loss=holdout_loss)
        X = columns[batches.curvature_rows(plan.batch, plan.curvature_draw)]
        curvature = hessian_product(X, plan.direction) + penalty_hessian @ plan.direction
        return Observation(loss, slope, curvature, holdout_loss)

    training = Training(job, columns.shape[1], batches.count)
    coef = np.zeros(columns.shape[1])
    if start is not None:
        coef[-len(start) :] = start
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


def _scores_at_guest(columns: FloatMatrix, coef: FloatVector, n_host: int) -> FloatVector:
    """Add the host's part of the scores, which is rounded before it leaves the host, and the guest's."""
    return round_scores(columns[:, :n_host] @ coef[:n_host]) + columns[:, n_host:] @ coef[n_host:]
