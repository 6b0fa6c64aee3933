"""The progress of a job: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trilateral.cli.trace import Trace
from trilateral.cli.wording import decimal
from trilateral.common.base.progress import duration
from trilateral.common.process.job_progress import JobState, Pace, Progress

NAME_WIDTH = max(map(len, JobState))
LINE_SECONDS = 1.0
"""Minimum time between two plain lines that report nothing but a round."""
PROGRESS_SECONDS = 10.0
"""The same for lines that report only how far a round, or the work before the first round, has come."""


class ProgressView(Protocol):
    """Shows one snapshot after the other. Use it in ``with``."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, progress: Progress) -> None:
        """Show what changed."""
        ...


def progress_view(console: Console, trace: Trace | None = None) -> ProgressView:
    """Return a bar for a terminal, or lines for anything else."""
    return BarView(console, trace=trace) if console.is_terminal else LinesView(console, trace=trace)


class BarView:
    """A moving bar with notes above it and what the job waits for below it. The time also runs between snapshots.

    Args:
        console: the terminal.
        clock: returns seconds.
        trace: how the training has gone, to be shown below the bar.
    """

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, trace: Trace | None = None
    ) -> None:
        self._console = console
        self._trace = trace
        self._clock = clock
        self._pace = Pace()
        self._progress: Progress | None = None
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

    def show(self, progress: Progress) -> None:
        """Move the bar."""
        for note in progress.notes:
            self._console.print(f"note: {note}", markup=False, highlight=False)
        self._seconds_left = self._pace.seconds_left(progress)
        self._came_at = self._clock()
        self._progress = progress
        if self._trace is not None:
            self._trace.add(progress)
        self._live.refresh()

    def _render(self) -> RenderableType:
        progress = self._progress
        if progress is None:
            return ""
        if not progress.state.is_final:
            progress = replace(progress, seconds=progress.seconds + self._clock() - self._came_at)

        # Fixed widths keep everything in place when the length of the text changes.
        bar_width = 40 if self._console.width >= 120 else 10
        room = self._console.width - NAME_WIDTH - bar_width - 2
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_column(width=NAME_WIDTH, no_wrap=True)
        line.add_column(width=bar_width)
        line.add_column(no_wrap=True)
        line.add_row(
            progress.state,
            self._bar(progress, bar_width),
            Text(_fit(facts(progress, self._seconds_left), room)),
        )
        traces = (Text(each, no_wrap=True, overflow="ellipsis") for each in trace_lines(self._trace, self._console))
        return Group(line, *traces, *([Text(progress.doing)] if progress.doing else []))

    def _bar(self, progress: Progress, width: int) -> ProgressBar:
        # A training that converges early is complete all the same.
        finished = progress.state is JobState.FINISHED
        done = progress.rounds_done + progress.round_done
        done, total = (1, 1) if finished else (min(done, progress.max_rounds), progress.max_rounds)
        # Without a total, the bar pulses.
        return ProgressBar(total=total or None, completed=done, width=width, animation_time=self._clock())


class LinesView:
    """A line for each note and each change: at once for another state or the begin of a wait, else one a second.

    Args:
        console: where to print.
        clock: returns seconds.
        trace: how the training has gone, to be printed at its end.
    """

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, trace: Trace | None = None
    ) -> None:
        self._console = console
        self._trace = trace
        self._clock = clock
        self._pace = Pace()
        self._shown: Progress | None = None
        self._last_line = -LINE_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, progress: Progress) -> None:
        """Print what is new."""
        for note in progress.notes:
            self._print(f"note: {note}")
        seconds_left = self._pace.seconds_left(progress)
        if self._trace is not None:
            self._trace.add(progress)
        if progress.state.is_final:  # the command itself reports how the job ended
            for line in trace_lines(self._trace, self._console):
                self._print(line)
            return
        if self._shown is not None and not self._is_due(progress, self._shown):
            return
        self._shown, self._last_line = progress, self._clock()
        numbers = facts(progress, seconds_left) if progress.state is JobState.TRAINING else []
        self._print("  ".join(filter(None, (progress.state, *numbers, progress.doing))))

    def _is_due(self, progress: Progress, shown: Progress) -> bool:
        """Return whether a line is due. One that differs from the last in its seconds only never is."""
        if progress.state is not shown.state or bool(progress.doing) != bool(shown.doing):
            return True
        if replace(progress, seconds=0, notes=()) == replace(shown, seconds=0, notes=()):
            return False
        is_new = progress.rounds_done > shown.rounds_done or (progress.round, progress.attempt) != (
            shown.round,
            shown.attempt,
        )
        return self._clock() - self._last_line >= (LINE_SECONDS if is_new else PROGRESS_SECONDS)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def trace_lines(trace: Trace | None, console: Console) -> list[str]:
    """Return how a training has gone, as far as the console can show it."""
    if trace is None:
        return []
    lines = trace.lines(max(10, min(60, console.width - 30)))
    return [line for line in lines if line.isascii() or not console.options.ascii_only]


def facts(progress: Progress, seconds_left: float | None = None) -> list[str]:
    """Return the numbers of a job as text, the most important first."""
    parts = [f"epoch {progress.epoch}/{progress.n_epochs}"] if progress.epoch else []
    if progress.n_fits > 1 and progress.epoch:
        parts = [f"fit {min(progress.fits_done + 1, progress.n_fits)}/{progress.n_fits}"]
    if progress.round:
        step = f", {progress.step}" if progress.step else ""
        parts.append(f"round {progress.round}{step}{_within(progress)}")
    if progress.attempt > 1:
        parts.append(f"attempt {progress.attempt}")
    if progress.loss is not None:
        parts.append(f"loss {decimal(progress.loss, 5)}")
    parts.append(duration(progress.seconds))
    if seconds_left is not None:
        parts.append(f"at most {duration(seconds_left)} left")
    return parts


def _within(progress: Progress) -> str:
    """Return how far a long round has come, and how long it still takes."""
    if not progress.n_rows or progress.state is not JobState.TRAINING:
        return ""
    rest = "" if progress.seconds_left is None else f", {duration(progress.seconds_left)} left"
    return f" ({progress.round_done:.0%}{rest})"


def _fit(parts: list[str], width: int) -> str:
    """Join as many parts as fit into the width."""
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text
