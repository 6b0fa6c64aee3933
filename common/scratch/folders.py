"""Temporary folders for data that does not fit in memory, readable by this user only and removed after use.

A killed process leaves its folder behind. A folder is locked while it is in use, and the lock ends with the process.
The process that makes the next folder removes every folder that is not locked.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.locks import is_locked, lock_file

SCRATCH = ".scratch"
"""Name of the folder within `scratch.folder` that everything lies in. Only what lies in it is ever removed."""
_SWEEP = ".sweep"
_LOCK = ".in-use"


def scratch_root(folder: Path) -> Path:
    """Return the folder that everything lies in, of mode 0700; make it if it does not exist.

    Args:
        folder: the folder of the setting `scratch.folder`. Others may have access to it, as to /dev/shm.

    Raises:
        ConfigError: it belongs to another user, or others have access to it.
        OSError: it cannot be made.
    """
    root = folder / SCRATCH
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        error = ConfigError(
            f"scratch.folder: the folder {SCRATCH} in it must belong to the user of this process and have mode 0700:"
            " remove it, or choose another folder"
        )
        error.add_note(f"the folder is {root}")
        raise error
    return root


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Make a folder of mode 0700 below `folder`, and remove it with its content when the block ends.

    Args:
        folder: the folder of the setting `scratch.folder`.

    Raises:
        ConfigError: others could read it; see `scratch_root`.
        OSError: the folder cannot be made.
    """
    root = scratch_root(folder)
    with ExitStack() as resources:
        with lock_file(root / _SWEEP):  # keeps others from removing the new folder before it is locked
            _sweep(root)
            made = Path(tempfile.mkdtemp(dir=root))
            resources.enter_context(lock_file(made / _LOCK))
        resources.callback(shutil.rmtree, made, ignore_errors=True)
        yield made


def sweep_scratch(folder: Path) -> None:
    """Remove what killed processes left behind in `folder`, the folder of the setting `scratch.folder`."""
    if (folder / SCRATCH).is_dir():
        root = scratch_root(folder)
        with lock_file(root / _SWEEP):
            _sweep(root)


def _sweep(root: Path) -> None:
    for each in root.iterdir():
        if each.is_dir():
            if not is_locked(each / _LOCK):
                shutil.rmtree(each, ignore_errors=True)
        elif each.name != _SWEEP:  # An array whose process was killed before the file lost its name.
            each.unlink(missing_ok=True)
