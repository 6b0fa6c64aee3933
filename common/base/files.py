"""Files that appear complete or not at all, readable by this user only."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trilateral.common.base.errors import ConfigError

UNFINISHED = ".new"
"""End of the name of a file that is still being written. After a crash, such a file is of no use."""


def write_whole(path: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Write a file atomically.

    A reader sees either the old file or the new one, never a part. A missing folder is created with mode 0700.

    Args:
        path: the file to write or replace.
        content: its content; text is written as UTF-8.
        mode: who may read and write it.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    make_private_folder(path.parent)
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        os.fchmod(file.fileno(), mode)


def check_new(path: Path, option: str) -> None:
    """Raise if there is something at the path of a new file.

    Args:
        path: the path.
        option: what names it, such as `--out`.

    Raises:
        ConfigError: there is a file or a folder.
    """
    if path.is_dir():
        raise ConfigError(f"{option} {path}: this is a folder: name a file in it")
    if path.exists():
        raise ConfigError(f"{option} {path}: the file exists: choose another name, or remove the file")


def make_private_folder(folder: Path) -> None:
    """Make a folder and all folders above it that are missing, each with mode 0700.

    `Path.mkdir` gives the folders above the mode of the umask.

    Raises:
        OSError: a folder cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file of mode 0600 that replaces `path` when the block ends without an error.

    Args:
        path: the file to write or replace. Its folder must exist.

    Raises:
        OSError: the file cannot be written. `path` is then unchanged.
    """
    # mkstemp creates the file with mode 0600. The same folder keeps the rename within one file system.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", suffix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Write a folder's list of names to disk, so that a renamed file survives a loss of power.

    Raises:
        OSError: the folder cannot be opened or synchronised.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_stamp(path: Path) -> object:
    """Return a value that changes when a file, or the file that a symbolic link names, is written or replaced."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
