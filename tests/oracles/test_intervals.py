"""Confidence intervals agree with a bootstrap that draws single rows, and with the theory for many rows."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score, roc_curve

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.model import intervals as module
from trilateral.common.data.model.intervals import Intervals
from trilateral.common.protocol.evaluation import measure


def rows(n_rows: int, *, seed: int = 0, decimals: int = 12) -> tuple[FloatVector, FloatVector]:
    rng = np.random.default_rng(seed)
    scores = (1.2 * rng.normal(size=n_rows) - 0.8).round(decimals)
    labels = np.where(rng.random(n_rows) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)
    return scores, labels


def resampled(scores: FloatVector, labels: FloatVector, n_resamples: int) -> dict[str, FloatVector]:
    """The figures of scikit-learn on rows that are drawn one by one."""
    rng = np.random.default_rng(99)
    figures: dict[str, list[float]] = {"auc": [], "ks": [], "log_loss": [], "brier": []}
    for _ in range(n_resamples):
        drawn = rng.integers(0, len(scores), len(scores))
        u, y = scores[drawn], labels[drawn] > 0
        p = 1 / (1 + np.exp(-u))
        false, true, _ = roc_curve(y, u)
        figures["auc"].append(roc_auc_score(y, u))
        figures["ks"].append(max(true - false))
        figures["log_loss"].append(log_loss(y, p))
        figures["brier"].append(brier_score_loss(y, p))
    return {name: np.array(values) for name, values in figures.items()}


@pytest.mark.parametrize(("n_rows", "decimals", "groups"), [(400, 12, 4096), (400, 1, 4096), (3000, 12, 256)])
def test_an_interval_is_that_of_rows_drawn_one_by_one(
    n_rows: int, decimals: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", groups)
    scores, labels = rows(n_rows, decimals=decimals)
    found = Intervals.of(scores, labels, scores, seed=3)
    for name, figures in resampled(scores, labels, 500).items():
        expected, width = np.quantile(figures, [0.025, 0.975]), 4 * figures.std()
        np.testing.assert_allclose(getattr(found, name), expected, rtol=0, atol=0.1 * width)
    assert found.auc is not None
    assert found.gini == (2 * found.auc[0] - 1, 2 * found.auc[1] - 1)


def test_the_auc_of_many_rows_has_the_interval_of_delong() -> None:
    scores, labels = rows(200_000, seed=4)
    found = Intervals.of(scores, labels, scores, seed=0)
    positive, negative = np.sort(scores[labels > 0]), np.sort(scores[labels < 0])
    above = np.searchsorted(negative, positive) / len(negative)
    below = 1 - np.searchsorted(positive, negative) / len(positive)
    deviation = np.sqrt(above.var() / len(positive) + below.var() / len(negative))
    auc = measure(scores, labels).auc
    assert auc is not None
    assert found.auc is not None
    np.testing.assert_allclose(found.auc, [auc - 1.96 * deviation, auc + 1.96 * deviation], rtol=0, atol=deviation / 4)
    losses = np.logaddexp(0, -labels * scores)
    error = 1.96 * losses.std() / np.sqrt(len(losses))
    np.testing.assert_allclose(found.log_loss, [losses.mean() - error, losses.mean() + error], rtol=0, atol=error / 8)


def test_an_interval_holds_the_truth_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval covers the figure of all such rows about as often as it says: here 80 %."""
    monkeypatch.setattr(module, "LEVEL", 0.8)
    monkeypatch.setattr(module, "N_RESAMPLES", 200)
    truth = measure(*rows(400_000, seed=1000))
    hits = dict.fromkeys(("auc", "log_loss", "brier"), 0)
    for seed in range(200):
        scores, labels = rows(300, seed=seed)
        found = Intervals.of(scores, labels, scores, seed)
        for name in hits:
            low, high = getattr(found, name)
            hits[name] += low <= getattr(truth, name) <= high
    assert all(0.7 < count / 200 < 0.9 for count in hits.values()), hits


def test_the_same_seed_gives_the_same_intervals() -> None:
    scores, labels = rows(200)
    assert Intervals.of(scores, labels, scores, 1) == Intervals.of(scores, labels, scores, 1)
    assert Intervals.of(scores, labels, scores, 1) != Intervals.of(scores, labels, scores, 2)


@pytest.mark.parametrize("n_positive", [0, 1, 4])
def test_few_rows_of_a_label_have_no_interval_of_their_ranks(n_positive: int) -> None:
    scores, _ = rows(50)
    labels = np.where(np.arange(50) < n_positive, 1.0, -1.0)
    found = Intervals.of(scores, labels, scores, 0)
    assert (found.auc, found.gini, found.ks) == (None, None, None)
    assert found.log_loss[0] <= found.log_loss[1]


def test_scores_that_are_all_equal_are_ranked_by_chance() -> None:
    found = Intervals.of(np.zeros(100), np.where(np.arange(100) % 2, 1.0, -1.0), np.zeros(100), 0)
    assert found.auc == (0.5, 0.5)
    assert found.ks == (0.0, 0.0)
