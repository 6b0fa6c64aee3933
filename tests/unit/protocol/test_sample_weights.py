"""The scaling of sample weights: ratios, exactness, bounds, and what follows from their fraction bits."""

from typing import Literal

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_sample_weight

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, notes
from trilateral.common.protocol.sample_weights import (
    MAX_RMS,
    MAX_UNEVENNESS,
    WEIGHT_BITS,
    ByLabel,
    SampleWeights,
    n_effective,
)

RNG = np.random.default_rng(7)
LABELS = np.where(RNG.random(3000) < 0.1, 1.0, -1.0)
UNEVEN = RNG.lognormal(size=3000)


def scaled(
    weights: FloatVector | None = None,
    class_weight: ByLabel | None = None,
    labels: FloatVector = LABELS,
    seed: int = 0,
) -> SampleWeights:
    found = SampleWeights.of(weights, class_weight, labels, seed)
    assert found is not None
    return found


def test_without_settings_all_rows_count_alike() -> None:
    assert SampleWeights.of(None, None, LABELS, 0) is None


@pytest.mark.parametrize(("factor", "most", "bits"), [(1, 6, 0), (100, 6, 0), (1, 2, 0), (1, 200, 6)])
def test_whole_numbers_are_exact(factor: int, most: int, bits: int) -> None:
    weights = RNG.integers(0, most, size=3000).astype(float)
    found = scaled(weights * factor)
    assert found.bits == bits
    grid = found.values * 2**bits
    np.testing.assert_array_equal(grid, weights * (grid.max() / weights.max()))
    np.testing.assert_array_equal(grid, np.rint(grid))


@pytest.mark.parametrize(
    ("weights", "class_weight"),
    [
        (np.ones(3000), None),
        (UNEVEN, None),
        (UNEVEN**2, "balanced"),
        (np.rint(UNEVEN * 10), (100.0, 1.0)),
        (np.where(UNEVEN > 5, 1.0, 0.0), None),
    ],
)
def test_the_scaled_weights_fill_the_range(weights: FloatVector, class_weight: ByLabel | None) -> None:
    rms = np.sqrt(np.square(scaled(weights, class_weight).values).mean())
    assert MAX_RMS / 2.01 < rms < MAX_RMS * 1.001


def test_whole_class_weights_are_exact() -> None:
    found = scaled(np.full(3000, 2.0), (7.0, 1.0))
    assert found.bits == 0
    np.testing.assert_array_equal(found.values, np.where(LABELS > 0, 7, 1))


def test_the_mean_of_other_weights_is_a_power_of_two_and_the_sum_of_each_label_is_right() -> None:
    found = scaled(UNEVEN)
    assert found.bits == WEIGHT_BITS
    grid = found.values * 2**WEIGHT_BITS
    np.testing.assert_array_equal(grid, np.rint(grid))
    exact = UNEVEN * (2 / UNEVEN.mean())
    assert np.abs(found.values - exact).max() <= 2.0**-WEIGHT_BITS
    assert found.values.sum() == 2 * len(LABELS)
    for label in (-1, 1):
        rows = label == LABELS
        assert abs(found.values[rows].sum() - exact[rows].sum()) <= 2.0**-WEIGHT_BITS


def test_rounding_is_not_biased_by_the_order_of_the_table() -> None:
    """Rows of alternating groups have a weight halfway between two grid points, where any order would show."""
    weights = np.ones(20_000)
    weights[-1] = 20_000 * 0.5 / 64 / 2 + 1.001
    group = np.arange(20_000) % 2 == 0
    found = scaled(weights, None, np.where(np.arange(20_000) % 20 < 10, 1.0, -1.0)).values
    errors = (found - weights * (found.mean() / weights.mean()))[:-1]
    # The standard deviation of the mean over 10,000 drawn roundings of half a grid point is 1/100 of that.
    assert abs(errors[group[:-1]].mean()) < 0.05 * 2.0**-WEIGHT_BITS


@pytest.mark.parametrize("factor", [1e-300, 1e300])
def test_the_scale_of_the_weights_does_not_matter(factor: float) -> None:
    np.testing.assert_array_equal(scaled(UNEVEN * factor).values, scaled(UNEVEN).values)


