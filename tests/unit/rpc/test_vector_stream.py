"""A call carries vectors of one run, one after the other, each in order and once."""

from typing import Any

import pytest

from trilateral.common.base.errors import ProtocolError
from trilateral.common.pb.v1.rounds_pb2 import VECTOR_KIND_RESIDUAL, VECTOR_KIND_SCORES, RoundKey, SendVectorRequest
from trilateral.common.rpc.codec import VectorStream


def chunk(offset: int, count: int = 2, **changes: Any) -> SendVectorRequest:
    fields: dict[str, Any] = {
        "job": "credit",
        "run_id": bytes(16),
        "key": RoundKey(round=1, attempt=1),
        "kind": VECTOR_KIND_SCORES,
        "offset": offset,
        "total": 6,
        "width": 4,
        "ciphertexts": bytes(4 * count),
    }
    return SendVectorRequest(**fields | changes)


def test_a_vector_passes_from_its_start_or_from_a_later_chunk() -> None:
    for start in (0, 3):
        stream = VectorStream()
        for offset in range(start, 6):
            stream.check(chunk(offset, 1))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (chunk(2, job="other"), "two runs"),
        (chunk(2, run_id=bytes(15) + b"1"), "two runs"),
        (chunk(2, width=2), "two sizes"),
        (chunk(2, key=RoundKey(round=2, attempt=1)), "from 2, expected those from 0"),
        (chunk(2, key=RoundKey(round=1, attempt=2)), "from 2, expected those from 0"),
        (chunk(2, kind=VECTOR_KIND_RESIDUAL), "from 2, expected those from 0"),
        (chunk(2, total=7), "from 2, expected those from 0"),
        (chunk(0), "from 0, expected those from 2"),
        (chunk(4), "from 4, expected those from 2"),
        (chunk(2, count=5), "more ciphertexts than the 6"),
    ],
)
def test_a_chunk_that_does_not_continue_the_vector_is_refused(second: SendVectorRequest, said: str) -> None:
    stream = VectorStream()
    stream.check(chunk(0))
    with pytest.raises(ProtocolError, match=said):
        stream.check(second)


def test_another_vector_may_follow_in_the_same_call() -> None:
    stream = VectorStream()
    for offset in range(0, 6, 2):
        stream.check(chunk(offset))
    stream.check(chunk(0, kind=VECTOR_KIND_RESIDUAL))
    stream.check(chunk(2, kind=VECTOR_KIND_RESIDUAL))


def test_nothing_comes_after_the_end() -> None:
    stream = VectorStream()
    stream.check(chunk(0, 6))
    with pytest.raises(ProtocolError, match="more ciphertexts than the 6"):
        stream.check(chunk(6, 1))
