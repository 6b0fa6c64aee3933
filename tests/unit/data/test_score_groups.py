"""The evaluation rows in groups of neighbouring scores."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from trilateral.common.base.arrays import FloatVector
from trilateral.common.config.settings import parse_settings
from trilateral.common.data.model.score_groups import MAX_GROUPS, ScoreGroups
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.protocol.logistic import probability


def _rows(n_rows: int, rate: float = 0.3, seed: int = 1) -> tuple[FloatVector, FloatVector]:
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n_rows) < rate, 1.0, -1.0)
    return rng.standard_normal(n_rows) + 0.7 * labels, labels


def _points(x: FloatVector, y: FloatVector) -> set[tuple[float, float]]:
    return set(zip(np.round(x, 9).tolist(), np.round(y, 9).tolist(), strict=True))


def _groups(scores: FloatVector, labels: FloatVector) -> ScoreGroups:
    groups = ScoreGroups.of(scores, labels, scores)
    assert groups is not None
    return groups


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=300),
    st.floats(0.02, 0.98),
    st.integers(0, 2**32 - 1),
)
def test_no_group_has_one_to_nine_rows_of_a_label_and_every_row_is_in_its_group(
    values: list[int], rate: float, seed: int
) -> None:
    scores = np.array(values, dtype=np.float64) / 7
    labels = np.where(np.random.default_rng(seed).random(len(values)) < rate, 1.0, -1.0)
    groups = ScoreGroups.of(scores, labels, scores)
    if groups is None:
        assert min((labels > 0).sum(), (labels < 0).sum()) < 2 * MIN_ROWS or len(set(values)) < 40
        return
    assert not any(0 < n < MIN_ROWS for n in (*groups.n_positive, *groups.n_negative))
    assert groups.n_rows.min() >= MIN_ROWS
    assert not set(groups.bounds) & set(scores.tolist())
    places = np.searchsorted(groups.bounds, scores)
    assert np.bincount(places[labels > 0], minlength=len(groups.n_positive)).tolist() == groups.n_positive
    assert np.bincount(places[labels < 0], minlength=len(groups.n_positive)).tolist() == groups.n_negative
    assert groups.mean_score == pytest.approx(np.bincount(places, scores) / np.bincount(places))
    assert groups.mean_probability == pytest.approx(np.bincount(places, probability(scores)) / np.bincount(places))


@given(st.integers(40, 400), st.floats(0, 30), st.integers(0, 2**32 - 1))
def test_groups_of_a_single_label_are_at_the_ends_alone(n_rows: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = spread * rng.standard_normal(n_rows)
    labels = np.where(rng.random(n_rows) < probability(scores), 1.0, -1.0)
    groups = ScoreGroups.of(scores, labels, scores)
    if groups is None:
        return
    is_pure = (np.array(groups.n_positive) == 0) | (np.array(groups.n_negative) == 0)
    mixed = np.flatnonzero(~is_pure)
    assert not len(mixed) or len(mixed) == mixed[-1] - mixed[0] + 1
    assert not is_pure.any() or len(mixed) < 5


def test_labels_that_are_nearly_separated_have_groups_of_a_single_label_at_both_ends() -> None:
    scores = np.arange(120.0)
    labels = np.where(np.isin(np.arange(120), [55, 58, *range(61, 120)]), 1.0, -1.0)
    groups = _groups(scores, labels)
    assert groups.n_positive == [0, 0, 0, 0, 11, 10, 10, 10, 10, 10]
    assert groups.n_negative == [10, 10, 10, 10, 19, 0, 0, 0, 0, 0]
    assert groups.bounds[0] == 9.5
    assert auc(*groups.roc) == pytest.approx(roc_auc_score(labels, scores), abs=0.04)


@pytest.mark.parametrize("border", [50, 57])
def test_labels_that_a_score_separates_have_groups(border: int) -> None:
    scores = np.arange(120.0)
    groups = _groups(scores, np.where(scores >= border, 1.0, -1.0))
    assert groups.n_positive[0] == groups.n_negative[-1] == 0
    assert sum(groups.n_negative) == border


def test_large_sets_have_at_most_the_maximum_number_of_groups() -> None:
    rng = np.random.default_rng(1)
    for spread in (0.1, 1, 5, 30, 1000, 1e6):
        scores = spread * rng.standard_normal(50_000)
        labels = np.where(rng.random(50_000) < probability(scores), 1.0, -1.0)
        assert 5 <= len(_groups(scores, labels).n_positive) <= MAX_GROUPS


def test_too_few_rows_of_a_label_have_no_groups() -> None:
    labels = np.where(np.arange(1000) < 19, 1.0, -1.0)
    assert ScoreGroups.of(np.linspace(0, 1, 1000), labels, np.zeros(1000)) is None
    assert ScoreGroups.of(np.zeros(1000), _rows(1000)[1], np.zeros(1000)) is None


@pytest.mark.parametrize("rate", [0.5, 0.01])
def test_the_curves_are_those_of_scikit_learn(rate: float) -> None:
    scores, labels = _rows(50_000, rate)
    groups = _groups(scores, labels)
    assert len(groups.n_positive) <= MAX_GROUPS
    x, y = groups.roc
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    corners = _points(*roc_curve(labels, scores, drop_intermediate=False)[:2])
    assert _points(x, y) <= corners
    assert auc(x, y) == pytest.approx(roc_auc_score(labels, scores), abs=5e-3)
    precision, recall, _ = precision_recall_curve(labels, scores)
    assert _points(*groups.precision_recall) <= _points(recall, precision)


def test_ks_gain_lift_and_the_confusion_matrix_count_rows() -> None:
    scores, labels = _rows(5_000)
    groups = _groups(scores, labels)
    ks = groups.ks
    place = ks.widest
    threshold = groups.bounds[place]
    assert ks.negative[place] == pytest.approx((scores[labels < 0] <= threshold).mean())
    assert ks.positive[place] == pytest.approx((scores[labels > 0] <= threshold).mean())
    confusion = groups.confusion(place)
    above, positive = scores > threshold, labels > 0
    assert confusion == (
        (above & positive).sum(),
        (above & ~positive).sum(),
        (~above & positive).sum(),
        (~above & ~positive).sum(),
    )
    share, found = groups.gain
    of_threshold = len(groups.bounds) - place
    assert share[of_threshold] == pytest.approx(above.mean())
    assert found[of_threshold] == pytest.approx(above[positive].mean())
    assert groups.lift.y[of_threshold - 1] == pytest.approx(positive[above].mean() / groups.rate)


def test_calibration_has_the_intervals_of_wilson() -> None:
    from statsmodels.stats.proportion import proportion_confint

    groups = _groups(*_rows(5_000))
    points = groups.calibration(10)
    assert len(points.predicted) == 10
    assert points.n_rows.sum() == 5_000
    assert points.n_rows.min() > 400
    n_positive = np.rint(points.observed * points.n_rows)
    lower, upper = proportion_confint(n_positive, points.n_rows, method="wilson")
    assert points.lower == pytest.approx(lower)
    assert points.upper == pytest.approx(upper)


def test_merging_keeps_all_rows_and_their_means() -> None:
    scores, labels = _rows(5_000)
    groups = _groups(scores, labels)
    merged = groups.merged(7)
    assert len(merged.n_positive) == 7
    places = np.searchsorted(merged.bounds, scores)
    assert np.bincount(places).tolist() == merged.n_rows.tolist()
    assert merged.mean_score == pytest.approx(np.bincount(places, scores) / np.bincount(places))
    assert groups.merged(1000) is groups


def test_groups_survive_json() -> None:
    groups = _groups(*_rows(300))
    assert parse_settings(ScoreGroups, json.loads(groups.model_dump_json()), "file") == groups


@pytest.mark.parametrize(
    "change",
    [
        {"bounds": [0.0, 0.0]},
        {"bounds": [0.0]},
        {"n_positive": [9, 20, 20]},
        {"n_positive": [0, 20, 20], "n_negative": [0, 20, 20]},
        {"n_positive": [0, 0, 0]},
        {"mean_score": [0.0]},
    ],
)
def test_a_file_with_other_groups_is_refused(change: dict[str, list[float]]) -> None:
    fields = {
        "bounds": [0.0, 1.0],
        "n_positive": [10, 20, 20],
        "n_negative": [10, 20, 20],
        "mean_score": [0.0, 1.0, 2.0],
        "mean_probability": [0.1, 0.2, 0.3],
    }
    ScoreGroups(**fields)
    with pytest.raises(ValueError, match="must"):
        ScoreGroups(**fields | change)