@pytest.mark.parametrize("weights", [None, UNEVEN, np.where(UNEVEN > 1, UNEVEN, 0)], ids=["no", "uneven", "zeros"])
@pytest.mark.parametrize("class_weight", ["balanced", (3.5, 0.7)], ids=str)
def test_class_weights_multiply_the_others_as_in_scikit_learn(
    weights: FloatVector | None, class_weight: ByLabel
) -> None:
    found = scaled(weights, class_weight)
    of_rows = np.ones(3000) if weights is None else weights
    if isinstance(class_weight, tuple):
        exact = of_rows * np.where(LABELS > 0, *class_weight)
    else:
        totals = {label: of_rows[label == LABELS].sum() for label in (-1, 1)}
        exact = of_rows / np.vectorize(totals.get)(LABELS)
        if weights is None:
            np.testing.assert_allclose(exact / exact.mean(), compute_sample_weight("balanced", LABELS))
    mean = found.values.mean()
    np.testing.assert_allclose(found.values / mean, exact / exact.mean(), atol=2.0**-WEIGHT_BITS / mean)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("weights", [None, UNEVEN], ids=["no", "uneven"])
def test_a_logistic_regression_hardly_changes_by_the_rounding(
    weights: FloatVector | None, class_weight: Literal["balanced"] | None
) -> None:
    """Coefficients differ from those of scikit-learn with exact weights by at most 0.02 standard errors."""
    columns = np.random.default_rng(1).normal(size=(3000, 4)) + 0.3 * LABELS[:, np.newaxis]
    exact = LogisticRegression(C=np.inf, class_weight=class_weight, solver="newton-cholesky", tol=1e-10)
    exact.fit(columns, LABELS, sample_weight=weights)
    rounded = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    c = np.ones(3000) if weights is None and class_weight is None else scaled(weights, class_weight).values
    rounded.fit(columns, LABELS, sample_weight=c)
    # The sandwich estimator of the covariance: weights are not frequencies.
    rows = np.c_[columns, np.ones(3000)]
    p = exact.predict_proba(columns)[:, 1]
    inverse = np.linalg.inv((rows.T * (c * p * (1 - p))) @ rows)
    scores = rows.T * (c * (p - (LABELS > 0)))
    errors = np.sqrt(np.diag(inverse @ scores @ scores.T @ inverse))
    difference = np.r_[exact.coef_[0] - rounded.coef_[0], exact.intercept_ - rounded.intercept_]
    assert np.abs(difference / errors).max() < 0.02


@pytest.mark.parametrize("share", [0.2, 0.01, 0.001])
def test_balanced_weights_of_rare_labels_keep_to_the_range(share: float) -> None:
    labels = np.full(100_000, -1.0)
    labels[: round(share * 100_000)] = 1
    found = scaled(None, "balanced", labels)
    assert np.sqrt(np.square(found.values).mean()) <= MAX_RMS * (1 + 2.0**-WEIGHT_BITS)
    ratio = found.values[labels > 0].sum() / found.values[labels < 0].sum()
    assert ratio == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("whole", [1.0, 1e-3])
def test_too_uneven_weights_are_refused_with_the_way_out_and_no_number_about_them(whole: float) -> None:
    weights = np.full(3000, whole)
    weights[0] = whole * 1_000_000
    with pytest.raises(DataError, match="too uneven: .* upper limit to the column") as error:
        scaled(weights)
    assert f"more than {MAX_UNEVENNESS:g} times" in str(error.value)
    assert "54.6" not in str(error.value)
    assert notes(error.value) == ["the root mean square is 54.6 times the mean"]


def test_training_rows_without_any_weight_are_refused() -> None:
    with pytest.raises(DataError, match="every training row has the weight 0"):
        scaled(np.zeros(3000), "balanced")


def test_the_fraction_bits_do_not_tell_whether_labels_are_balanced() -> None:
    labels = np.array([1.0, -1.0] * 10)
    assert scaled(None, "balanced", labels).bits == WEIGHT_BITS
    assert scaled(None, "balanced").bits == WEIGHT_BITS


def test_the_same_job_rounds_the_same_rows() -> None:
    np.testing.assert_array_equal(scaled(UNEVEN).values, scaled(UNEVEN).values)
    assert (scaled(UNEVEN).values != scaled(UNEVEN, seed=1).values).any()


def test_rows_of_weight_zero_do_not_count_as_effective() -> None:
    assert n_effective(np.ones(7)) == 7
    assert n_effective(np.array([5.0, 5, 0, 0])) == 2
    assert n_effective(np.zeros(3)) == 0
