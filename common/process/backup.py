"""A copy of a state folder in one file, and the way back.

The copy is a tar file with the files of the folder and, as its last member, a manifest with the SHA-256 of each:

- Databases of SQLite are copied as of one moment, together with their -wal files.
- The files of `COUNTS` count what this process has disclosed. A restore never lowers such a count.
- Other hidden files and folders, locks, links and sockets are left out: they mean nothing to another process.
"""

import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, cast

from pydantic import Field

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.files import UNFINISHED, make_private_folder, sync_folder, whole_file
from trilateral.common.base.locks import shared_lock
from trilateral.common.base.permissions import explain, user_name
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.config.settings import Settings
from trilateral.common.jobs.journal import copy_database, examine_journal, newest_rounds
from trilateral.common.jobs.ledger import LEDGER
from trilateral.common.jobs.quota import COUNTER, IDS_COUNTER
from trilateral.common.jobs.used_folds import USED_FOLDS
from trilateral.common.jobs.used_rows import USED_ROWS
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.observe.audit_chain import log_files
from trilateral.common.process.state_folder import BEFORE, LOCK, RESTORING, holder, locked_state

FORMAT = 1
"""The version of the format of copies."""
MANIFEST = "trilateral-backup.json"
MAX_MANIFEST_BYTES = 1 << 26
REPLACED = ".replaced-"
"""Start of the name of a folder with the files that a restore has replaced."""
COUNTS = frozenset({COUNTER, IDS_COUNTER, LEDGER, USED_FOLDS, USED_ROWS})
"""Names of the hidden files in the state folder that must not be lost."""
_DATABASE = b"SQLite format 3\0"
_COMPANIONS = ("-wal", "-shm", "-journal")
"""Ends of the names of files that belong to a database."""
_CHUNK = 1 << 20


class Manifest(Settings):
    """What a copy contains."""

    format: Literal[1] = 1
    role: Role
    """The role of the process whose state folder was copied."""
    version: str
    """The release that made the copy."""
    time: datetime
    """When the copy was begun. What the process did later may be missing."""
    files: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]
    """SHA-256 of each file, by its path in the state folder."""


# --- making a copy


