"""Whoever reads a guest's report and knows the scores of people learns no more than the probabilities say.

A report may go to reviewers, who are no party. Such a reader may know people's scores, from letters or from a system
that uses them. The groups of scores of a report then tell how many people of a group have each label.

Where a model nearly separates the labels, groups at both ends have a single label. There the probabilities nearly say
the label already. The attacks measure what they leave open.
"""

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatMatrix, FloatVector, Rows
from trilateral.common.data.model import score_groups
from trilateral.common.data.model.classes import (
    ClassNumbers,
    Softmax,
    log_probabilities,
    odds_of_class,
    one_vs_rest,
    rows_of_classes,
)
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.protocol.evaluation import measure
from trilateral.common.protocol.logistic import probability
from trilateral.common.report.quality import Evaluated, figures_table, key_figures


def _people(seed: int = 0) -> tuple[FloatVector, FloatVector]:
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(4000) < 0.1, 1.0, -1.0)
    return rng.normal(size=4000) + 1.2 * labels, labels


def _certain(groups: ScoreGroups, scores: FloatVector, labels: FloatVector) -> int:
    """How many labels the reader knows for sure: those of people in groups with a single label."""
    place = np.searchsorted(groups.bounds, scores)
    pure = (np.array(groups.n_positive) == 0) | (np.array(groups.n_negative) == 0)
    guess = np.where(np.array(groups.n_positive) > 0, 1.0, -1.0)[place]
    known = pure[place]
    assert (guess[known] == labels[known]).all()
    return int(known.sum())


