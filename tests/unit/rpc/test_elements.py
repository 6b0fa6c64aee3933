"""Ring elements survive the wire without a copy, however they are encoded, and a wrong chunk is refused."""

import itertools
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.pb.v1 import rounds_pb2
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import (
    ELEMENT_KINDS,
    BeginRound,
    ElementPiece,
    FinishJob,
    IdChallenge,
    IdProof,
    Kind,
    OpenJob,
    Ready,
    RoundKey,
    RoundShares,
    SharesReady,
    WeightShares,
)
from trilateral.common.rpc import elements as elements_module
from trilateral.common.rpc.channel import MAX_MESSAGE_BYTES
from trilateral.common.rpc.codec import JobKey, job_key
from trilateral.common.rpc.elements import DIGEST_KINDS, ElementsRequest, decode_elements, encode_elements
from trilateral.common.rpc.routes import decode

RUN = JobKey("credit", bytes(range(16)))
positive = st.integers(1, 2**32 - 1)


@st.composite
def pieces(draw: st.DrawFn) -> ElementPiece:
    kind, n_rows, n_columns = draw(st.sampled_from(sorted(ELEMENT_KINDS))), draw(st.integers(1, 40)), draw(positive) % 5
    offset = draw(st.integers(0, 1000))
    total = offset + n_rows + draw(st.integers(0, 1000))
    is_of_session = kind in {Kind.MASKED_COLUMNS, Kind.COUNTS} or (kind is Kind.SUMS and draw(st.booleans()))
    key = RoundKey(0, 0) if is_of_session else RoundKey(draw(positive), draw(positive))
    digest = draw(st.binary(max_size=64)) if kind in DIGEST_KINDS else b""
    # A party that opens nothing of some rows sends their digest alone.
    n_columns = n_columns if digest else n_columns + 1
    values = draw(arrays(np.uint64, n_rows * n_columns, elements=st.integers(0, 2**64 - 1)))
    return ElementPiece(key, kind, offset, total, n_rows, values, digest)


def join(parts: list[ElementPiece]) -> ElementPiece:
    first, last = parts[0], parts[-1]
    for one, following in itertools.pairwise(parts):
        assert one.offset + one.n_rows == following.offset
        assert not one.digest
    n_rows, elements = sum(part.n_rows for part in parts), np.concatenate([part.elements for part in parts])
    return ElementPiece(first.key, first.kind, first.offset, first.total, n_rows, elements, last.digest)


def same(one: ElementPiece, other: ElementPiece) -> bool:
    names = ("key", "kind", "offset", "total", "n_rows", "digest")
    return all(getattr(one, name) == getattr(other, name) for name in names) and np.array_equal(
        one.elements, other.elements
    )


@given(piece=pieces(), max_rows=st.sampled_from((8, 16, 8192)))
def test_the_chunks_of_a_piece_join_to_the_piece(piece: ElementPiece, max_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements_module, "MAX_ROWS", max_rows if len(piece.elements) else 40)
        requests = list(encode_elements(RUN, piece))
        sent = [request.SerializeToString() for request in requests]
        received = [ElementsRequest.FromString(data) for data in sent]
        parts = [decode_elements(request) for request in received]
    assert same(join(parts), piece)
    assert [len(data) for data in sent] == [each.ByteSize() for each in requests] == [e.ByteSize() for e in received]
    assert {job_key(request) for request in received} == {RUN}
    assert all(part.elements.flags.aligned and not part.elements.flags.writeable for part in parts)


@given(piece=pieces())
def test_what_is_sent_is_a_request_of_the_contract(piece: ElementPiece) -> None:
    (request,) = encode_elements(RUN, piece)
    parsed = rounds_pb2.SendElementsRequest.FromString(request.SerializeToString())
    assert same(decode_elements(parsed), piece)


@given(piece=pieces())
def test_a_request_that_protobuf_has_serialised_is_accepted(piece: ElementPiece) -> None:
    (request,) = encode_elements(RUN, piece)
    plain = rounds_pb2.SendElementsRequest.FromString(request.SerializeToString())
    plain.ClearField("padding")
    received = ElementsRequest.FromString(plain.SerializeToString())
    assert same(decode_elements(received), piece)
    assert not received.header.elements


