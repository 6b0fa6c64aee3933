"""The elastic net and the choice of its penalty, against scikit-learn on the same standardised columns."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss

from tests.protocol.test_shares_training import make_job
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.config.job import JobConfig, Penalty, PenaltyPath
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.coordinator.numpy_training import PlainResult, train_plain

Table = tuple[FloatMatrix, FloatVector]


def breast_cancer() -> Table:
    """Thirty columns, many of them nearly dependent, and 569 rows."""
    X, y = load_breast_cancer(return_X_y=True)
    return _standardised(X), np.where(y > 0, 1.0, -1.0)


def made() -> Table:
    """Twelve correlated columns, of which half say nothing, and few positives."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(4000, 12)) @ (np.eye(12) + 0.4 * rng.normal(size=(12, 12)))
    score = X @ np.where(np.arange(12) % 2 == 0, rng.normal(size=12), 0.0)
    y = np.where(rng.random(4000) < 1 / (1 + np.exp(2.0 - score)), 1.0, -1.0)
    return _standardised(X), y


def _standardised(X: FloatMatrix) -> FloatMatrix:
    Z: FloatMatrix = (X - X.mean(axis=0)) / X.std(axis=0)
    return Z


GAP = 5e-7
"""How far the objective may be above its minimum. The optimiser takes gradients for exact to 1e-6, as the rounds on
shares are, and ends when two rounds gain less than 1e-7."""
TABLES = {"breast cancer": breast_cancer, "made": made}


def ours(job: JobConfig, Z: FloatMatrix, y: FloatVector, **options: Any) -> PlainResult:
    n_columns = Z.shape[1]
    penalty = np.diag([1.0] * n_columns + [0.0])
    return train_plain(job, np.hstack([Z, np.ones((len(Z), 1))]), y, penalty, **options)


def theirs(penalty: Penalty, Z: FloatMatrix, y: FloatVector, weights: FloatVector | None = None) -> LogisticRegression:
    strength = penalty.l1 + penalty.l2
    total = len(y) if weights is None else float(weights.sum())
    options: dict[str, Any] = {"C": 1 / (total * strength), "tol": 1e-7, "max_iter": 100_000}
    if penalty.l1 == 0:
        return LogisticRegression(solver="newton-cholesky", **options).fit(Z, y, weights)
    share = penalty.l1 / strength
    return LogisticRegression(solver="saga", l1_ratio=share, **options).fit(Z, y, weights)


def objective(penalty: Penalty, w: FloatVector, Z: FloatMatrix, y: FloatVector, c: FloatVector | None = None) -> float:
    losses = np.logaddexp(0.0, -y * (Z @ w[:-1] + w[-1]))
    beta = w[:-1]
    mean = float(np.average(losses, weights=c))
    return mean + penalty.l1 * float(np.abs(beta).sum()) + penalty.l2 / 2 * float(beta @ beta)


def job_of(penalty: Penalty, **settings: Any) -> JobConfig:
    return make_job(l1=penalty.l1, l2=penalty.l2, holdout=0.0, epochs=500, tolerance=1e-9, max_score=24, **settings)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "penalty",
    [
        Penalty(l1=0.1),
        Penalty(l1=0.02),
        Penalty(l1=0.005),
        Penalty(l1=0.02, l2=0.05),
        Penalty(l1=0.002, l2=0.01),
    ],
    ids=str,
)
def test_the_elastic_net_is_that_of_saga(table: str, penalty: Penalty) -> None:
    Z, y = TABLES[table]()
    result, reference = ours(job_of(penalty), Z, y), theirs(penalty, Z, y)
    expected = np.append(reference.coef_[0], reference.intercept_)

    assert objective(penalty, result.coef, Z, y) <= objective(penalty, expected, Z, y) + GAP
    np.testing.assert_allclose(result.coef, expected, atol=0.02)
    assert np.array_equal(result.coef[:-1] == 0, reference.coef_[0] == 0)


