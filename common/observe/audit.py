"""The audit log of one process: a line of JSON for each decision, and one for each end of a job.

What is in it is fit for the eyes of whoever checks an organisation: who asked for what, what was decided
and why, and how many ciphertexts and bytes went where. No gradient, key, label, ID, step or value of a row.
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
from trilateral.common.base.roles import Role

log = logging.getLogger(__name__)

MAX_REASON = 500
MAX_REFUSALS = 60
"""Lines of refusals for one caller within `WINDOW`; more are counted, so that a flood of them fills no disk."""
WINDOW = timedelta(minutes=1)
MAX_CALLERS = 100
"""Callers whose refusals are counted apart."""


class Asking(Protocol):
    """Who asks for something."""

    @property
    def role(self) -> Role | None:
        """Which of the three; None for anyone else."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """The names in the certificate; none without TLS."""
        ...


@dataclass
class _Window:
    begin: datetime
    written: int = 0
    suppressed: int = 0


class Audit:
    """Appends to the audit log. The file is opened for each line, so that it may be moved away at any time.

    Args:
        path: of the file; it is made, mode 0600, when the first line is written.
        clock: the time, with its zone.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path = path
        self._clock = clock
        self._refusals: dict[tuple[Role | None, frozenset[str]], _Window] = {}
        self._torn = False

    def allowed(self, asking: Asking, method: str, **what: Any) -> None:
        """Record that something is about to be done.

        Raises:
            ConfigError: the line cannot be written. Then the thing is not to be done.
        """
        try:
            self._write("allowed", **_who(asking), method=method, **what)
        except OSError as error:
            log.error("the audit log %s cannot be written: %s", self._path, error.strerror)
            raise ConfigError(
                f"state: the audit log there cannot be written ({error.strerror}), and nothing is permitted without it"
            ) from None

    def refused(self, asking: Asking, method: str, reason: str, **what: Any) -> None:
        """Record that something is not done; only so many for each caller, of the rest the number."""
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
        """Record what became of an alignment."""
        self._try("closed", **what)

    def ended(self, **what: Any) -> None:
        """Record what became of a job."""
        self._try("ended", **what)

    def _window(self, asking: Asking, now: datetime) -> _Window:
        caller = asking.role, asking.names
        window = self._refusals.pop(caller, None)
        if window is None:
            window = _Window(now)
        elif now - window.begin >= WINDOW:
            window = _Window(now, suppressed=window.suppressed)
        self._refusals[caller] = window  # at the end: the one that was silent for longest is forgotten first
        if len(self._refusals) > MAX_CALLERS:
            del self._refusals[next(iter(self._refusals))]
        return window

    def _try(self, decision: str, **fields: Any) -> None:
        try:
            self._write(decision, **fields)
        except OSError as error:
            log.error("the audit log %s cannot be written: %s", self._path, error.strerror)

    def _write(self, decision: str, **fields: Any) -> None:
        time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "decision": decision} | fields) + "\n"
        # After a full disk a part of a line may be there, which the next one must not continue.
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
