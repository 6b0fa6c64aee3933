"""A party's result on the console."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trilateral.cli.wording import decimal, in_statsmodels
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.assessment import CalibrationReport, EvaluatedSet
from trilateral.common.data.model.calibration import formula
from trilateral.common.data.model.export import INTERCEPT, ratio_text, weights_of
from trilateral.common.data.model.inference import IN_DOUBT, ChiSquareTest, Inference, ModelFit
from trilateral.common.data.model.model_file import Classes, EvaluatedEpoch, PartyModel, is_by_auc, load_model
from trilateral.common.data.party_data import describe_left_out
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.protocol.evaluation import HoldoutMetrics


def print_model(config: ProcessConfig, job: str, console: Console, *, show: str) -> None:
    """Print where a party's part of the model is and, at the guest, the quality of the whole model.

    Args:
        config: of the party's process.
        job: name of the job.
        console: where to print.
        show: the command that prints the weights.

    Raises:
        DataError: the state folder has no such model, or it cannot be read.
    """
    path = JobFolder(config.state, job).find_model()
    model = load_model(path)
    _say(console, f"the {config.role}'s part of the model: {path}")
    _print_quality(model, console)
    if model.inference is not None:
        _print_warnings(model.inference, console)
    _say(console, f"to see the weights{'' if model.inference is None else ' and how accurate they are'}, run: {show}")


def print_part(model: PartyModel, console: Console) -> None:
    """Print the weights, the quality and the calibration of a party's part of a model."""
    data = model.data
    by_weight = ", which count by their weights," if data.weighted else ""
    _say(console, f"the {model.role}'s part of the model of job {model.job.name}, run {model.run_id}")
    _say(
        console,
        f"trained on {data.n_train} rows{by_weight} with {data.n_holdout} hold-out rows; {model.job.loss_name}"
        f" {decimal(model.loss, 6)} after {model.rounds} rounds; {model.reason}",
    )
    if len(data.sets) > 1:
        counts = (f"{name} {n_rows:,} rows" for name, n_rows in data.sets.items())
        _say(console, f"evaluated on several sets: {', '.join(counts)}")
    for text in describe_left_out(model.left_out):
        _say(console, text)
    for part, name in zip(model.parts, class_names(model), strict=True):
        console.print()
        console.print(_weights_table(part, f"weights for {name} against the rest" if model.classes else "weights"))
    _say(
        console,
        "Odds ratio: factor by which the odds of the positive label grow when the term grows by one unit, or by one"
        " standard deviation, and the other terms stay the same. It applies to the score before calibration. Terms are"
        " sorted by their weight per standard deviation. Terms without one are 0 or 1, or were not standardised.",
    )
    references = [each for each in model.steps.columns if each.reference_name is not None]
    if references:
        compared = ", ".join(f"{each.name!r} with {each.reference_name}" for each in references)
        _say(console, f"Categories and bins are compared with the largest one, which has no term: {compared}.")
    if model.inference is not None:
        console.print()
        _print_inference(model.inference, console)
    if model.metrics is not None or model.calibration is not None:
        console.print()
    _print_quality(model, console)
    if model.classes is not None:
        return
    if model.metrics is not None and model.metrics.lift is not None:
        console.print()
        console.print(_lift_table(model.metrics.lift))
    if model.calibration_report is not None:
        console.print()
        console.print(_reliability_table(model.calibration_report))


def metrics_table(title: str) -> Table:
    """Return an empty table for `add_metrics`."""
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for name in ("AUC", "KS", "accuracy", "log loss"):
        table.add_column(name, justify="right")
    return table


def add_metrics(table: Table, name: str, metrics: HoldoutMetrics) -> None:
    """Add the figures of a model. AUC and KS are undefined if all rows have the same label."""
    figures = (metrics.auc, metrics.ks, metrics.accuracy, metrics.log_loss)
    table.add_row(name, *("-" if figure is None else decimal(figure, 4) for figure in figures))


def class_names(model: PartyModel) -> list[str]:
    """Return what to call the classes of a model, or its positive label."""
    names = None if model.classes is None else model.classes.names
    return names or [f"class {number}" for number in range(1, len(model.parts) + 1)]


