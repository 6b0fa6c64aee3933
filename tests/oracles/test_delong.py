"""DeLong's test against a count of all pairs, written from the paper of 1988, and against resampled rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.data.model.comparison import compare_auc, score_psi


def by_pairs(first: FloatVector, second: FloatVector, labels: FloatVector) -> tuple[FloatVector, float]:
    """Return both areas and the standard error of their difference, by equations 3 to 5 of the paper."""
    positive, negative = np.flatnonzero(labels > 0), np.flatnonzero(labels < 0)
    psi = np.empty((2, len(positive), len(negative)))
    for model, scores in enumerate((first, second)):
        for i, row in enumerate(positive):
            for j, other in enumerate(negative):
                gap = scores[row] - scores[other]
                psi[model, i, j] = 1.0 if gap > 0 else 0.5 if gap == 0 else 0.0
    areas = psi.mean(axis=(1, 2))
    s10, s01 = np.cov(psi.mean(axis=2)), np.cov(psi.mean(axis=1))
    contrast = np.array([-1.0, 1.0])
    variance = contrast @ (s10 / len(positive) + s01 / len(negative)) @ contrast
    return areas, float(np.sqrt(max(variance, 0.0)))


def rows(n: int, seed: int, *, rounded: bool = False) -> tuple[FloatVector, FloatVector, FloatVector]:
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < 0.3, 1.0, -1.0)
    shared = rng.normal(size=n)
    first, second = labels + shared + rng.normal(size=n), 1.3 * labels + shared + rng.normal(size=n)
    return (np.round(first), np.round(second), labels) if rounded else (first, second, labels)


@pytest.mark.parametrize("rounded", [False, True])
def test_areas_and_error_are_those_of_all_pairs(rounded: bool) -> None:
    first, second, labels = rows(150, 1, rounded=rounded)
    areas, error = by_pairs(first, second, labels)
    found = compare_auc(first, second, labels)
    assert [found.first, found.second] == pytest.approx(areas.tolist(), rel=1e-12)
    assert found.error == pytest.approx(error, rel=1e-9)
    assert found.first == pytest.approx(roc_auc_score(labels > 0, first), rel=1e-12)
    z = (areas[1] - areas[0]) / error
    assert found.z == pytest.approx(z, rel=1e-9)
    assert found.p_value == pytest.approx(2 * float(norm.sf(abs(z))), rel=1e-9)
    assert found.interval == pytest.approx(norm.interval(0.95, areas[1] - areas[0], error), rel=1e-9)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.booleans()), min_size=4, max_size=30).filter(
        lambda each: 2 <= sum(label for _, _, label in each) <= len(each) - 2
    )
)
def test_ties_count_half(table: list[tuple[int, int, bool]]) -> None:
    first, second, labels = (np.array(column, np.float64) for column in zip(*table, strict=True))
    labels = 2 * labels - 1
    areas, error = by_pairs(first, second, labels)
    found = compare_auc(first, second, labels)
    assert [found.first, found.second] == pytest.approx(areas.tolist())
    assert found.error == pytest.approx(error, abs=1e-7)


def test_the_error_is_that_of_resampled_rows() -> None:
    first, second, labels = rows(1500, 2)
    rng = np.random.default_rng(3)
    differences = []
    for _ in range(400):
        drawn = rng.integers(0, 1500, 1500)
        sample = labels[drawn] > 0
        differences.append(roc_auc_score(sample, second[drawn]) - roc_auc_score(sample, first[drawn]))
    assert compare_auc(first, second, labels).error == pytest.approx(float(np.std(differences)), rel=0.15)


def test_equally_good_models_seldom_differ() -> None:
    p_values = []
    for seed in range(200):
        first, _, labels = rows(200, seed)
        rng = np.random.default_rng(1000 + seed)
        p_values.append(compare_auc(first, labels + rng.normal(0, 2**0.5, 200), labels).p_value)
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.1


def test_a_model_does_not_differ_from_a_rising_function_of_itself() -> None:
    first, _, labels = rows(300, 4)
    found = compare_auc(first, 2 * first + 1, labels)
    assert (found.difference, found.error, found.z, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_a_single_row_of_a_label_is_refused() -> None:
    with pytest.raises(DataError, match="two rows of each label"):
        compare_auc(np.arange(3.0), np.arange(3.0), np.array([1.0, -1.0, -1.0]))


def test_the_psi_of_two_models_is_zero_for_equal_scores_alone() -> None:
    first, second, _ = rows(2000, 5)
    assert score_psi(first, first) == 0
    # All rows of a scorecard's bins stay in their groups if a weight changes in its last digits.
    few = np.random.default_rng(1).choice([-1.2, 0.3, 2.0], 1000, p=[0.8, 0.15, 0.05])
    assert score_psi(few, few * (1 + 1e-9)) == score_psi(few, few * (1 - 1e-9)) == 0
    assert score_psi(few, np.where(few == 2.0, 0.3, few)) > 0.05
    assert score_psi(first, second) > 0
