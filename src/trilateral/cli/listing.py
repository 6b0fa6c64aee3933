"""Jobs as text: a table of all jobs, and the details of one."""

from collections.abc import Iterable

from trilateral.cli.progress import facts
from trilateral.cli.wording import decimal
from trilateral.common.base.progress import duration
from trilateral.common.process.job_progress import Progress

HEADINGS = ("job", "state", "epoch", "round", "loss", "time", "detail")


def table_lines(jobs: Iterable[Progress]) -> list[str]:
    """Return the headings and a line for each job, with the longest text last."""
    rows = [HEADINGS, *map(_cells, jobs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def shorten(line: str, width: int) -> str:
    """Cut a line that is too long, and mark the cut."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def detail_lines(job: Progress) -> list[str]:
    """Return everything about one job."""
    return [
        "  ".join([job.job, job.state, *facts(job)]),
        *job.detail.splitlines(),
        *(f"note: {note}" for note in job.notes),
    ]


def _cells(job: Progress) -> tuple[str, ...]:
    return (
        job.job,
        job.state,
        f"{job.epoch}/{job.n_epochs}" if job.epoch else "",
        str(job.round or ""),
        "" if job.loss is None else decimal(job.loss, 5),
        duration(job.seconds),
        " ".join(job.detail.split()),
    )
