"""Probabilities out of scores: fitted where they can be, applied by a pure function."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.dataset import LabelConfig
from trilateral.common.data.model.assessment import assess
from trilateral.common.data.model.calibration import (
    AnyCalibration,
    InterceptOnly,
    Isotonic,
    Platt,
    Uncalibrated,
    _folds,
    calibrate,
    cross_fitted,
    fit_calibration,
    formula,
    log_odds,
)
from trilateral.common.protocol.evaluation import log_loss


def rows(seed: int, n: int = 400, slope: float = 3.0) -> tuple[FloatVector, FloatVector]:
    """Scores whose sigmoid is off, as the Taylor loss leaves them: p = sigmoid(slope u - 1)."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n)
    return scores, np.where(rng.random(n) < expit(slope * scores - 1), 1.0, -1.0)


@given(st.integers(0, 2**32 - 1), st.floats(0.2, 5), st.floats(-1, 1))
def test_platt_is_the_least_loss_against_platts_targets(seed: int, stretch: float, shift: float) -> None:
    scores, labels = rows(seed, 60)
    scores = stretch * scores + shift
    n_positive = (labels > 0).sum()
    targets = np.where(labels > 0, (n_positive + 1) / (n_positive + 2), 1 / (len(labels) - n_positive + 2))

    def loss(ab: FloatVector) -> float:
        z = ab[0] * scores + ab[1]
        return float(np.mean(targets * np.logaddexp(0, -z) + (1 - targets) * np.logaddexp(0, z)))

    fitted = fit_calibration(scores, labels, "platt", 0.5)

    assert isinstance(fitted, Platt)
    expected = minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert loss(np.array([fitted.a, fitted.b])) <= expected.fun + 1e-8


@given(st.integers(0, 2**32 - 1), st.floats(0, 5))
def test_platt_is_scikit_learns_regression_on_rows_split_by_their_targets(seed: int, gap: float) -> None:
    scores, labels = rows(seed, 80)
    scores = scores + gap * labels
    targets = np.where(labels > 0, ((labels > 0).sum() + 1) / ((labels > 0).sum() + 2), 1 / ((labels < 0).sum() + 2))
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    model.fit(
        np.tile(scores, 2)[:, np.newaxis], np.repeat([1, 0], 80), sample_weight=np.concatenate([targets, 1 - targets])
    )

    fitted = fit_calibration(scores, labels, "platt", 0.5)

    assert isinstance(fitted, Platt)
    assert (fitted.a, fitted.b) == pytest.approx((max(model.coef_[0, 0], 0), model.intercept_[0]), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("n_apart", [1, 10])
def test_platt_finds_the_slope_that_a_few_rows_far_from_all_others_need(n_apart: int) -> None:
    scores, labels = np.zeros(100_000), np.full(100_000, -1.0)
    scores[:n_apart], labels[:100] = 1, 1

    fitted = fit_calibration(scores, labels, "platt", 0.5)

    # Two values of the score: the map reaches the mean target of each.
    assert isinstance(fitted, Platt)
    targets = np.where(labels > 0, 101 / 102, 1 / 99_902)
    assert expit(fitted.b) == pytest.approx(targets[n_apart:].mean(), rel=1e-3)
    assert expit(fitted.a + fitted.b) == pytest.approx(101 / 102, rel=1e-3)


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=30, max_size=60))
def test_the_folds_are_those_of_scikit_learn(labels: list[float]) -> None:
    y = np.array([*[-1.0, 1.0] * 5, *labels])
    folds = StratifiedKFold(5, shuffle=True, random_state=0).split(y[:, np.newaxis], y)
    for number, (_, fold) in enumerate(folds):
        np.testing.assert_array_equal(np.flatnonzero(_folds(y) == number), fold)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_that_separate_the_labels_give_no_certainty(method: str) -> None:
    labels = np.repeat([-1.0, 1.0], 20)
    fitted = fit_calibration(np.linspace(-1, 1, 40) + labels, labels, method, 0.5)  # type: ignore[arg-type]
    probabilities = calibrate(np.array([-1e3, -1.0, 1.0, 1e3]), fitted)
    assert (probabilities[:2] < 0.15).all()
    assert (probabilities[2:] > 0.85).all()
    assert np.isfinite(log_odds(np.array([-1e3, 1e3]), fitted)).all()


def test_scores_that_tell_nothing_give_the_rate() -> None:
    labels = np.repeat([-1.0, 1.0], [30, 10])
    assert calibrate(np.array([7.0]), fit_calibration(np.zeros(40), labels, "platt", 0.5)) == pytest.approx(
        0.25, abs=0.03
    )


