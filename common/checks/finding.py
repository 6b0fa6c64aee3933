"""What a check has found."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from trilateral.common.base.errors import TrilateralError, notes


class Level(IntEnum):
    """How bad it is."""

    OK = 0
    NOTE = 1
    """Nothing is wrong, and it may explain something."""
    WARNING = 2
    """It works now, and may not later, or not as well as it could."""
    PROBLEM = 3
    """A training would fail, or not begin."""


@dataclass(frozen=True)
class Finding:
    """One line for whoever runs the process.

    Attributes:
        level: how bad it is.
        subject: what it is about, as a key of the configuration where there is one.
        text: what was found and, unless all is well, the way out.
    """

    level: Level
    subject: str
    text: str

    def __str__(self) -> str:
        # The texts of errors in settings begin with the key themselves.
        return self.text if self.text.startswith(self.subject) else f"{self.subject}: {self.text}"


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str) -> Finding:
    """It is worth knowing."""
    return Finding(Level.NOTE, subject, text)


def warning(subject: str, text: str) -> Finding:
    """It may go wrong."""
    return Finding(Level.WARNING, subject, text)


def problem(subject: str, text: str) -> Finding:
    """It would go wrong."""
    return Finding(Level.PROBLEM, subject, text)


def faults(subject: str, error: TrilateralError, level: Level = Level.PROBLEM) -> Iterator[Finding]:
    """What an error says, each of its lines for itself, with what only its own organisation may read."""
    *lines, last = str(error).splitlines() or [type(error).__name__]
    for line in lines:
        yield Finding(level, subject, line)
    more = "".join(f" ({each})" for each in notes(error))
    yield Finding(level, subject, f"{last}{more}")
