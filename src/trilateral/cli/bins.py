"""Tables of bins, points and figures of terms on the console."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trilateral.cli.wording import decimal
from trilateral.common.data.model.bins_file import BinsFile
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scorecard import Candidate, Points
from trilateral.common.data.party_data import describe_left_out
from trilateral.common.data.preprocessing.bins import Bin, BinnedColumn
from trilateral.common.protocol.binning import information_values, weight_of_evidence

NO_FIGURE = "-"


def print_bins(source: BinsFile | PartyModel, console: Console) -> None:
    """Print the bins of a bins job, or of the columns of a model."""
    if isinstance(source, BinsFile):
        columns: Sequence[BinnedColumn] = source.columns
        host_columns = source.host_columns
    else:
        columns = [column for column in source.steps.columns if isinstance(column, BinnedColumn)]
        host_columns = []
    console.print(f"bins of job {source.job.name}, at the {source.role}", markup=False, highlight=False, soft_wrap=True)
    for text in describe_left_out(source.left_out):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for column in columns:
        _print_column(column.name, column.bins, column.labels, console)
    for number, host_column in enumerate(host_columns, 1):
        labels = [f"bin {place}" for place in range(1, len(host_column.bins) + 1)]
        _print_column(f"column {number} of the host", host_column.bins, labels, console)


def _print_column(name: str, bins: Sequence[Bin], labels: Sequence[str], console: Console) -> None:
    import numpy as np

    n_rows = sum(each.n_rows for each in bins)
    table = Table(title=Text(name), title_justify="left")
    table.add_column("bin")
    for head in ("rows", "share", "event rate", "WOE", "IV"):
        table.add_column(head, justify="right")
    positive = [each.n_positive for each in bins if each.n_positive is not None]
    woe = parts = None
    if len(positive) == len(bins):
        counts = np.array(positive), np.array([each.n_rows for each in bins]) - np.array(positive)
        if min(counts[0].min(), counts[1].min()) > 0:
            woe, parts = weight_of_evidence(*counts), information_values(*counts)
    for place, each in enumerate(bins):
        rate = None if each.n_positive is None or not each.n_rows else each.n_positive / each.n_rows
        figures = (rate, None if woe is None else woe[place], None if parts is None else parts[place])
        table.add_row(
            Text(_short(labels[place], name)),
            f"{each.n_rows:,}",
            decimal(each.n_rows / n_rows, 4),
            *(NO_FIGURE if figure is None else decimal(float(figure), 4) for figure in figures),
        )
    if parts is not None:
        table.add_row(
            "total", f"{n_rows:,}", "", decimal(sum(positive) / n_rows, 4), "", decimal(float(parts.sum()), 4)
        )
    console.print(table)


def _short(label: str, column: str) -> str:
    """Return the text of a bin without the name of its column, which stands beside it."""
    return label.removeprefix(f"{column} ").removeprefix("in ")


def print_scorecard(rows: Sequence[Points], console: Console) -> None:
    """Print the points of a party's bins."""
    table = Table(title="points", title_justify="left")
    for head in ("column", "bin"):
        table.add_column(head)
    for head in ("rows", "WOE", "points", "rounded"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            Text(row.column),
            Text(_short(row.bin, row.column)),
            "" if row.n_rows is None else f"{row.n_rows:,}",
            "" if row.woe is None else decimal(row.woe, 4),
            decimal(row.points, 2),
            f"{row.rounded}",
        )
    console.print(table)


def print_candidates(rows: Sequence[Candidate], console: Console) -> None:
    """Print what helps to decide which terms stay."""
    table = Table(title="terms", title_justify="left")
    table.add_column("term")
    for head in ("IV", "weight", "VIF", "correlation"):
        table.add_column(head, justify="right")
    table.add_column("with")
    for row in sorted(rows, key=lambda each: -abs(each.weight)):
        figures = (row.iv, row.weight, row.vif, row.correlation)
        table.add_row(
            Text(row.term),
            *(NO_FIGURE if each is None else decimal(each, 4) for each in figures),
            Text(row.partner or ""),
        )
    console.print(table)
