"""The bins of a model in a report, and the report of a bins job, without figures of few rows."""

from collections.abc import Sequence
from dataclasses import replace

from trilateral.common.data.model.bin_figures import BinFigures, bin_figures
from trilateral.common.data.model.bins_file import BinsFile
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.report import charts, drawing
from trilateral.common.report.contents import Block, Chart, Charts, Facts, Report, Section, Table, Text, number, share
from trilateral.common.report.disclosures import disclosures_section
from trilateral.common.report.job_files import JobFiles
from trilateral.common.report.model_sections import settings_section

MAX_CHARTS = 60
"""Columns whose bins are drawn; the tables have all."""


def bins_section(source: BinsFile | PartyModel) -> Section | None:
    """Describe the bins of all columns; None if no column has any."""
    columns = sorted(map(without_small, bin_figures(source)), key=_iv, reverse=True)
    if not columns:
        return None
    blocks: list[Block] = []
    known = [column for column in columns if all(each.iv is not None for each in column)]
    if known:
        blocks.append(
            Table(
                "Information value of each column",
                ("column", "bins", "IV"),
                [(column[0].column, f"{len(column)}", number(_iv(column), 3)) for column in known],
            )
        )
    drawn = [
        Chart(
            f"bins-{place}",
            column[0].column,
            lambda axes, column=column: charts.draw_bins(axes, column),  # type: ignore[misc]
            height=charts.rows_height(len(column), drawing.MAX_BINS),
        )
        for place, column in enumerate(columns[:MAX_CHARTS])
    ]
    blocks.append(Charts(drawn))
    if any(each.woe is None and each.event_rate is None for column in columns for each in column):
        blocks.append(Text(f"A figure is left out if it would tell about fewer than {MIN_ROWS} rows of a label."))
    rows = [
        (
            each.column,
            each.bin,
            f"{each.n_rows:,}",
            share(each.share),
            share(each.event_rate),
            number(each.woe, 3),
            number(each.iv, 4),
        )
        for column in columns
        for each in column
    ]
    blocks.append(
        Table(
            "The bins, over the training rows",
            ("column", "bin", "rows", "share", "positive", "WOE", "IV"),
            rows,
            n_texts=2,
            note="WOE: weight of evidence, the log-odds of the bin less those of all rows. IV: the bin's part of the"
            " information value of its column.",
        )
    )
    return Section("bins", "Bins", blocks)


def bins_report(files: JobFiles, bins: BinsFile) -> Report:
    """Return the report of a bins job at a party."""
    facts = [
        ("training rows, which alone were counted", f"{bins.n_train:,}"),
        ("own columns in bins", f"{len(bins.columns):,}"),
        ("SHA-256 of the table", bins.table),
    ]
    if bins.host_columns:
        facts.insert(2, ("columns of the host in bins", f"{len(bins.host_columns):,}"))
    left_out = Table("Columns without bins", ("column", "reason"), [*bins.left_out.items()], n_texts=2)
    data = Section("data", "Data", [Facts("The rows of the job", facts), *([left_out] if bins.left_out else [])])
    sections = [data, bins_section(bins), disclosures_section(files), settings_section(files)]
    return Report(
        title=f"Bins {files.job}",
        role=bins.role.value,
        lead="Columns in bins, with the labels of the training rows as far as this party knows them.",
        sections=[each for each in sections if each is not None],
        identity=files.identity,
    )


def without_small(bins: Sequence[BinFigures]) -> list[BinFigures]:
    """Leave out the figures of bins with few rows of a label.

    If it were a single bin, its figures would follow from those of the others and of another column. So the bin with
    the next fewest rows of a label loses its figures too.
    """

    def rarer(each: BinFigures) -> int:
        positive = round((each.event_rate or 0.0) * each.n_rows)
        return min(positive, each.n_rows - positive)

    known = [place for place, each in enumerate(bins) if each.event_rate is not None]
    by_size = sorted(known, key=lambda place: rarer(bins[place]))
    n_small = sum(rarer(bins[place]) < MIN_ROWS for place in known)
    hidden = set(by_size[: max(n_small, 2)]) if n_small else set()
    return [
        replace(each, event_rate=None, woe=None, iv=None) if place in hidden else each
        for place, each in enumerate(bins)
    ]


def _iv(column: Sequence[BinFigures]) -> float:
    return sum(each.iv or 0.0 for each in column)
