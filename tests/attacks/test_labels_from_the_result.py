"""On shares, the host sees nothing of a training but its own final weights: they are a function of the labels.

The weights minimise the loss, so they satisfy X_A'(c (y - sigma(u))) = lambda w_A sum(c). The host knows X_A and w_A.
If the guest has an intercept alone, the host finds the scores u from it, and then has one equation about the labels for
each of its columns. It follows the protocol, so no policy of its own matters.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import linprog, lsq_linear, minimize_scalar
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.policy import check_label_secrecy, label_secrecy
from trilateral.common.protocol.block import TrainingBlock
from trilateral.common.protocol.label_secrecy import LabelSecrecy

L2 = 1e-3
JOB = JobConfig(name="attacked", dataset="d", protocol="shares", l2=L2)
DEFAULT, WITHOUT_RULE = Policy(), Policy(min_label_bits=0)


@dataclass
class Trained:
    """The host's columns and weights, and what it should not find."""

    columns: FloatMatrix
    labels: FloatVector
    weights: FloatVector
    coef: FloatVector

    @classmethod
    def of(cls, columns: FloatMatrix, labels: FloatVector, weights: FloatVector | None = None) -> "Trained":
        """Train as the protocol does, up to its rounding: the exact logistic loss, and an intercept at the guest."""
        c = np.ones(len(labels)) if weights is None else weights
        model = LogisticRegression(C=1 / (L2 * c.sum()), solver="newton-cholesky", tol=1e-10)
        model.fit(columns, labels, sample_weight=c)
        # 1e-6 is the size of the rounding of a training on shares.
        noise = np.random.default_rng(0).normal(size=columns.shape[1]) * 1e-6
        return cls(columns, labels, c, model.coef_[0] + noise)

    def sums(self, intercept: float) -> FloatVector:
        """X_A'(c y) for y in {0, 1}, if the guest's intercept is this."""
        rates = self.weights * expit(self.columns @ self.coef + intercept)
        return np.asarray(self.columns.T @ rates + L2 * self.weights.sum() * self.coef)

    def guest(self) -> TrainingBlock:
        ones, nothing = np.ones((len(self.labels), 1)), np.empty(0)
        weights = None if (self.weights == 1).all() else self.weights
        return TrainingBlock(ones, ones[:0], self.labels, nothing, np.eye(1), weights, None if weights is None else 0)


def rare_labels(seed: int) -> Trained:
    """10 of 3,000 rows are positive, and the host has 100 columns."""
    rng = np.random.default_rng(seed)
    labels = -np.ones(3000)
    labels[rng.choice(3000, 10, replace=False)] = 1
    return Trained.of(rng.normal(size=(3000, 100)), labels)


def found_positives(trained: Trained, n_positive: int) -> set[int]:
    """Find the fewest rows that give the sums. The host tries each number of positive rows; here it knows it."""
    # The derivative by the intercept is zero, so the rates add up to the number of positive rows.
    intercept = minimize_scalar(
        lambda b: (expit(trained.columns @ trained.coef + b).sum() - n_positive) ** 2, bounds=(-20, 20)
    ).x
    sums = trained.sums(float(intercept))
    slack = np.abs(sums).max() * 1e-3
    bounds = np.concatenate([sums + slack, slack - sums])
    signed = np.concatenate([trained.columns.T, -trained.columns.T])
    found = linprog(np.ones(len(trained.labels)), A_ub=signed, b_ub=bounds, bounds=(0, 1)).x
    return set(np.argsort(found)[-n_positive:].tolist())


@pytest.mark.parametrize("seed", range(3))
def test_rare_labels_follow_from_the_hosts_weights_unless_the_guest_refuses(seed: int) -> None:
    trained = rare_labels(seed)
    assert found_positives(trained, 10) == set(np.flatnonzero(trained.labels > 0).tolist())
    secrecy = label_secrecy(JOB, trained.guest(), secret_start=False)
    assert secrecy is not None
    check_label_secrecy(JOB, WITHOUT_RULE, secrecy, 100)
    with pytest.raises(PolicyError, match=r"policy\.min_label_bits: from its weights"):
        check_label_secrecy(JOB, DEFAULT, secrecy, 100)


HEAVY = 60


def heavy_rows() -> Trained:
    """60 of 3,000 rows have 1,000 times the weight of the others, and half of all rows are positive."""
    rng = np.random.default_rng(5)
    labels = rng.permutation(np.repeat([-1.0, 1.0], 1500))
    weights = np.ones(3000)
    weights[:HEAVY] = 1000
    return Trained.of(rng.normal(size=(3000, 40)), labels, weights)


def found_heavy_labels(trained: Trained) -> FloatVector:
    """Find the labels of the heavy rows by least squares; half of each light row counts as positive."""
    rows = (trained.columns * trained.weights[:, np.newaxis]).T
    light = rows[:, HEAVY:].sum(axis=1) / 2

    def solve(intercept: float) -> tuple[float, FloatVector]:
        found = lsq_linear(rows[:, :HEAVY], trained.sums(intercept) - light, bounds=(0, 1))
        return found.cost, found.x

    best = min(np.linspace(-3, 3, 61), key=lambda intercept: solve(float(intercept))[0])
    return np.where(solve(float(best))[1] > 0.5, 1.0, -1.0)


def test_labels_of_heavy_rows_follow_from_the_weights_of_a_host_that_knows_how_heavy_they_are() -> None:
    trained = heavy_rows()
    assert np.count_nonzero(found_heavy_labels(trained) == trained.labels[:HEAVY]) >= HEAVY - 3
    # By the number of rows alone, there would be entropy enough.
    check_label_secrecy(JOB, DEFAULT, LabelSecrecy.of_result(trained.labels, None), 40)
    secrecy = label_secrecy(JOB, trained.guest(), secret_start=False)
    assert secrecy is not None
    with pytest.raises(PolicyError, match=r"policy\.min_label_bits: from its weights"):
        check_label_secrecy(JOB, DEFAULT, secrecy, 40)
