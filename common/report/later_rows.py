"""Rows after the training in a report: how far they have shifted, and how good the model is on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.model.assessment import evaluate_class
from trilateral.common.data.model.calibration import log_odds
from trilateral.common.data.model.calibration_drift import CalibrationDrift, Estimate, calibration_drift
from trilateral.common.data.model.classes import (
    ClassMetrics,
    log_probabilities,
    measure_classes,
    odds_of_class,
    one_vs_rest,
    rows_of_classes,
)
from trilateral.common.data.model.distributions import (
    MIN_REPORTED_ROWS,
    NO_DISTRIBUTIONS,
    Distributions,
    Shift,
    ShiftCounter,
    chance_psi,
    describe_grade,
)
from trilateral.common.data.model.intervals import Intervals
from trilateral.common.data.model.labelled_scores import (
    read_class_scores,
    read_classified_scores,
    read_labelled_scores,
    read_scores,
)
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.data.model.score_origin import check_origin
from trilateral.common.data.model.scoring import count_shift
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.report import charts
from trilateral.common.report.contents import (
    WIDE,
    Block,
    Chart,
    Charts,
    Facts,
    Section,
    Table,
    Text,
    number,
)
from trilateral.common.report.quality import Evaluated

SCORE = "score of the whole model"
"""Its name in a table of shifts."""

Labels = tuple[str, DatasetConfig]
"""Name and settings of a table with labels."""


@dataclass(frozen=True)
class LaterRows:
    """What a report is asked to say about rows after the training."""

    dataset: tuple[str, DatasetConfig] | None = None
    """Name and settings of a table, whose columns are compared with the training rows."""
    scores: Path | None = None
    """At the guest: a file of scores of such rows."""
    labels: Labels | None = None
    """At the guest: name and settings of a table with the labels of the scored rows."""


@dataclass(frozen=True)
class LabelledRows:
    """What labels say about rows after the training."""

    evaluated: Evaluated
    """The quality on these rows."""
    drift: CalibrationDrift
    """Whether the probabilities of these rows are right."""


@dataclass(frozen=True)
class Later:
    """What is known about rows after the training."""

    shift: Shift
    """Without a figure for tables of few rows."""
    labelled: LabelledRows | None = None
    """None without labels, and for a model of several classes."""
    of_classes: Sequence[LabelledRows] = ()
    """The same for each class against the rest; empty without labels, and for a label with two values."""
    class_metrics: ClassMetrics | None = None
    """The quality of the probabilities of all classes."""


def look_at_later(model: PartyModel, rows: LaterRows) -> Later:
    """Read the rows and compare them with the model.

    Raises:
        ConfigError, DataError: a file, a table or the model cannot be used.
    """
    if model.distributions is None and (rows.dataset or rows.scores):
        raise DataError(NO_DISTRIBUTIONS)
    if rows.scores is not None:
        check_origin(rows.scores, model)
    counter = ShiftCounter(model.distributions, [part.score_distribution for part in model.parts])
    if rows.dataset is not None:
        count_shift(model, rows.dataset[1], counter)
    found = Later(Shift(0, {}))
    if rows.scores is not None:
        if model.calibration is None:
            raise ConfigError("--scores: only the guest has scores of both parties: leave it out, or use its part")
        look = _look_at_scores if model.classes is None else _look_at_classes
        found = look(model, rows.scores, rows.labels, counter)
    shift = counter.shift
    return replace(found, shift=shift.reported or Shift(shift.n_rows, {}, shift.n_scored))


def _look_at_scores(model: PartyModel, scores: Path, labels: Labels | None, counter: ShiftCounter) -> Later:
    if labels is None or model.calibration is None:
        _, (u,) = read_scores((scores,))
        counter.add_scores(u)
        return Later(Shift(0, {}))
    name, dataset = labels
    labelled = read_labelled_scores((scores,), dataset, name)
    (u,), y = labelled.scores, labelled.labels
    counter.add_scores(u)
    odds = log_odds(u, model.calibration)
    drift = calibration_drift(u, odds, y, _threshold_of(dataset))
    intervals = Intervals.of(u, y, odds, model.job.seed)
    evaluated = Evaluated("later", _title(name), drift.metrics, ScoreGroups.of(u, y, odds), intervals)
    return Later(Shift(0, {}), LabelledRows(evaluated, drift))


def _look_at_classes(model: PartyModel, scores: Path, labels: Labels | None, counter: ShiftCounter) -> Later:
    classes = model.classes
    if classes is None or classes.names is None or classes.calibration is None:
        raise DataError("the model has no names or no probabilities of its classes: use the guest's part")
    if labels is None:
        counter.add_scores(read_class_scores(scores, classes.names)[1])
        return Later(Shift(0, {}))
    name, dataset = labels
    rows = read_classified_scores(scores, dataset, name, classes.names)
    counter.add_scores(rows.scores)
    logs = log_probabilities(rows.scores, classes.calibration)
    threshold, seed = _threshold_of(dataset), model.job.seed
    of_classes = []
    has_few = bool(np.bincount(rows.classes, minlength=len(classes.names)).min() < MIN_ROWS)
    for place, own in enumerate(rows_of_classes(len(logs), len(classes.names), seed)):
        u, y, odds = rows.scores[:, place], one_vs_rest(rows.classes, place), odds_of_class(logs, place)
        of_set = evaluate_class("later", u, y, odds, own, threshold=threshold, seed=seed)
        evaluated = replace(Evaluated.of(of_set), title=_title(name), others_few=has_few)
        of_classes.append(LabelledRows(evaluated, calibration_drift(u, odds, y, threshold)))
    return Later(Shift(0, {}), of_classes=of_classes, class_metrics=measure_classes(rows.scores, rows.classes, logs))


def _threshold_of(dataset: DatasetConfig) -> float:
    return 0.5 if dataset.label is None else dataset.label.threshold


def _title(name: str) -> str:
    return f"scored rows of {name}"


def stability_section(model: PartyModel, later: Later) -> Section | None:
    """Describe how far rows have shifted since the training; None if the report was asked for none."""
    shift, distributions = later.shift, model.distributions or Distributions()
    if not shift.n_rows and not shift.n_scored:
        return None
    entries = [(name, value, distributions.columns.get(name), shift.n_rows) for name, value in shift.csi.items()]
    if shift.of_classes and model.classes is not None:
        names = model.classes.names or []
        for name, value, part in zip(names, shift.of_classes, model.parts, strict=True):
            if value is not None:
                entries.append((f"score of class {name}", value, part.score_distribution, shift.n_scored))
    elif shift.psi is not None:
        entries.append((SCORE, shift.psi, distributions.score, shift.n_scored))
    further = [] if later.labelled is None else drift_blocks(later.labelled)
    if not entries:
        few = Text(f"A shift is shown for at least {MIN_REPORTED_ROWS:,} rows, so that it says nothing of a few.")
        return Section("stability", "Stability", [few, *further])
    chart = Chart(
        "stability",
        "Shift since the training",
        lambda axes: charts.draw_stability(axes, {name: value for name, value, *_ in entries}),
        height=charts.rows_height(len(entries)),
        width=WIDE,
    )
    rows = []
    for name, value, found, n_new in sorted(entries, key=lambda each: -each[1]):
        chance = None if found is None else chance_psi(found.counts, n_new)
        rows.append((name, number(value, 2), number(chance, 3), f"{n_new:,}", describe_grade(value)))
    table = Table(
        "Stability indices",
        ("column", "PSI or CSI", "by chance", "new rows", "shift"),
        rows,
        note="Below 0.1 the shift is small, and from 0.25 on it is large. By chance: the mean index of so many rows if"
        " nothing has shifted.",
    )
    return Section("stability", "Stability", [Charts([chart]), table, *further])


def drift_blocks(labelled: LabelledRows) -> Sequence[Block]:
    """Describe whether probabilities are right."""
    drift, caption = labelled.drift, f"Whether the probabilities of the {labelled.evaluated.title} are right"
    if labelled.evaluated.hides_numbers:
        return [Facts(caption, [("figures", f"none: fewer than {MIN_ROWS} rows of a label")])]
    rows = [
        ("observed positives over expected ones", number(drift.ratio, 3)),
        ("calibration intercept (0 if the mean is right)", _estimate(drift.intercept)),
        ("calibration slope (1 if the spread is right)", _estimate(drift.slope)),
        (
            "Hosmer-Lemeshow test",
            f"chi-square {number(drift.hosmer_lemeshow, 2)} with {drift.degrees} degrees of freedom, p ="
            f" {drift.p_value:.4f}",
        ),
    ]
    return [Facts(caption, rows)]


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "undefined for these rows"
    low, high = estimate.interval
    return f"{number(estimate.value, 3)} (95%: {number(low, 3)} to {number(high, 3)})"
