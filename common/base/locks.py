"""Locks between processes, each on a file. A lock ends with the process that holds it, however that process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def lock_file(path: Path, *, wait: bool = True) -> IO[str]:
    """Open a file for reading and writing, and lock it.

    Args:
        path: the path of the file; it is created with mode 0600 if it does not exist.
        wait: whether to wait while another process or thread holds the lock.

    Returns:
        The open file. Closing it releases the lock, so use it in ``with``.

    Raises:
        BlockingIOError: the lock is held, and `wait` is false.
        OSError: the file cannot be opened or locked.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def shared_lock(path: Path) -> Iterator[bool]:
    """Within the block, keep others from locking a file, unless one of them holds the lock already.

    Args:
        path: the path of the file. Without the file there is no lock.

    Yields:
        Whether another process or thread held the lock.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            # Shared, so that two callers of this function do not mistake each other for a holder of the lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield True
        else:
            yield False


def is_locked(path: Path) -> bool:
    """Return whether another process or thread holds the lock on a file; False if the file does not exist.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    with shared_lock(path) as held:
        return held
