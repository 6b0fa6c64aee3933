"""The figures of a report against scikit-learn and scipy, from the scores and labels of all rows."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    auc,
    confusion_matrix,
    precision_score,
    recall_score,
    roc_auc_score,
)

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.model.calibration import AnyCalibration, Method, calibrate, fit_calibration, log_odds
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.protocol.logistic import probability
from trilateral.common.report.contents import Table, Thresholds
from trilateral.common.report.quality import bands_table, thresholds_of

SPREADS = {"usual": 1.0, "nearly separated": 12.0, "with ties": 1.5}


class Rows:
    """Scores, labels and a calibration."""

    def __init__(self, kind: str) -> None:
        rng = np.random.default_rng(3)
        self.u: FloatVector = SPREADS[kind] * rng.standard_normal(3000)
        if kind == "with ties":
            self.u = np.round(self.u, 1)
        self.y: FloatVector = np.where(rng.random(3000) < probability(self.u - 1), 1.0, -1.0)
        method: Method = "isotonic" if kind == "with ties" else "platt"
        self.calibration: AnyCalibration = fit_calibration(self.u, self.y, method, float((self.y > 0).mean()))
        self.odds = log_odds(self.u, self.calibration)
        groups = ScoreGroups.of(self.u, self.y, self.odds)
        assert groups is not None
        self.groups = groups
        self.place = np.searchsorted(groups.bounds, self.u)


@pytest.fixture(params=SPREADS)
def rows(request: pytest.FixtureRequest) -> Rows:
    return Rows(request.param)


def of(cell: str) -> float:
    """Return the number in a cell of a table."""
    text = cell.replace(",", "").replace("\N{MINUS SIGN}", "-")
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def columns(table: Table) -> dict[str, Sequence[float]]:
    return {
        name: [np.nan if row[place] == "\N{EN DASH}" else of(row[place]) for row in table.rows]
        for place, name in enumerate(table.head)
    }


def test_what_follows_from_a_threshold(rows: Rows) -> None:
    of_bounds = calibrate(np.array(rows.groups.bounds), rows.calibration)
    shown: Thresholds = thresholds_of(rows.groups, of_bounds, threshold=0.2)
    assert np.allclose(shown.probability, of_bounds, rtol=1e-5)
    assert shown.first == np.argmin(np.abs(np.array(shown.probability) - 0.2))
    assert shown.cost_false_negative == 4  # The costs are lowest at 1 / (1 + 4).
    for place, bound in enumerate(rows.groups.bounds):
        (tn, fp), (fn, tp) = confusion_matrix(rows.y, np.where(rows.u > bound, 1.0, -1.0))
        assert (shown.true_positive[place], shown.false_positive[place]) == (tp, fp)
        assert rows.groups.confusion(place) == (tp, fp, fn, tn)
        accuracy = (tp + shown.n_negative - fp) / 3000
        assert accuracy == accuracy_score(rows.y, np.where(rows.u > bound, 1.0, -1.0))
    of_group = np.array(rows.groups.mean_probability)[np.searchsorted(rows.groups.bounds, rows.u)]
    for threshold in (0.01, 0.2, 0.5, 0.99):
        expected = accuracy_score(rows.y, np.where(of_group > threshold, 1.0, -1.0))
        assert rows.groups.accuracy(threshold) == pytest.approx(expected)
    table = columns(shown.table)
    place = len(table["score"]) // 2
    bound = rows.groups.bounds[int(np.argmin(np.abs(np.array(rows.groups.bounds) - table["score"][place])))]
    predicted = np.where(rows.u > bound, 1.0, -1.0)
    (tn, fp), (fn, tp) = confusion_matrix(rows.y, predicted)
    assert table["cost per row"][place] == pytest.approx((fp + 4 * fn) / 3000, abs=5e-4)
    assert table["precision"][place] == pytest.approx(precision_score(rows.y, predicted), abs=5e-4)
    assert table["recall"][place] == pytest.approx(recall_score(rows.y, predicted), abs=5e-4)
    assert table["false positive rate"][place] == pytest.approx(fp / (fp + tn), abs=5e-4)


def test_ks_is_that_of_the_rows_in_their_groups(rows: Rows) -> None:
    ks = rows.groups.ks
    expected = ks_2samp(rows.place[rows.y < 0], rows.place[rows.y > 0])
    assert ks.negative[ks.widest] - ks.positive[ks.widest] == pytest.approx(expected.statistic)


def test_roc_precision_and_recall_are_those_of_the_rows_in_their_groups(rows: Rows) -> None:
    assert auc(*rows.groups.roc) == pytest.approx(roc_auc_score(rows.y, rows.place))
    recall, precision = rows.groups.precision_recall
    for place, bound in enumerate([*rows.groups.bounds[::-1], -np.inf]):
        predicted = np.where(rows.u > bound, 1.0, -1.0)
        assert recall[place] == pytest.approx(recall_score(rows.y, predicted))
        assert precision[place] == pytest.approx(precision_score(rows.y, predicted))


def test_gain_lift_and_bands_count_the_rows_with_the_highest_scores(rows: Rows) -> None:
    positive = rows.y[np.argsort(-rows.u)] > 0
    share, found = rows.groups.gain
    for x, y in zip(share[1:], found[1:], strict=True):
        assert y == pytest.approx(positive[: round(x * 3000)].sum() / positive.sum())
    assert rows.groups.lift.y == pytest.approx(found[1:] / share[1:])
    bands = columns(bands_table(rows.groups, "hold-out rows"))
    ends = np.cumsum(bands["rows"]).astype(int)
    starts = np.append(0, ends[:-1])
    for start, end, n, rate, lift, so_far in zip(
        starts, ends, bands["positive"], bands["rate"], bands["lift"], bands["positive so far"], strict=True
    ):
        assert positive[start:end].sum() == n
        assert positive[start:end].mean() == pytest.approx(rate, abs=6e-4)
        assert positive[start:end].mean() / positive.mean() == pytest.approx(lift, abs=6e-3)
        assert positive[:end].sum() / positive.sum() == pytest.approx(so_far, abs=6e-4)


def test_calibration_is_the_calibration_curve_of_its_groups(rows: Rows) -> None:
    p = probability(rows.odds)
    merged = rows.groups.merged(10)
    points = rows.groups.calibration(10)
    place = np.searchsorted(merged.bounds, rows.u)
    for number, (predicted, observed) in enumerate(zip(points.predicted, points.observed, strict=True)):
        of_group = place == number
        true, mean = calibration_curve(rows.y[of_group] > 0, p[of_group], n_bins=1)
        assert (observed, predicted) == (pytest.approx(true[0]), pytest.approx(mean[0]))


def test_the_costs_of_right_probabilities_are_lowest_at_the_threshold_of_the_costs() -> None:
    rng = np.random.default_rng(5)
    u = 2 * rng.standard_normal(200_000)
    y = np.where(rng.random(200_000) < probability(u), 1.0, -1.0)
    groups = ScoreGroups.of(u, y, u)
    assert groups is not None
    shown = thresholds_of(groups, probability(np.array(groups.bounds)), threshold=0.25)
    costs = np.array(shown.false_positive) + shown.cost_false_negative * (
        shown.n_positive - np.array(shown.true_positive)
    )
    assert shown.probability[int(np.argmin(costs))] == pytest.approx(0.25, abs=0.05)