def back_up(config: ProcessConfig, out: Path) -> Manifest:
    """Copy the state folder of a process, which may be running, into one file of mode 0600.

    Args:
        config: the configuration of the process.
        out: the file to write. It must not exist.

    Returns:
        What the copy contains.

    Raises:
        ConfigError: the state folder cannot be read, its journal is damaged, or the file exists or cannot be written.
    """
    state = config.state
    if os.path.lexists(out):
        raise ConfigError(f"--out {out}: the file exists: choose another name, or remove the file")
    if out.resolve().is_relative_to(state):
        raise ConfigError(f"--out {out}: is in the state folder itself: choose another folder")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"--out {out}: the folder {folder} does not exist: make it, or choose another folder")
    if not state.exists():
        raise ConfigError(f"state: the folder {state} does not exist, so there is nothing to copy")
    files: dict[str, str] = {}
    began = datetime.now(UTC)
    try:
        # A process that is not running cannot start during the copy.
        with (
            shared_lock(state / LOCK),
            tempfile.TemporaryDirectory(prefix=".backup-", dir=folder) as scratch,
            whole_file(out) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, path in _files_to_copy(state):
                with _still(path, Path(scratch)) as source:
                    if source is not None:
                        files[name] = _add(tar, name, source)
            manifest = Manifest(role=config.role, version=version("trilateral"), time=began, files=files)
            text = manifest.model_dump_json(indent=2).encode() + b"\n"
            last = tarfile.TarInfo(MANIFEST)
            last.size, last.mode = len(text), 0o600
            tar.addfile(last, io.BytesIO(text))
    except OSError as error:
        raise ConfigError(f"the copy cannot be made: {error.filename or out}: {explain(error, out)}") from error
    return manifest


def _files_to_copy(state: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file to copy: databases first, so that no count is older than the journal.

    A running process may finish a job meanwhile and rename its files. So the folder is listed until there is no new
    name.
    """
    seen: set[Path] = set()
    while True:
        found = [path for path in _walk(state) if path not in seen]
        if not found:
            return
        for path in sorted(found, key=lambda each: (not _is_database(each), each)):
            yield path.relative_to(state).as_posix(), path
        seen.update(found)


def _walk(folder: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith("."):
                yield from _walk(Path(entry.path))
        elif entry.is_file(follow_symlinks=False) and _is_worth_a_copy(entry.name):
            yield Path(entry.path)


def _is_worth_a_copy(name: str) -> bool:
    return name in COUNTS or not (name.startswith(".") or name.endswith((".lock", UNFINISHED, *_COMPANIONS)))


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except FileNotFoundError:
        return False


@contextmanager
def _still(path: Path, scratch: Path) -> Iterator[IO[bytes] | None]:
    """Yield a file that does not change while it is read, open for reading; None if the file has gone."""
    copy = scratch / "database"
    try:
        if _is_database(path):
            copy_database(path, copy)
            path = copy
        file = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with file:
        yield file
    copy.unlink(missing_ok=True)


class _Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self.digest.update(data)
        return data


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes]) -> str:
    """Add a file, to which a process may be appending, up to its present size; return its SHA-256."""
    member = tarfile.TarInfo(name)
    status = os.fstat(file.fileno())
    member.size, member.mtime, member.mode = status.st_size, int(status.st_mtime), 0o600
    hashed = _Hashed(file)
    tar.addfile(member, cast(IO[bytes], hashed))
    return hashed.digest.hexdigest()


# --- the way back


@dataclass
class Restored:
    """What a restore did.

    Attributes:
        manifest: what the copy contains.
        replaced: the folder with the files that were there before; None if there were none.
        owner: the user to whom the files belong.
        undercounts: whether the folder's counts did not continue those of the copy. Of two counts the higher one is
            kept, so some of what was disclosed is no longer counted.
        forgotten: rounds of each job in the replaced journal and in the copy, where the copy has fewer.
        damaged: names of counts of the replaced folder that could not be read.
    """

    manifest: Manifest
    owner: str
    replaced: Path | None = None
    undercounts: bool = False
    forgotten: dict[str, tuple[int, int]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def restore(config: ProcessConfig, copy: Path) -> Restored:
    """Put a copy in place of the content of a state folder.

    The copy is checked before anything is replaced. What was there is moved to a hidden folder in the state folder.
    The audit log that is there goes on, and counts are never lowered.

    Args:
        config: the configuration of the process, which must not be running.
        copy: the file that `back_up` wrote.

    Returns:
        What was restored, and what the copy does not know.

    Raises:
        ConfigError: the copy is damaged or of another role or release, the process is running, or the folder cannot be
            written. Nothing has been replaced, unless the text says so.
    """
    state, role = config.state, config.role
    with ExitStack() as resources:
        with _reading(copy):
            tar = resources.enter_context(tarfile.open(copy, "r:"))
            manifest = _read_manifest(copy, tar)
        if manifest.role is not role:
            raise ConfigError(f"{copy}: is a copy of the {manifest.role}'s state folder, not of the {role}'s")
        if (process := holder(state, role)) is not None:
            raise ConfigError(f"state: the folder {state} is in use by process {process}: stop the {role} first")
        owner = _owner(config)
        try:
            with locked_state(state, role):
                try:
                    return _replace(_Copy(copy, tar, manifest), state, owner)
                finally:
                    if os.geteuid() == 0:
                        _give(state, owner)
        except OSError as error:
            raise ConfigError(f"state: the folder {state} cannot be written: {explain(error, state)}") from error


@dataclass(frozen=True)
class _Copy:
    path: Path
    tar: tarfile.TarFile
    manifest: Manifest


def _replace(copy: _Copy, state: Path, owner: tuple[int, int]) -> Restored:
    work = state / RESTORING
    new, old = work / "new", work / BEFORE
    shutil.rmtree(new, ignore_errors=True)
    resumes = old.exists()
    try:
        _extract(copy, new)
        examine_journal(new)
    except BaseException:
        if not resumes:
            shutil.rmtree(work, ignore_errors=True)
        raise
    done = Restored(copy.manifest, user_name(owner[0]))
    _compare(done, (state, old), new)
    _raise_counts(done, (state, old), new)
    old.mkdir(mode=0o700, exist_ok=True)
    goes_on = _goes_on(state / LOG, new / LOG)
    done.undercounts = copy.manifest.role is not Role.COORDINATOR and not (
        goes_on and all((state / path.name).exists() for path in new.iterdir() if _is_count(path))
    )
    kept = log_files(state / LOG) if goes_on else []
    for entry in _entries(state):
        if entry in kept:
            continue
        target = old / entry.name
        if not target.exists():
            # Counts are only copied: they stay in place until a higher count replaces them.
            (shutil.copy2 if _is_count(entry) else os.rename)(entry, target)
        elif entry.is_dir():
            shutil.rmtree(entry)
        elif not _is_count(entry):
            entry.unlink()
    dropped = log_files(new / LOG) if kept else []
    for entry in sorted(set(new.iterdir()) - set(dropped)):
        entry.replace(state / entry.name)
    Audit(state / LOG).restored(copy.manifest.time)
    if any(old.iterdir()):
        done.replaced = next(path for number in count(1) if not (path := state / f"{REPLACED}{number}").exists())
        old.rename(done.replaced)
    shutil.rmtree(work)
    sync_folder(state)
    return done


def _entries(state: Path) -> list[Path]:
    """Return what a restore replaces in a state folder."""
    return [
        entry
        for entry in state.iterdir()
        if not entry.name.endswith(".lock")
        and (not entry.is_dir() or not entry.name.startswith("."))
        and not entry.is_symlink()
    ]


def _goes_on(there: Path, copied: Path) -> bool:
    """Return whether an audit log has the last line of the copied one, or the copied one is empty."""
    last = b""
    for file in log_files(copied):
        with file.open("rb") as lines:
            last = next(reversed([line for line in lines if line.endswith(b"\n")]), last)
    if not last:
        return bool(log_files(there))
    for file in log_files(there):
        with file.open("rb") as lines:
            if last in lines:
                return True
    return False


def _is_count(path: Path) -> bool:
    return path.name in COUNTS and path.is_file()


# --- reading a copy


@contextmanager
def _reading(copy: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ConfigError(f"{copy}: is damaged, or is not a file that `trilateral backup` wrote") from error
    except OSError as error:
        raise ConfigError(f"{copy}: cannot be read: {explain(error, copy)}") from error


def _read_manifest(copy: Path, tar: tarfile.TarFile) -> Manifest:
    """Read the manifest, which the last member holds, and check the names of the other members against it."""
    *members, last = tar.getmembers()
    if last.name != MANIFEST or not last.isreg() or last.size > MAX_MANIFEST_BYTES:
        raise ValueError("the end is missing")
    content = json.loads(_open(tar, last).read())
    if content["format"] != FORMAT:
        raise ConfigError(f"{copy}: a newer release wrote it: install that release")
    manifest = Manifest.model_validate(content)
    names = [member.name for member in members]
    if sorted(names) != sorted(manifest.files) or not all(member.isreg() for member in members):
        raise ValueError("the files are not those of the manifest")
    if not all(map(_is_safe, names)):
        raise ValueError("a name leads out of the folder")
    return manifest


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return path.as_posix() == name and not path.is_absolute() and ".." not in path.parts and name != "."


def _open(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    if file is None:
        raise tarfile.ReadError(member.name)
    return file


def _extract(copy: _Copy, folder: Path) -> None:
    """Write the files of a copy, and check each against its hash."""
    make_private_folder(folder)
    for name, expected in copy.manifest.files.items():
        path = folder / name
        make_private_folder(path.parent)
        with _reading(copy.path):
            source = _Hashed(_open(copy.tar, copy.tar.getmember(name)))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            while data := _read_chunk(copy, source):
                target.write(data)
            target.flush()
            os.fsync(target.fileno())
        if source.digest.hexdigest() != expected:
            raise ConfigError(f"{copy.path}: is damaged: {name} has changed since it was copied")


def _read_chunk(copy: _Copy, source: _Hashed) -> bytes:
    with _reading(copy.path):
        return source.read(_CHUNK)


# --- what the copy does not know


def _compare(done: Restored, before: Iterable[Path], new: Path) -> None:
    """Find the jobs that have gone on after the copy."""
    there: dict[str, int] = {}
    for folder in before:
        try:
            there |= newest_rounds(folder)
        except ConfigError:  # A damaged journal may be the reason for the restore.
            continue
    kept = newest_rounds(new)
    done.forgotten = {
        job: (rounds, kept.get(job, 0)) for job, rounds in there.items() if rounds > kept.get(job, 0) or job not in kept
    }


def _raise_counts(done: Restored, before: Iterable[Path], new: Path) -> None:
    """Raise the counts in `new` to those of the folders `before`."""
    found = [path for folder in before if folder.exists() for path in folder.iterdir() if _is_count(path)]
    for path in found:
        target = new / path.name
        if path.name == USED_FOLDS:  # It only grows, so the one that is there has what the copy has.
            shutil.copyfile(path, target)
            continue
        try:
            higher = json.loads(path.read_bytes())
            if target.exists():
                higher = _higher(json.loads(target.read_bytes()), higher)
        except ValueError:  # not JSON, or of two forms
            done.damaged.append(path.name)
            continue
        with whole_file(target) as file:
            file.write(json.dumps(higher).encode() + b"\n")


def _higher(one: Any, other: Any) -> Any:
    """Return the higher of two counts: of dictionaries and lists the union, of numbers and dates the larger."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {key: _higher(one[key], value) if key in one else value for key, value in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return one + [each for each in other if each not in one]
    if type(one) is type(other) and isinstance(one, int | float | str):
        return max(one, other)
    if one == other:
        return one
    raise ValueError


# --- the owner


def _owner(config: ProcessConfig) -> tuple[int, int]:
    """Return user and group of the process: the owner of its key, otherwise of its state folder."""
    candidates = [config.tls.key] if config.tls else []
    for path in (*candidates, config.state, *config.state.parents):
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_uid != 0 or path == config.state:
            return status.st_uid, status.st_gid
    return os.geteuid(), os.getegid()


def _give(state: Path, owner: tuple[int, int]) -> None:
    for folder, _, names in os.walk(state):
        for path in (Path(folder), *(Path(folder) / name for name in names)):
            if not stat.S_ISLNK(path.lstat().st_mode):
                os.chown(path, *owner, follow_symlinks=False)
