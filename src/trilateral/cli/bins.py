"""Tables of bins, points and figures of terms on the console."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trilateral.cli.wording import decimal
from trilateral.common.data.model.bin_figures import BinFigures, bin_alone, bin_figures, information_value
from trilateral.common.data.model.bins_file import BinsFile
from trilateral.common.data.model.elimination import EliminationStep
from trilateral.common.data.model.inference import IN_DOUBT
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scorecard import Candidate, Points
from trilateral.common.data.party_data import describe_left_out

NO_FIGURE = "-"


def print_bins(source: BinsFile | PartyModel, console: Console) -> None:
    """Print the bins of a bins job, or of the columns of a model."""
    console.print(f"bins of job {source.job.name}, at the {source.role}", markup=False, highlight=False, soft_wrap=True)
    for text in describe_left_out(source.left_out):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    columns = bin_figures(source)
    if not columns:
        text = "no column is in bins: name a bins job, or train with `preprocessing.binning`"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for column in columns:
        console.print(_bins_table(column))
    if len(columns) > 1 and any(information_value(column) is not None for column in columns):
        console.print(_columns_table(columns))


def _columns_table(columns: Sequence[Sequence[BinFigures]]) -> Table:
    """List the columns by their information value, the largest first."""
    table = Table(title="columns by IV", title_justify="left")
    table.add_column("column", overflow="fold")
    table.add_column("bins", justify="right")
    table.add_column("IV", justify="right")
    ordered = sorted(((information_value(column), column) for column in columns), key=lambda each: -(each[0] or 0.0))
    for value, column in ordered:
        table.add_row(Text(column[0].column), str(len(column)), NO_FIGURE if value is None else decimal(value, 4))
    return table


def _bins_table(bins: Sequence[BinFigures]) -> Table:
    table = Table(title=Text(bins[0].column), title_justify="left")
    table.add_column("bin", overflow="fold")
    for head in ("rows", "share", "event rate", "WOE", "IV"):
        table.add_column(head, justify="right")
    for each in bins:
        figures = (
            NO_FIGURE if figure is None else decimal(figure, 4) for figure in (each.event_rate, each.woe, each.iv)
        )
        table.add_row(Text(each.bin), f"{each.n_rows:,}", decimal(each.share, 4), *figures)
    value = information_value(bins)
    rates = [each.share * each.event_rate for each in bins if each.event_rate is not None]
    if value is not None:
        n_rows = sum(each.n_rows for each in bins)
        table.add_row("total", f"{n_rows:,}", "", decimal(sum(rates), 4), "", decimal(value, 4))
    return table


def print_scorecard(rows: Sequence[Points], console: Console) -> None:
    """Print the points of a party's bins."""
    table = Table(title="points", title_justify="left")
    table.add_column("column", overflow="fold")
    table.add_column("bin", overflow="fold")
    for head in ("rows", "WOE", "points", "rounded"):
        table.add_column(head, justify="right")
    above = ""
    for row in rows:
        table.add_row(
            Text("" if row.column == above else row.column),
            Text(bin_alone(row.column, row.bin)),
            "" if row.n_rows is None else f"{row.n_rows:,}",
            "" if row.woe is None else decimal(row.woe, 4),
            decimal(row.points, 2),
            f"{row.rounded}",
        )
        above = row.column
    console.print(table)


def print_elimination(model: PartyModel, steps: Sequence[EliminationStep], console: Console) -> None:
    """Print a backward elimination of a model's columns, in its order."""
    doubt = IN_DOUBT if model.inference is not None and model.inference.may_be_separated else ""
    table = Table(title=f"backward elimination{doubt}", title_justify="left")
    table.add_column("column", overflow="fold")
    for head in ("chi-square", "df", "p-value", "AIC change", ""):
        table.add_column(head, justify="right")
    for step in steps:
        test = step.test
        figures = decimal(test.statistic, 3), str(test.df), decimal(test.p_value, 4), decimal(test.aic_change, 2)
        table.add_row(Text(test.column), *figures, "stays" if step.stays else "leave out")
    console.print(table)


def print_candidates(rows: Sequence[Candidate], console: Console) -> None:
    """Print what helps to decide which terms stay."""
    table = Table(title="terms", title_justify="left")
    table.add_column("term", overflow="fold")
    for head in ("IV", "weight", "VIF", "correlation"):
        table.add_column(head, justify="right")
    table.add_column("with", overflow="fold")
    for row in sorted(rows, key=lambda each: -abs(each.weight)):
        figures = (row.iv, row.weight, row.vif, row.correlation)
        table.add_row(
            Text(row.term),
            *(NO_FIGURE if each is None else decimal(each, 4) for each in figures),
            Text(row.partner or ""),
        )
    console.print(table)
    if all(row.vif is None for row in rows):
        text = "no VIF and no correlations: they need `whiten: true` in `preprocessing`, and a job without `l1`"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