@pytest.mark.parametrize(
    ("n_rows", "n_columns"), [(1, 1), (15, 1), (16, 1), (89, 23), (8, 256), (8191, 32), (8192, 32), (8192, 56)]
)
def test_elements_are_neither_copied_nor_misaligned_whatever_their_number(n_rows: int, n_columns: int) -> None:
    values = np.arange(n_rows * n_columns, dtype=np.uint64)
    (request,) = encode_elements(RUN, ElementPiece(RoundKey(1, 1), Kind.DEALT, 0, n_rows, n_rows, values))
    data = request.SerializeToString()
    elements = decode_elements(ElementsRequest.FromString(data)).elements
    assert np.shares_memory(elements, np.frombuffer(data, np.uint8))
    assert elements.flags.aligned
    assert np.array_equal(elements, values)


def test_elements_do_not_keep_what_a_request_has_beside_them() -> None:
    """A receiver counts the elements that it keeps. A field without a meaning could be much larger."""
    (request,) = encode_elements(RUN, ElementPiece(RoundKey(1, 1), Kind.DEALT, 0, 8, 8, np.arange(8, dtype=np.uint64)))
    padding = rounds_pb2.SendElementsRequest(padding=bytes(2**20)).SerializeToString()
    data = request.SerializeToString() + padding
    received = ElementsRequest.FromString(data)
    assert memoryview(received.elements.obj).nbytes == 64
    np.testing.assert_array_equal(decode_elements(received).elements, np.arange(8))


def test_of_elements_that_occur_twice_the_last_count() -> None:
    """Both ends must read the same from the same bytes."""
    piece = ElementPiece(RoundKey(1, 1), Kind.DEALT, 0, 2, 2, np.arange(2, dtype=np.uint64))
    (request,) = encode_elements(RUN, piece)
    data = request.SerializeToString() + rounds_pb2.SendElementsRequest(elements=bytes(16)).SerializeToString()
    parsed = decode_elements(rounds_pb2.SendElementsRequest.FromString(data))
    assert np.array_equal(decode_elements(ElementsRequest.FromString(data)).elements, parsed.elements)
    assert not parsed.elements.any()


@given(data=st.data(), n_cut=st.integers(0, 200))
def test_torn_and_changed_requests_are_refused_or_read_as_protobuf_reads_them(data: st.DataObject, n_cut: int) -> None:
    (request,) = encode_elements(RUN, data.draw(pieces()))
    torn = bytearray(request.SerializeToString())
    torn[data.draw(st.integers(0, min(15, len(torn) - 1)))] = data.draw(st.integers(0, 255))
    torn = torn[: max(0, len(torn) - n_cut)]
    try:
        expected = rounds_pb2.SendElementsRequest.FromString(bytes(torn))
    except DecodeError:
        with pytest.raises(DecodeError):
            ElementsRequest.FromString(bytes(torn))
        return
    received = ElementsRequest.FromString(bytes(torn))
    assert bytes(received.elements) == expected.elements
    expected.ClearField("elements")
    expected.ClearField("padding")
    received.header.ClearField("padding")
    assert received.header == expected


def test_a_wide_piece_is_cut_between_groups_of_rows_and_its_digest_comes_last() -> None:
    piece = ElementPiece(
        RoundKey(1, 1), Kind.MASKED_RESIDUAL, 8192, 16_384, 8192, np.arange(8192 * 100, dtype=np.uint64), bytes(64)
    )
    requests = list(encode_elements(RUN, piece))
    assert [(request.header.offset, request.header.n_rows) for request in requests] == [(8192, 4584), (12_776, 3608)]
    assert [len(request.header.digest) for request in requests] == [0, 64]
    assert all(request.ByteSize() < MAX_MESSAGE_BYTES - 2**18 for request in requests)


def test_rows_that_no_request_can_hold_are_refused_by_name() -> None:
    piece = ElementPiece(RoundKey(0, 0), Kind.MASKED_COLUMNS, 0, 8, 8, np.zeros(8 * 57_345, dtype=np.uint64))
    with pytest.raises(DataError, match="rows of 57345 training columns cannot be sent; the maximum is 57344"):
        list(encode_elements(RUN, piece))


