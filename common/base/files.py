"""Files that appear whole or not at all, for this user's eyes only."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` with mode 0600; a reader sees the old file or the new one, never a part.

    The folder is made if it is not there.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(text.encode())


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file of mode 0600 to write to, which takes the place of `path` at the end, if all went well."""
    # mkstemp makes the file 0600. In the same folder, so that the rename stays within a file system.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
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
    """Have the names in a folder on disk: without that, a machine that loses power may know a renamed file no more."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
