"""The journal of a process, in SQLite: the settings, the outcome and the rounds of its jobs.

Every change is on disk when its method returns. A journal that cannot be used is left unchanged.
"""

import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import UNFINISHED, sync_folder
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.sealing import Sealer
from trilateral.common.rpc.codec import parse_job

log = logging.getLogger(__name__)

JOURNAL = "journal.sqlite"
"""Name of the file in the state folder."""
APPLICATION = 0x7472696C  # "tril"
PLAIN_VERSION = 2
"""The version of a journal that is not encrypted. The tables of version 1, which 0.1.0 writes, are the same, but 0.1.0
would ignore the secret start of a job and continue it from zero."""
VERSION = 3
"""The version of a journal whose facts and rounds are encrypted. It also has the table `seal`."""
BUSY_SECONDS = 10.0
CACHE_KIB = 256
"""Memory for pages of the file. Rounds are only appended and never read while the process lives, except to resume a
job. SQLite's default of 2 MB would slowly fill with rounds that nothing reads."""
MIN_BYTES = 512
"""The size of the smallest database that SQLite writes."""
RUNNING = "running"
"""The content of the column `state` while a job has no outcome; afterwards the column holds the outcome."""
_REPLACED = "."
"""Begins the name of a job that was replaced. No name of a job begins with it."""
NO_FACTS: Mapping[str, bytes] = MappingProxyType({})

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


@dataclass(frozen=True)
class Record:
    """A job's entry in the journal.

    Attributes:
        id: run ID of the job's first session.
        job: its settings.
        outcome: how it ended; None while it runs.
        reason: why it ended, as a public text; empty if it runs or has finished.
        facts: what else is known about the job, by name.
        rounds: what is kept about each round, by its number, in ascending order.
    """

    id: bytes
    job: JobConfig
    outcome: Outcome | None
    reason: str
    facts: dict[str, bytes] = field(default_factory=dict)
    rounds: dict[int, bytes] = field(default_factory=dict)
    replaced: bool = False
    """Whether a later job took its name, so that it can no longer be resumed."""