def test_groups_of_few_rows_of_a_label_would_tell_the_labels_of_most_people(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = _people()
    monkeypatch.setattr(score_groups, "MIN_ROWS", 0)
    groups = _groups(scores, labels)
    assert _certain(groups, scores, labels) > 1000


def test_the_groups_of_a_report_tell_no_label_for_sure() -> None:
    scores, labels = _people()
    groups = _groups(scores, labels)
    assert _certain(groups, scores, labels) == 0
    assert min(*groups.n_positive, *groups.n_negative) >= MIN_ROWS


def _nearly_separated(seed: int) -> tuple[FloatVector, FloatVector]:
    """Return the scores, which are log-odds, and labels of people whose label most scores all but say."""
    rng = np.random.default_rng(seed)
    scores = 8 * rng.normal(size=200)
    return scores, np.where(rng.random(200) < probability(scores), 1.0, -1.0)


def _news(groups: ScoreGroups, scores: FloatVector, labels: FloatVector) -> tuple[int, float]:
    """How many labels the reader knows for sure, and how many of them a guess from the scores alone gets wrong."""
    place = np.searchsorted(groups.bounds, scores)
    pure = ((np.array(groups.n_positive) == 0) | (np.array(groups.n_negative) == 0))[place]
    return int(pure.sum()), float(probability(-np.abs(scores[pure])).sum())


def test_groups_of_a_label_anywhere_would_tell_labels_that_the_probabilities_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(score_groups, "MIN_ROWS", 0)
    monkeypatch.setattr(score_groups, "CELL_ROWS", 1)
    news = [_news(_groups(*_nearly_separated(seed)), *_nearly_separated(seed)) for seed in range(30)]
    _, wrong = np.mean(news, axis=0)
    assert wrong > 10


def test_where_groups_have_a_single_label_the_probabilities_say_it_already() -> None:
    news = [_news(_groups(*_nearly_separated(seed)), *_nearly_separated(seed)) for seed in range(30)]
    known, wrong = np.mean(news, axis=0)
    assert known > 100
    # Before a label of the other kind occurs, their probabilities add up to 1 on average, at each end.
    assert wrong < 2


def test_a_set_with_enough_groups_of_both_labels_has_no_other_groups() -> None:
    for rate in (0.05, 0.5):
        labels = np.where(np.random.default_rng(1).random(4000) < rate, 1.0, -1.0)
        groups = _groups(labels + np.random.default_rng(2).normal(size=4000), labels)
        assert min(*groups.n_positive, *groups.n_negative) >= MIN_ROWS


def _groups(scores: FloatVector, labels: FloatVector) -> ScoreGroups:
    groups = ScoreGroups.of(scores, labels, scores)
    assert groups is not None
    return groups


def _guess(groups: ScoreGroups, scores: FloatVector, labels: FloatVector) -> tuple[float, float]:
    """Take the person with the lowest score of a group for positive: how often is that right, and how often by chance?

    Groups grow from the highest score down, and one with the fewest positive rows has just got the last of them.
    """
    place = np.searchsorted(groups.bounds, scores)
    full = [each for each, n in enumerate(groups.n_positive) if n == MIN_ROWS and each > 0]
    lowest = [np.flatnonzero(place == each)[scores[place == each].argmin()] for each in full]
    return float((labels[lowest] > 0).mean()), float(np.mean([MIN_ROWS / groups.n_rows[each] for each in full]))


def test_a_group_that_ends_with_the_row_that_completes_it_would_tell_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = _people()
    monkeypatch.setattr(score_groups, "CELL_ROWS", 1)
    monkeypatch.setattr(score_groups, "_MAX_CELLS", len(scores))
    groups = ScoreGroups.of(scores, labels, scores)
    assert groups is not None
    right, by_chance = _guess(groups, scores, labels)
    assert right > 0.9
    assert by_chance < 0.4


def test_the_end_of_a_group_does_not_tell_the_label_of_the_row_before_it() -> None:
    guesses = []
    for seed in range(30):
        scores, labels = _people(seed)
        groups = ScoreGroups.of(scores, labels, scores)
        assert groups is not None
        guesses.append(_guess(groups, scores, labels))
    right, by_chance = np.mean(guesses, axis=0)
    assert right < by_chance + 0.05


def test_the_bounds_of_groups_are_the_scores_of_no_person() -> None:
    scores, labels = _people()
    groups = ScoreGroups.of(scores, labels, scores)
    assert groups is not None
    assert not set(groups.bounds) & set(scores.tolist())


def _one_above_the_threshold(seed: int) -> tuple[FloatVector, FloatVector, int]:
    """Return people of whom one alone has a probability above 1/2, and another one near it with the other label."""
    rng = np.random.default_rng(seed)
    scores = np.minimum(rng.normal(-2, 0.7, size=4000), -0.01)
    scores[0] = 0.1
    labels = np.where(rng.random(4000) < probability(scores), 1.0, -1.0)
    near = np.argsort(-scores)
    return scores, labels, next(int(each) for each in near if labels[each] != labels[0])


def test_the_accuracy_of_all_rows_would_tell_the_label_of_a_person_alone_above_the_threshold() -> None:
    read = []
    for seed in range(20):
        scores, labels, _ = _one_above_the_threshold(seed)
        n_positive = sum(_groups(scores, labels).n_positive)
        n_right = 4000 * round(measure(scores, labels, scores).accuracy, 4)
        read.append((round((n_right - 4000 + 1 + n_positive) / 2), labels[0] > 0))
    assert {is_positive for _, is_positive in read} == {False, True}
    assert all(found == is_positive for found, is_positive in read)


def test_the_accuracy_in_a_report_does_not_change_with_this_label() -> None:
    for seed in range(20):
        scores, labels, other = _one_above_the_threshold(seed)
        swapped = labels.copy()
        swapped[[0, other]] = labels[[other, 0]]
        groups = [_groups(scores, each) for each in (labels, swapped)]
        assert groups[0].n_positive == groups[1].n_positive
        shown = [
            figures_table([Evaluated("holdout", "rows", measure(scores, each, scores), group)]).rows
            for each, group in zip((labels, swapped), groups, strict=True)
        ]
        (accuracy,), (same,) = ([row[1] for row in rows if "accuracy" in row[0]] for rows in shown)
        assert accuracy == same


def test_the_auc_of_a_single_positive_row_is_its_rank_and_a_report_leaves_it_out() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=4000)
    for positive in range(5):
        labels = np.where(np.arange(4000) == positive, 1.0, -1.0)
        metrics = measure(scores, labels, scores)
        assert metrics.auc is not None
        # With four decimals, the AUC says who it is.
        assert np.argsort(scores)[round(round(metrics.auc, 4) * 3999)] == positive
        evaluated = Evaluated("later", "rows", metrics, ScoreGroups.of(scores, labels, scores))
        shown = figures_table([evaluated]).rows
        assert {row[0]: row[1] for row in shown if row[1] != "\N{EN DASH}"} == {
            "rows": "4,000",
            "positive rows": "fewer than 10 rows of a label",
        }
        assert [each.value for each in key_figures(evaluated)] == ["\N{EN DASH}"] * 5 + ["4,000"]


