"""Probabilities of several classes from a score for each, and how good they are."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, roc_auc_score
from sklearn.multiclass import OneVsRestClassifier

from trilateral.common.base.arrays import FloatMatrix
from trilateral.common.data.model.classes import (
    Normalised,
    Softmax,
    class_probabilities,
    cross_fitted,
    fit_class_map,
    measure_classes,
)


def drawn(n_rows: int, seed: int = 1) -> tuple[FloatMatrix, NDArray[np.int64]]:
    """Scores, and classes drawn with the probabilities of a softmax of known slopes and offsets."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_rows, 3)) * [1.0, 2.0, 0.5]
    odds = scores * [2.0, 0.5, 1.0] + [0.5, 0.0, -0.5]
    p = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
    classes = (rng.random(n_rows)[:, np.newaxis] > p.cumsum(axis=1)).sum(axis=1)
    return scores, classes.astype(np.int64)


def test_the_softmax_that_made_the_classes_is_found() -> None:
    fitted = fit_class_map(*drawn(100_000), "platt")
    assert isinstance(fitted, Softmax)
    np.testing.assert_allclose(fitted.slopes, [2.0, 0.5, 1.0], atol=0.05)
    np.testing.assert_allclose(fitted.offsets, [0.5, 0.0, -0.5], atol=0.03)


def test_fitted_probabilities_add_up_to_1_and_have_the_rates_of_the_classes() -> None:
    scores, classes = drawn(3000)
    p = class_probabilities(scores, fit_class_map(scores, classes, "platt"))
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(p.mean(axis=0), np.bincount(classes) / 3000, atol=1e-3)


def test_no_map_can_be_fitted_to_a_handful_of_rows_and_sigmoids_are_normalised_as_in_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.digitize(X[:, 0] + rng.normal(size=300), [-1, 1])
    model = OneVsRestClassifier(LogisticRegression()).fit(X, y)
    mapped = fit_class_map(np.zeros((4, 3)), np.array([0, 0, 1, 2]), "platt")
    assert mapped == Normalised(reason="fewer than 5 hold-out rows have the rarest class")
    np.testing.assert_allclose(class_probabilities(model.decision_function(X), mapped), model.predict_proba(X))


@pytest.mark.parametrize("size", [1e3, 1e-3])
def test_classes_that_scores_separate_have_a_finite_map(size: float) -> None:
    classes = np.arange(300) % 3
    scores = np.where(classes[:, np.newaxis] == np.arange(3), size, -size)
    fitted = fit_class_map(scores, classes, "platt")
    p = class_probabilities(scores, fitted)
    np.testing.assert_allclose(p[np.arange(300), classes], 101 / 103, rtol=1e-3)


def test_scores_without_information_give_the_rates() -> None:
    rng = np.random.default_rng(2)
    classes = rng.integers(0, 3, 1000)
    fitted = fit_class_map(np.full((1000, 3), 7.0), classes, "platt")
    assert isinstance(fitted, Softmax)
    assert fitted.slopes == [0, 0, 0]
    rates = (np.bincount(classes) / 1000).tolist()
    np.testing.assert_allclose(class_probabilities(np.zeros((1, 3)), fitted)[0], rates, atol=1e-3)


def test_a_slope_never_reverses_the_ranking() -> None:
    scores, classes = drawn(2000)
    fitted = fit_class_map(-scores, classes, "platt")
    assert isinstance(fitted, Softmax)
    assert fitted.slopes == [0, 0, 0]


def test_figures_are_those_of_scikit_learn() -> None:
    scores, classes = drawn(1000)
    mapped = Normalised(reason="")
    p = class_probabilities(scores, mapped)
    figures = measure_classes(scores, classes, cross_fitted(scores, classes, mapped))
    assert figures.n_rows == 1000
    assert figures.log_loss == pytest.approx(log_loss(classes, p))
    assert figures.accuracy == accuracy_score(classes, p.argmax(axis=1))
    assert figures.confusion == confusion_matrix(classes, p.argmax(axis=1)).tolist()
    for number, auc in enumerate(figures.auc):
        assert auc == pytest.approx(roc_auc_score(classes == number, scores[:, number]))


def test_figures_of_rows_come_from_maps_that_were_fitted_without_them() -> None:
    rng = np.random.default_rng(3)
    scores, classes = rng.normal(size=(30, 3)), np.arange(30) % 3
    mapped = fit_class_map(scores, classes, "platt")
    within = -np.log(class_probabilities(scores, mapped)[np.arange(30), classes]).mean()
    assert measure_classes(scores, classes, cross_fitted(scores, classes, mapped)).log_loss > within
    assert measure_classes(scores, classes, cross_fitted(scores, classes, mapped)) == measure_classes(
        scores, classes, cross_fitted(scores, classes, mapped)
    )
