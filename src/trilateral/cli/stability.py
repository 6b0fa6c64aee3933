"""The shift of rows since a training, and the comparison of two models, on the console."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trilateral.cli.results import add_metrics, metrics_table
from trilateral.cli.wording import decimal
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.model.calibration import log_odds
from trilateral.common.data.model.calibration_drift import CalibrationDrift, Estimate, calibration_drift, log_odds_of
from trilateral.common.data.model.comparison import (
    AucComparison,
    OwnScores,
    compare_auc,
    pair_terms,
    remarks_on,
    score_psi,
)
from trilateral.common.data.model.distributions import (
    ShiftCounter,
    chance_psi,
    describe_grade,
    psi,
)
from trilateral.common.data.model.labelled_scores import read_labelled_scores, read_scores
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.score_origin import check_origin
from trilateral.common.data.model.scoring import count_shift


@dataclass(frozen=True)
class ColumnShift:
    """The shift of a column."""

    column: str
    csi: float
    by_chance: float
    """The mean CSI of so many rows if nothing has shifted."""


@dataclass(frozen=True)
class ColumnShifts:
    """The shift of the columns of a table."""

    dataset: str
    n_rows: int
    columns: list[ColumnShift]
    """The largest shift first."""


@dataclass(frozen=True)
class ScoreShift:
    """The shift of the score of the whole model."""

    n_rows: int
    n_holdout: int
    psi: float
    by_chance: float
    """The mean PSI of so many rows if nothing has shifted."""
    of_class: str | None = None
    """In a model of several classes, the class whose score it is."""


@dataclass(frozen=True)
class ScoresOfTwo:
    """How two models score the same rows."""

    n_rows: int
    psi: float
    auc: AucComparison | None
    """None without labels."""


def find_column_shifts(model: PartyModel, dataset: DatasetConfig, name: str) -> ColumnShifts:
    """Compare the columns of a table with the training rows.

    Raises:
        DataError: the model file has no distributions, or the table cannot be used.
    """
    distributions = model.known_distributions
    counter = ShiftCounter(distributions)
    count_shift(model, dataset, counter)
    shift = counter.shift
    columns = []
    for column, value in sorted(shift.csi.items(), key=lambda each: -each[1]):
        columns.append(ColumnShift(column, value, chance_psi(distributions.columns[column].counts, shift.n_rows)))
    return ColumnShifts(name, shift.n_rows, columns)


def print_column_shifts(shifts: ColumnShifts, console: Console) -> None:
    """Print the CSI of each column of a table, the largest first."""
    table = Table(title=f"{shifts.n_rows:,} rows of {shifts.dataset} against the training rows", title_justify="left")
    table.add_column("column", overflow="fold")
    for heading in ("CSI", "by chance"):
        table.add_column(heading, justify="right")
    table.add_column("shift")
    for each in shifts.columns:
        table.add_row(Text(each.column), decimal(each.csi, 4), decimal(each.by_chance, 4), describe_grade(each.csi))
    console.print(table)
    _say(console, "By chance: the mean CSI of so many rows if nothing has shifted.")


def find_score_shift(model: PartyModel, scores: Path, of_class: str | None = None) -> ScoreShift:
    """Compare the scores of rows, or those of a class, with those of the hold-out rows.

    Raises:
        DataError: the model file has no distribution of the score, or the file of scores cannot be used.
    """
    distribution = model.known_distributions.score
    if distribution is None:
        raise DataError(
            "the model file has no distribution of the score: only the guest's part of a model with enough hold-out"
            " rows has one"
        )
    check_origin(scores, model)
    _, (values,) = read_scores((scores,), of_class=of_class)
    counts, chance = distribution.counts, chance_psi(distribution.counts, len(values))
    return ScoreShift(len(values), sum(counts), psi(counts, distribution.count(values)), chance, of_class)


def print_score_shift(shift: ScoreShift, console: Console) -> None:
    """Print the PSI of the score."""
    whose = "" if shift.of_class is None else f" of class {shift.of_class}"
    _say(
        console,
        f"PSI of the score{whose}, {shift.n_rows:,} rows against {shift.n_holdout:,} hold-out rows:"
        f" {decimal(shift.psi, 4)} ({decimal(shift.by_chance, 4)} by chance): {describe_grade(shift.psi)}",
    )


def find_calibration_drift(
    model: PartyModel, scores: Path, labels: tuple[str, DatasetConfig], of_class: str | None = None
) -> CalibrationDrift:
    """Compare the probabilities of scored rows with their labels.

    Args:
        model: the guest's part, in a model of several classes that of the class.
        scores: file of scores.
        labels: name and settings of the table with the labels.
        of_class: the class whose probabilities are compared with whether a row has it.

    Raises:
        ConfigError, DataError: the model, the scores or the labels cannot be used.
    """
    if model.calibration is None:
        raise DataError("only the guest can compare probabilities with labels: use the guest's part of the model")
    name, dataset = labels
    check_origin(scores, model)
    rows = read_labelled_scores((scores,), dataset, name, of_class)
    (u,), (p,) = rows.scores, rows.probabilities
    threshold = 0.5 if dataset.label is None else dataset.label.threshold
    # The probabilities of classes follow from the scores of all of them, and stand in the file.
    odds = log_odds(u, model.calibration) if of_class is None else log_odds_of(p)
    return calibration_drift(u, odds, rows.labels, threshold)


def print_calibration_drift(drift: CalibrationDrift, model: PartyModel, name: str, console: Console) -> None:
    """Print whether probabilities still match the labels of the table `name`."""
    console.print()
    table = metrics_table(f"on {drift.metrics.n_rows:,} scored rows with labels of {name}")
    if model.metrics is not None:
        add_metrics(table, "hold-out rows", model.metrics)
    add_metrics(table, "these rows", drift.metrics)
    console.print(table)
    _say(
        console,
        f"observed over expected positives: {drift.metrics.n_positive:,} / {drift.n_expected:,.1f}"
        f" = {decimal(drift.ratio, 4)}",
    )
    _say(console, f"calibration intercept {_interval(drift.intercept)}; 0 if the mean probability is right")
    _say(console, f"calibration slope {_interval(drift.slope)}; 1 if the spread of the probabilities is right")
    _say(
        console,
        f"Hosmer-Lemeshow chi-square {decimal(drift.hosmer_lemeshow, 2)} with {drift.degrees} degrees of freedom,"
        f" p = {drift.p_value:.4f}",
    )
    console.print(_deciles(drift))


def print_comparison(first: PartyModel, second: PartyModel, console: Console) -> None:
    """Print the weights of two models side by side and, at the guest, the quality of each on its own hold-out rows.

    Raises:
        DataError: the models are parts of different parties.
    """
    names = [f"{each.job.name} ({place})" for each, place in ((first, "first"), (second, "second"))]
    table = Table(title="weights of standardised terms", title_justify="left")
    table.add_column("term", overflow="fold")
    for name in (*names, "difference"):
        table.add_column(Text(name), justify="right")
    for pair in pair_terms(first, second):
        table.add_row(Text(pair.term), *map(_weight, (pair.first, pair.second, pair.difference)))
    console.print(table)
    for remark in remarks_on(first, second):
        _say(console, remark)
    if first.metrics is not None or second.metrics is not None:
        quality = metrics_table("each on its own hold-out rows")
        for name, model in zip(names, (first, second), strict=True):
            if model.metrics is not None:
                add_metrics(quality, name, model.metrics)
        console.print(quality)


def print_own_scores(scores: OwnScores, role: Role, name: str, console: Console) -> None:
    """Print how two models score the rows of the table `name` by a party's own columns."""
    console.print()
    related = "" if scores.correlation is None else f"; correlation {decimal(scores.correlation, 4)}"
    _say(
        console,
        f"PSI of the {role}'s part of the score, second model against first, on {scores.n_rows:,} rows of {name}:"
        f" {decimal(scores.psi, 4)}{related}",
    )