@pytest.mark.parametrize("table", TABLES)
def test_weights_of_rows_count_as_in_saga(table: str) -> None:
    Z, y = TABLES[table]()
    weights = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    penalty = Penalty(l1=0.01, l2=0.01)
    result = ours(job_of(penalty), Z, y, sample_weights=weights)
    reference = theirs(penalty, Z, y, weights)
    expected = np.append(reference.coef_[0], reference.intercept_)
    assert objective(penalty, result.coef, Z, y, weights) <= objective(penalty, expected, Z, y, weights) + GAP
    assert np.array_equal(result.coef[:-1] == 0, reference.coef_[0] == 0)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("l1", "l2"), [(0.0, 1.0), (0.1, 0.0), (0.05, 0.1)])
def test_cross_validation_chooses_as_scikit_learn_does(table: str, l1: float, l2: float) -> None:
    Z, y = TABLES[table]()
    path = PenaltyPath(points=5, smallest=0.1)
    job = job_of(Penalty(l1=l1, l2=l2), folds=5, path=path)
    result = ours(job, Z, y)

    batches = Batches.of(job, len(y))
    losses = []
    for penalty in job.penalties:
        of_folds = []
        for fold in range(1, 6):
            inside, outside = (batches.rows(Batch(1, fold=fold, held_out=held_out)) for held_out in (True, False))
            model = theirs(penalty, Z[outside], y[outside])
            of_folds.append(log_loss(y[inside], model.predict_proba(Z[inside])[:, 1]))
        losses.append(of_folds)
    sizes = [batches.part_size(number) for number in range(5)]
    means = np.average(losses, axis=1, weights=sizes)

    assert [each.loss for each in result.compared] == pytest.approx(means.tolist(), abs=2e-5)
    assert [each.is_chosen for each in result.compared].index(True) == int(np.argmin(means))
    chosen = job.penalties[int(np.argmin(means))]
    reference = theirs(chosen, Z, y)
    expected = np.append(reference.coef_[0], reference.intercept_)
    assert objective(chosen, result.coef, Z, y) <= objective(chosen, expected, Z, y) + GAP


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("one_standard_error", [False, True])
def test_the_choice_by_auc_is_that_of_scikit_learns_cross_validation(table: str, one_standard_error: bool) -> None:
    Z, y = TABLES[table]()
    path = PenaltyPath(points=5, smallest=0.001)
    job = job_of(Penalty(l2=1.0), folds=5, path=path, choose="auc", one_standard_error=one_standard_error)
    result = ours(job, Z, y)

    batches = Batches.of(job, len(y))
    splits = [[batches.rows(Batch(1, fold=fold, held_out=alone)) for alone in (False, True)] for fold in range(1, 6)]
    # A fold of 569 rows leaves 455 or 456 outside of it. Theirs has one strength for all.
    strengths = [1 / (0.8 * len(y) * penalty.l2) for penalty in job.penalties]
    options: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-8, "use_legacy_attributes": False}
    reference = LogisticRegressionCV(Cs=strengths, l1_ratios=(0,), cv=splits, scoring="roc_auc", **options).fit(Z, y)
    areas = reference.scores_[:, 0, :].T
    means, errors = areas.mean(axis=1), areas.std(axis=1, ddof=1) / np.sqrt(5)

    # One pair of rows in the other order changes the mean of five folds of 114 rows by 0.00007.
    assert [each.auc for each in result.compared] == pytest.approx(means.tolist(), abs=1e-4)
    assert [each.auc_error for each in result.compared] == pytest.approx(errors.tolist(), abs=2e-4)
    best = int(np.argmax(means))
    assert strengths[best] == pytest.approx(reference.C_)
    expected = int(np.argmax(means >= means[best] - errors[best])) if one_standard_error else best
    assert [each.is_chosen for each in result.compared].index(True) == expected
