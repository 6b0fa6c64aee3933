"""Jobs as lines: a table of all, and all about one."""

from collections.abc import Iterable

from trilateral.cli.progress import STATE_NAMES, facts
from trilateral.cli.wording import decimal, duration
from trilateral.common.pb.v1.jobs_pb2 import JobStatus

HEADINGS = ("job", "state", "epoch", "round", "loss", "time", "detail")


def table_lines(statuses: Iterable[JobStatus]) -> list[str]:
    """Return headings and a line for each job, with the longest text last."""
    rows = [HEADINGS, *map(_cells, statuses)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def shorten(line: str, width: int) -> str:
    """Cut a line that would not fit, and show that it is cut."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def detail_lines(status: JobStatus) -> list[str]:
    """Return all that is known of a job."""
    return [
        "  ".join([status.job, _state(status), *facts(status)]),
        *status.detail.splitlines(),
        *(f"note: {note}" for note in status.notes),
    ]


def _cells(status: JobStatus) -> tuple[str, ...]:
    return (
        status.job,
        _state(status),
        f"{status.epoch}/{status.n_epochs}" if status.epoch else "",
        str(status.round or ""),
        decimal(status.loss, 5) if status.HasField("loss") else "",
        duration(status.seconds),
        " ".join(status.detail.split()),
    )


def _state(status: JobStatus) -> str:
    return STATE_NAMES.get(status.state, "unknown")