def test_a_ranking_that_is_wrong_is_not_turned_round() -> None:
    scores, labels = rows(3)
    fitted = fit_calibration(scores, -labels, "platt", 0.5)
    assert isinstance(fitted, Platt)
    assert fitted.a == 0


@given(st.integers(0, 2**32 - 1))
def test_isotonic_rises_and_is_never_certain(seed: int) -> None:
    scores, labels = rows(seed, 50)
    scores = np.round(scores, 1)  # ties
    fitted = fit_calibration(scores, labels, "isotonic", 0.5)
    assert isinstance(fitted, Isotonic)
    probabilities = calibrate(np.linspace(-9, 9, 200), fitted)
    assert (np.diff(probabilities) >= -1e-12).all()
    assert probabilities.min() >= 1 / 52 - 1e-12
    assert probabilities.max() <= 51 / 52 + 1e-12


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_map_survives_its_file_to_the_last_bit(method: str) -> None:
    scores, labels = rows(1)
    fitted = fit_calibration(scores, labels, method, 0.5)  # type: ignore[arg-type]
    again = type(fitted).model_validate_json(fitted.model_dump_json())
    assert np.array_equal(calibrate(scores, fitted), calibrate(scores, again))


@pytest.mark.parametrize("n_positive", [1, 4])
@pytest.mark.parametrize("rate", [0.002, 0.3, 0.95])
@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_too_few_rows_for_a_slope_still_give_the_rate_on_average(n_positive: int, rate: float, method: str) -> None:
    labels = np.repeat([-1.0, 1.0], [50, n_positive])
    scores = np.linspace(-2, 1, 50 + n_positive)
    fitted = fit_calibration(scores, labels, method, rate)  # type: ignore[arg-type]
    assert isinstance(fitted, InterceptOnly)
    assert fitted.reason == "fewer than 5 hold-out rows have the rarer label"
    probabilities = calibrate(scores, fitted)
    assert probabilities.mean() == pytest.approx(rate, rel=1e-9)
    np.testing.assert_allclose(np.diff(np.log(probabilities / (1 - probabilities))), np.diff(scores), atol=1e-9)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30), st.floats(1e-6, 1 - 1e-6))
def test_an_offset_is_found_for_any_scores_and_any_rate(scores: list[float], rate: float) -> None:
    fitted = fit_calibration(np.array(scores), np.full(len(scores), -1.0), "platt", rate)
    assert calibrate(np.array(scores), fitted).mean() == pytest.approx(rate, rel=1e-6)


def taylor_scores(rate: float, seed: int, strength: float) -> tuple[FloatVector, FloatVector, FloatVector]:
    """Fit the Taylor loss; return the labels it was fitted on, and scores of other rows with their labels.

    The minimum of the Taylor loss is least squares of 2 y on the columns.
    """
    rng = np.random.default_rng(seed)
    columns = np.column_stack([rng.normal(size=(60_000, 4)), np.ones(60_000)])
    logits = columns[:, :4] @ rng.normal(size=4) * strength
    centre = brentq(lambda c: float(expit(logits + c).mean()) - rate, -30, 30)
    labels = np.where(rng.random(60_000) < expit(logits + centre), 1.0, -1.0)
    train, other = slice(0, 20_000), slice(20_000, None)
    coef = np.linalg.lstsq(columns[train], 2 * labels[train], rcond=None)[0]
    return labels[train], columns[other] @ coef, labels[other]


