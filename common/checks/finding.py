"""The findings of a check."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from trilateral.common.base.errors import TrilateralError, notes


class Level(IntEnum):
    """How serious a finding is."""

    OK = 0
    """All is well."""
    NOTE = 1
    """Nothing is wrong, but the finding may explain something."""
    WARNING = 2
    """It works now, but may fail later or work less well than it could."""
    PROBLEM = 3
    """A training would fail or would not begin."""


@dataclass(frozen=True)
class Finding:
    """One line for the person who runs the process.

    Attributes:
        level: how serious the finding is.
        subject: what the finding is about: a key of the configuration where possible.
        text: what was found and, unless all is well, the remedy.
    """

    level: Level
    subject: str
    text: str

    def __str__(self) -> str:
        # Errors in settings already begin with the key.
        return self.text if self.text.startswith(self.subject) else f"{self.subject}: {self.text}"


def ok(subject: str, text: str) -> Finding:
    """Return a finding of level `OK`."""
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str) -> Finding:
    """Return a finding of level `NOTE`."""
    return Finding(Level.NOTE, subject, text)


def warning(subject: str, text: str) -> Finding:
    """Return a finding of level `WARNING`."""
    return Finding(Level.WARNING, subject, text)


def problem(subject: str, text: str) -> Finding:
    """Return a finding of level `PROBLEM`."""
    return Finding(Level.PROBLEM, subject, text)


def faults(subject: str, error: TrilateralError, level: Level = Level.PROBLEM) -> Iterator[Finding]:
    """Convert an error into findings, one for each line of its text; the last one includes the notes of the error.

    Args:
        subject: what the findings are about.
        error: the error.
        level: how serious the findings are.
    """
    *lines, last = str(error).splitlines() or [type(error).__name__]
    for line in lines:
        yield Finding(level, subject, line)
    more = "".join(f" ({each})" for each in notes(error))
    yield Finding(level, subject, f"{last}{more}")
