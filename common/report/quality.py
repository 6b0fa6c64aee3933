"""The quality of a whole model in the guest's report: ranking, probabilities, and what follows from a threshold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.data.model.assessment import EvaluatedSet
from trilateral.common.data.model.calibration import calibrate, formula
from trilateral.common.data.model.intervals import Intervals
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.report import charts
from trilateral.common.report.contents import (
    NO_FIGURE,
    SQUARE,
    Block,
    Chart,
    Charts,
    Facts,
    Figure,
    Section,
    Table,
    Text,
    Thresholds,
    interval,
    number,
    share,
)

NAMES = {
    "holdout": "hold-out rows",
    "valid": "validation set",
    "test": "test set",
    "out_of_time": "out-of-time set",
}
SHOWN = (("auc", "AUC"), ("gini", "Gini"), ("ks", "KS"), ("log_loss", "Log loss"), ("brier", "Brier score"))
"""Names and titles of the figures."""
N_ROWS = 15
"""Thresholds in the table."""
LOWEST_COSTS = (
    "If the probabilities are right, the costs are lowest at the threshold c / (c + d), for the cost c of a false"
    " positive and d of a false negative."
)
TOO_FEW = (
    f"These rows have no charts: a chart needs {2 * MIN_ROWS} rows of each label, and a score that divides them into"
    " groups."
)


@dataclass(frozen=True)
class Evaluated:
    """The quality on some rows."""

    name: str
    """Identifies the rows in the page; letters, digits and hyphens."""
    title: str
    metrics: HoldoutMetrics
    groups: ScoreGroups | None
    intervals: Intervals | None = None
    others_few: bool = False
    """Whether few rows have another of several classes. Their number would follow from those of all other classes."""

    @property
    def has_few(self) -> bool:
        """Whether few rows have a label. Figures would say which: the AUC of a single positive row is its rank."""
        return self.metrics.n_rarer < MIN_ROWS

    @property
    def hides_numbers(self) -> bool:
        """Whether nothing may say how many rows have a label."""
        return self.others_few or self.has_few

    def figure(self, name: str) -> float | None:
        """Return a figure of the metrics by its name; None if it is not known or few rows have a label."""
        value: float | None = None if self.has_few else getattr(self.metrics, name)
        return value

    def interval(self, name: str, digits: int = 3) -> str:
        """Return the interval of a figure with so many decimals; an empty text without one."""
        return interval(None if self.has_few or self.intervals is None else getattr(self.intervals, name), digits)

    @classmethod
    def of(cls, evaluated: EvaluatedSet) -> "Evaluated":
        """Return the quality on an evaluation set."""
        return cls(
            evaluated.name.replace("_", "-"),
            NAMES.get(evaluated.name, evaluated.name),
            evaluated.metrics,
            evaluated.score_groups,
            evaluated.intervals,
        )


def evaluated_sets(model: PartyModel) -> list[Evaluated]:
    """Return the evaluation sets of a model; those of an older file have figures only."""
    if model.evaluation_sets:
        return [Evaluated.of(each) for each in model.evaluation_sets]
    return [] if model.metrics is None else [Evaluated("holdout", NAMES["holdout"], model.metrics, None)]


def key_figures(evaluated: Evaluated) -> list[Figure]:
    """Return the figures at the top of a report."""
    figures = [
        Figure(title, number(evaluated.figure(name), 3), _note(evaluated.interval(name))) for name, title in SHOWN
    ]
    return [*figures, Figure("Rows", f"{evaluated.metrics.n_rows:,}", evaluated.title)]


def _note(ends: str) -> str:
    return f"95%: {ends}" if ends else ""


def quality_section(sets: Sequence[Evaluated]) -> Section:
    """Describe how well the model ranks rows.

    Args:
        sets: the evaluated rows, at least one.
    """
    blocks: list[Block] = [
        figures_table(sets),
        Text(
            "AUC: the probability that a positive row has a higher score than a negative one."
            " Gini: 2 AUC \N{MINUS SIGN} 1. KS: the largest gap between the shares of both labels up to a score."
            " Accuracy: the share of rows that are predicted right if each group of the charts is on one side of the"
            " threshold, as its mean probability says."
            " Log loss and Brier score judge the calibrated probabilities; lower is better. Intervals come from the"
            " bootstrap: they say how much chance there is in the choice of the rows, and not in the model."
        ),
    ]
    parts = [Section(f"quality-{each.name}", capital(each.title), _ranking(each)) for each in sets]
    return Section("quality", "Ranking", blocks, parts)


def figures_table(sets: Sequence[Evaluated], *, of_what: str = "", note: str = "") -> Table:
    """Return the figures of each set of rows, with their intervals.

    Args:
        sets: the evaluated rows.
        of_what: which model it is, if the report has several.
        note: explains the figures.
    """
    rows = [[title, *(_figure(each, name) for each in sets)] for name, title in SHOWN]
    metrics = [each.metrics for each in sets]
    rows.append(["accuracy by groups", *map(_accuracy, sets)])
    rows.append(["rows", *(f"{each.n_rows:,}" for each in metrics)])
    rows.append(["positive rows", *map(_rate, sets)])
    return Table(f"Figures with 95% intervals{of_what}", ("figure", *(each.title for each in sets)), rows, note=note)


def _figure(evaluated: Evaluated, name: str) -> str:
    ends = evaluated.interval(name, 4)
    figure = number(evaluated.figure(name))
    return f"{figure} ({ends})" if ends else figure


def _accuracy(evaluated: Evaluated) -> str:
    if evaluated.groups is None:
        return NO_FIGURE
    threshold = evaluated.metrics.threshold
    return f"{number(evaluated.groups.accuracy(threshold))} at {threshold:g}"


def _rate(evaluated: Evaluated) -> str:
    if evaluated.hides_numbers:
        return f"fewer than {MIN_ROWS} rows of a label"
    return share(evaluated.metrics.n_positive / evaluated.metrics.n_rows)


def _ranking(each: Evaluated) -> list[Block]:
    groups = each.groups
    if groups is None:
        return [Text(TOO_FEW)]
    name = each.name
    auc = each.metrics.auc
    return [
        Charts(
            [
                Chart(f"{name}-roc", "ROC curve", lambda axes: charts.draw_roc(axes, groups, auc=auc), height=SQUARE),
                Chart(
                    f"{name}-pr",
                    "Precision and recall",
                    lambda axes: charts.draw_precision_recall(axes, groups),
                    height=SQUARE,
                ),
                Chart(
                    f"{name}-ks",
                    "Kolmogorov-Smirnov",
                    lambda axes: charts.draw_ks(axes, groups, ks=each.metrics.ks),
                ),
                Chart(f"{name}-scores", "Scores by label", lambda axes: charts.draw_distribution(axes, groups)),
                Chart(f"{name}-gain", "Cumulative gain", lambda axes: charts.draw_gain(axes, groups)),
                Chart(f"{name}-lift", "Cumulative lift", lambda axes: charts.draw_lift(axes, groups)),
            ]
        ),
        bands_table(groups, each.title),
    ]


def bands_table(groups: ScoreGroups, title: str, *, axis: str = "score") -> Table:
    """Return the rows by tenths of the score, as reviewers of scorecards expect them.

    Args:
        groups: the rows.
        title: what rows they are.
        axis: what the bounds of the groups are called.
    """
    some = groups.merged(10)
    n_rows, positive = some.n_rows, np.array(some.n_positive)
    found, passed = 0, 0
    rows = []
    for place in range(len(positive))[::-1]:
        found, passed = found + int(positive[place]), passed + int(n_rows[place])
        rate = float(positive[place] / n_rows[place])
        above = number(some.bounds[place - 1], 3) if place else "\N{EN DASH}"
        rows.append(
            (
                above,
                f"{n_rows[place]:,}",
                f"{positive[place]:,}",
                share(rate),
                share(some.mean_probability[place]),
                number(rate / groups.rate, 2),
                share(passed / int(n_rows.sum())),
                share(found / int(positive.sum())),
            )
        )
    return Table(
        f"Bands of the {axis}, the highest first: {title}",
        (f"{axis} above", "rows", "positive", "rate", "predicted", "lift", "rows so far", "positive so far"),
        rows,
        n_texts=0,
        note=f"About equal numbers of rows. A band has no row of a label, or at least {MIN_ROWS}.",
    )


def calibration_section(model: PartyModel, sets: Sequence[Evaluated]) -> Section:
    """Describe how good the probabilities are; see `quality_section`."""
    rows = []
    if model.calibration is not None:
        rows.append(("probability p of a score u", formula(model.calibration)))
    if model.calibration_summary is not None:
        rows.append(("probabilities are", model.calibration_summary))
    if model.calibration_report is not None and not (sets and sets[0].has_few):
        rows.append(("log loss without calibration", number(model.calibration_report.before.log_loss)))
        rows.append(("log loss with calibration", number(model.calibration_report.after.log_loss)))
    drawn = [each for each in sets if each.groups is not None]
    blocks: list[Block] = [Facts("The map from scores to probabilities", rows)]
    if drawn:
        blocks.append(Charts([calibration_chart(each.groups, each) for each in drawn if each.groups is not None]))
        blocks.append(
            Text(
                "Each point is a group of rows in order of their score. Where the bar of a point crosses the diagonal,"
                " the observed rate agrees with the predicted probability, up to chance (95% intervals by Wilson). On"
                " the first set, each probability comes from a map that was fitted without the row."
            )
        )
        blocks += [calibration_table(each.groups, each.title) for each in drawn if each.groups is not None]
    return Section("calibration", "Probabilities", blocks)


def calibration_chart(groups: ScoreGroups, each: Evaluated, *, prefix: str = "") -> Chart:
    """Return the chart of predicted probabilities and observed rates.

    Args:
        groups: the rows.
        each: what rows they are.
        prefix: begins the name of the chart, if the report has several models.
    """
    title = f"Calibration: {each.title}"
    return Chart(
        f"{prefix}{each.name}-calibration", title, lambda axes: charts.draw_calibration(axes, groups), height=SQUARE
    )


def calibration_table(groups: ScoreGroups, title: str) -> Table:
    """Return the same figures as the chart."""
    points = groups.calibration()
    rows = [
        (f"{n:,}", share(predicted), share(observed), f"{low:.1%} to {high:.1%}")
        for predicted, observed, low, high, n in zip(*points, strict=True)
    ]
    return Table(
        f"Predicted and observed rates: {title}", ("rows", "predicted", "observed", "95% interval"), rows, n_texts=0
    )


def threshold_section(model: PartyModel, evaluated: Evaluated) -> Section | None:
    """Describe what follows from each threshold on the probability; None without groups.

    Args:
        model: the guest's part.
        evaluated: the rows.
    """
    groups = evaluated.groups
    if groups is None or model.calibration is None:
        return None
    probability = calibrate(np.array(groups.bounds), model.calibration)
    return Section(
        "threshold",
        "Thresholds and costs",
        [
            Text(
                f"On the {evaluated.title}, rows with a score above the threshold count as predicted positive. The"
                f" threshold on the probability is the probability of this score. {LOWEST_COSTS}"
            ),
            thresholds_of(groups, probability, evaluated.metrics.threshold),
        ],
    )


def thresholds_of(
    groups: ScoreGroups,
    probability: FloatVector,
    threshold: float,
    *,
    prefix: str = "",
    axis: str = "score",
    of_what: str = "",
) -> Thresholds:
    """Return what follows from each threshold.

    Args:
        groups: the evaluation rows.
        probability: of each bound between the groups, shape (n_groups - 1,).
        threshold: the one to begin with, in (0, 1). The costs are those for which it is the best one.
        prefix: begins the names of the elements, if the report has several models.
        axis: see `bands_table`.
        of_what: which model it is, if the report has several.
    """
    positive, negative = (np.array(each) for each in (groups.n_positive, groups.n_negative))
    above = [np.cumsum(each[::-1])[::-1][1:] for each in (positive, negative)]
    cost = round((1 - threshold) / threshold, 6)
    return Thresholds(
        prefix=prefix,
        axis=axis,
        of_what=of_what,
        probability=[float(f"{each:.6g}") for each in probability],
        score=groups.bounds,
        true_positive=above[0].tolist(),
        false_positive=above[1].tolist(),
        n_positive=int(positive.sum()),
        n_negative=int(negative.sum()),
        first=int(np.argmin(np.abs(probability - threshold))),
        cost_false_positive=1.0,
        cost_false_negative=cost,
        table=_threshold_table(groups, probability.tolist(), cost, axis, of_what),
    )


def _threshold_table(
    groups: ScoreGroups, probability: Sequence[float], cost_false_negative: float, axis: str, of_what: str
) -> Table:
    places = np.unique(np.linspace(0, len(probability) - 1, min(N_ROWS, len(probability))).round().astype(int))
    n_rows = int(groups.n_rows.sum())
    rows = []
    for place in places.tolist():
        found = groups.confusion(place)
        above = found.true_positive + found.false_positive
        cost = (found.false_positive + cost_false_negative * found.false_negative) / n_rows
        rows.append(
            (
                number(probability[place], 3),
                number(groups.bounds[place], 3),
                share(above / n_rows),
                f"{found.true_positive:,}",
                f"{found.false_positive:,}",
                f"{found.false_negative:,}",
                f"{found.true_negative:,}",
                share(found.true_positive / above),
                share(found.true_positive / (found.true_positive + found.false_negative)),
                share(found.false_positive / (found.false_positive + found.true_negative)),
                number(cost, 3),
            )
        )
    return Table(
        f"Confusion matrices at several thresholds{of_what}",
        (
            "threshold",
            axis,
            "rows above",
            "true positive",
            "false positive",
            "false negative",
            "true negative",
            "precision",
            "recall",
            "false positive rate",
            "cost per row",
        ),
        rows,
        n_texts=0,
        note=f"Costs: 1 for a false positive, {cost_false_negative:g} for a false negative.",
    )


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]
