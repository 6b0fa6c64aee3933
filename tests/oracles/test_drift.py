"""Shifts and calibration drift against scipy, pandas and scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, rel_entr
from scipy.stats import chi2
from sklearn.linear_model import LogisticRegression

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.model.calibration_drift import calibration_drift
from trilateral.common.data.model.distributions import NumberDistribution, expected_psi, psi

Labelled = tuple[FloatVector, FloatVector]


def labelled(n: int, slope: float, intercept: float, seed: int = 3) -> Labelled:
    """Return the log-odds of a model and labels whose true log-odds are a linear function of them."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1, 1.5, n)
    return odds, np.where(rng.random(n) < expit(slope * odds + intercept), 1.0, -1.0)


def test_the_psi_of_deciles_is_that_of_pandas_and_scipy() -> None:
    rng = np.random.default_rng(4)
    before, after = rng.normal(size=5000), rng.normal(0.4, 1.3, 3000)

    edges = pd.Series(before).quantile(np.arange(1, 10) / 10).to_numpy()
    edges = np.concatenate([[-np.inf], edges, [np.inf]])
    e, a = (np.histogram(values, edges)[0] / len(values) for values in (before, after))

    distribution = NumberDistribution.of(before)
    ours = psi(distribution.counts, distribution.count(after))
    assert ours == pytest.approx(float((rel_entr(a, e) + rel_entr(e, a)).sum()), rel=0.01)
    # The borders differ by less than a row. With our counts the sums agree.
    p, q = np.array(distribution.counts[:-1]) / 5000, distribution.count(after)[:-1] / 3000
    assert ours == pytest.approx(float((rel_entr(p, q) + rel_entr(q, p)).sum()), rel=1e-9)


def test_the_mean_psi_of_equal_distributions_is_as_expected() -> None:
    rng = np.random.default_rng(5)
    before = rng.normal(size=20_000)
    distribution = NumberDistribution.of(before)
    found = [psi(distribution.counts, distribution.count(rng.normal(size=2000))) for _ in range(300)]
    assert np.mean(found) == pytest.approx(expected_psi(10, 20_000, 2000), rel=0.1)


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.6, 0.3), (1.4, -0.5)])
def test_the_calibration_slope_is_that_of_a_regression_on_the_log_odds(slope: float, intercept: float) -> None:
    odds, labels = labelled(4000, slope, intercept)

    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(odds[:, np.newaxis], labels > 0)
    columns = np.column_stack([odds, np.ones(4000)])
    p = model.predict_proba(odds[:, np.newaxis])[:, 1]
    covariance = np.linalg.inv(columns.T @ (columns * (p * (1 - p))[:, np.newaxis]))

    drift = calibration_drift(odds, odds, labels, 0.5)
    assert drift.slope is not None
    assert drift.slope.value == pytest.approx(float(model.coef_[0, 0]), rel=1e-5)
    assert drift.slope.error == pytest.approx(float(covariance[0, 0]) ** 0.5, rel=1e-5)
    low, high = drift.slope.interval
    assert low < slope < high


def test_the_calibration_intercept_takes_the_mean_probability_to_the_rate() -> None:
    odds, labels = labelled(4000, 1.0, 0.7)
    drift = calibration_drift(odds, odds, labels, 0.5)
    assert drift.intercept is not None
    assert expit(odds + drift.intercept.value).mean() == pytest.approx((labels > 0).mean(), rel=1e-9)
    low, high = drift.intercept.interval
    assert low < 0.7 < high
    assert drift.ratio == pytest.approx((labels > 0).sum() / expit(odds).sum())


def test_hosmer_lemeshow_is_that_of_a_table_of_deciles() -> None:
    odds, labels = labelled(2000, 0.8, 0.1)
    frame = pd.DataFrame({"p": expit(odds), "y": labels > 0, "decile": pd.qcut(odds, 10)})
    table = frame.groupby("decile", observed=True).agg(n=("y", "size"), o=("y", "sum"), e=("p", "sum"))
    expected = float(((table["o"] - table["e"]) ** 2 / (table["e"] * (1 - table["e"] / table["n"]))).sum())

    drift = calibration_drift(odds, odds, labels, 0.5)
    assert drift.hosmer_lemeshow == pytest.approx(expected, rel=1e-9)
    assert drift.degrees == 10
    assert drift.p_value == pytest.approx(float(chi2.sf(expected, 10)), rel=1e-9)


def test_right_probabilities_are_seldom_called_wrong() -> None:
    p_values = [calibration_drift(o, o, y, 0.5).p_value for o, y in (labelled(1000, 1, 0, seed) for seed in range(200))]
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.1


def test_rows_of_one_label_have_a_ratio_but_no_slope() -> None:
    odds = np.linspace(-2, 2, 50)
    drift = calibration_drift(odds, odds, np.full(50, -1.0), 0.5)
    assert drift.ratio == 0
    assert drift.slope is None
    assert drift.intercept is None


def test_scores_that_separate_the_labels_have_no_slope() -> None:
    odds = np.linspace(-2, 2, 50)
    drift = calibration_drift(odds, odds, np.sign(odds), 0.5)
    assert drift.slope is None
    assert drift.intercept is not None


def test_probabilities_that_round_to_one_are_measured() -> None:
    odds = np.array([50.0, 60.0, -50.0, 45.0] * 10)
    assert calibration_drift(odds, odds, np.sign(odds), 0.5).p_value == pytest.approx(1.0)