@pytest.mark.parametrize(
    "fields",
    [
        {"elements": b"", "digest": b""},
        {"elements": bytes(47)},
        {"elements": bytes(40)},
        {"elements": bytes(7 * 2**19 + 16), "n_rows": 1, "total": 5},
        {"n_rows": 0},
        {"n_rows": 8193, "total": 10_000, "elements": bytes(8 * 8193)},
        {"offset": 3},
        {"offset": 2**64 - 1},
        {"total": 2**31 + 1},
        {"kind": 0},
        {"kind": 99},
        {"kind": rounds_pb2.VECTOR_KIND_SCORES},
        {"kind": rounds_pb2.VECTOR_KIND_MASKED_COLUMNS},
        {"key": rounds_pb2.RoundKey()},
        {"key": rounds_pb2.RoundKey(round=0, attempt=1)},
        {"key": rounds_pb2.RoundKey(round=1)},
        {"key": None},
        {"digest": bytes(65)},
        {"digest": bytes(64), "kind": rounds_pb2.VECTOR_KIND_DEALT},
    ],
    ids=lambda fields: str({name: value if name != "elements" else len(value) for name, value in fields.items()}),
)
def test_a_chunk_that_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "job": "credit",
        "key": rounds_pb2.RoundKey(round=1, attempt=1),
        "kind": rounds_pb2.VECTOR_KIND_MASKED_RESIDUAL,
        "offset": 2,
        "total": 5,
        "n_rows": 3,
        "elements": bytes(48),
        "digest": bytes(64),
    }
    assert decode(rounds_pb2.SendElementsRequest(**good))
    wrong = rounds_pb2.SendElementsRequest(**good | fields)
    for request in (wrong, ElementsRequest.FromString(wrong.SerializeToString())):
        with pytest.raises(ProtocolError):
            decode(request)


def test_no_message_shows_a_seed_a_share_or_an_element() -> None:
    """The text of a message may reach a log."""
    key, seed = RoundKey(1, 1), b"\xef\xcd\xab\x89" * 8
    value = np.array([0x0123456789ABCDEF], dtype=np.uint64)
    piece, weights = ElementPiece(key, Kind.DEALT, 0, 1, 1, value), WeightShares(value, value, value)
    (request,) = encode_elements(RUN, piece)
    job = JobConfig(name="credit", dataset="credit", protocol="shares")
    shares = RoundShares(weights, weights)
    for message in (
        piece,
        request,
        OpenJob(job, mpz(0), Role.HOST, seed=seed),
        IdChallenge(bytes(32), 5, 2, seed),
        IdProof(bytes(32), bytes(32), 2, seed),
        Ready(5, 1, shares=SharesReady(seed, 0, 1, 0, np.array([81985529216486895.0]))),
        BeginRound(key, np.zeros(0), Batch(1, 0), gradient=True, shares=shares),
        FinishJob(2, np.zeros(0), 0.5, 1, "converged", None, value),
    ):
        for shown in (repr(message), str(message), repr([message])):
            assert "8198552921648" not in shown
            assert r"\xef\xcd" not in shown


def test_the_bytes_of_a_request_do_not_change() -> None:
    """Processes of other releases must read them: worked out by hand from the contract."""
    values = np.array([1, 2**64 - 1], dtype=np.uint64)
    piece = ElementPiece(RoundKey(2, 1), Kind.MASKED_RESIDUAL, 8, 24, 2, values, b"\xaa" * 4)
    (request,) = encode_elements(RUN, piece)
    assert request.SerializeToString().hex(" ", 1) == " ".join(
        [
            "4a 04 00 00 00 00",  # padding of four bytes
            "3a 10 01 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff",  # the elements begin at byte 8
            "0a 06 63 72 65 64 69 74",  # the name of the job
            "12 04 08 02 10 01",  # round 2, attempt 1
            "18 0b 20 08 28 18 30 02",  # kind, offset, total, rows
            "42 04 aa aa aa aa",  # the digest
            "7a 10 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f",  # the run ID
        ]
    )
