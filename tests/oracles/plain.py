"""Plain numpy training, written on its own from the paper: the oracle of `Training` and of the whole system.

Nothing is shared with the coordinator. The paper's equation (8) is the dense matrix, windows are
slices of the list of all points, the full batch is textbook conjugate gradients. It knows no
divergence: give it jobs that have none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from trilateral.common.config.job import JobConfig, Lbfgs, Sqn
from trilateral.common.protocol.batches import Batch

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass
class OracleResult:
    coef: Array
    loss: float
    epochs: int
    converged: bool
    losses: list[float]
    """sgd, sqn: of each round's batch. lbfgs: of the point known after each round."""


@dataclass
class Problem:
    """Joined columns (n_samples, n_columns), labels in {-1, +1}, P of the penalty job.l2 / 2 w'Pw."""

    job: JobConfig
    columns: Array
    labels: Array
    penalty: Array
    rows: Callable[[Batch], Rows]
    n_batches: int
    curvature_rows: Callable[[int], Rows] = field(default=lambda draw: np.arange(0))

    def loss(self, w: Array, rows: Rows | slice = slice(None)) -> float:
        margins = self.labels[rows] * (self.columns[rows] @ w)
        return float(np.mean(np.log(2) - margins / 2 + margins**2 / 8) + self.job.l2 / 2 * w @ self.penalty @ w)

    def hessian(self, rows: Rows | slice = slice(None)) -> Array:
        X = self.columns[rows]
        hessian: Array = X.T @ X / (4 * len(X)) + self.job.l2 * self.penalty
        return hessian

    def gradient(self, w: Array, rows: Rows | slice = slice(None)) -> Array:
        X, y = self.columns[rows], self.labels[rows]
        return self.hessian(rows) @ w - X.T @ y / (2 * len(X))

    def optimum(self) -> Array:
        return np.asarray(
            np.linalg.lstsq(self.hessian(), -self.gradient(np.zeros(self.columns.shape[1])), rcond=None)[0],
            dtype=np.float64,
        )


class LogisticProblem(Problem):
    """The same with the logistic loss."""

    def loss(self, w: Array, rows: Rows | slice = slice(None)) -> float:
        margins = self.labels[rows] * (self.columns[rows] @ w)
        return float(np.mean(np.logaddexp(0, -margins)) + self.job.l2 / 2 * w @ self.penalty @ w)

    def _positive(self, w: Array, rows: Rows | slice = slice(None)) -> Array:
        """Probabilities of a positive label."""
        return np.asarray(0.5 + np.tanh(self.columns[rows] @ w / 2) / 2, dtype=np.float64)

    def gradient(self, w: Array, rows: Rows | slice = slice(None)) -> Array:
        X, positive = self.columns[rows], self.labels[rows] > 0
        return np.asarray(X.T @ (self._positive(w, rows) - positive) / len(X) + self.job.l2 * self.penalty @ w)

    def hessian_at(self, w: Array) -> Array:
        X, p = self.columns, self._positive(w)
        return np.asarray((X.T * (p * (1 - p))) @ X / len(X) + self.job.l2 * self.penalty)

    def optimum(self) -> Array:
        start = np.zeros(self.columns.shape[1])
        found = minimize(
            self.loss, start, method="trust-exact", jac=self.gradient, hess=self.hessian_at, options={"gtol": 1e-10}
        )
        return np.asarray(found.x, dtype=np.float64)

    def gap(self, w: Array) -> float:
        """How far the loss is above its minimum."""
        return self.loss(w) - self.loss(self.optimum())


def dense_inverse_hessian(pairs: list[tuple[Array, Array]]) -> Array:
    """H of equation (8), the pairs oldest first."""
    s, v = pairs[-1]
    identity = np.eye(len(s))
    H: Array = (v @ s) / (v @ v) * identity
    for s, v in pairs:
        rho = 1 / (v @ s)
        H = (identity - rho * np.outer(s, v)) @ H @ (identity - rho * np.outer(v, s)) + rho * np.outer(s, s)
    return H


def train(problem: Problem, start: Array | None = None) -> OracleResult:
    """Train from w = `start`, zeros by default."""
    w = np.zeros(problem.columns.shape[1]) if start is None else start
    if isinstance(problem.job.algorithm, Lbfgs):
        return _conjugate_gradients(problem, w)
    return _minibatches(problem, w)


def _minibatches(problem: Problem, w: Array) -> OracleResult:
    job, algorithm = problem.job, problem.job.algorithm
    assert not isinstance(algorithm, Lbfgs)
    visited: list[Array] = []  # w_k is visited[k - 1]
    losses: list[float] = []
    pairs: list[tuple[Array, Array]] = []
    draws = 0
    converged = False
    for epoch in range(1, job.epochs + 1):
        for index in range(problem.n_batches):
            S = problem.rows(Batch(epoch, index))
            visited.append(w)
            k = len(visited)
            losses.append(problem.loss(w, S))
            rate = algorithm.learning_rate
            H = np.eye(len(w))
            if pairs:
                H = dense_inverse_hessian(pairs)
            elif isinstance(algorithm, Sqn) and algorithm.first_learning_rate is not None:
                rate = algorithm.first_learning_rate
            w = w - rate / (1 + algorithm.decay * k) ** 0.5 * H @ problem.gradient(w, S)
            if isinstance(algorithm, Sqn) and k % algorithm.interval == 0 and k >= 2 * algorithm.interval:
                L = algorithm.interval
                s = sum(visited[k - L : k]) / L - sum(visited[k - 2 * L : k - L]) / L
                assert isinstance(s, np.ndarray)
                if not s.any():
                    continue
                S_H = S
                if algorithm.curvature_batch is not None:
                    draws += 1
                    S_H = problem.curvature_rows(draws)
                v = problem.hessian(S_H) @ s
                if s @ v > 1e-12 * (s @ s):
                    pairs = [*pairs, (s, v)][-algorithm.memory :]
        means = np.mean(np.reshape(losses, (epoch, problem.n_batches)), axis=1)
        if epoch > 1 and abs(means[-1] - means[-2]) < job.tolerance:
            converged = True
            break
    mean = np.mean(visited[-problem.n_batches :], axis=0)
    coef = min((w, mean), key=problem.loss)
    return OracleResult(coef, problem.loss(coef), epoch, converged, losses)


def _conjugate_gradients(problem: Problem, w: Array) -> OracleResult:
    job, Q = problem.job, problem.hessian()
    r = -problem.gradient(w)
    p = r
    losses = [problem.loss(w)]
    inverse = np.zeros_like(Q)  # Q^-1 on the span of the directions so far
    converged = False
    for _ in range(2, job.epochs + 1):
        alpha = (r @ r) / (p @ Q @ p)
        inverse += np.outer(p, p) / (p @ Q @ p)
        w = w + alpha * p
        after = r - alpha * Q @ p
        p = after + (after @ after) / (r @ r) * p
        r = after
        losses.append(problem.loss(w))
        if (r @ r) * np.linalg.eigvalsh(inverse)[-1] / 2 <= job.tolerance:
            converged = True
            break
    return OracleResult(w, problem.loss(w), len(losses), converged, losses)
