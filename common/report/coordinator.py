"""What the coordinator's report of a job says, and the reports of a bins job at the parties."""

from trilateral.common.base.progress import duration
from trilateral.common.data.model.bins_file import BinsFile
from trilateral.common.jobs.history_file import seconds_by_work
from trilateral.common.report.bins_section import bins_section
from trilateral.common.report.contents import Facts, Figure, Report, Section, Table, Text, number, size
from trilateral.common.report.disclosures import disclosures_section, n_bytes
from trilateral.common.report.guest import identity
from trilateral.common.report.job_files import JobFiles
from trilateral.common.report.model_sections import settings_section
from trilateral.common.report.training import n_repeated, traffic_table, training_section

MAX_ROUNDS = 1000
"""Rounds in the table."""


def coordinator_report(files: JobFiles) -> Report:
    """Return the report of a job at the coordinator, which knows losses, times and bytes, and no row or weight."""
    training = training_section(files)
    if training is not None:
        traffic = traffic_table(files)
        tables = [each for each in (traffic, _rounds(files)) if each is not None]
        training = Section(training.name, training.title, [*training.blocks, *tables])
    _, seconds = seconds_by_work(files.history)
    losses = [line["loss"] for line in files.history if line.get("loss") is not None]
    figures = [
        Figure("Rounds", f"{len({line['round'] for line in files.history}):,}"),
        Figure("Last loss", number(losses[-1], 6) if losses else number(None)),
        Figure("Time", duration(seconds)),
        Figure("Repeated", f"{n_repeated(files.history):,}", "attempts"),
    ]
    if files.audit:
        figures.append(Figure("Sent", size(n_bytes(files.sent))))
        figures.append(Figure("Received", size(n_bytes(files.received))))
    nothing = Section("training", "Training", [Text("The job had no rounds, as a bins job.")])
    sections = [training or nothing, disclosures_section(files), settings_section(files)]
    return Report(
        title=f"Job {files.job}",
        role="coordinator",
        lead="The training as the coordinator sees it: rounds, losses, times and bytes. It holds no rows, labels or"
        " names of columns.",
        figures=figures,
        sections=[each for each in sections if each is not None],
        identity=identity(files),
    )


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
        identity=identity(files),
    )


def _rounds(files: JobFiles) -> Table:
    rows = []
    for line in files.history[-MAX_ROUNDS:]:
        sent, received = (
            sum(int(each.get("bytes", 0)) for each in line.get(direction, {}).values())
            for direction in ("sent", "received")
        )
        rows.append(
            (
                f"{line['round']}",
                f"{line.get('attempt', 1)}",
                f"{line.get('epoch', 0)}",
                number(line.get("loss"), 6),
                number(line.get("seconds", {}).get("all"), 3),
                size(sent),
                size(received),
            )
        )
    hidden = len(files.history) - len(rows)
    return Table(
        "The rounds",
        ("round", "attempt", "epoch", "loss", "seconds", "sent", "received"),
        rows,
        note=f"The first {hidden:,} lines of the history are not shown." if hidden else "",
    )
