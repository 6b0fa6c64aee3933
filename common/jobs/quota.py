"""How many scores may still leave this host today: one counter for all jobs and predictions, on disk.

A score is u_A of one row, in clear. The counter is raised before scores leave, so that a crash counts them as
given. Without a counter that can be read and written none may leave. The day is that of UTC, and never goes back: a
clock that is set back gives nothing anew.
"""

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from common.errors import ConfigError
from common.files import write_whole

log = logging.getLogger(__name__)

COUNTER = ".scores-given.json"
"""In the state folder. No job has this name, since none begins with a dot."""
_LOCK = ".scores-given.lock"
_MOST = 2**63


@dataclass(frozen=True)
class Today:
    """What was given on one day of UTC."""

    day: date
    given: int

    @property
    def end(self) -> datetime:
        """When the next day begins."""
        return datetime.combine(self.day + timedelta(days=1), time(), UTC)


class ScoreQuota:
    """The counter of one host; as many processes and threads as like may take from it at the same time.

    Args:
        state: the state folder, which is there.
        limit: the most scores in one day of UTC.
        clock: the time, with its zone.
    """

    def __init__(self, state: Path, limit: int, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.limit = limit
        self._path = state / COUNTER
        self._lock = state / _LOCK
        self._clock = clock

    def today(self) -> Today:
        """What was given today.

        Raises:
            ConfigError: the counter cannot be read.
        """
        with self._public_errors():
            return self._read()

    def take(self, count: int) -> int | None:
        """Count `count` scores as given, if so many are left today; return how many are left then, else None.

        Raises:
            ConfigError: the counter cannot be read or written. Then nothing may leave.
        """
        if count < 0:
            raise ValueError(f"{count} scores cannot be taken")
        with self._public_errors(), self._locked():
            today = self._read()
            if count > self.limit - today.given:
                return None
            given = today.given + count
            write_whole(self._path, json.dumps({"day": today.day.isoformat(), "given": given}) + "\n")
            return self.limit - given

    def _read(self) -> Today:
        now = self._clock().astimezone(UTC).date()
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return Today(now, 0)
        day, given = date.fromisoformat(content["day"]), content["given"]
        if type(given) is not int or not 0 <= given < _MOST:
            raise ValueError
        return Today(day, given) if day >= now else Today(now, 0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # ends with the handle, however the process ends
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _public_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.error("%s cannot be read or written: %s", self._path, error.strerror)
            raise ConfigError(
                f"the host gives no score, since its counter of them cannot be read or written: {error.strerror}"
            ) from None
        except (ValueError, TypeError, KeyError):
            log.error("%s is not a counter of scores: mend it, or take it away to begin anew", self._path)
            raise ConfigError("the host gives no score, since its counter of them is damaged: see its log") from None
