"""The scratch space of a process: how much may lie in memory and on disk, over all jobs together.

An array lies in memory while the arrays of the process take at most `memory_bytes`, and in a file otherwise. So small
jobs never touch the disk. The room for an array is set aside when it is made, so that a job fails before it fills the
disk.
"""

import errno
import resource
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import RowArray, Rows
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.config.process import ProcessConfig
from trilateral.common.scratch.arrays import Array, MemoryArray, ScalarT, Scratch, check_rows
from trilateral.common.scratch.files import FileArray
from trilateral.common.scratch.folders import scratch_root

FREE_BYTES = 2**28
"""Bytes of the disk that arrays leave free for everything else on it, such as the journal."""
_GROWTH = 1.25
"""Factor by which more room is set aside for an array that needs more than was expected."""
_GB, _MB = 1e9, 10**6


class ScratchSpace:
    """The scratch space of a process.

    Args:
        folder: the folder for files, as in `scratch.folder`.
        max_bytes: the most bytes of files, as in `scratch.max_gb`; None without a limit.
        memory_bytes: the most bytes of arrays in memory, as in `scratch.memory_mb`.
        encrypt: whether files are encrypted, as in `scratch.encrypt`.

    Attributes:
        folder: as given.
        encrypt: as given.
        memory_left: bytes that more arrays may take in memory.
        lock: held while numbers here are changed. A garbage collection may free an array in any thread, even one that
            holds the lock already.
    """

    def __init__(self, folder: Path, *, max_bytes: int | None, memory_bytes: int, encrypt: bool) -> None:
        self.folder = folder
        self.encrypt = encrypt
        self.memory_left = memory_bytes
        self.lock = RLock()
        self._max_bytes = max_bytes
        self._set_aside = self._written = 0
        """Bytes of files: those that may exist, and those that exist."""

    @classmethod
    def of(cls, config: ProcessConfig) -> Self:
        """Return the scratch space that the settings of a process describe."""
        settings = config.scratch
        return cls(
            config.scratch_folder,
            max_bytes=None if settings.max_gb is None else int(settings.max_gb * _GB),
            memory_bytes=settings.memory_mb * _MB,
            encrypt=settings.encrypt,
        )

    def open(self, owner: Role | None = None) -> "JobScratch":
        """Return the scratch space of one job. Close it at the end, or use it in ``with``.

        Args:
            owner: the party that errors name; None if they stay with it.
        """
        return JobScratch(self, "" if owner is None else f"the {owner}: ")

    def take_memory(self, n_bytes: int) -> bool:
        """Set memory aside if there is enough, and return whether there was."""
        with self.lock:
            if n_bytes > self.memory_left:
                return False
            self.memory_left -= n_bytes
            return True

    def give_memory(self, n_bytes: int) -> None:
        """Take memory back."""
        with self.lock:
            self.memory_left += n_bytes

    def take_disk(self, n_bytes: int, owner: str) -> None:
        """Set room on disk aside.

        Args:
            n_bytes: how much.
            owner: how the texts of errors begin.

        Raises:
            ConfigError: the settings or the disk leave no room.
        """
        with self.lock:
            total = self._set_aside + n_bytes
            if self._max_bytes is not None and total > self._max_bytes:
                raise ConfigError(
                    f"{owner}scratch.max_gb: {_size(total)} of scratch space are needed at the same time,"
                    f" {_size(n_bytes)} of it for this job, and the limit is {_size(self._max_bytes)}: raise it"
                    + (", or wait until other jobs have ended" if n_bytes <= self._max_bytes else "")
                )
            with writing(self.folder, owner):
                free = shutil.disk_usage(scratch_root(self.folder)).free - FREE_BYTES
            # Room that other arrays have not used yet is not free either.
            free -= self._set_aside - self._written
            if n_bytes > free:
                raise ConfigError(
                    f"{owner}scratch.folder: {_size(n_bytes)} of scratch space are needed, and {_size(max(free, 0))}"
                    f" are free besides {_size(FREE_BYTES)} that stay free: free some space, or choose a folder on a"
                    " larger disk"
                )
            self._set_aside += n_bytes  # A garbage collection may have changed it since.

    def give_disk(self, n_bytes: int) -> None:
        """Take room on disk back."""
        with self.lock:
            self._set_aside -= n_bytes

    def count_written(self, n_bytes: int) -> None:
        """Count bytes that were written, or bytes that are gone if the number is negative."""
        with self.lock:
            self._written += n_bytes


