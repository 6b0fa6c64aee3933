"""Temporary folders for data that does not fit in memory, readable by this user only and removed after use.

A killed process leaves its folder behind. A folder is locked while it is in use, and the lock ends with the process.
The process that makes the next folder removes every folder that is not locked.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trilateral.common.base.locks import is_locked, lock_file

SCRATCH = ".scratch"
"""Name of the parent folder within the state folder."""
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
        with lock_file(root / _SWEEP):  # keeps others from removing the new folder before it is locked
            _sweep(root)
            folder = Path(tempfile.mkdtemp(dir=root))
            resources.enter_context(lock_file(folder / _LOCK))
        resources.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep_scratch(state: Path) -> None:
    """Remove the folders that killed processes left behind in the state folder `state`, if any."""
    root = state / SCRATCH
    if root.is_dir():
        with lock_file(root / _SWEEP):
            _sweep(root)


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        if folder.is_dir() and not is_locked(folder / _LOCK):
            shutil.rmtree(folder, ignore_errors=True)
