"""What a party has at the end, for people."""

from rich.console import Console
from rich.table import Table

from common.cli.wording import decimal
from common.config.process import ProcessConfig
from common.data.metrics import HoldoutMetrics
from common.data.model_file import load_model
from common.jobs.folder import JobFolder


def print_model(config: ProcessConfig, job: str, console: Console) -> None:
    """Say where a party's part of the model is and, at the guest, how good the whole is.

    Raises:
        DataError: the state folder has no such model.
    """
    path = JobFolder(config.state, job).model
    model = load_model(path)
    console.print(f"the {config.role}'s part of the model: {path}", markup=False, highlight=False, soft_wrap=True)
    if model.metrics is not None:
        table = metrics_table("on the hold-out rows")
        add_metrics(table, "this model", model.metrics)
        console.print(table)


def metrics_table(title: str) -> Table:
    """Return a table to which `add_metrics` adds rows."""
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for name in ("AUC", "KS", "accuracy", "log loss"):
        table.add_column(name, justify="right")
    return table


def add_metrics(table: Table, name: str, metrics: HoldoutMetrics) -> None:
    """Add a model's figures; AUC and KS do not exist for rows that all have one label."""
    figures = (metrics.auc, metrics.ks, metrics.accuracy, metrics.log_loss)
    table.add_row(name, *("-" if figure is None else decimal(figure, 4) for figure in figures))
