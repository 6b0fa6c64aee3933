"""How far the long work of a job has come, told to whoever waits for it.

Whoever starts the work gives a function with `reporting`. The code that reads, sorts and prepares tables calls
`report_progress` now and then, and need not know who listens. Without a listener the call does nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TypeAlias


class Stage(StrEnum):
    """What a party does before the first round, or in a bins job."""

    READING = "reading its table"
    SORTING = "sorting its rows"
    PREPARING = "preparing its columns"
    EXCHANGING = "exchanging masked columns"
    COUNTING = "counting the labels in bins"


OnProgress: TypeAlias = Callable[[Stage, float], None]
"""Called with a stage and the part of it that is done, from 0 to 1. It may be called in any thread, and often."""

_on_progress: ContextVar[OnProgress | None] = ContextVar("on_progress", default=None)


@contextmanager
def reporting(on_progress: OnProgress) -> Iterator[None]:
    """Within the block, and in the threads and tasks that are started in its context, pass on what is reported."""
    token = _on_progress.set(on_progress)
    try:
        yield
    finally:
        _on_progress.reset(token)


def report_progress(stage: Stage, done: float, total: float) -> None:
    """Report how far a stage has come.

    Args:
        stage: the stage.
        done: how much of it is done, in any unit.
        total: all of it, in the same unit. If it is 0, nothing is known yet, and the stage has just begun.
    """
    on_progress = _on_progress.get()
    if on_progress is not None:
        on_progress(stage, min(max(done / total, 0.0), 1.0) if total > 0 else 0.0)


def duration(seconds: float) -> str:
    """Return a duration in suitable units, for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


MIN_SECONDS = 1.0
"""With less of its time, the pace of some work is not known."""


class Remaining:
    """Estimates how long some work still takes, from its pace so far.

    Args:
        clock: returns seconds since a fixed moment.
        done: the part of the work that is done now.
    """

    def __init__(self, clock: Callable[[], float], done: float = 0.0) -> None:
        self._clock = clock
        self._begun_at, self._begun = clock(), done

    def seconds_left(self, done: float) -> float | None:
        """Return the seconds until the end of the work; None while its pace is not known.

        Args:
            done: the part of the work that is done now, from 0 to 1.
        """
        seconds, gained = self._clock() - self._begun_at, done - self._begun
        return seconds * (1 - done) / gained if seconds >= MIN_SECONDS and gained > 0 else None
