"""The shift of rows since a training, and the comparison of two models, on the console."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trilateral.cli.results import add_metrics, metrics_table
from trilateral.cli.wording import decimal
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.model.calibration import log_odds
from trilateral.common.data.model.calibration_drift import CalibrationDrift, Estimate, calibration_drift, log_odds_of
from trilateral.common.data.model.comparison import compare_auc, pair_terms, score_psi
from trilateral.common.data.model.distributions import (
    NO_DISTRIBUTIONS,
    Distributions,
    ShiftCounter,
    chance_psi,
    describe_grade,
    psi,
)
from trilateral.common.data.model.labelled_scores import read_labelled_scores, read_scores
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scoring import count_shift


def print_column_shift(model: PartyModel, dataset: DatasetConfig, name: str, console: Console) -> None:
    """Print the CSI of each column of a table, the largest first.

    Raises:
        DataError: the model file has no distributions, or the table cannot be used.
    """
    distributions = _distributions(model)
    counter = ShiftCounter(distributions)
    count_shift(model, dataset, counter)
    shift = counter.shift
    table = Table(title=f"{shift.n_rows:,} rows of {name} against the training rows", title_justify="left")
    table.add_column("column", overflow="fold")
    for heading in ("CSI", "by chance"):
        table.add_column(heading, justify="right")
    table.add_column("shift")
    for column, value in sorted(shift.csi.items(), key=lambda each: -each[1]):
        chance = chance_psi(distributions.columns[column].counts, shift.n_rows)
        table.add_row(Text(column), decimal(value, 4), decimal(chance, 4), describe_grade(value))
    console.print(table)
    _say(console, "By chance: the mean CSI of so many rows if nothing has shifted.")


def print_score_shift(model: PartyModel, scores: Path, console: Console, of_class: str | None = None) -> None:
    """Print the PSI of the score, or of that of a class.

    Raises:
        DataError: the model file has no distribution of the score, or the file of scores cannot be used.
    """
    distribution = _distributions(model).score
    if distribution is None:
        raise DataError(
            "the model file has no distribution of the score: only the guest's part of a model with enough hold-out"
            " rows has one"
        )
    _, (values,) = read_scores((scores,), of_class=of_class)
    shift = psi(distribution.counts, distribution.count(values))
    n_train = sum(distribution.counts)
    chance = chance_psi(distribution.counts, len(values))
    whose = "" if of_class is None else f" of class {of_class}"
    _say(
        console,
        f"PSI of the score{whose}, {len(values):,} rows against {n_train:,} hold-out rows: {decimal(shift, 4)}"
        f" ({decimal(chance, 4)} by chance): {describe_grade(shift)}",
    )


def print_calibration_drift(
    model: PartyModel,
    scores: Path,
    labels: tuple[str, DatasetConfig],
    console: Console,
    of_class: str | None = None,
) -> None:
    """Print whether probabilities still match the labels, or those of a class whether a row has it.

    Args:
        model: the guest's part, in a model of several classes that of the class.
        scores: file of scores.
        labels: name and settings of the table with the labels.
        console: receives the text.
        of_class: the class.

    Raises:
        ConfigError, DataError: the model, the scores or the labels cannot be used.
    """
    if model.calibration is None:
        raise DataError("only the guest can compare probabilities with labels: use the guest's part of the model")
    name, dataset = labels
    rows = read_labelled_scores((scores,), dataset, name, of_class)
    (u,), (p,) = rows.scores, rows.probabilities
    threshold = 0.5 if dataset.label is None else dataset.label.threshold
    # The probabilities of classes follow from the scores of all of them, and stand in the file.
    odds = log_odds(u, model.calibration) if of_class is None else log_odds_of(p)
    drift = calibration_drift(u, odds, rows.labels, threshold)
    console.print()
    table = metrics_table(f"on {len(u):,} scored rows with labels of {name}")
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
    if first.metrics is not None or second.metrics is not None:
        quality = metrics_table("each on its own hold-out rows")
        for name, model in zip(names, (first, second), strict=True):
            if model.metrics is not None:
                add_metrics(quality, name, model.metrics)
        console.print(quality)


def print_scores_of_two(first: Path, second: Path, labels: tuple[str, DatasetConfig] | None, console: Console) -> None:
    """Print how two models score the same rows.

    Args:
        first: file of scores by the first model.
        second: file of scores by the second model.
        labels: name and settings of a table with the labels of the rows; without, there is no AUC.
        console: receives the text.

    Raises:
        ConfigError, DataError: a file or the labels cannot be used.
    """
    _, (a, b) = read_scores((first, second))
    console.print()
    _say(console, f"PSI of the score, second model against first, on {len(a):,} rows: {decimal(score_psi(a, b), 4)}")
    if labels is None:
        return
    name, dataset = labels
    rows = read_labelled_scores((first, second), dataset, name)
    auc = compare_auc(rows.scores[0], rows.scores[1], rows.labels)
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


def _distributions(model: PartyModel) -> Distributions:
    if model.distributions is None:
        raise DataError(NO_DISTRIBUTIONS)
    return model.distributions


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
