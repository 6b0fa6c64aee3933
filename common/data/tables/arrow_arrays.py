"""From Arrow's arrays to numpy's and back.

Arrow's own conversions, such as `pa.array`, `pa.scalar` and `to_numpy`, import pandas if it is installed. That costs a
process 40 MB and half a second. These functions share memory with the arrays and need no pandas.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector


def from_numpy(numbers: NDArray[Any]) -> pa.Array:
    """Return numbers as an array of Arrow."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def from_texts(texts: Sequence[str | None]) -> pa.StringArray:
    """Return texts as an array of Arrow; None is a missing value."""
    encoded = [(text or "").encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    present = np.packbits(np.array([text is not None for text in texts], dtype=np.bool_), bitorder="little")
    buffers = map(pa.py_buffer, (ends, b"".join(encoded), present))
    return pa.StringArray.from_buffers(len(texts), *buffers)


def from_booleans(values: NDArray[np.bool_]) -> pa.BooleanArray:
    """Return truth values as an array of Arrow."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def from_bytes(values: NDArray[Any]) -> pa.LargeBinaryArray:
    """Return the bytes of each element of an array, which are as many for all of them."""
    width = values.dtype.itemsize
    ends = np.arange(len(values) + 1, dtype=np.int64) * width
    return pa.Array.from_buffers(pa.large_binary(), len(values), [None, *map(pa.py_buffer, (ends, values))])


def bytes_of(texts: pa.LargeStringArray | pa.LargeBinaryArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each text begins, and where the last one ends, shape (n_texts + 1,); and the bytes of all texts."""
    _, ends, content = texts.buffers()
    # An empty array may have no buffers.
    starts = np.zeros(1, np.int64) if ends is None or not len(ends) else np.frombuffer(ends, np.int64)
    starts = starts[texts.offset : texts.offset + len(texts) + 1]
    whole = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return starts - starts[0], whole[starts[0] : starts[-1]]


EMPTY = from_texts([""])[0]
_NAN, _NO_INDEX = from_numpy(np.array([np.nan]))[0], from_numpy(np.array([-1], dtype=np.int32))[0]


def null(kind: pa.DataType) -> pa.Scalar:
    """Return a missing value of some type."""
    return pa.nulls(1, kind)[0]


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers, none of them missing."""
    return np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def to_floats(column: pa.ChunkedArray) -> FloatVector:
    """Return a column of type float64; NaN where a value is missing."""
    return to_numpy(pc.fill_null(column, _NAN))


def to_booleans(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a column of truth values, none of them missing."""
    return to_numpy(column.cast(pa.uint8())).view(np.bool_)


def to_codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """Return for each row of a column of text the place of its value, -1 where it is missing; and the values."""
    encoded = column.combine_chunks().dictionary_encode()
    codes = np.from_dlpack(pc.fill_null(encoded.indices, _NO_INDEX)).view(np.int32)
    return codes, encoded.dictionary.to_pylist()