def compare_scores(
    first: Path, second: Path, labels: tuple[str, DatasetConfig] | None, of_class: str | None = None
) -> ScoresOfTwo:
    """Compare the scores of two models on the same rows.

    Args:
        first: file of scores by the first model.
        second: file of scores by the second model.
        labels: name and settings of a table with the labels of the rows; without, there is no AUC.
        of_class: in models of several classes, the class whose scores are compared.

    Raises:
        ConfigError, DataError: a file or the labels cannot be used.
    """
    _, (a, b) = read_scores((first, second), of_class=of_class)
    auc = None
    if labels is not None:
        name, dataset = labels
        rows = read_labelled_scores((first, second), dataset, name, of_class)
        auc = compare_auc(rows.scores[0], rows.scores[1], rows.labels)
    return ScoresOfTwo(len(a), score_psi(a, b), auc)


def print_scores_of_two(scores: ScoresOfTwo, console: Console) -> None:
    """Print how two models score the same rows."""
    console.print()
    shift = decimal(scores.psi, 4)
    _say(console, f"PSI of the score, second model against first, on {scores.n_rows:,} rows: {shift}")
    auc = scores.auc
    if auc is None:
        return
    low, high = auc.interval
    _say(
        console,
        f"AUC on {auc.n_rows:,} rows, {auc.n_positive:,} of them positive: first {decimal(auc.first, 4)}, second"
        f" {decimal(auc.second, 4)}",
    )
    _say(
        console,
        f"difference {auc.difference:+.4f} (95% interval {low:+.4f} to {high:+.4f}); DeLong's test z = {auc.z:.2f},"
        f" p = {auc.p_value:.4f}",
    )


def _weight(value: float | None) -> str:
    return "-" if value is None else f"{value:+.5g}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "undefined for these rows"
    low, high = estimate.interval
    return f"{decimal(estimate.value, 4)} (95% interval {decimal(low, 4)} to {decimal(high, 4)})"


def _deciles(drift: CalibrationDrift) -> Table:
    table = Table(title="by tenths of the rows, in order of probability", title_justify="left")
    for heading in ("rows", "expected", "observed", "observed / expected"):
        table.add_column(heading, justify="right")
    for group in drift.groups:
        expected, observed = group.n * group.mean_predicted, group.n * group.observed_rate
        table.add_row(str(group.n), decimal(expected, 1), decimal(observed, 1), decimal(observed / expected, 3))
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
