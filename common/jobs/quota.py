"""How much a party may still give to the other party today: a counter on disk, for all jobs and predictions together.

The counter is raised before anything is given. After a crash, something may therefore be counted that was not given,
but never the reverse. If the counter cannot be read and written, nothing is given. Days are UTC days. The counter's day
never goes back, so setting the clock back does not restore a quota.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Self

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import write_whole
from trilateral.common.base.locks import lock_file
from trilateral.common.base.permissions import explain
from trilateral.common.config.process import UNLIMITED, ProcessConfig

log = logging.getLogger(__name__)

COUNTER = ".scores-given.json"
"""Name in the state folder. No job has this name, because a job's name never begins with a dot."""
IDS_COUNTER = ".ids-brought.json"
_MAX_COUNT = 2**63 - 1


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
    """A counter of one party. Any number of processes and threads may use it at the same time.

    Args:
        state: the state folder, which exists.
        limit: the maximum for one day of UTC.
        clock: returns the current time, with its time zone.
    """

    counter: str
    """Name of the file."""
    refusal: str
    """The start of the error if the file cannot be used: what the party refuses then."""
    setting: str
    """The setting with the limit."""
    unit: str
    """What is counted."""

    def __init__(self, state: Path, limit: int, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.limit = limit
        self._path = state / self.counter
        self._lock = self._path.with_suffix(".lock")
        self._clock = clock

    def today(self) -> Today:
        """Return what was given today.

        Raises:
            ConfigError: the counter cannot be read.
        """
        with file_errors(self._path, self.refusal, "daily counter"):
            return self._read()

    def spend(self, count: int) -> int | None:
        """Count `count` as given, if as many are left today.

        Args:
            count: how many are to be given; 0 or more.

        Returns:
            How many are left afterwards; None if too few are left, and nothing was counted.

        Raises:
            ValueError: the count is negative.
            ConfigError: the counter cannot be read or written. Nothing may be given then.
        """
        if count < 0:
            raise ValueError(f"cannot spend {count}: it is negative")
        with file_errors(self._path, self.refusal, "daily counter"), lock_file(self._lock):
            today = self._read()
            if self.limit < UNLIMITED and count > self.limit - today.given:
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
        if type(given) is not int or not 0 <= given <= _MAX_COUNT:
            raise ValueError
        return Today(day, given) if day >= now else Today(now, 0)


@contextmanager
def file_errors(path: Path, refusal: str, what: str) -> Iterator[None]:
    """Within the block, raise public errors about a file of counts; its path goes to this process's log only.

    Args:
        path: the file.
        refusal: the start of the error: what the party refuses while it cannot count.
        what: what the file is.

    Raises:
        ConfigError: in place of an error of the operating system, or about the content of the file.
    """
    try:
        yield
    except OSError as error:
        log.error("cannot read or write %s: %s", path, explain(error, path))
        raise ConfigError(f"{refusal}, because the {what} cannot be read or written: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        log.error("%s is not a valid %s: correct it, or remove it to start at 0", path, what)
        raise ConfigError(f"{refusal}, because the {what} is damaged: see its log") from None


class ScoreQuota(DayQuota):
    """Counts the scores that leave a host: u_A of one row each, in clear."""

    counter = COUNTER
    refusal = "the host gives no scores"
    setting = "policy.max_scores_a_day"
    unit = "scores"

    @classmethod
    def of(cls, config: ProcessConfig) -> Self:
        """Return the counter of a process, under the limit of its policy."""
        return cls(config.state, config.policy.max_scores_a_day)


class IdQuota(DayQuota):
    """Counts the IDs that the other party brings to alignments. For each, it learns whether this party has it."""

    counter = IDS_COUNTER
    refusal = "this party accepts no IDs for an alignment"
    setting = "policy.max_ids_a_day"
    unit = "IDs of the other party"

    @classmethod
    def of(cls, config: ProcessConfig) -> Self:
        """Return the counter of a process, under the limit of its policy."""
        return cls(config.state, config.policy.max_ids_a_day)
