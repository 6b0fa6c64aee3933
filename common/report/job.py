"""What the report of a job without a part of a model says: at the coordinator, and at a party before it has one."""

from dataclasses import replace

from trilateral.common.base.progress import duration
from trilateral.common.base.roles import Role
from trilateral.common.jobs.history_file import seconds_by_work
from trilateral.common.report.contents import Figure, Report, Section, Table, Text, number, size
from trilateral.common.report.disclosures import disclosures_section, n_bytes
from trilateral.common.report.job_files import JobFiles
from trilateral.common.report.model_sections import settings_section
from trilateral.common.report.training import n_repeated, training_section

MAX_ROUNDS = 1000
"""Rounds in the table."""


COORDINATOR_LEAD = (
    "The training as the coordinator sees it: rounds, losses, times and bytes. It holds no rows, labels or names of"
    " columns."
)
PARTY_LEAD = (
    "This process has no result of the job: the job runs, was stopped, or has failed. The report says what the files of"
    " the process know."
)


def job_report(files: JobFiles) -> Report:
    """Return the report of a job at a process that knows times and bytes, and no model."""
    training = training_section(files)
    if training is not None:
        training = replace(training, blocks=[*training.blocks, _rounds(files)])
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
    nothing = Section("training", "Training", [Text("The job had no rounds.")])
    sections = [training or nothing, disclosures_section(files), settings_section(files)]
    return Report(
        title=f"Job {files.job}",
        role=files.role.value,
        lead=COORDINATOR_LEAD if files.role is Role.COORDINATOR else PARTY_LEAD,
        figures=figures,
        sections=[each for each in sections if each is not None],
        identity=files.identity,
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
