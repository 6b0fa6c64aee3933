"""The state folder, which belongs to one role and to one process at a time."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.locks import is_locked, lock_file
from trilateral.common.base.permissions import explain, user_name
from trilateral.common.base.roles import Role

LOCK = ".lock"
"""File with the role that owns the folder."""
RESTORING = ".restoring"
"""Folder for the files of a restore in progress."""
BEFORE = "old"
"""Folder within it, for the files that are being replaced. While it exists, the state folder is incomplete."""
TRIAL_BYTES = 4096


@contextmanager
def held_state(folder: Path, role: Role) -> Iterator[None]:
    """Make the folder for this user only, and keep other processes out of it within the block.

    The lock ends with the process, however the process ends.

    Raises:
        ConfigError: the folder cannot be written, another process holds it, it belongs to another role, or a restore
            of it was interrupted.
    """
    with locked_state(folder, role):
        if (folder / RESTORING / BEFORE).exists():
            raise ConfigError(
                f"state: a restore of the folder {folder} was interrupted: run the same `trilateral restore` again"
            )
        yield


@contextmanager
def locked_state(folder: Path, role: Role) -> Iterator[None]:
    """Do as `held_state` does, whether or not a restore was interrupted."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:  # Otherwise a full disk would only show during a job.
            trial.write(bytes(TRIAL_BYTES))
        lock = lock_file(folder / LOCK, wait=False)
    except BlockingIOError:
        owner, process = _read(folder)
        whose = f"the {owner}, process {process}" if process else "another process"
        raise ConfigError(f"state: the folder {folder} is in use by {whose}: give each process its own") from None
    except OSError as error:
        refused = isinstance(error, PermissionError) and not _exists(folder)
        why = f"{error.strerror}: {how_to_make(folder)}" if refused else explain(error, folder)
        raise ConfigError(f"state: the folder {folder} cannot be written: {why}") from error
    with lock:
        owner, _ = _read(folder)
        _check_owner(owner, folder, role)
        lock.truncate(0)
        lock.write(f"{role} {os.getpid()}\n")
        lock.flush()
        yield


def how_to_make(folder: Path) -> str:
    """Say how an administrator makes a state folder that this user may not make."""
    return (
        "start the systemd unit, which makes it, or run as root `install --directory --mode 0700 --owner "
        f"{user_name(os.geteuid())} {folder}`"
    )


def holder(folder: Path, role: Role) -> str | None:
    """Return the ID of the process that holds the state folder of a role.

    Returns:
        None if no process holds the folder, or if it does not exist yet.

    Raises:
        ConfigError: the folder cannot be read, or belongs to another role.
    """
    try:
        owner, process = _read(folder)
        _check_owner(owner, folder, role)
        return process or "unknown" if is_locked(folder / LOCK) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"state: the folder {folder} cannot be read: {explain(error, folder)}") from error


def _exists(folder: Path) -> bool:
    try:
        return folder.exists()
    except OSError:
        return True  # below a folder that this user may not look into


def _read(folder: Path) -> tuple[str, str]:
    """Return the role that owns the folder and the process that locked it last; each is empty if unknown."""
    with (folder / LOCK).open(encoding="utf-8") as lock:
        owner, _, process = lock.read(100).strip().partition(" ")
    return owner, process


def _check_owner(owner: str, folder: Path, role: Role) -> None:
    if owner not in ("", role):
        raise ConfigError(f"state: the folder {folder} has the files of the {owner}: give the {role} its own folder")
