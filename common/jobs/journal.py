"""What one process must not forget of its jobs, in SQLite: their settings, their state, each of their rounds.

Every change is on disk when its method returns. A journal that cannot be used is left as it is.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import sync_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.rpc.codec import parse_job

log = logging.getLogger(__name__)

JOURNAL = "journal.sqlite"
"""In the state folder."""
APPLICATION = 0x7472696C  # "tril"
VERSION = 1
BUSY_SECONDS = 10.0
MIN_BYTES = 512
"""Of any database of SQLite's."""

_SCHEMA = """
CREATE TABLE job (
    id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    changed REAL NOT NULL
);
CREATE TABLE fact (
    job BLOB NOT NULL REFERENCES job ON DELETE CASCADE, name TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (job, name)
);
CREATE TABLE round (
    job BLOB NOT NULL REFERENCES job ON DELETE CASCADE, number INTEGER NOT NULL, content BLOB NOT NULL,
    begun INTEGER NOT NULL, PRIMARY KEY (job, number)
);
"""


class State(StrEnum):
    """What has become of a job."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Record:
    """A job as the journal has it.

    Attributes:
        id: run ID of its first session.
        job: its settings.
        state: what has become of it.
        reason: of its end, in public words.
        facts: what else is known of it, by name.
        rounds: what is kept of each round, by its number, ascending.
    """

    id: bytes
    job: JobConfig
    state: State
    reason: str
    facts: dict[str, bytes] = field(default_factory=dict)
    rounds: dict[int, bytes] = field(default_factory=dict)


class Journal:
    """The journal of one process. Any of its threads may use it.

    Args:
        folder: the state folder, which is there and held by this process.
        role: of the process.
        kept_days: how long a job that does not change is kept.

    Raises:
        ConfigError: there is a journal that cannot be used, or none can be made.
    """

    def __init__(self, folder: Path, role: Role, kept_days: float) -> None:
        self._role = role
        self._kept_seconds = kept_days * 86_400
        self._path = folder / JOURNAL
        self._lock = threading.Lock()
        with self._saying():
            self._database = self._open()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._database.close()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists() and not self._path.with_name(f"{JOURNAL}-wal").exists():
            self._make()
        _check_there(self._path)
        # This says why a file cannot be opened, which SQLite does not.
        os.close(os.open(self._path, os.O_RDWR | os.O_CLOEXEC))
        database = sqlite3.connect(self._path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _check_whole(database, self._path)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            self._prune(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prune(self, database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM job WHERE changed < ?", (time.time() - self._kept_seconds,))

    def _make(self) -> None:
        """Make a journal that appears whole, so that an empty one is known to be damaged."""
        new = self._path.with_name(f"{JOURNAL}.new")
        new.unlink(missing_ok=True)
        # SQLite gives its other files the mode of this one.
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as database:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
            )
        os.replace(new, self._path)
        sync_folder(self._path.parent)

    # --- jobs

    def add(self, job_id: bytes, job: JobConfig) -> None:
        """Take a job in; another of that name is forgotten, and so are those that have not changed for long."""
        with self._changing() as database:
            self._prune(database)
            database.execute("DELETE FROM job WHERE name = ?", (job.name,))
            database.execute(
                "INSERT INTO job VALUES (?, ?, ?, ?, '', ?)",
                (job_id, job.name, job.model_dump_json(), State.RUNNING, time.time()),
            )

    def mark(self, job_id: bytes, state: State, reason: str = "") -> None:
        """Write down what has become of a job. One that has finished stays so."""
        with self._changing() as database:
            database.execute(
                "UPDATE job SET state = ?, reason = ?, changed = ? WHERE id = ? AND state != ?",
                (state, reason, time.time(), job_id, State.FINISHED),
            )

    def set_fact(self, job_id: bytes, name: str, content: bytes) -> None:
        """Keep a fact in the place of an older one of that name."""
        with self._changing() as database:
            database.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", (job_id, name, content))

    def write_round(self, job_id: bytes, number: int, content: bytes) -> int:
        """Keep what is to be kept of a round, once; return how often it was called for that round."""
        with self._changing() as database:
            database.execute(
                "INSERT INTO round VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET begun = begun + 1",
                (job_id, number, content),
            )
            database.execute("UPDATE job SET changed = ? WHERE id = ?", (time.time(), job_id))
            (begun,) = database.execute(
                "SELECT begun FROM round WHERE job = ? AND number = ?", (job_id, number)
            ).fetchone()
            return int(begun)

    def find(self, job_id: bytes) -> Record | None:
        """The job of that ID, with all that is kept of it."""
        with self._reading() as database:
            row = database.execute("SELECT id, settings, state, reason FROM job WHERE id = ?", (job_id,)).fetchone()
            if row is None:
                return None
            facts = dict(database.execute("SELECT name, content FROM fact WHERE job = ?", (job_id,)).fetchall())
            rounds = dict(
                database.execute(
                    "SELECT number, content FROM round WHERE job = ? ORDER BY number", (job_id,)
                ).fetchall()
            )
            return _record(row, facts, rounds)

    def all(self) -> list[Record]:
        """Every job, without its rounds, in the order in which they were started."""
        with self._reading() as database:
            rows = database.execute("SELECT id, settings, state, reason FROM job ORDER BY rowid").fetchall()
            return [
                _record(
                    row,
                    dict(database.execute("SELECT name, content FROM fact WHERE job = ?", (row[0],)).fetchall()),
                    {},
                )
                for row in rows
            ]

    # --- how it is reached

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._saying():
            yield self._database

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    @contextmanager
    def _saying(self) -> Iterator[None]:
        """Say in public words what is wrong with the file; where it is, is for this process's log alone."""
        try:
            yield
        except OSError as error:
            log.error("%s cannot be opened: %s", self._path, error.strerror)
            raise ConfigError(f"the journal of the {self._role} cannot be written: {error.strerror}") from error
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            log.error("%s cannot be read or written: %s", self._path, error)
            raise ConfigError(f"the journal of the {self._role} cannot be read or written: {error}") from error
        except sqlite3.IntegrityError as error:
            raise ConfigError(f"the journal of the {self._role} does not have the job any more") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            log.error(
                "%s is damaged: %s; put a copy back, or move it away with its -wal to begin anew", self._path, error
            )
            raise ConfigError(f"the journal of the {self._role} is damaged: see its log") from error


