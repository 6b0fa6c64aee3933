"""What a training on joined columns can reach at best, and how far a federated model is from it."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.logistic import gradient, logistic_loss, probability, residual
from trilateral.common.protocol.taylor import taylor_loss
from trilateral.coordinator.numpy_training import JoinedTable

DATA_VARIABLE = "TRILATERAL_DATA"
"""Names the folder with the published tables."""
NEWTON_STEPS = 50
NEWTON_GAP = 1e-14
"""Newton's method stops when the quadratic model promises less than this, in nats per sample."""


def find_data(name: str, given: Path | None) -> Path:
    """Return the folder that holds `NAME.csv.gz`.

    Args:
        name: the data set.
        given: the folder that the command names, if it names one.

    Returns:
        `given`, or the folder that the environment variable `TRILATERAL_DATA` names, or the first of `data` and
        `shared/data` that has the file, in the working directory or in a folder above this repository.

    Raises:
        SystemExit: no folder has the file.
    """
    named = given or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
    bases = [Path.cwd(), *Path(__file__).absolute().parents[1:]]
    folders = [named] if named else [base / folder for base in bases for folder in ("data", "shared/data")]
    for folder in folders:
        if (folder / f"{name}.csv.gz").exists():
            return folder
    where = str(named) if named else f"`data` and no folder is named by --data or {DATA_VARIABLE}"
    raise SystemExit(f"{name}.csv.gz is not in {where}: docs/data-sets.md describes how to make it")


Block: TypeAlias = tuple[FloatMatrix, FloatVector]
"""Columns X of some rows, shape (n_block_rows, n_columns), and their labels y in {-1, +1}."""


@dataclass(frozen=True)
class Objective:
    """What a job minimises, on the joined columns."""

    job: JobConfig
    blocks: Iterable[Block]
    """All training rows. A minimum takes several passes over them."""
    penalty: FloatMatrix
    """P of both parties, shape (n_columns, n_columns)."""
    start: FloatVector | None = None
    """Where the search for the minimum begins, which saves passes over the rows; None for 0. The loss is convex."""

    @classmethod
    def of(cls, job: JobConfig, joined: JoinedTable) -> "Objective":
        """Return the objective of a job on columns in memory."""
        return cls(job, [(joined.columns, joined.labels)], joined.penalty)

    @property
    def _penalty(self) -> FloatMatrix:
        return self.job.l2 * self.penalty

    def loss(self, coef: FloatVector) -> float:
        """Return the loss and the penalty at w = coef, in nats per sample."""
        loss = logistic_loss if self.job.protocol == "shares" else taylor_loss
        sums = [(len(y), len(y) * loss(X @ coef, y)) for X, y in self.blocks]
        return math.fsum(each for _, each in sums) / sum(n for n, _ in sums) + float(coef @ self._penalty @ coef) / 2

    @cached_property
    def optimum(self) -> FloatVector:
        """The weights at the minimum, shape (n_columns,)."""
        if self.job.protocol == "paillier":
            return self._least_squares()
        return newton(self.blocks, self._penalty, self.start)

    def _least_squares(self) -> FloatVector:
        n_rows, products, slopes = 0, 0.0 * self.penalty, np.zeros(len(self.penalty))
        for X, y in self.blocks:
            n_rows, products, slopes = n_rows + len(y), products + X.T @ X, slopes + X.T @ y
        hessian = products / (4 * n_rows) + self._penalty
        return np.asarray(np.linalg.lstsq(hessian, slopes / (2 * n_rows), rcond=None)[0], dtype=np.float64)

    @cached_property
    def least(self) -> float:
        """The minimum of the loss."""
        return self.loss(self.optimum)