def _print_quality(model: PartyModel, console: Console) -> None:
    if model.classes is not None:
        _print_classes(model, model.classes, console)
        return
    if model.search:
        console.print(_search_table(model))
    if model.evaluations:
        console.print(_evaluations_table(model.evaluations))
    if model.metrics is not None:
        metrics = model.metrics
        first = next(iter(model.data.sets), "holdout")
        table = metrics_table("on the hold-out rows" if first == "holdout" else f"on the evaluation set {first}")
        add_metrics(table, "this model", metrics)
        console.print(table)
        if model.evaluation_sets:
            console.print(_intervals_table(model.evaluation_sets))
        gini = "" if metrics.gini is None else f"; Gini {decimal(metrics.gini, 4)}"
        _say(
            console,
            f"{metrics.n_positive} of {metrics.n_rows} rows are positive{gini}; accuracy uses a threshold of"
            f" {metrics.threshold:g}",
        )
    if model.calibration is not None:
        _say(console, f"probabilities p of scores u: {formula(model.calibration)}")
        _say(console, f"they are {model.calibration_summary}")
    if model.calibration_report is not None:
        report = model.calibration_report
        _say(
            console,
            f"log loss before {decimal(report.before.log_loss, 4)}, after {decimal(report.after.log_loss, 4)};"
            " each row is calibrated by a fit without that row",
        )


def _print_classes(model: PartyModel, classes: Classes, console: Console) -> None:
    names, metrics = class_names(model), classes.metrics
    if metrics is not None:
        console.print()
        _say(console, "on the hold-out rows: number of rows of each class, by the class with the highest probability")
        table = Table()
        table.add_column("class")
        for name in (*names, "AUC"):
            table.add_column(Text(name), justify="right")
        for name, counts, auc in zip(names, metrics.confusion, metrics.auc, strict=True):
            table.add_row(Text(name), *map(str, counts), "-" if auc is None else decimal(auc, 4))
        console.print(table)
        _say(
            console,
            f"{metrics.n_rows} rows; accuracy {decimal(metrics.accuracy, 4)}, log loss {decimal(metrics.log_loss, 4)};"
            " AUC is that of a class against the rest",
        )
    if model.calibration_summary is not None:
        _say(console, f"probabilities are {model.calibration_summary}")


def _weights_table(model: PartyModel, title: str) -> Table:
    table = Table(title=Text(title), title_justify="left")
    table.add_column("term", overflow="fold")
    for name in ("weight", "odds ratio", "per std. dev."):
        table.add_column(name, justify="right")
    for each in sorted(weights_of(model), key=lambda each: abs(each.standardised), reverse=True):
        per_sd = each.odds_ratio_per_sd
        table.add_row(
            Text(each.term),
            f"{each.weight:+.5g}",
            ratio_text(each.odds_ratio),
            "-" if per_sd is None else ratio_text(per_sd),
        )
    table.add_row(INTERCEPT, f"{model.intercept:+.5g}", "", "")
    return table


