"""Folders for data that does not fit in memory, readable by this user only, and removed when the work is done.

A process that is killed leaves its folder behind. Each folder is locked while it is in use, and the lock ends with the
process. Whoever creates the next folder removes those without a lock.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trilateral.common.base.locks import is_locked, lock_file

SCRATCH = ".scratch"
"""Name in the state folder. No job has this name, since a job's name does not begin with a dot."""
_SWEEP = ".sweep"
_LOCK = ".in-use"


@contextmanager
def scratch_folder(state: Path) -> Iterator[Path]:
    """Create a folder with mode 0700 below `state`, and remove it with its content at the end of the block.

    Args:
        state: the state folder.

    Yields:
        The new folder.

    Raises:
        OSError: the folder cannot be created.
    """
    root = state / SCRATCH
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as resources:
        with lock_file(root / _SWEEP):  # so that no other process sweeps the new folder before it is locked
            _sweep(root)
            folder = Path(tempfile.mkdtemp(dir=root))
            resources.enter_context(lock_file(folder / _LOCK))
        resources.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep_scratch(state: Path) -> None:
    """Remove the folders that killed processes have left below `state`, if there are any."""
    root = state / SCRATCH
    if root.is_dir():
        with lock_file(root / _SWEEP):
            _sweep(root)


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        if folder.is_dir() and not is_locked(folder / _LOCK):
            shutil.rmtree(folder, ignore_errors=True)