def newton(blocks: Iterable[Block], penalty: FloatMatrix, start: FloatVector | None = None) -> FloatVector:
    """Minimise the mean logistic loss plus w'(penalty)w / 2 by Newton's method with step halving.

    Args:
        blocks: all rows. Each trial of a step takes a pass over them.
        penalty: symmetric, shape (n_columns, n_columns).
        start: the first weights, shape (n_columns,); None for 0.

    Raises:
        ArithmeticError: the method does not converge, for example because a plane separates the labels.
    """
    coef = np.zeros(len(penalty)) if start is None else start
    here, slope, hessian = derivatives(blocks, penalty, coef)
    for _ in range(NEWTON_STEPS):
        step = np.linalg.solve(hessian, slope)
        if slope @ step / 2 <= NEWTON_GAP:
            return coef - step
        rate = 1.0
        there = derivatives(blocks, penalty, coef - step)
        while there[0] > here and rate > NEWTON_GAP:
            rate /= 2
            there = derivatives(blocks, penalty, coef - rate * step)
        coef = coef - rate * step
        here, slope, hessian = there
    raise ArithmeticError(f"Newton's method has not converged after {NEWTON_STEPS} steps")


def derivatives(
    blocks: Iterable[Block], penalty: FloatMatrix, coef: FloatVector
) -> tuple[float, FloatVector, FloatMatrix]:
    """Return the mean logistic loss plus penalty at w = coef, its gradient, and its Hessian, in one pass over the rows.

    Args:
        blocks: all rows.
        penalty: symmetric, shape (n_columns, n_columns).
        coef: w, shape (n_columns,).
    """
    n_rows, losses = 0, []
    slope, hessian = np.zeros(len(coef)), np.zeros((len(coef), len(coef)))
    for X, y in blocks:
        scores = X @ coef
        p = probability(scores)
        n_rows += len(y)
        losses.append(len(y) * logistic_loss(scores, y))
        slope += len(y) * gradient(X, residual(scores, y))
        hessian += X.T @ (X * (p * (1 - p))[:, None])
    loss = math.fsum(losses) / n_rows + float(coef @ penalty @ coef) / 2
    return loss, slope / n_rows + penalty @ coef, hessian / n_rows + penalty


@dataclass(frozen=True)
class AgainstScikitLearn:
    """How far a federated model is from scikit-learn's on the same standardised columns."""

    coef_error_se: float
    """Largest difference between two coefficients of standardised features, in standard errors of that coefficient."""
    holdout_log_loss: float
    holdout_log_loss_difference: float
    """Federated minus scikit-learn, both without calibration, in nats per sample."""
    holdout_auc_difference: float

    @classmethod
    def of(
        cls, job: JobConfig, standardised: JoinedTable, whitened: JoinedTable, coef: FloatVector
    ) -> "AgainstScikitLearn":
        """Compare.

        Args:
            job: its penalty is that of both models.
            standardised: the joined columns without whitening, the guest's column of ones last.
            whitened: the columns that the job has trained on.
            coef: the weights of the federated model for the whitened columns, shape (n_columns,).
        """
        X, n_rows = standardised.columns, len(standardised.labels)
        # scikit-learn minimises C (sum of losses) + ||beta||^2 / 2, the project the mean loss + l2 ||beta||^2 / 2.
        model = LogisticRegression(
            C=np.inf if job.l2 == 0 else 1 / (job.l2 * n_rows), solver="newton-cholesky", tol=1e-12, max_iter=1000
        ).fit(X[:, :-1], standardised.labels)
        theirs = np.concatenate([model.coef_[0], model.intercept_])
        # The two kinds of columns span the same scores.
        ours = np.linalg.lstsq(X, whitened.columns @ coef, rcond=None)[0]
        _, _, hessian = derivatives([(X, standardised.labels)], job.l2 * standardised.penalty, theirs)
        errors = np.sqrt(np.diag(np.linalg.inv(hessian)) / n_rows)
        positive = standardised.holdout_labels > 0
        their_scores = standardised.holdout_columns @ theirs
        our_scores = whitened.holdout_columns @ coef
        return cls(
            coef_error_se=float(np.max(np.abs(ours - theirs) / errors)),
            holdout_log_loss=logistic_loss(our_scores, standardised.holdout_labels),
            holdout_log_loss_difference=logistic_loss(our_scores, standardised.holdout_labels)
            - logistic_loss(their_scores, standardised.holdout_labels),
            holdout_auc_difference=float(roc_auc_score(positive, our_scores) - roc_auc_score(positive, their_scores)),
        )