def _intervals_table(sets: list[EvaluatedSet]) -> Table:
    level = sets[0].intervals.level
    table = Table(title=f"by evaluation set, with {level:.0%} confidence intervals", title_justify="left")
    for name in ("set", "rows", "figure"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for name in ("value", "from", "to"):
        table.add_column(name, justify="right")
    names = {"auc": "AUC", "gini": "Gini", "ks": "KS", "log_loss": "log loss", "brier": "Brier score"}
    for each in sets:
        of_set = each.name, f"{each.metrics.n_rows:,}"
        for name, title in names.items():
            figure, interval = getattr(each.metrics, name), getattr(each.intervals, name)
            values = [figure, *(interval or (None, None))]
            table.add_row(*of_set, title, *("-" if value is None else decimal(value, 4) for value in values))
            of_set = "", ""
    return table


def _search_table(model: PartyModel) -> Table:
    table = Table(title=f"cross-validation with {model.job.folds} folds", title_justify="left")
    by_auc = is_by_auc(model.search)
    for name in ("l1", "l2", "log loss", "std. error", *(("AUC", "std. error") if by_auc else ()), "columns", ""):
        table.add_column(name, justify="right")
    for each in model.search:
        figures = [each.loss, each.standard_error, *((each.auc, each.auc_error) if by_auc else ())]
        chosen = "chosen" if each.chosen else ""
        table.add_row(
            f"{each.l1:.4g}",
            f"{each.l2:.4g}",
            *("-" if one is None else decimal(one, 6) for one in figures),
            f"{each.n_terms:.4g}",
            chosen,
        )
    return table


def _print_inference(inference: Inference, console: Console) -> None:
    """Print the accuracy of the weights in the columns of statsmodels, and at the guest the fit of the model."""
    doubt = IN_DOUBT if inference.may_be_separated else ""
    if inference.terms or inference.intercept is not None:
        table = Table(title=f"accuracy of the weights{doubt}", title_justify="left")
        table.add_column("term", overflow="fold")
        for name in ("coef", "std err", "z", "P>|z|", "[0.025", "0.975]"):
            table.add_column(name, justify="right")
        rows = [(Text(term), each) for term, each in inference.terms.items()]
        if inference.intercept is not None:
            rows.append((Text(INTERCEPT), inference.intercept))
        for of_term, each in rows:
            coef, p = in_statsmodels(each.weight, 4), f"{each.p_value:.3f}"
            std_error, z, lower, upper = (
                in_statsmodels(figure, 3) for figure in (each.std_error, each.z, each.lower, each.upper)
            )
            table.add_row(of_term, coef, std_error, z, p, lower, upper)
        console.print(table)
    if inference.intercept is not None:
        _say(console, "The intercept is that of a row with the mean value in every term of the host.")
    for column, test in inference.columns.items():
        _say(console, f"all terms of {column!r} together: {_chi_square('Wald', test)}")
    if inference.fit is not None:
        console.print(_fit_table(inference.fit, doubt))
        if inference.fit.likelihood_ratio is not None:
            of_model = _chi_square("likelihood ratio", inference.fit.likelihood_ratio)
            _say(console, f"against a model with an intercept only: {of_model}")
    _print_warnings(inference, console)


def _print_warnings(inference: Inference, console: Console) -> None:
    for warning in inference.warnings:
        _say(console, f"warning: {warning}")


def _fit_table(fit: ModelFit, doubt: str) -> Table:
    table = Table(title=f"fit on the training rows{doubt}", title_justify="left")
    for name in ("rows", "parameters", "deviance", "null deviance", "AIC", "BIC", "McFadden R2"):
        table.add_column(name, justify="right")
    figures = (fit.deviance, fit.null_deviance, fit.aic, fit.bic)
    table.add_row(
        str(fit.n_rows), str(fit.n_parameters), *(f"{each:.2f}" for each in figures), f"{fit.mcfadden_r2:.4f}"
    )
    return table


def _chi_square(name: str, test: ChiSquareTest) -> str:
    return f"{name} chi2({test.df}) = {test.statistic:.4g}, p = {test.p_value:.4g}"


def _evaluations_table(evaluations: list[EvaluatedEpoch]) -> Table:
    table = Table(title="during the training, on the hold-out rows, before calibration", title_justify="left")
    for name in ("epochs", "AUC", "KS", "accuracy", "log loss"):
        table.add_column(name, justify="right")
    for each in evaluations:
        figures = (each.metrics.auc, each.metrics.ks, each.metrics.accuracy, each.metrics.log_loss)
        table.add_row(str(each.epochs), *("-" if figure is None else decimal(figure, 4) for figure in figures))
    return table


def _lift_table(lift: tuple[float, ...]) -> Table:
    table = Table(title="lift by decile of the score, highest first", title_justify="left")
    for number in range(1, len(lift) + 1):
        table.add_column(str(number), justify="right")
    table.add_row(*(f"{each:.2f}" for each in lift))
    return table


def _reliability_table(report: CalibrationReport) -> Table:
    table = Table(
        title="reliability: mean probability and observed rate of positives, by tenths of the rows",
        title_justify="left",
    )
    for name in ("rows", "before", "observed", "rows", "after", "observed"):
        table.add_column(name, justify="right")
    for pair in zip(report.before.bins, report.after.bins, strict=True):
        cells: list[str] = []
        for each in pair:
            cells += [str(each.n), f"{each.mean_predicted:.3f}", f"{each.observed_rate:.3f}"]
        table.add_row(*cells)
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
