"""Arrays in files that have no name: the system removes such a file with the process, however the process ends.

An encrypted file has a key of its own, which exists only in this process. Its cipher is AES-256 in counter mode, whose
key stream depends on the key and the place in the file. Rows are only ever appended, so no part of the key stream is
used twice. An attacker who reads the disk learns the size of the file. The cipher does not detect changes.
"""

import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import DTypeLike, NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.scratch.arrays import Array, ScalarT, check_rows

PREFIX = ".array-"
"""Start of the name that a file has for a moment."""
_WRITTEN_BYTES = 2**20
"""Bytes that are encrypted at once: little enough to stay in the processor's cache."""
_SPAN_BYTES = 2**18
"""The largest span that is read at once to select rows of it."""
_ALIGNMENT = 64
"""Bytes of a line of the processor's cache. What is read begins at one, so that vector instructions cross none."""
_CIPHER_BLOCK = 16
"""Bytes of a block of AES."""


class FileArray(Array[ScalarT]):
    """An array in a file without a name. Any number of threads may read. Threads that append wait for each other.

    Args:
        folder: where the file is; its file system has the room.
        dtype: see `Scratch.array`.
        row_shape: shape of a row.
        encrypt: whether the file is encrypted.
        reading: makes a context in which the file is read, to name its errors.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        dtype: DTypeLike,
        row_shape: tuple[int, ...],
        *,
        encrypt: bool,
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._file, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
        weakref.finalize(self, os.close, self._file)
        Path(name).unlink(missing_ok=True)  # Another process may have swept it.
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._row_shape = row_shape
        self._row_bytes = self._dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        self._n_rows = 0
        self._key = os.urandom(32) if encrypt else None
        self._appending = Lock()
        self._reading = reading
        self._is_whole = True
        self._is_closed = False

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """The type of an entry."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; see `RowArray`."""
        return (self._n_rows, *self._row_shape)

    def __len__(self) -> int:
        return self._n_rows

    def append(self, rows: NDArray[ScalarT]) -> None:
        """Append rows; see `Array`.

        Raises:
            OSError: the disk is full. Nothing may be appended to the array any more.
        """
        check_rows(self, rows)
        with self._appending:
            if self._is_closed or not self._is_whole:
                raise ValueError("the array is closed, or an earlier part of it could not be written")
            self._is_whole = False
            self._append(rows)
            self._is_whole = True

    def _append(self, rows: NDArray[ScalarT]) -> None:
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        place = self._n_rows * self._row_bytes
        encryptor = None if self._key is None else _cipher(self._key, place).encryptor()
        buffer = np.empty(0 if encryptor is None else min(_WRITTEN_BYTES, len(content)), np.uint8).data
        skipped = place % _CIPHER_BLOCK
        if encryptor is not None and skipped:
            encryptor.update(bytes(skipped))
        for start in range(0, len(content), _WRITTEN_BYTES):
            part = content[start : start + _WRITTEN_BYTES]
            if encryptor is not None:
                encryptor.update_into(part, buffer)
                part = buffer[: len(part)]
            _write(self._file, part, place + start)
        self._n_rows += len(rows)

    def __getitem__(self, rows: slice | Rows, /) -> NDArray[ScalarT]:
        if self._is_closed:
            raise ValueError("the array is closed")
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self._n_rows)
            if step != 1:
                raise ValueError("rows of a file are read in slices of step 1")
            return self._read(start, max(stop, start))
        return self._select(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    def finish(self) -> "FileArray[ScalarT]":
        """Return this array; see `Array`."""
        return self

    def close(self) -> None:
        """Free the space; see `Array`. A thread that still reads gets a `ValueError`, and never another file."""
        self._is_closed = True
        with self._appending:
            os.ftruncate(self._file, 0)

    def _read(self, start: int, stop: int) -> NDArray[ScalarT]:
        n_bytes = (stop - start) * self._row_bytes
        buffer = np.empty(n_bytes + _ALIGNMENT, np.uint8)
        first = -buffer.ctypes.data % _ALIGNMENT
        found: NDArray[Any] = buffer[first : first + n_bytes].view(self._dtype)
        content = found.view(np.uint8).data
        place, n_read = start * self._row_bytes, 0
        while n_read < len(content):
            with self._reading():
                count = os.preadv(self._file, [content[n_read:]], place + n_read)
            if not count:
                raise ValueError("the array is closed")
            n_read += count
        if self._key is not None and content:
            decryptor = _cipher(self._key, place).decryptor()
            if skipped := place % _CIPHER_BLOCK:
                decryptor.update(bytes(skipped))
            decryptor.update_into(content, content)
        return found.reshape(stop - start, *self._row_shape)

    def _select(self, rows: Rows) -> NDArray[ScalarT]:
        if len(rows) and not (rows[0] >= 0 and rows[-1] < self._n_rows):
            raise IndexError(f"row {rows[-1]} of {self._n_rows}")
        found: NDArray[Any] = np.empty((len(rows), *self._row_shape), self._dtype)
        if not len(rows):
            return found
        size = max(1, _SPAN_BYTES // max(1, self._row_bytes))
        edges = np.arange(rows[0], rows[-1] + 1, size)
        for start, end in pairwise([*np.searchsorted(rows, edges).tolist(), len(rows)]):
            if start < end:
                first = int(rows[start])
                span = self._read(first, int(rows[end - 1]) + 1)
                # The rows are in the span. With another mode than `raise`, numpy writes to `out` without a copy.
                np.take(span, rows[start:end] - first, axis=0, out=found[start:end], mode="clip")
        return found


def _cipher(key: bytes, place: int) -> Cipher[CTR]:
    """Return the cipher whose key stream begins at the block of AES that has byte `place` of the file."""
    return Cipher(AES(key), CTR((place // _CIPHER_BLOCK).to_bytes(_CIPHER_BLOCK, "big")))


def _write(file: int, content: memoryview, place: int) -> None:
    while len(content):
        count = os.pwrite(file, content, place)
        content, place = content[count:], place + count
