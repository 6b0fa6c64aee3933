"""What a server writes on stderr: a line for each event, in words or as JSON, with the job and round it belongs to.

The job is a matter of the context in which something is logged: whatever runs within `Place.current` belongs to it,
tasks that begin there and the job's own thread included.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where


class LogFormat(StrEnum):
    """How a server's log looks."""

    TEXT = "text"
    JSON = "json"


@dataclass(eq=False)
class Place:
    """Where work belongs.

    Attributes:
        job: name of the job.
        round: the newest round of this session, 0 before the first. Whoever shares the place sees it change.
    """

    job: str
    round: int = 0

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within the block, and in tasks that begin there, what is logged belongs here."""
        token = _place.set(self)
        try:
            yield
        finally:
            _place.reset(token)


_place: ContextVar[Place | None] = ContextVar("place", default=None)


def set_up(role: Role, level: str, log_format: LogFormat) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role) if log_format is LogFormat.JSON else TextFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Formatter(logging.Formatter):
    def __init__(self, role: Role) -> None:
        super().__init__()
        self._role = role

    def _text(self, record: logging.LogRecord) -> str:
        """The message; of an error only where it came from, since its text may quote a row or a key."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        return f"{text}\n{where(error)}" if error is not None else text


class TextFormatter(_Formatter):
    """``TIME LEVEL ROLE [job=NAME] [round=NUMBER] LOGGER: MESSAGE``, further lines of a message indented.

    So a message, which may have a stranger's words in it, is never taken for the next line, nor for a command to the
    terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        place = _place.get()
        words = [_time(record), record.levelname, self._role]
        if place is not None:
            words.append(f"job={place.job}")
            if place.round:
                words.append(f"round={place.round}")
        text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", "?", self._text(record)).replace("\n", "\n    ")
        return f"{' '.join(words)} {record.name}: {text}"


class JsonFormatter(_Formatter):
    """An object a line: `time`, `level`, `role`, `logger`, `message`, and `job` and `round` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        fields: dict[str, str | int] = {"time": _time(record), "level": record.levelname, "role": self._role.value}
        place = _place.get()
        if place is not None:
            fields["job"] = place.job
            if place.round:
                fields["round"] = place.round
        return json.dumps(fields | {"logger": record.name, "message": self._text(record)})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
