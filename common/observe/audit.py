"""The audit log of one process: one line of JSON for each decision, and one for the end of each job.

It tells the organisation's auditors who asked for what, what was decided and why, and how many ciphertexts and bytes
went where. It contains no gradient, key, label, ID, step or value of a row.

The lines form a chain: each has a number and the SHA-256 of the line before it, so a line that is changed, removed or
inserted breaks the chain. Whoever can write the file can still write the whole chain anew from any line on. So the
process logs the hash of the last line, which another machine can keep. `audit_chain` follows the chain.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.observe.audit_chain import REPAIRED, ChainEnd, find_end, full_name

log = logging.getLogger(__name__)

LOG = "audit.jsonl"
"""Name of the file in the state folder."""
MAX_BYTES = 64 << 20
"""Size at which the file gets another name, and the chain goes on in a new file."""
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
    """Appends to the audit log, which only one process may do. All threads of the process may use it.

    The file is opened for each line, so it may be moved away while the process runs: the chain goes on in a new file.

    Args:
        path: the path of the file; it is created with mode 0600 when the first line is written.
        clock: returns the current time, with its time zone.
        max_bytes: size at which the file gets another name.
    """

    def __init__(
        self, path: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC), max_bytes: int = MAX_BYTES
    ) -> None:
        self._path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self._refusals: dict[tuple[Role | None, frozenset[str]], _Window] = {}
        self._lock = threading.Lock()
        self._end: ChainEnd | None = None
        """The end of the log; None if it must be looked up in the file."""

    def open(self) -> None:
        """Find the end of the log, and repair a line that a killed process has left incomplete.

        Call this once the process has locked its state folder.
        """
        try:
            with self._lock:
                self._end = find_end(self._path)
                is_torn = self._end.is_torn
            if is_torn:
                self._write(None)
            self._anchor()
        except OSError as error:
            self._log_problem(error)

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
        with self._lock:
            window = self._window(asking, self._clock())
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
        self._anchor()

    def ended(self, outcome: Outcome, **what: Any) -> None:
        """Record how a session of a job, or a prediction, ended.

        Args:
            outcome: the outcome of the session or prediction.
            **what: further fields of the line.
        """
        self._try("ended", **what, result=outcome)
        self._anchor()

    def restored(self, copied_at: datetime) -> None:
        """Record that the state folder was restored.

        Args:
            copied_at: when the copy was made.

        Raises:
            OSError: the line cannot be written.
        """
        self._write("restored", copied=copied_at.astimezone(UTC).isoformat(timespec="seconds"))

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
        log.error("cannot write the audit log %s: %s", self._path, explain(error, self._path))

    def _anchor(self) -> None:
        """Log the hash of the last line. Where the log is kept on another machine, the lines before it are fixed."""
        if self._end is not None and self._end.number:
            log.info("the audit log has %d lines, and the last one has the hash %s", self._end.number, self._end.digest)

    def _write(self, decision: str | None, **fields: Any) -> None:
        """Append a line, and before it a line about an incomplete one. Without a decision, append the latter only."""
        time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
        with self._lock:
            end = self._end or find_end(self._path)
            if not end.is_torn:
                self._rotate(end)
            data = b""
            if end.is_torn:
                reason = "the line before this one is incomplete: the process was killed, or the disk was full"
                end, line = end.continued({"time": time, "decision": REPAIRED, "reason": reason})
                data = b"\n" + line
            if decision is not None:
                end, line = end.continued({"time": time, "decision": decision} | fields)
                data += line
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._end = None
                if os.write(handle, data) < len(data):
                    raise OSError(0, "only a part of a line was written")
                self._end = end
            finally:
                os.close(handle)

    def _rotate(self, end: ChainEnd) -> None:
        full = full_name(self._path, end.number)
        if not self._path.exists() or self._path.stat().st_size < self._max_bytes or full.exists():
            return
        self._path.rename(full)
        log.info("the audit log goes on in a new file; %s is full, and its last line has the hash %s", full, end.digest)


def _who(asking: Asking) -> dict[str, Any]:
    return {"role": asking.role, "certificate": sorted(asking.names)[:5]}