class Journal:
    """The journal of one process. All threads of the process may use it.

    Args:
        folder: the state folder, which exists and is locked by this process.
        role: the role of the process.
        kept_days: how long to keep a job that does not change.
        sealer: encrypts facts and rounds. An existing journal that is not encrypted yet is encrypted now.

    Raises:
        ConfigError: the existing journal cannot be used, it is encrypted under another key, or a new one cannot be
            created.
    """

    def __init__(self, folder: Path, role: Role, kept_days: float, sealer: Sealer | None = None) -> None:
        self._role = role
        self._sealer = sealer
        self._kept_seconds = kept_days * 86_400
        self._path = folder / JOURNAL
        self._lock = threading.Lock()
        with self._public_errors():
            self._database = self._open()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists() and not _log_of(self._path).exists():
            self._create()
        _check_there(self._path)
        # Unlike SQLite, the operating system says why a file cannot be opened.
        os.close(os.open(self._path, os.O_RDWR | os.O_CLOEXEC))
        database = sqlite3.connect(self._path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _check_whole(database, self._path)
            database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            if not _check_key(database, self._path, self._sealer):
                if self._sealer is not None:
                    _encrypt(database, self._sealer)
                else:
                    database.execute(f"PRAGMA user_version = {PLAIN_VERSION}")
            self._prune(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prune(self, database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM job WHERE changed < ?", (time.time() - self._kept_seconds,))

    def _create(self) -> None:
        """Create a journal under another name and rename it, so that an empty journal is always a sign of damage."""
        new = self._path.with_name(JOURNAL + UNFINISHED)
        new.unlink(missing_ok=True)
        # SQLite gives its other files the mode of this one.
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as database:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {PLAIN_VERSION};COMMIT;"
            )
        os.replace(new, self._path)
        sync_folder(self._path.parent)

    # --- jobs

    def add(self, job_id: bytes, job: JobConfig) -> None:
        """Add a running job in place of any other with its name. Drop jobs that have not changed for a long time.

        A replaced job that has rounds stays in the journal, under a name that no job has. So nothing that a coordinator
        asks for removes what a party knows about the rounds that it has answered.

        Raises:
            ConfigError: the journal cannot be written, or has rounds of a job with this ID.
        """
        with self._changing() as database:
            self._prune(database)
            database.execute(
                "DELETE FROM job WHERE (id = ? OR name = ?) AND id NOT IN (SELECT job FROM round)", (job_id, job.name)
            )
            database.execute("UPDATE job SET name = ? || hex(id) WHERE name = ?", (_REPLACED, job.name))
            database.execute(
                "INSERT INTO job VALUES (?, ?, ?, ?, '', ?)",
                (job_id, job.name, job.model_dump_json(), RUNNING, time.time()),
            )

    def set_running(self, job_id: bytes) -> None:
        """Record that a job runs again. A job that has finished stays finished."""
        with self._changing() as database:
            _set_state(database, job_id, RUNNING, "")

    def set_outcome(
        self, job_id: bytes, outcome: Outcome, reason: str = "", facts: Mapping[str, bytes] = NO_FACTS
    ) -> None:
        """Record how a job ended, and facts as `set_facts` does. A job that has finished stays finished.

        Args:
            job_id: run ID of the job's first session.
            outcome: finished, stopped or failed. A job whose session is suspended still runs.
            reason: why it ended, as a public text.
            facts: what else is known about the job from now on.

        Raises:
            ValueError: the outcome is suspended, which only a session can be.
            ConfigError: the journal cannot be written.
        """
        if outcome is Outcome.SUSPENDED:
            raise ValueError("only a session can be suspended, not a job")
        with self._changing() as database:
            _set_state(database, job_id, outcome, reason)
            self._insert_facts(database, job_id, facts)

    def set_facts(self, job_id: bytes, facts: Mapping[str, bytes]) -> None:
        """Keep facts about a job, in place of older facts with the same names, in one transaction.

        Raises:
            ConfigError: the journal cannot be written, or no longer has the job.
        """
        with self._changing() as database:
            self._insert_facts(database, job_id, facts)

    def write_round(self, job_id: bytes, number: int, content: bytes, facts: Mapping[str, bytes] = NO_FACTS) -> int:
        """Keep the content of a round, and facts as `set_facts` does, in one transaction.

        Args:
            job_id: run ID of the job's first session.
            number: the number of the round.
            content: what to keep, unless the round has a content already.
            facts: what else is known about the job from this round on.

        Returns:
            How often this method was called for the round, including this call.

        Raises:
            ConfigError: the journal cannot be written, or no longer has the job.
        """
        with self._changing() as database:
            database.execute(
                "INSERT INTO round VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET begun = begun + 1",
                (job_id, number, self._seal(content, job_id, _round(number))),
            )
            self._insert_facts(database, job_id, facts)
            database.execute("UPDATE job SET changed = ? WHERE id = ?", (time.time(), job_id))
            (begun,) = database.execute(
                "SELECT begun FROM round WHERE job = ? AND number = ?", (job_id, number)
            ).fetchone()
            return int(begun)

    def find(self, job_id: bytes) -> Record | None:
        """Return the job with this ID and everything that the journal keeps about it, or None."""
        with self._reading() as database:
            row = database.execute(
                "SELECT id, name, settings, state, reason FROM job WHERE id = ?", (job_id,)
            ).fetchone()
            if row is None:
                return None
            rounds = database.execute(
                "SELECT number, content FROM round WHERE job = ? ORDER BY number", (job_id,)
            ).fetchall()
            return _record(
                row,
                self._facts(database, job_id),
                {number: self._unseal(content, job_id, _round(number)) for number, content in rounds},
            )

    def all(self, *, with_facts: bool = True) -> list[Record]:
        """Return every job that was not replaced, without its rounds, in the order in which they were started.

        Args:
            with_facts: whether to read the facts as well.
        """
        with self._reading() as database:
            rows = database.execute(
                "SELECT id, name, settings, state, reason FROM job WHERE substr(name, 1, 1) != ? ORDER BY rowid",
                (_REPLACED,),
            ).fetchall()
            return [_record(row, self._facts(database, row[0]) if with_facts else {}, {}) for row in rows]

    # --- values, which may be encrypted

    def _facts(self, database: sqlite3.Connection, job_id: bytes) -> dict[str, bytes]:
        rows = database.execute("SELECT name, content FROM fact WHERE job = ?", (job_id,)).fetchall()
        return {name: self._unseal(content, job_id, _fact(name)) for name, content in rows}

    def _insert_facts(self, database: sqlite3.Connection, job_id: bytes, facts: Mapping[str, bytes]) -> None:
        for name, content in facts.items():
            sealed = self._seal(content, job_id, _fact(name))
            database.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", (job_id, name, sealed))

    def _seal(self, content: bytes, job_id: bytes, place: str) -> bytes:
        return content if self._sealer is None else self._sealer.seal(content, job_id, place)

    def _unseal(self, content: bytes, job_id: bytes, place: str) -> bytes:
        return content if self._sealer is None else self._sealer.unseal(content, job_id, place)

    # --- access to the database

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._public_errors():
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
    def _public_errors(self) -> Iterator[None]:
        """Raise public errors about the file; its path goes to this process's log only."""
        try:
            yield
        except OSError as error:
            log.error("cannot open %s: %s", self._path, explain(error, self._path))
            raise ConfigError(f"the journal of the {self._role} cannot be written: {error.strerror}") from error
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            log.error("cannot read or write %s: %s", self._path, error)
            raise ConfigError(f"the journal of the {self._role} cannot be read or written: {error}") from error
        except sqlite3.IntegrityError as error:
            raise ConfigError(f"the journal of the {self._role} no longer has the job") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            log.error("%s is damaged: %s; %s", self._path, error, _WAY_OUT)
            raise ConfigError(f"the journal of the {self._role} is damaged: see its log") from error


def read_fact(folder: Path, job: str, name: str, sealer: Sealer | None = None) -> bytes | None:
    """Read a fact about a job from the journal in a state folder, without changing it.

    Args:
        folder: the state folder. A process may be using it.
        job: name of the job.
        name: name of the fact.
        sealer: the key of the journal; None if it is not encrypted.

    Returns:
        The content; None if there is no journal, or no such job or fact in it.
    """
    path = folder / JOURNAL
    if not path.exists():
        return None
    with _open_to_read(path) as database:
        row = database.execute(
            "SELECT job, content FROM fact WHERE name = ? AND job = (SELECT id FROM job WHERE name = ?)", (name, job)
        ).fetchone()
    if row is None or sealer is None:
        return None if row is None else bytes(row[1])
    return sealer.unseal(row[1], row[0], _fact(name))


def read_record(folder: Path, job: str) -> Record | None:
    """Read a job's entry in the journal in a state folder, without facts and rounds, and without changing it.

    Args:
        folder: the state folder. A process may be using it.
        job: name of the job.

    Returns:
        The entry; None if there is no journal, or no such job in it.

    Raises:
        ConfigError: the journal cannot be read.
    """
    path = folder / JOURNAL
    if not path.exists():
        return None
    with _open_to_read(path) as database:
        row = database.execute("SELECT id, name, settings, state, reason FROM job WHERE name = ?", (job,)).fetchone()
    return None if row is None else _record(row, {}, {})


_WAY_OUT = "restore it from a copy, or move it and its -wal file away to start with an empty journal"


def examine_journal(folder: Path) -> None:
    """Check that the journal in a state folder is whole, without changing it, even while a process uses it.

    Raises:
        ConfigError: there is a journal, and it cannot be used.
    """
    path = folder / JOURNAL
    if path.exists() or _log_of(path).exists():
        with _open_to_read(path) as database:
            _check_whole(database, path)


def examine_key(folder: Path, sealer: Sealer | None) -> bool:
    """Check that a key is that of the journal in a state folder, in the way of `examine_journal`.

    Returns:
        Whether there is a journal that is encrypted.

    Raises:
        ConfigError: the journal is encrypted under another key, or there is no key.
    """
    path = folder / JOURNAL
    if not path.exists():
        return False
    with _open_to_read(path) as database:
        return _check_key(database, path, sealer)


def copy_database(path: Path, target: Path) -> None:
    """Copy an SQLite database as of one moment, with its -wal file, while a process may be changing it.

    Args:
        path: the database.
        target: the copy, which is a single file of mode 0600 and does not exist yet.

    Raises:
        ConfigError: the database cannot be read, or is damaged.
        OSError: the copy cannot be made.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with _open_to_read(path) as database, closing(sqlite3.connect(target)) as copy:
        database.backup(copy)
        _check_integrity(copy)


def newest_rounds(folder: Path) -> dict[str, int]:
    """Return the number of each job's newest round by the job's name, 0 without rounds, from a journal at rest.

    Raises:
        ConfigError: there is a journal, and it cannot be read.
    """
    path = folder / JOURNAL
    if not path.exists():
        return {}
    with _open_to_read(path) as database:
        return dict(
            database.execute(
                "SELECT name, COALESCE(MAX(number), 0) FROM job LEFT JOIN round ON job.id = round.job GROUP BY job.id"
            ).fetchall()
        )


@contextmanager
def _open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database without changing it; raise public errors about it within the block."""
    try:
        _check_there(path)
        # Unlike SQLite, the operating system says why a file cannot be opened.
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        # The journal of a process that runs or was killed is partly in the -wal file. Without that file, the journal
        # is read as immutable: otherwise SQLite would create a -wal file, owned by the user of this process.
        options = "mode=ro" if _log_of(path).exists() else "mode=ro&immutable=1"
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{options}", BUSY_SECONDS, uri=True)) as database:
            yield database
    except OSError as error:
        raise ConfigError(f"state: {path} cannot be read: {explain(error, path)}") from error
    except sqlite3.OperationalError as error:
        raise ConfigError(f"state: {path} cannot be read: {error}") from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"state: {path} is damaged: {error}; {_WAY_OUT}") from error


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _check_there(path: Path) -> None:
    """Raise if there is a -wal file without a complete journal. SQLite would then discard the -wal file."""
    if not path.exists():
        raise sqlite3.DatabaseError("only its -wal file is left")
    if path.is_file() and path.stat().st_size < MIN_BYTES:
        raise sqlite3.DatabaseError("it is cut off")


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    """Raise if a journal belongs to another program, is of a newer version, or is damaged."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise ConfigError(f"state: {path} belongs to another program: move the file away, or choose another folder")
    if version > VERSION:
        raise ConfigError(f"state: {path} was written by a newer version of trilateral: install that version again")
    _check_integrity(database)


def _check_integrity(database: sqlite3.Connection) -> None:
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _check_key(database: sqlite3.Connection, path: Path, sealer: Sealer | None) -> bool:
    """Return whether a journal is encrypted; raise if it is, and not by this key."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version < VERSION:
        return False
    way_out = (
        "set it, or TRILATERAL_STATE_KEY, to the file with the key, as the server has it; only if the key is lost, "
        "move the journal away, and running jobs train again from the start"
    )
    if sealer is None:
        raise ConfigError(f"state_key: is missing, and {path} is encrypted: {way_out}")
    try:
        row = database.execute("SELECT content, job FROM seal").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("it has no seal")
        content, salt = row
        sealer.unseal(content, salt, _SEAL)
    except ValueError:
        raise ConfigError(f"state_key: is another key than the one that encrypted {path}: {way_out}") from None
    return True


def _encrypt(database: sqlite3.Connection, sealer: Sealer) -> None:
    """Encrypt every value of a journal, in one transaction, and leave no plain value in its files."""
    database.execute("PRAGMA secure_delete = ON")
    database.execute("BEGIN IMMEDIATE")
    for table, key, place in (("fact", "name", _fact), ("round", "number", _round)):
        for job_id, at in database.execute(f"SELECT job, {key} FROM {table}").fetchall():  # noqa: S608
            where = f"FROM {table} WHERE job = ? AND {key} = ?"
            (content,) = database.execute(f"SELECT content {where}", (job_id, at)).fetchone()
            sealed = sealer.seal(content, job_id, place(at))
            database.execute(f"UPDATE {table} SET content = ? WHERE job = ? AND {key} = ?", (sealed, job_id, at))  # noqa: S608
    database.execute("CREATE TABLE seal (job BLOB NOT NULL, content BLOB NOT NULL)")
    salt = secrets.token_bytes(16)  # in place of the ID of a job
    database.execute("INSERT INTO seal VALUES (?, ?)", (salt, sealer.seal(b"", salt, _SEAL)))
    database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")
    database.execute("VACUUM")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_SEAL = "seal"


def _fact(name: str) -> str:
    return f"fact {name}"


def _round(number: int) -> str:
    return f"round {number}"


def _set_state(database: sqlite3.Connection, job_id: bytes, state: str, reason: str) -> None:
    database.execute(
        "UPDATE job SET state = ?, reason = ?, changed = ? WHERE id = ? AND state != ?",
        (state, reason, time.time(), job_id, Outcome.FINISHED),
    )


def _record(row: tuple[Any, ...], facts: dict[str, bytes], rounds: dict[int, bytes]) -> Record:
    job_id, name, settings, state, reason = row
    outcome = None if state == RUNNING else Outcome(state)
    return Record(job_id, parse_job(settings), outcome, reason, facts, rounds, name.startswith(_REPLACED))
