"""A job's progress on a terminal, or as plain lines for a log."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from common.jobs.states import ENDED
from common.pb.v1.jobs_pb2 import (
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
    """One bar that moves, notes above it."""

    def __init__(self, console: Console) -> None:
        # A width of its own keeps the bar from changing its size with the length of the text.
        bar = BarColumn(bar_width=40 if console.width >= 120 else 10)
        self._progress = Progress(
            TextColumn("{task.description}"), bar, TextColumn("{task.fields[text]}", markup=False), console=console
        )
        self._task: TaskID | None = None
        self._pace = Pace()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, status: JobStatus) -> None:
        """Move the bar."""
        for note in status.notes:
            self._progress.console.print(f"note: {note}", markup=False, highlight=False)
        finished = status.state == JOB_STATE_FINISHED
        # A training that converges early has done all that there was to do.
        done, total = (1, 1) if finished else (rounds_done(status), rounds_bound(status))
        description = STATE_NAMES.get(status.state, "")
        starting = status.state == JOB_STATE_STARTING
        text = status.detail if starting else describe(status, self._pace.seconds_left(status))
        if self._task is None:
            self._task = self._progress.add_task(description, text=text)
        # Without a total the bar pulses.
        self._progress.update(self._task, description=description, total=total or None, completed=done, text=text)


class LinesView:
    """A line at every change of state and every note, and about one a second in between."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._pace = Pace()
        self._state: JobState.ValueType | None = None
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
        if status.state == self._state and self._clock() - self._last_line < LINE_SECONDS:
            return
        self._state = status.state
        self._last_line = self._clock()
        name = STATE_NAMES.get(status.state, "")
        facts = describe(status, seconds_left) if status.state == JOB_STATE_TRAINING else ""
        detail = "" if status.detail == name else status.detail
        self._print("  ".join(filter(None, (name, facts, detail))))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Pace:
    """How long the rounds that may still come would take, from those seen so far."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def seconds_left(self, status: JobStatus) -> float | None:
        """Return an upper bound, as training may converge before its last epoch; None while unknown.

        Keys, data and the first round's start are left out by measuring from the first round seen.
        """
        if status.state != JOB_STATE_TRAINING or rounds_done(status) == 0:
            return None
        done = rounds_done(status)
        if self._first is None:
            self._first = (done, status.seconds)
        first_done, first_seconds = self._first
        if done == first_done:
            return None
        pace = (status.seconds - first_seconds) / (done - first_done)
        return max(0.0, pace * (rounds_bound(status) - done))


def rounds_done(status: JobStatus) -> int:
    """Return how many of the epochs' rounds are over."""
    return max(0, status.epoch - 1) * status.n_batches + status.batch


def rounds_bound(status: JobStatus) -> int:
    """Return how many rounds there may be at most."""
    return status.n_epochs * status.n_batches


def describe(status: JobStatus, seconds_left: float | None = None) -> str:
    """Return a job's numbers in a line."""
    facts = [f"epoch {status.epoch}/{status.n_epochs}"] if status.epoch else []
    if status.round:
        facts.append(f"round {status.round}")
    if status.attempt > 1:
        facts.append(f"attempt {status.attempt}")
    if status.HasField("loss"):
        facts.append(f"loss {status.loss:.5f}")
    facts.append(duration(status.seconds))
    if seconds_left is not None:
        facts.append(f"at most {duration(seconds_left)} left")
    return "  ".join(facts)


def duration(seconds: float) -> str:
    """Return seconds as people write them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