def _people_of_classes(n_rows: int) -> tuple[FloatMatrix, ClassNumbers]:
    """Return log probabilities of three classes, and classes drawn with them.

    The last class is easily told apart from the others, so that orders by the probability of the first and of the
    second class are nearly opposite.
    """
    rng = np.random.default_rng(n_rows)
    between = 2 * rng.normal(size=n_rows)
    odds = np.stack([between / 2, -between / 2, np.where(np.arange(n_rows) < 100, 30.0, -30.0)], axis=1)
    logs = log_probabilities(odds, Softmax(slopes=[1.0] * 3, offsets=[0.0] * 3))
    classes = (rng.random(n_rows)[:, np.newaxis] > np.exp(logs).cumsum(axis=1)).sum(axis=1)
    return logs, classes.astype(np.int64)


def _labels_from_two_classes(logs: FloatMatrix, classes: ClassNumbers, rows: list[Rows]) -> int:
    """Look for rows above each other's bounds in groups of two classes: how many labels do their counts show?

    A set of rows that one class counts and the other does not, up to few rows, gives the labels of these few.
    """
    counted, sets = [], []
    for number in range(2):
        odds, own = odds_of_class(logs, number), rows[number]
        groups = _groups(odds[own], one_vs_rest(classes, number)[own])
        place = np.full(len(odds), -1)
        place[own] = np.searchsorted(groups.bounds, odds[own])
        place[np.exp(logs[:, 2]) > 0.5] = -1  # The reader is nearly sure that these have the third class.
        n = len(groups.n_positive)
        intervals = [(first, last) for first in range(n) for last in range(first, n)]
        sets.append(np.array([(place >= first) & (place <= last) for first, last in intervals]))
        counted.append(np.array([sum(groups.n_positive[first : last + 1]) for first, last in intervals]))
    known = set()
    both = sets[0].astype(np.float32) @ sets[1].astype(np.float32).T
    apart = sets[0].sum(axis=1)[:, np.newaxis] + sets[1].sum(axis=1) - 2 * both
    for first, second in np.argwhere((apart > 0) & (apart <= 3)):
        found = counted[0][first] + counted[1][second] - both[first, second]
        if found not in {0, apart[first, second]}:
            continue
        for number, (one, other) in enumerate(((first, second), (second, first))):
            of_rows = np.flatnonzero(sets[number][one] & ~sets[1 - number][other])
            assert ((classes[of_rows] == number) == (found > 0)).all()
            known.update(of_rows.tolist())
    return len(known)


def test_groups_of_the_same_rows_for_several_classes_would_tell_labels() -> None:
    n_known = 0
    for n_rows in range(1101, 1106):
        logs, classes = _people_of_classes(n_rows)
        n_known += _labels_from_two_classes(logs, classes, [np.arange(n_rows)] * 3)
    assert n_known > 10


def test_groups_of_other_rows_for_each_class_tell_no_label() -> None:
    for n_rows in range(1101, 1106):
        logs, classes = _people_of_classes(n_rows)
        rows = rows_of_classes(n_rows, 3, seed=1)
        assert sorted(np.concatenate(rows).tolist()) == list(range(n_rows))
        assert _labels_from_two_classes(logs, classes, rows) == 0
