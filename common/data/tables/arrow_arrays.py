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


EMPTY = from_texts([""])[0]
_NAN, _NO_INDEX = from_numpy(np.array([np.nan]))[0], from_numpy(np.array([-1], dtype=np.int32))[0]


def null(kind: pa.DataType) -> pa.Scalar:
    """Return a missing value of some type."""
    return pa.nulls(1, kind)[0]


def to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers, none of them missing."""
    return np.from_dlpack(column.combine_chunks())


def to_floats(column: pa.ChunkedArray) -> FloatVector:
    """Return a column of type float64; NaN where a value is missing."""
    return to_numpy(pc.fill_null(column, _NAN))


def to_booleans(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return a column of truth values, none of them missing."""
    return to_numpy(column.cast(pa.uint8())).view(np.bool_)


def to_codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """Return for each row of a column of text the place of its value, -1 where it is missing; and the values."""
    encoded = column.combine_chunks().dictionary_encode()
    codes = np.from_dlpack(pc.fill_null(encoded.indices, _NO_INDEX)).view(np.int32)
    return codes, encoded.dictionary.to_pylist()
