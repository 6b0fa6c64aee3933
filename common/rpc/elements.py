"""The wire format of ring elements: chunks of rows, which are not copied between a machine and gRPC.

protobuf copies a `bytes` field when a message is made, when it is serialised, when it is parsed and when it is read.
For the elements of a round, which are hundreds of bytes a row, the copies would cost more than the protocol itself.
Therefore `ElementsRequest` frames them by hand: the result is a valid `SendElementsRequest`, and any other encoding of
one is accepted too.
"""

import sys
from collections.abc import Iterator
from typing import Self

import numpy as np

from trilateral.common.base.arrays import ElementVector
from trilateral.common.base.errors import DataError
from trilateral.common.pb.v1 import rounds_pb2
from trilateral.common.protocol.messages import ELEMENT_KINDS, ElementPiece, Kind, RoundKey
from trilateral.common.protocol.shares.bounds import MAX_RESULT
from trilateral.common.protocol.shares.session import SESSION
from trilateral.common.rpc.codec import (
    KIND_NUMBERS,
    MAX_TOTAL,
    JobKey,
    decode_digest,
    decode_key,
    decode_kind,
    encode_key,
    refuse,
)
from trilateral.common.shares.layout import GROUP

MAX_ROWS = 8192
"""Maximum rows in one request."""
MAX_ELEMENTS_BYTES = 7 * 512 * 1024
"""Maximum bytes of elements in one request: 3.5 MiB, below the limit of 4 MiB for a message."""
MAX_HEADER_BYTES = 1024
"""Maximum bytes beside the elements of a request that stay in memory as long as the elements do."""
ELEMENT_BYTES = 8
SESSION_KINDS = frozenset({Kind.MASKED_COLUMNS, Kind.SUMS, Kind.COUNTS})
"""Kinds that have the key SESSION: the second for the products with the labels, the others always."""
DIGEST_KINDS = frozenset({Kind.MASKED_RESIDUAL, Kind.MASKED_SLOPES})
"""Kinds that travel with a digest."""

_DTYPE = np.dtype("<u8")
_PADDING_TAG, _ELEMENTS_TAG = (
    number << 3 | 2
    for number in (
        rounds_pb2.SendElementsRequest.PADDING_FIELD_NUMBER,
        rounds_pb2.SendElementsRequest.ELEMENTS_FIELD_NUMBER,
    )
)
"""The first byte of each of these fields on the wire: its number, and the wire type of bytes."""


class ElementsRequest:
    """A `SendElementsRequest` whose elements are a view of the buffer that they came from.

    It has the methods of a message of protobuf that the servicers, the interceptors and the links use.

    Args:
        header: the request without its elements and its padding.
        elements: bytes of the elements.
        n_bytes: size of the request as it travels.
    """

    __slots__ = ("_n_bytes", "elements", "header", "job", "kind", "run_id")

    def __init__(self, header: rounds_pb2.SendElementsRequest, elements: memoryview, n_bytes: int) -> None:
        self.header = header
        self.elements = elements
        self._n_bytes = n_bytes
        self.job, self.run_id, self.kind = header.job, header.run_id, header.kind

    def ByteSize(self) -> int:  # noqa: N802
        """Return the size of the request as it travels."""
        return self._n_bytes

    def SerializeToString(self) -> bytes:  # noqa: N802
        """Return the request as bytes in which the elements begin at a multiple of 8: the only copy of them."""
        return b"".join((_opening(len(self.elements)), self.elements, self.header.SerializeToString()))

    @classmethod
    def of(cls, header: rounds_pb2.SendElementsRequest, elements: ElementVector) -> Self:
        """Return the request that carries `elements`, which must not change until it is serialised."""
        view = np.ascontiguousarray(elements, _DTYPE).view(np.uint8).data
        return cls(header, view, len(_opening(len(view))) + len(view) + header.ByteSize())

    @classmethod
    def FromString(cls, data: bytes) -> Self:  # noqa: N802
        """Return the request in `data`, which is not copied if it is in the form of `SerializeToString`.

        Raises:
            google.protobuf.message.DecodeError: it is not a `SendElementsRequest`.
        """
        begin, end = _find_elements(data)
        header = rounds_pb2.SendElementsRequest.FromString(data[end:] if end else data)
        if not end or header.elements:  # Of a field that occurs twice, the last counts.
            elements = memoryview(header.elements)
            header.ClearField("elements")
        else:
            elements = memoryview(data)[begin:end]
            if len(data) - len(elements) > MAX_HEADER_BYTES:  # They would keep in memory what nobody has counted.
                elements = memoryview(bytes(elements))
        return cls(header, elements, len(data))


def _opening(n_bytes: int) -> bytes:
    """Return what stands before `n_bytes` bytes of elements: padding, and the tag and the length of their field."""
    length = bytearray()
    rest = n_bytes
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    n_padding = -(3 + len(length)) % ELEMENT_BYTES
    return bytes((_PADDING_TAG, n_padding, *bytes(n_padding), _ELEMENTS_TAG, *length))


