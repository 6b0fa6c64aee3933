"""The same training in plain numpy on joined columns: the reference for training under both protocols.

It drives `Training` in the same way as the protected rounds, with exact observations in place of opened ones. It needs
the columns of both parties, which no single party of a real job has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol import logistic, taylor
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.evaluation import disclosed_log_loss, measure, round_scores
from trilateral.common.protocol.messages import ComparedPenalty
from trilateral.common.protocol.row_roles import RoleVector
from trilateral.common.shares.information import pack
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
    sample_weights: FloatVector | None = None
    """c, shape (n_train,); None if all rows count alike."""

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
        columns=np.hstack([np.asarray(host.columns), np.asarray(guest.columns)]),
        labels=guest.labels,
        holdout_columns=np.hstack([np.asarray(host.holdout_columns), np.asarray(guest.holdout_columns)]),
        holdout_labels=guest.holdout_labels,
        penalty=penalty,
        n_host=n_host,
        sample_weights=guest.sample_weights,
    )


@dataclass(frozen=True, eq=False)
class PlainResult:
    """The outcome of `train_plain`."""

    coef: FloatVector
    """w in training units, shape (n_columns,)."""
    loss: float
    """Loss and penalty on all training rows. With protocol `shares`, the last step is expected to lead to this loss."""
    losses: tuple[float, ...]
    """Loss of each round's batch, including the final evaluations."""
    epochs: int
    converged: bool
    reason: str
    compared: Sequence[ComparedPenalty] = ()


def train_plain(
    job: JobConfig,
    columns: FloatMatrix,
    labels: FloatVector,
    penalty: FloatMatrix,
    holdout: tuple[FloatMatrix, FloatVector] | None = None,
    *,
    n_host: int = 0,
    start: FloatVector | None = None,
    sample_weights: FloatVector | None = None,
    folds: RoleVector | None = None,
) -> PlainResult:
    """Train on the training rows in canonical order, by the loss of the job's protocol.

    Args:
        job: the algorithm, its bounds and the seed of its batches. Settings of the key are ignored.
        columns: X, the host's and then the guest's training columns, shape (n_train, n_columns).
        labels: y in {-1, +1}, shape (n_train,).
        penalty: P in the penalty w'Pw job.l2 / 2, symmetric, shape (n_columns, n_columns).
        holdout: columns and labels of the hold-out rows, for a job that evaluates on them during training.
        n_host: number of the host's columns, whose part of the hold-out scores is rounded before it leaves the host.
        start: the first weights, those of the last columns; the others are 0. Under `paillier` they are the guest's
            secret start. Under `shares` they are those of a warm start, of all columns.
        sample_weights: c of any scale, shape (n_train,), for protocol `shares`; None stands for ones.
        folds: the fold of each training row, from 0 up, if a party decides it; shape (n_train,).

    Raises:
        OutOfRangeError: the training is given up. The text says what to change.
        ValueError: the job evaluates on hold-out rows and there are none, or its protocol has no sample weights;
            or a warm start lacks columns.
    """
    if job.evaluate_every is not None and (holdout is None or not len(holdout[1])):
        raise ValueError("the job evaluates on hold-out rows: give their columns and labels")
    is_logistic = job.protocol == "shares"
    if sample_weights is not None and not is_logistic:
        raise ValueError("only `shares` takes sample weights")
    if start is not None and is_logistic and len(start) != columns.shape[1]:
        raise ValueError("a warm start needs a weight for each column")
    if sample_weights is not None:
        sample_weights = sample_weights / np.mean(sample_weights)
    batches = Batches.of(job, len(columns), folds)
    # With folds or an L1 penalty, the optimiser adds the penalty.
    penalty_hessian = (0.0 if job.has_l1 or job.folds is not None else job.l2) * penalty

    def observe(plan: RoundPlan, coef: FloatVector) -> Observation:
        rows = batches.rows(plan.batch)
        X, y = columns[rows], labels[rows]
        scores = X @ coef
        if is_logistic:
            weights = None if sample_weights is None else sample_weights[rows]
            loss = logistic.logistic_loss(scores, y, weights)
            slope = logistic.gradient(X, logistic.residual(scores, y), weights)
        else:
            loss = taylor.taylor_loss(scores, y)
            slope = taylor.gradient(X, taylor.residual(scores, y))
        loss += float(coef @ penalty_hessian @ coef) / 2
        slope = slope + penalty_hessian @ coef
        holdout_loss = None
        if plan.evaluate_at is not None and holdout is not None:
            w = coef + plan.evaluate_at
            if is_logistic:
                holdout_loss = logistic.logistic_loss(holdout[0] @ w, holdout[1])
            else:
                holdout_loss = disclosed_log_loss(_scores_at_guest(holdout[0], w, n_host), holdout[1])
        if plan.information:
            return Observation(loss, slope * len(X), information=_information(columns, scores, sample_weights))
        curvature = None
        if plan.direction is not None:
            X = columns[batches.curvature_rows(plan.batch, plan.curvature_draw)]
            curvature = taylor.hessian_product(X, plan.direction) + penalty_hessian @ plan.direction
        return Observation(
            loss,
            slope if plan.gradient else None,
            curvature,
            holdout_loss,
            auc=measure(scores, y).auc if job.choose == "auc" and plan.batch.held_out else None,
        )

    training = Training(
        job,
        columns.shape[1],
        batches.count,
        penalty=np.diag(penalty),
        fold_sizes=[batches.part_size(number) for number in range(batches.n_parts)],
        start=start if is_logistic else None,
    )
    coef = np.zeros(columns.shape[1])
    if start is not None and not is_logistic:
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
    return PlainResult(
        plan.point if is_logistic else coef - plan.step,
        plan.loss,
        tuple(losses),
        plan.epochs,
        plan.converged,
        plan.reason,
        plan.compared,
    )


def _scores_at_guest(columns: FloatMatrix, coef: FloatVector, n_host: int) -> FloatVector:
    """Add the host's part of the scores, which is rounded before it leaves the host, and the guest's."""
    return round_scores(columns[:, :n_host] @ coef[:n_host]) + columns[:, n_host:] @ coef[n_host:]


def _information(columns: FloatMatrix, scores: FloatVector, sample_weights: FloatVector | None) -> FloatVector:
    """Return X'(c W)X of all training rows, packed."""
    slopes = logistic.slope(scores) * (1 if sample_weights is None else sample_weights)
    return pack(columns.T @ (columns * slopes[:, np.newaxis]))