class JobScratch(Scratch):
    """The scratch space of one job.

    Args:
        space: the scratch space of the process.
        owner: how the texts of errors begin.

    Attributes:
        folder: the folder for files.
        owner: as given.
        peak_bytes: the most bytes of files that the job had, or was about to have, at one time.
    """

    def __init__(self, space: ScratchSpace, owner: str) -> None:
        self.folder = space.folder
        self.owner = owner
        self.peak_bytes = 0
        self._space = space
        self._files: weakref.WeakKeyDictionary[FileArray[Any], _Room] = weakref.WeakKeyDictionary()
        self._reserved = self._in_files = self._set_aside = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def array(self, dtype: type[ScalarT], shape: tuple[int, ...]) -> "_Growing[ScalarT]":
        """Make an empty array; see `Scratch`."""
        if self._is_closed:
            raise ValueError("the scratch space is closed")
        return _Growing(self, np.dtype(dtype), shape)

    def reserve(self, n_bytes: int) -> None:
        """Set room aside; see `Scratch`."""
        with self._space.lock:
            self._reserved = max(self._reserved, n_bytes - self._space.memory_left)
            self._settle()

    def close(self) -> None:
        """Free the files. A thread that still reads one gets a `ValueError`."""
        with self._space.lock:
            self._is_closed = True
            files = list(self._files.items())
        for file, room in files:  # Without the lock: a file waits for a thread that appends to it.
            file.close()
            room.free()
        with self._space.lock:
            self._reserved = 0
            self._settle()

    def buffer(self, dtype: np.dtype[ScalarT], shape: tuple[int, ...]) -> MemoryArray[ScalarT] | None:
        """Return an array in memory, or None if the memory for arrays is used up."""
        n_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not self._space.take_memory(n_bytes):
            return None
        made: MemoryArray[ScalarT] = MemoryArray(dtype, shape)
        # Views of the buffer refer to it, so the memory counts until the last of them is gone.
        weakref.finalize(made.buffer, self._space.give_memory, n_bytes).atexit = False
        return made

    def file(self, dtype: np.dtype[ScalarT], shape: tuple[int, ...], room: "_Room") -> FileArray[ScalarT]:
        """Return an array on disk. Room for rows of `shape` is set aside in `room` until nothing refers to the array.

        Raises:
            ConfigError: the settings or the disk leave no room, or the file cannot be made.
        """
        with self._space.lock:
            if self._is_closed:
                raise ValueError("the scratch space is closed")
            room.grow(dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
            try:
                with writing(self._space.folder, self.owner):
                    _allow_more_files()
                    root = scratch_root(self._space.folder)
                    made: FileArray[ScalarT] = FileArray(
                        root,
                        dtype,
                        shape[1:],
                        encrypt=self._space.encrypt,
                        reading=partial(writing, self._space.folder, self.owner, "read what it has written to"),
                    )
            except ConfigError:
                room.free()
                raise
            weakref.finalize(made, room.free).atexit = False
            self._files[made] = room
            return made

    def use_disk(self, n_bytes: int, n_written: int) -> None:
        """Count room for arrays on disk, and bytes in it; negative numbers are given back.

        Raises:
            ConfigError: the settings or the disk leave no room.
        """
        with self._space.lock:
            self._in_files += n_bytes
            try:
                self._settle()
            except ConfigError:
                self._in_files -= n_bytes
                raise
            self._space.count_written(n_written)

    def _settle(self) -> None:
        """Set aside what is reserved, or what the arrays take if that is more."""
        more = max(self._reserved, self._in_files) - self._set_aside
        if more > 0:
            self._space.take_disk(more, self.owner)
        else:
            self._space.give_disk(-more)
        self._set_aside += more
        self.peak_bytes = max(self.peak_bytes, self._in_files)


class _Room:
    """The room on disk of one array."""

    def __init__(self, scratch: JobScratch) -> None:
        self._scratch = scratch
        self._n_bytes = self._n_written = 0

    def grow(self, n_bytes: int) -> None:
        """Set `n_bytes` aside in all.

        Raises:
            ConfigError: the settings or the disk leave no room.
        """
        if n_bytes > self._n_bytes:
            wanted = n_bytes if not self._n_bytes else max(n_bytes, int(_GROWTH * self._n_bytes))
            self._scratch.use_disk(wanted - self._n_bytes, 0)
            self._n_bytes = wanted

    def count(self, n_written: int) -> None:
        """Count bytes that were written."""
        self._scratch.use_disk(0, n_written)
        self._n_written += n_written

    def free(self) -> None:
        """Give the room back."""
        n_bytes, n_written, self._n_bytes, self._n_written = self._n_bytes, self._n_written, 0, 0
        self._scratch.use_disk(-n_bytes, -n_written)


class _Growing(Array[ScalarT]):
    """An array that lies in memory while there is room, and moves to a file otherwise."""

    def __init__(self, scratch: JobScratch, dtype: np.dtype[ScalarT], shape: tuple[int, ...]) -> None:
        self._scratch = scratch
        self._dtype, self._row_shape = dtype, shape[1:]
        self._row_bytes = dtype.itemsize * int(np.prod(self._row_shape, dtype=np.int64))
        self._room = _Room(scratch)
        self._store: MemoryArray[ScalarT] | FileArray[ScalarT] | None = scratch.buffer(dtype, shape)
        if self._store is None:
            self._store = scratch.file(dtype, shape, self._room)

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """The type of an entry."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; see `RowArray`."""
        return (len(self), *self._row_shape)

    def __len__(self) -> int:
        return len(self._present())

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[ScalarT]:
        return self._present()[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._present(), dtype)

    def append(self, rows: NDArray[ScalarT]) -> None:
        """Append rows; see `Array`."""
        check_rows(self, rows)
        n_rows = len(self) + len(rows)
        store = self._present()
        if isinstance(store, MemoryArray) and n_rows > len(store.buffer):
            store = self._store = self._larger(store, n_rows)
        if isinstance(store, MemoryArray):
            store.append(rows)
            return
        self._room.grow(n_rows * self._row_bytes)
        with writing(self._scratch.folder, self._scratch.owner):
            store.append(rows)
        self._room.count(rows.nbytes)

    def finish(self) -> RowArray[ScalarT]:
        """Return the array to read from; see `Array`."""
        return self._present().finish()

    def close(self) -> None:
        """Free the space; see `Array`."""
        if isinstance(self._store, FileArray):
            self._store.close()
            self._room.free()
        self._store = None

    def _larger(self, store: MemoryArray[ScalarT], n_rows: int) -> MemoryArray[ScalarT] | FileArray[ScalarT]:
        """Return a copy of an array in memory that has room for at least `n_rows` rows."""
        for more in (max(n_rows, 2 * len(store)), n_rows):
            if (larger := self._scratch.buffer(self._dtype, (more, *self._row_shape))) is not None:
                larger.append(store.finish())
                return larger
        file = self._scratch.file(self._dtype, (n_rows, *self._row_shape), self._room)
        with writing(self._scratch.folder, self._scratch.owner):
            file.append(store.finish())
        self._room.count(store.finish().nbytes)
        return file

    def _present(self) -> MemoryArray[ScalarT] | FileArray[ScalarT]:
        if self._store is None:
            raise ValueError("the array is closed")
        return self._store


@contextmanager
def writing(folder: Path, owner: str, doing: str = "write to") -> Iterator[None]:
    """Say which setting names the folder if it cannot be written.

    Args:
        folder: the folder.
        owner: how the texts of errors begin.
        doing: what fails.

    Raises:
        ConfigError: there was an `OSError` in the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise ConfigError(
                f"{owner}scratch.memory_mb: each column of a job that does not fit in memory is an open file, and the"
                " system allows this process no more: raise its limit of open files, or keep more columns in memory"
            ) from error
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        is_broken = error.errno in {errno.EIO, errno.ESTALE, errno.EROFS}
        way_out = (
            "free some space, or choose a folder on a larger disk"
            if is_full
            else "check the disk, or choose a folder on another one"
            if is_broken
            else "name one that it can write to"
        )
        failed = ConfigError(
            f"{owner}scratch.folder: this process cannot {doing} the folder: {error.strerror}: {way_out}"
        )
        failed.add_note(f"{folder}: {explain(error, folder)}")
        raise failed from error


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _GB:,.2f} GB" if n_bytes >= _GB else f"{n_bytes / _MB:,.1f} MB"


def _allow_more_files() -> None:
    """Raise the number of files that this process may open to the most that the system allows: each array is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
