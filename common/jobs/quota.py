"""How much may still be given to the other party today: one counter for all jobs and predictions, on disk.

The counter is raised before anything is given, so that a crash counts it as given. Without a counter that can be read
and written nothing is given. The day is that of UTC, and never goes back: a clock that is set back gives nothing anew.
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

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import write_whole

log = logging.getLogger(__name__)

COUNTER = ".scores-given.json"
"""In the state folder. No job has this name, since none begins with a dot."""
IDS_COUNTER = ".ids-brought.json"
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


class DayQuota:
    """A counter of one party; as many processes and threads as like may take from it at the same time.

    Args:
        state: the state folder, which is there.
        limit: the most in one day of UTC.
        clock: the time, with its zone.
    """

    counter: str
    """Name of the file."""
    refusal: str
    """What does not happen without the file."""

    def __init__(self, state: Path, limit: int, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.limit = limit
        self._path = state / self.counter
        self._lock = self._path.with_suffix(".lock")
        self._clock = clock

    def today(self) -> Today:
        """What was given today.

        Raises:
            ConfigError: the counter cannot be read.
        """
        with self._public_errors():
            return self._read()

    def take(self, count: int) -> int | None:
        """Count `count` as given, if so many are left today; return how many are left then, else None.

        Raises:
            ConfigError: the counter cannot be read or written. Then nothing may leave.
        """
        if count < 0:
            raise ValueError(f"{count} cannot be taken")
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
                f"{self.refusal}, since its counter of them cannot be read or written: {error.strerror}"
            ) from None
        except (ValueError, TypeError, KeyError):
            log.error("%s is not a counter: mend it, or take it away to begin anew", self._path)
            raise ConfigError(f"{self.refusal}, since its counter of them is damaged: see its log") from None


class ScoreQuota(DayQuota):
    """Counts the scores that leave a host: u_A of one row each, in clear."""

    counter = COUNTER
    refusal = "the host gives no score"


class IdQuota(DayQuota):
    """Counts the IDs that the other party brings to alignments: of each it learns whether this party holds it."""

    counter = IDS_COUNTER
    refusal = "no IDs are taken for an alignment"
