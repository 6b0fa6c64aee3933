"""Rows after the training in a report: how far they have shifted, and how good the model is on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trilateral.common.base.errors import ConfigError, DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.model.calibration import log_odds
from trilateral.common.data.model.calibration_drift import CalibrationDrift, Estimate, calibration_drift
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
from trilateral.common.data.model.labelled_scores import read_labelled_scores, read_scores
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.score_groups import ScoreGroups
from trilateral.common.data.model.score_origin import check_origin
from trilateral.common.data.model.scoring import count_shift
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


@dataclass(frozen=True)
class LaterRows:
    """What a report is asked to say about rows after the training."""

    dataset: tuple[str, DatasetConfig] | None = None
    """Name and settings of a table, whose columns are compared with the training rows."""
    scores: Path | None = None
    """At the guest: a file of scores of such rows."""
    labels: tuple[str, DatasetConfig] | None = None
    """At the guest: name and settings of a table with the labels of the scored rows."""


@dataclass(frozen=True)
class Later:
    """What is known about rows after the training."""

    shift: Shift
    """Without a figure for tables of few rows."""
    evaluated: Evaluated | None = None
    """The quality on labelled rows."""
    drift: CalibrationDrift | None = None
    """Whether the probabilities of these rows are right."""


def look_at_later(model: PartyModel, rows: LaterRows) -> Later:
    """Read the rows and compare them with the model.

    Raises:
        ConfigError, DataError: a file, a table or the model cannot be used.
    """
    if model.distributions is None and (rows.dataset or rows.scores):
        raise DataError(NO_DISTRIBUTIONS)
    if rows.scores is not None and model.classes is not None:
        raise ConfigError("--scores needs a model of a label with two values: leave it out")
    if rows.scores is not None:
        check_origin(rows.scores, model)
    counter = ShiftCounter(model.distributions)
    if rows.dataset is not None:
        count_shift(model, rows.dataset[1], counter)
    evaluated = drift = None
    if rows.scores is not None:
        if model.calibration is None:
            raise ConfigError("--scores: only the guest has scores of both parties: leave it out, or use its part")
        if rows.labels is None:
            _, (u,) = read_scores((rows.scores,))
            counter.add_scores(u)
        else:
            name, dataset = rows.labels
            labelled = read_labelled_scores((rows.scores,), dataset, name)
            (u,), y = labelled.scores, labelled.labels
            counter.add_scores(u)
            odds = log_odds(u, model.calibration)
            drift = calibration_drift(u, odds, y, 0.5 if dataset.label is None else dataset.label.threshold)
            title = f"scored rows of {name}"
            intervals = Intervals.of(u, y, odds, model.job.seed)
            evaluated = Evaluated("later", title, drift.metrics, ScoreGroups.of(u, y, odds), intervals)
    shift = counter.shift
    return Later(shift.reported or Shift(shift.n_rows, {}, shift.n_scored), evaluated, drift)


def stability_section(model: PartyModel, later: Later) -> Section | None:
    """Describe how far rows have shifted since the training; None if the report was asked for none."""
    shift, distributions = later.shift, model.distributions or Distributions()
    if not shift.n_rows and not shift.n_scored:
        return None
    entries = [(name, value, distributions.columns.get(name), shift.n_rows) for name, value in shift.csi.items()]
    if shift.psi is not None:
        entries.append((SCORE, shift.psi, distributions.score, shift.n_scored))
    if not entries:
        few = Text(f"A shift is shown for at least {MIN_REPORTED_ROWS:,} rows, so that it says nothing of a few.")
        return Section("stability", "Stability", [few, *_drift_blocks(later)])
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
    return Section("stability", "Stability", [Charts([chart]), table, *_drift_blocks(later)])


def _drift_blocks(later: Later) -> Sequence[Block]:
    drift = later.drift
    if drift is None:
        return []
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
    return [Facts("Whether the probabilities of the later rows are right", rows)]


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "undefined for these rows"
    low, high = estimate.interval
    return f"{number(estimate.value, 3)} (95%: {number(low, 3)} to {number(high, 3)})"