@pytest.mark.parametrize("strength", [0.2, 1.0])
@pytest.mark.parametrize("rate", [0.002, 0.03, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("n_holdout", [0, 30])
def test_new_rows_get_the_known_rate_on_average_where_no_slope_was_fitted(
    rate: float, strength: float, n_holdout: int
) -> None:
    train_labels, scores, labels = taylor_scores(rate, 7, strength)
    few = np.argsort(labels, kind="stable")[:n_holdout]  # of one label
    fitted = assess(scores[few], labels[few], LabelConfig(), train_labels, intercept=True).calibration
    assert isinstance(fitted, InterceptOnly)
    known_rate = (np.concatenate([train_labels, labels[few]]) > 0).mean()
    assert calibrate(scores, fitted).mean() == pytest.approx(known_rate, rel=0.35)
    if rate < 0.1:
        assert expit(scores).mean() > 3 * rate


def test_without_hold_out_rows_and_without_an_intercept_nothing_is_known() -> None:
    labels = np.repeat([-1.0, 1.0], [30, 10])
    found = assess(np.empty(0), np.empty(0), LabelConfig(), labels, intercept=False)
    assert isinstance(found.calibration, Uncalibrated)
    assert "no intercept" in found.calibration.reason


def test_without_hold_out_rows_the_logistic_loss_needs_no_offset() -> None:
    labels = np.repeat([-1.0, 1.0], [30, 10])
    found = assess(np.empty(0), np.empty(0), LabelConfig(), labels, intercept=True, is_logistic=True)
    assert isinstance(found.calibration, InterceptOnly)
    assert found.calibration.b == 0


def test_without_hold_out_rows_an_offset_takes_weights_by_label_out_of_the_odds() -> None:
    """A model of weighted rows, fitted by scikit-learn, gives the rate of the rows as they are."""
    rng = np.random.default_rng(3)
    columns = rng.normal(size=(20_000, 2))
    labels = np.where(rng.random(20_000) < expit(columns @ [1.0, -0.5] - 3), 1.0, -1.0)
    weights = np.where(labels > 0, 9.0, 1.0)
    model = LogisticRegression(C=np.inf).fit(columns, labels, sample_weight=weights)
    found = assess(
        np.empty(0),
        np.empty(0),
        LabelConfig(),
        labels,
        intercept=True,
        is_logistic=True,
        sample_weights=weights,
    )
    scores = model.decision_function(columns)
    rate = (labels > 0).mean()
    assert expit(scores).mean() > 3 * rate
    assert calibrate(scores, found.calibration).mean() == pytest.approx(rate, rel=0.05)


def test_no_row_is_judged_by_a_map_that_it_was_fitted_on() -> None:
    """Labels that are a coin's: whoever fits and reports on the same rows finds something in them."""
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=300), rng.choice([-1.0, 1.0], 300)
    fitted = fit_calibration(scores, labels, "isotonic", 0.5)
    flattering = log_loss(log_odds(scores, fitted), labels)
    honest = log_loss(cross_fitted(scores, labels, fitted), labels)
    assert flattering < np.log(2) < honest


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibration_mends_probabilities_and_reports_both_sides(method: str) -> None:
    scores, labels = rows(5, 4000)
    found = assess(scores, labels, LabelConfig.model_validate({"calibration": method}), labels, intercept=True)
    assert found.report is not None
    assert found.metrics is not None
    before, after = found.report.before, found.report.after
    assert after.log_loss < before.log_loss - 0.02
    assert found.metrics.log_loss == after.log_loss
    for side in (before, after):
        assert [each.n for each in side.bins] == [400] * 10
        predicted = [each.mean_predicted for each in side.bins]
        assert predicted == sorted(predicted)
        assert np.mean([each.observed_rate for each in side.bins]) == pytest.approx(np.mean(labels > 0))
    off = max(abs(each.mean_predicted - each.observed_rate) for each in after.bins)
    assert off < 0.06 < max(abs(each.mean_predicted - each.observed_rate) for each in before.bins)


def test_the_same_rows_give_the_same_assessment() -> None:
    scores, labels = rows(9)
    found = [assess(scores, labels, LabelConfig(), labels, intercept=True) for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize("n_holdout", [0, 400])
def test_none_leaves_the_sigmoid(n_holdout: int) -> None:
    scores, labels = rows(2)
    config = LabelConfig(calibration="none")
    plain = assess(scores[:n_holdout], labels[:n_holdout], config, labels, intercept=True)
    assert plain.calibration == Uncalibrated(reason="the dataset says `calibration: none`")
    assert plain.report is None
    assert (plain.metrics is None) == (n_holdout == 0)
    if plain.metrics is not None:
        assert plain.metrics.log_loss == pytest.approx(log_loss(scores, labels))


@pytest.mark.parametrize(
    ("calibration", "text"),
    [
        (Platt(a=0.9, b=-0.2), "p = 1 / (1 + exp(-(0.9 u - 0.2)))"),
        (Isotonic(thresholds=[0.1, 0.2], values=[0.3, 0.4]), "isotonic: linear between 2 points"),
        (InterceptOnly(b=0.1, reason="there are few rows"), "p = 1 / (1 + exp(-(u + 0.1)))"),
        (Uncalibrated(reason="the dataset says so"), "p = 1 / (1 + exp(-u))"),
    ],
)
def test_the_map_to_probabilities_is_written_out(calibration: AnyCalibration, text: str) -> None:
    assert formula(calibration) == text
