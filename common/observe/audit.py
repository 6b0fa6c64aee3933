"""The audit log of one process: one line of JSON for each decision, and one for the end of each job.

It tells the organisation's auditors who asked for what, what was decided and why, and how many ciphertexts and bytes
went where. It contains no gradient, key, label, ID, step or value of a row.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role

log = logging.getLogger(__name__)

MAX_REASON = 500
MAX_REFUSALS = 60
"""Refusals of one caller that are written within `WINDOW`. Further ones are only counted, so that a flood of requests
does not fill the disk."""
WINDOW = timedelta(minutes=1)
MAX_CALLERS = 100
"""How many callers' refusals are counted separately."""


class Asking(Protocol):
    """The caller that asks for something."""

    @property
    def role(self) -> Role | None:
        """The caller's role; None if its certificate matches no role."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """The names in the caller's certificate; empty without TLS."""
        ...


@dataclass
class _Window:
    begin: datetime
    written: int = 0
    suppressed: int = 0


class Audit:
    """Appends to the audit log. The file is opened for each line, so it may be moved away at any time.

    Args:
        path: the path of the file; it is created with mode 0600 when the first line is written.
        clock: returns the current time, with its time zone.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._clock = clock
        self._refusals: dict[tuple[Role | None, frozenset[str]], _Window] = {}
        self._torn = False

    def allowed(self, asking: Asking, method: str, **what: Any) -> None:
        """Record that something was allowed, before it is done.

        Args:
            asking: the caller.
            method: the method that it called.
            **what: further fields of the line.

        Raises:
            ConfigError: the line cannot be written. The caller of this method must then refuse the request.
        """
        try:
            self._write("allowed", **_who(asking), method=method, **what)
        except OSError as error:
            self._log_problem(error)
            raise ConfigError(
                f"state: the audit log in the folder cannot be written ({error.strerror}): all requests are refused"
                " until it can be"
            ) from None

    def refused(self, asking: Asking, method: str, reason: str, **what: Any) -> None:
        """Record that something was refused. After `MAX_REFUSALS` of one caller, record only how many more there were.

        Args:
            asking: the caller.
            method: the method that it called.
            reason: why it was refused, as a public text.
            **what: further fields of the line.
        """
        now = self._clock()
        window = self._window(asking, now)
        if window.written >= MAX_REFUSALS:
            window.suppressed += 1
            return
        window.written += 1
        if window.suppressed:
            what["suppressed"], window.suppressed = window.suppressed, 0
        self._try("refused", **_who(asking), method=method, reason=" ".join(reason.split())[:MAX_REASON], **what)

    def closed(self, **what: Any) -> None:
        """Record how an alignment ended."""
        self._try("closed", **what)

    def ended(self, outcome: Outcome, **what: Any) -> None:
        """Record how a session of a job, or a prediction, ended.

        Args:
            outcome: the outcome of the session or prediction.
            **what: further fields of the line.
        """
        self._try("ended", **what, result=outcome)

    def changed(self, setting: str, before: object, after: object) -> None:
        """Record that a setting of the running process has changed.

        Args:
            setting: its keys, joined by dots.
            before: its last value, as JSON has it.
            after: its new value.
        """
        self._try("changed", setting=setting, before=before, after=after)

    def _window(self, asking: Asking, now: datetime) -> _Window:
        caller = asking.role, asking.names
        window = self._refusals.pop(caller, None)
        if window is None:
            window = _Window(now)
        elif now - window.begin >= WINDOW:
            window = _Window(now, suppressed=window.suppressed)
        self._refusals[caller] = window  # at the end, so that the caller that was silent for longest is dropped first
        if len(self._refusals) > MAX_CALLERS:
            del self._refusals[next(iter(self._refusals))]
        return window

    def _try(self, decision: str, **fields: Any) -> None:
        try:
            self._write(decision, **fields)
        except OSError as error:
            self._log_problem(error)

    def _log_problem(self, error: OSError) -> None:
        log.error("cannot write the audit log %s: %s", self._path, error.strerror)

    def _write(self, decision: str, **fields: Any) -> None:
        time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "decision": decision} | fields) + "\n"
        # A full disk may have left a part of a line at the end of the file. The next line must not continue it.
        data = (("\n" if self._torn else "") + line).encode()
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._torn = os.write(handle, data) < len(data)
        finally:
            os.close(handle)
        if self._torn:
            raise OSError(0, "only a part of a line was written")


def _who(asking: Asking) -> dict[str, Any]:
    return {"role": asking.role, "certificate": sorted(asking.names)[:5]}
