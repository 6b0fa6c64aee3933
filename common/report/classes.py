"""The classes of a model of several in the guest's report: how well they are told apart, and each against the rest."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trilateral.common.data.model.classes import ClassMetrics
from trilateral.common.data.model.model_file import Classes, PartyModel
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.protocol.logistic import probability
from trilateral.common.report import charts
from trilateral.common.report.contents import SQUARE, Block, Chart, Charts, Figure, Section, Table, Text, number
from trilateral.common.report.later_rows import Later, drift_blocks
from trilateral.common.report.model_sections import terms_section
from trilateral.common.report.quality import (
    LOWEST_COSTS,
    TOO_FEW,
    Evaluated,
    bands_table,
    calibration_chart,
    calibration_table,
    capital,
    evaluated_sets,
    figures_table,
    thresholds_of,
)

AXIS = "log-odds"
"""What the groups of a class are ordered by."""


def class_figures(classes: Classes | None) -> list[Figure]:
    """Return the figures at the top of a report; none without hold-out rows."""
    if classes is None or classes.metrics is None:
        return []
    metrics = classes.metrics
    return [
        Figure("Accuracy", number(metrics.accuracy, 3)),
        Figure("Log loss", number(metrics.log_loss, 3)),
        Figure("Classes", f"{len(metrics.auc)}"),
        Figure("Rows", f"{metrics.n_rows:,}", "hold-out rows"),
    ]


def sets_of(model: PartyModel, later: Later) -> list[Evaluated]:
    """Return the evaluated rows of all classes, with the class in the title of each."""
    names = model.classes.names or [] if model.classes is not None else []
    return [
        replace(each, title=f"{each.title}, for class {name}")
        for place, name in enumerate(names)
        for each in _sets_of_class(model, later, place)
    ]


def class_sections(model: PartyModel, classes: Classes, later: Later) -> list[Section]:
    """Describe all classes together, and the model of each class against the rest."""
    names = classes.names or []
    tables = [
        _confusion_table(names, metrics, title)
        for metrics, title in ((classes.metrics, "Hold-out rows"), (later.class_metrics, "Later rows"))
        if metrics is not None
    ]
    sections = [Section("quality", "Classes", tables)] if tables else []
    for place, (name, part) in enumerate(zip(names, model.parts, strict=True)):
        section = _class_section(part, name, f"class-{place + 1}-", _sets_of_class(model, later, place))
        further = drift_blocks(later.of_classes[place]) if later.of_classes else []
        sections.append(replace(section, blocks=[*section.blocks, *further]))
    return sections


def _sets_of_class(model: PartyModel, later: Later, place: int) -> list[Evaluated]:
    has_few = any(each.metrics is not None and each.metrics.n_rarer < MIN_ROWS for each in model.parts)
    sets = [replace(each, others_few=has_few) for each in evaluated_sets(model.parts[place])[:1]]
    return [*sets, later.of_classes[place].evaluated] if later.of_classes else sets


def _confusion_table(names: Sequence[str], metrics: ClassMetrics, title: str) -> Table:
    rows = [
        (name, *map(_in_tens, counts), number(auc if MIN_ROWS <= sum(counts) <= metrics.n_rows - MIN_ROWS else None, 3))
        for name, counts, auc in zip(names, metrics.confusion, metrics.auc, strict=True)
    ]
    return Table(
        f"{title} of each class, by the class with the highest probability",
        ("class", *names, "AUC"),
        rows,
        note="Rounded to tens. AUC: of the score of the class against the rest."
        f" {metrics.n_rows:,} rows; accuracy {number(metrics.accuracy, 3)}, log loss {number(metrics.log_loss, 3)}.",
    )


def _in_tens(n: int) -> str:
    """Return a count so that a small one does not follow from the others, the number of all rows and the accuracy."""
    return f"{round(n, -1):,}" if n >= MIN_ROWS else f"< {MIN_ROWS}"


def _class_section(part: PartyModel, name: str, prefix: str, sets: Sequence[Evaluated]) -> Section:
    blocks: list[Block] = []
    of_what = f": class {name}"
    if sets:
        note = (
            "AUC, Gini and KS judge the score of the class. Log loss, Brier score and accuracy judge its probability"
            " among those of all classes. Accuracy counts the groups of the charts. A row is positive if it has the"
            " class."
        )
        blocks.append(figures_table(sets, of_what=of_what, note=note))
    sections = [
        Section(f"{prefix}{each.name}", f"{capital(each.title)}{of_what}", _class_quality(each, prefix, name))
        for each in sets
    ]
    if sets and sets[0].groups is not None:
        sections.append(_threshold_section(sets[0].groups, sets[0], prefix, name))
    sections.append(terms_section(part, prefix=prefix, title=f"Terms and weights of class {name} against the rest"))
    return Section(f"{prefix}class", f"Class {name} against the rest", blocks, sections)


def _class_quality(each: Evaluated, prefix: str, name: str) -> list[Block]:
    groups = each.groups
    if groups is None:
        return [Text(TOO_FEW)]
    start, title = f"{prefix}{each.name}-", f"{each.title}, class {name}"
    return [
        Text(
            f"Charts, bands and thresholds are about {int(groups.n_rows.sum()):,} of these rows, which the seed of the"
            " job has drawn for this class alone, in order of the probability of the class. As each row counts for one"
            " class, nothing about single rows follows from the tables of several classes."
        ),
        Charts(
            [
                Chart(f"{start}roc", "ROC curve", lambda axes: charts.draw_roc(axes, groups), height=SQUARE),
                Chart(
                    f"{start}pr",
                    "Precision and recall",
                    lambda axes: charts.draw_precision_recall(axes, groups),
                    height=SQUARE,
                ),
                Chart(
                    f"{start}scores",
                    "Log-odds by label",
                    lambda axes: charts.draw_distribution(axes, groups),
                    height=SQUARE,
                ),
                calibration_chart(groups, each, prefix=prefix),
            ]
        ),
        bands_table(groups, title, axis=AXIS),
        calibration_table(groups, title),
    ]


def _threshold_section(groups: ScoreGroups, evaluated: Evaluated, prefix: str, name: str) -> Section:
    return Section(
        f"{prefix}threshold",
        f"Thresholds and costs: class {name}",
        [
            Text(
                f"On the same of the {evaluated.title}, rows count as predicted positive if the probability of the"
                f" class is above the threshold, whatever their most likely class is. {LOWEST_COSTS}"
            ),
            thresholds_of(
                groups,
                probability(np.array(groups.bounds)),
                evaluated.metrics.threshold,
                prefix=prefix,
                axis=AXIS,
                of_what=f": class {name}",
            ),
        ],
    )
