"""A job's progress on a terminal, or as plain lines for a log."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trilateral.cli.wording import decimal, duration
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STARTING,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobState,
    JobStatus,
)

STATE_NAMES = {
    JOB_STATE_STARTING: "starting",
    JOB_STATE_TRAINING: "training",
    JOB_STATE_FINISHED: "finished",
    JOB_STATE_FAILED: "failed",
    JOB_STATE_STOPPED: "stopped",
}
NAME_WIDTH = max(map(len, STATE_NAMES.values()))
LINE_SECONDS = 1.0
"""The least time between two plain lines that report a round and nothing else."""


class ProgressView(Protocol):
    """Shows one status after the other; use it in ``with``."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, status: JobStatus) -> None:
        """Show what has changed."""
        ...


def progress_view(console: Console) -> ProgressView:
    """Return a bar for a terminal, lines for anything else."""
    return BarView(console) if console.is_terminal else LinesView(console)


class BarView:
    """One bar that moves, notes above it; under it what it waits for. The time goes on between two statuses."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace()
        self._status: JobStatus | None = None
        self._came_at = 0.0
        self._seconds_left: float | None = None
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=10)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, status: JobStatus) -> None:
        """Move the bar."""
        for note in status.notes:
            self._console.print(f"note: {note}", markup=False, highlight=False)
        self._seconds_left = self._pace.seconds_left(status)
        self._came_at = self._clock()
        self._status = status
        self._live.refresh()

    def _render(self) -> RenderableType:
        if self._status is None:
            return ""
        status = JobStatus()
        status.CopyFrom(self._status)
        if status.state not in ENDED:
            status.seconds += self._clock() - self._came_at

        # With widths of their own, nothing moves when the text's length changes.
        bar_width = 40 if self._console.width >= 120 else 10
        room = self._console.width - NAME_WIDTH - bar_width - 2
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_column(width=NAME_WIDTH, no_wrap=True)
        line.add_column(width=bar_width)
        line.add_column(no_wrap=True)
        line.add_row(
            STATE_NAMES.get(status.state, ""),
            self._bar(status, bar_width),
            Text(_fit(facts(status, self._seconds_left), room)),
        )
        doing = _doing(status)
        return Group(line, Text(doing)) if doing else line

    def _bar(self, status: JobStatus, width: int) -> ProgressBar:
        # A training that converges early has done all that there was to do.
        done, total = (1, 1) if status.state == JOB_STATE_FINISHED else (rounds_done(status), rounds_bound(status))
        # Without a total the bar pulses.
        return ProgressBar(total=total or None, completed=done, width=width, animation_time=self._clock())


class LinesView:
    """A line at every change of state and every note, when it waits for someone, and about one a second in between."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace()
        self._state: JobState.ValueType | None = None
        self._waits = False
        self._last_line = -LINE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, status: JobStatus) -> None:
        """Print what is new."""
        for note in status.notes:
            self._print(f"note: {note}")
        seconds_left = self._pace.seconds_left(status)
        if status.state in ENDED:  # whoever follows the job says how it ended
            return
        doing = _doing(status)
        is_new = (status.state, bool(doing)) != (self._state, self._waits)
        if not is_new and self._clock() - self._last_line < LINE_SECONDS:
            return
        self._state, self._waits = status.state, bool(doing)
        self._last_line = self._clock()
        name = STATE_NAMES.get(status.state, "")
        numbers = facts(status, seconds_left) if status.state == JOB_STATE_TRAINING else []
        self._print("  ".join(filter(None, (name, *numbers, doing))))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Pace:
    """How long the rounds that may still come would take, from those seen so far.

    Keys, data and the first round's start are left out by measuring from the first round seen, and rounds in which
    a party was away, since they tell nothing about the others.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._disturbed = False
        self._n_rounds = 0
        self._seconds = 0.0

    def seconds_left(self, status: JobStatus) -> float | None:
        """Return an upper bound, as training may converge before its last epoch; None while unknown."""
        if status.state != JOB_STATE_TRAINING:
            return None
        waits = bool(_doing(status))
        self._disturbed |= waits or status.attempt > 1
        done = rounds_done(status)
        if done and (self._last is None or done > self._last[0]):
            if self._last is not None and not self._disturbed:
                self._n_rounds += done - self._last[0]
                self._seconds += status.seconds - self._last[1]
            self._last = done, status.seconds
            self._disturbed = waits
        if waits or self._n_rounds == 0:
            return None
        return max(0.0, self._seconds / self._n_rounds * (rounds_bound(status) - done))


def rounds_done(status: JobStatus) -> int:
    """Return how many of the epochs' rounds are over."""
    return max(0, status.epoch - 1) * status.n_batches + status.batch


def rounds_bound(status: JobStatus) -> int:
    """Return how many rounds there may be at most."""
    return status.n_epochs * status.n_batches


def facts(status: JobStatus, seconds_left: float | None = None) -> list[str]:
    """Return a job's numbers in words, the most important first."""
    parts = [f"epoch {status.epoch}/{status.n_epochs}"] if status.epoch else []
    if status.round:
        parts.append(f"round {status.round}")
    if status.attempt > 1:
        parts.append(f"attempt {status.attempt}")
    if status.HasField("loss"):
        parts.append(f"loss {decimal(status.loss, 5)}")
    parts.append(duration(status.seconds))
    if seconds_left is not None:
        parts.append(f"at most {duration(seconds_left)} left")
    return parts


def _fit(parts: list[str], width: int) -> str:
    """Join as many parts as there is room for."""
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


def _doing(status: JobStatus) -> str:
    """Return what a job that has not ended is doing or waiting for; empty while it trains undisturbed."""
    return "" if status.state in ENDED else status.detail
