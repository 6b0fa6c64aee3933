"""Folders for what a long piece of work cannot hold in memory, for this user alone, gone when it ends.

A process that is killed leaves its folder behind. Each is locked while it is in use, and the lock ends with the
process, so whoever makes the next one removes those that nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SCRATCH = ".scratch"
"""In the state folder. No job has this name, since none begins with a dot."""
_SWEEP = ".sweep"
_LOCK = ".in-use"


@contextmanager
def scratch_folder(state: Path) -> Iterator[Path]:
    """Make a folder below `state`, mode 0700, and remove it with all that is in it at the end.

    Raises:
        OSError: it cannot be made.
    """
    root = state / SCRATCH
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as resources:
        with _held(root / _SWEEP):  # so that nobody sweeps a folder that is made, and not yet locked
            _sweep(root)
            folder = Path(tempfile.mkdtemp(dir=root))
            resources.enter_context(_held(folder / _LOCK))
        resources.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep_scratch(state: Path) -> None:
    """Remove what processes that were killed have left; does nothing where nothing was."""
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
