"""The IDs of a table: their order, their digest, and which of them are equal.

A table may have many millions of IDs. Arrow keeps each in its own length and 8 bytes more, where an object of Python
takes 60 bytes more, and sorts and compares them without making such objects.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from operator import eq
from typing import Self, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.data.tables.arrow_arrays import (
    bytes_of,
    from_bytes,
    from_numpy,
    from_texts,
    to_booleans,
    to_numpy,
)

_IDS_AT_A_TIME = 65_536
"""So that work on many IDs takes little memory."""
_EMPTY = from_texts([""]).cast(pa.large_string())[0]
_NO_BYTES = _EMPTY.cast(pa.large_binary())


class Ids(Sequence[str]):
    """IDs of the rows of a table, none of them missing. They do not change.

    Args:
        texts: a column of text without missing values.

    Attributes:
        texts: the same IDs as one array of Arrow, of type `large_string`: a table may have more than 2 GB of IDs.
    """

    def __init__(self, texts: pa.Array | pa.ChunkedArray) -> None:
        whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        self.texts: pa.LargeStringArray = whole.cast(pa.large_string())

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return the IDs that Python has as texts."""
        return cls(from_texts([*texts]))

    @classmethod
    def join(cls, parts: Sequence["Ids"]) -> Self:
        """Return the IDs of all parts, one part after the other."""
        return cls(pa.chunked_array([part.texts for part in parts], pa.large_string()))

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> str | Self:
        if isinstance(place, slice):
            return type(self)(self.texts[place])
        text: str = self.texts[int(place)].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for part in self._parts():
            yield from part.to_pylist()

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of texts."""
        if isinstance(other, Ids):
            return bool(self.texts.equals(other.texts))
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} IDs>"

    def take(self, rows: Rows) -> Self:
        """Return the IDs of some rows, shape (n_taken,), in any order."""
        return type(self)(self.texts.take(from_numpy(rows)))

    @property
    def is_ascending(self) -> bool:
        """Whether the IDs are in canonical order already."""
        return bool(pc.all(pc.less_equal(self.texts[:-1], self.texts[1:])).as_py() is not False)

    def order(self) -> Rows:
        """Return row numbers sorted by the UTF-8 bytes of their IDs: the canonical order.

        It is the same in every language and locale. Rows of the same ID stay in their order.
        """
        if self.is_ascending:
            return np.arange(len(self), dtype=np.int64)
        # Arrow sorts 10 million IDs of 13 bytes in 6 s and needs 8 bytes for each. Its sort is stable.
        return to_numpy(pc.sort_indices(self.texts)).view(np.int64)

    def starts(self) -> NDArray[np.bool_]:
        """Return whether each ID differs from the one before it, shape (n_ids,)."""
        starts = np.ones(len(self), dtype=bool)
        starts[1:] = to_booleans(pc.not_equal(self.texts[:-1], self.texts[1:]))
        return starts

    def digest(self) -> bytes:
        """Compute the SHA-256 of the list of IDs. No process sends it.

        The length precedes each ID, in 8 bytes and big-endian, so that no two lists give the same text.

        Returns:
            32 bytes.
        """
        digest = hashlib.sha256()
        for part in self._parts():
            lengths = to_numpy(pc.binary_length(part)).astype(">i8")
            encoded = pc.binary_join_element_wise(from_bytes(lengths), part.cast(pa.large_binary()), _NO_BYTES)
            digest.update(bytes_of(encoded)[1].data)
        return digest.digest()

    def lines(self) -> Iterator[bytes]:
        """Yield the IDs as UTF-8 with a line feed between them, in pieces."""
        for number, part in enumerate(self._parts()):
            text = "\n".join(part.to_pylist())
            yield (f"\n{text}" if number else text).encode()

    def _parts(self) -> Iterator[pa.LargeStringArray]:
        for first in range(0, len(self), _IDS_AT_A_TIME):
            yield self.texts[first : first + _IDS_AT_A_TIME]
