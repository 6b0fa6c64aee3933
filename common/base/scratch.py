"""Temporary folders for data that does not fit in memory, readable by this user only and removed after use.

A killed process leaves its folder behind. A folder is locked while it is in use, and the lock ends with the process.
Whoever makes the next folder removes all folders without a lock.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SCRATCH = ".scratch"
"""Name of the parent folder within the state folder. It cannot clash with a job, whose name never begins with a dot."""
_SWEEP = ".sweep"
_LOCK = ".in-use"


@contextmanager
def scratch_folder(state: Path) -> Iterator[Path]:
    """Make a folder of mode 0700 below `state`, and remove it with its content when the block ends.

    Args:
        state: the state folder of the process.

    Raises:
        OSError: the folder cannot be made.
    """
    root = state / SCRATCH
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as resources:
        with _held(root / _SWEEP):  # keeps others from removing the new folder before it is locked
            _sweep(root)
            folder = Path(tempfile.mkdtemp(dir=root))
            resources.enter_context(_held(folder / _LOCK))
        resources.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep_scratch(state: Path) -> None:
    """Remove the folders that killed processes left behind in the state folder `state`, if any."""
    root = state / SCRATCH
    if root.is_dir():
        with _held(root / _SWEEP):
            _sweep(root)


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        if folder.is_dir() and not _is_in_use(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_in_use(folder: Path) -> bool:
    try:
        with _held(folder / _LOCK, fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


@contextmanager
def _held(path: Path, flag: int = 0) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flag)
        yield
    finally:
        os.close(handle)