def _find_elements(data: bytes) -> tuple[int, int]:
    """Return where the elements begin and end; (0, 0) if `data` does not begin as `_opening` writes it."""
    if len(data) < 2 or data[0] != _PADDING_TAG or data[1] >= ELEMENT_BYTES:
        return 0, 0
    position = 2 + data[1]
    if data[position : position + 1] != bytes((_ELEMENTS_TAG,)):
        return 0, 0
    n_bytes = 0
    for shift, byte in zip((0, 7, 14, 21), data[position + 1 : position + 5], strict=False):
        n_bytes |= (byte & 0x7F) << shift
        if byte < 0x80:
            begin = position + 2 + shift // 7
            return (begin, begin + n_bytes) if n_bytes and begin + n_bytes <= len(data) else (0, 0)
    return 0, 0


def encode_elements(job: JobKey, piece: ElementPiece) -> Iterator[ElementsRequest]:
    """Yield a piece as chunks of at most `MAX_ROWS` rows and `MAX_ELEMENTS_BYTES` bytes, without copying it.

    Only a piece that is larger is cut, between two groups of rows: one of more than 56 columns and 8,192 rows.

    Raises:
        DataError: eight rows are more than a chunk can hold.
    """
    n_columns = len(piece.elements) // piece.n_rows
    step = piece.n_rows  # A digest alone is not cut.
    if n_columns:
        step = min(MAX_ROWS, MAX_ELEMENTS_BYTES // (ELEMENT_BYTES * n_columns) // GROUP * GROUP)
    if not step:
        most = MAX_ELEMENTS_BYTES // (ELEMENT_BYTES * GROUP)
        raise DataError(f"rows of {n_columns} training columns cannot be sent; the maximum is {most}")
    for start in range(0, piece.n_rows, step):
        end = min(start + step, piece.n_rows)
        header = rounds_pb2.SendElementsRequest(
            job=job.name,
            run_id=job.run_id,
            key=encode_key(piece.key),
            kind=KIND_NUMBERS[piece.kind],
            offset=piece.offset + start,
            total=piece.total,
            n_rows=end - start,
            digest=piece.digest if end == piece.n_rows else b"",
        )
        yield ElementsRequest.of(header, piece.elements[start * n_columns : end * n_columns])


def decode_elements(request: ElementsRequest | rounds_pb2.SendElementsRequest) -> ElementPiece:
    """Return the ring elements of one chunk, as an array that cannot be written to.

    Raises:
        ProtocolError: the chunk does not fit its rows, or its vector.
    """
    header, elements = request.header if isinstance(request, ElementsRequest) else request, request.elements
    kind, n_rows, n_bytes = decode_kind(header.kind), header.n_rows, len(elements)
    if kind not in ELEMENT_KINDS:
        refuse(f"ring elements as {kind}, which consists of ciphertexts")
    key, offset, total = _decode_key(header.key, kind), header.offset, header.total
    if not 1 <= n_rows <= MAX_ROWS:
        refuse(f"{n_rows} rows in one message; expected 1 to {MAX_ROWS}")
    if n_bytes > MAX_ELEMENTS_BYTES or n_bytes % (ELEMENT_BYTES * n_rows) or not (n_bytes or header.digest):
        refuse(f"{n_bytes} bytes as ring elements of {n_rows} rows")
    if total > MAX_TOTAL or offset + n_rows > total:
        refuse(f"rows {offset} to {offset + n_rows} of {total} of {kind}")
    digest = decode_digest(header.digest, "digest")
    if digest and kind not in DIGEST_KINDS:
        refuse(f"a digest with {kind}")
    return ElementPiece(key, kind, offset, total, n_rows, _as_elements(elements), digest)


def _decode_key(key: rounds_pb2.RoundKey, kind: Kind) -> RoundKey:
    if kind in SESSION_KINDS and not key.round and not key.attempt:
        return SESSION
    if kind in {Kind.MASKED_COLUMNS, Kind.COUNTS}:
        refuse(f"{kind} of a round")
    return decode_key(key)


def _as_elements(data: bytes | memoryview) -> ElementVector:
    elements = np.frombuffer(data, _DTYPE)
    if elements.flags.aligned and sys.byteorder == "little":
        return elements
    own = elements.astype(np.uint64)
    own.flags.writeable = False
    return own


def pack_elements(elements: ElementVector) -> bytes:
    """Return a short vector of ring elements as a field of another message."""
    return elements.astype(_DTYPE).tobytes()


def unpack_elements(data: bytes, what: str) -> ElementVector:
    """Return a short vector of ring elements from a field of another message; `what` names it in errors.

    Raises:
        ProtocolError: the vector is empty, has more than `MAX_RESULT` elements, or a torn one.
    """
    if not 0 < len(data) <= MAX_RESULT * ELEMENT_BYTES or len(data) % ELEMENT_BYTES:
        refuse(f"{len(data)} bytes as {what}")
    return _as_elements(data)
