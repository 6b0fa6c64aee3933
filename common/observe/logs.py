"""The log that a server writes to stderr: a line for each event, as text or JSON, with its job and round.

The context in which a line is logged determines its job: everything that runs within `LogContext.current` belongs to
the job, including the tasks that begin there and the job's own thread.
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
    """The format of a server's log."""

    TEXT = "text"
    JSON = "json"


@dataclass(eq=False)
class LogContext:
    """The job and round that a log line belongs to.

    Attributes:
        job: name of the job.
        round: the newest round of this session; 0 before the first. All tasks within the context see it change.
    """

    job: str
    round: int = 0

    @contextmanager
    def current(self) -> Iterator[None]:
        """Use this context in the block, and in tasks that begin there."""
        token = _context.set(self)
        try:
            yield
        finally:
            _context.reset(token)


_context: ContextVar[LogContext | None] = ContextVar("log_context", default=None)


def set_up(role: Role, level: str, log_format: LogFormat) -> None:
    """Write log lines to stderr from now on.

    Args:
        role: the role of this process; each line names it.
        level: the lowest level to write, such as ``info``.
        log_format: text or JSON.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role) if log_format is LogFormat.JSON else TextFormatter(role))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Formatter(logging.Formatter):
    def __init__(self, role: Role) -> None:
        super().__init__()
        self._role = role

    def _text(self, record: logging.LogRecord) -> str:
        """Return the message, with the origin of an error but not its text, which may quote a row or a key."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        return f"{text}\n{where(error)}" if error is not None else text


class TextFormatter(_Formatter):
    """``TIME LEVEL ROLE [job=NAME] [round=NUMBER] LOGGER: MESSAGE``, with further lines of a message indented.

    A message may contain text that a stranger wrote. Because further lines are indented and control characters are
    replaced, no part of a message can look like another log line or control the terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        context = _context.get()
        words = [_time(record), record.levelname, self._role]
        if context is not None:
            words.append(f"job={context.job}")
            if context.round:
                words.append(f"round={context.round}")
        text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", "?", self._text(record)).replace("\n", "\n    ")
        return f"{' '.join(words)} {record.name}: {text}"


class JsonFormatter(_Formatter):
    """One JSON object per line: `time`, `level`, `role`, `logger`, `message`, and `job` and `round` if known."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        fields: dict[str, str | int] = {"time": _time(record), "level": record.levelname, "role": self._role.value}
        context = _context.get()
        if context is not None:
            fields["job"] = context.job
            if context.round:
                fields["round"] = context.round
        return json.dumps(fields | {"logger": record.name, "message": self._text(record)})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