def examine_journal(folder: Path) -> None:
    """See that the journal in a state folder can be used, without a change to it, whether a process has it or not.

    Raises:
        ConfigError: it is there, and cannot be used.
    """
    path = folder / JOURNAL
    has_log = path.with_name(f"{JOURNAL}-wal").exists()
    if not path.exists() and not has_log:
        return
    try:
        _check_there(path)
        # What a process works on, or one that was killed has left, is partly in the log. Without one the file is all
        # there is, and is taken to stay as it is: or SQLite would make a log, which would be whoever looks's.
        options = "mode=ro" if has_log else "mode=ro&immutable=1"
        database = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", BUSY_SECONDS, uri=True)
        try:
            _check_whole(database, path)
        finally:
            database.close()
    except (OSError, sqlite3.OperationalError) as error:
        raise ConfigError(f"state: {path} cannot be read: {error}") from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(
            f"state: {path} is damaged: {error}; put a copy back, or move it away with its -wal to begin anew"
        ) from error


def _check_there(path: Path) -> None:
    """Raise if the file has been emptied or taken away from its log, which SQLite would then throw away."""
    if not path.exists():
        raise sqlite3.DatabaseError("its -wal is there without it")
    if path.is_file() and path.stat().st_size < MIN_BYTES:
        raise sqlite3.DatabaseError("it is cut off")


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    """Raise if a journal is another program's, of a newer version, or damaged."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise ConfigError(f"state: {path} is another program's file: move it away, or choose another folder")
    if version > VERSION:
        raise ConfigError(f"state: {path} was written by a newer version of trilateral: install that version again")
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _record(row: tuple[Any, ...], facts: dict[str, bytes], rounds: dict[int, bytes]) -> Record:
    job_id, settings, state, reason = row
    return Record(job_id, parse_job(settings), State(state), reason, facts, rounds)
