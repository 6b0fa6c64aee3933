"""Whatever a program of the guest or the other party sends for online scores, it gets an answer or a refusal."""

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.curve25519.points import POINT_BYTES
from trilateral.common.data.alignment.labelled_list import ENTRY_BYTES, LabelledList, Query, answer, new_key
from trilateral.guest_party.online import RowScore, RowToScore, ScoredRequest
from trilateral.guest_party.online_http import _read_body
from trilateral.guest_party.online_requests import _features_in

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
ROWS = st.lists(VALUES | st.fixed_dictionaries({"id": VALUES}, optional={"features": VALUES}), max_size=4)
BODIES = VALUES | st.fixed_dictionaries({"job": VALUES | st.just("a"), "dataset": VALUES | st.just("b"), "rows": ROWS})


def test_what_is_asked_and_answered_shows_in_no_text() -> None:
    secret = "zq-4711"
    row = RowToScore((secret,), {"income": secret})
    scored = ScoredRequest((RowScore(0.471147, 0.61471147),), "")
    text = repr([row, scored, Query.of([secret])])
    assert secret not in text
    assert "4711" not in text


@given(BODIES)
def test_any_json_is_rows_or_refused(body: Any) -> None:
    with contextlib.suppress(ProtocolError, DataError):
        job, dataset, rows, _ = _read_body(body)
        assert isinstance(job, str)
        assert isinstance(dataset, str)
        assert all(isinstance(part, str) for row in rows for part in row.id)


@given(st.text() | VALUES.map(json.dumps))
def test_any_text_is_features_or_refused(text: str) -> None:
    with contextlib.suppress(ProtocolError, DataError):
        _features_in(text)


@given(st.binary(max_size=5 * ENTRY_BYTES), st.binary(min_size=ENTRY_BYTES, max_size=ENTRY_BYTES))
def test_any_bytes_are_a_list_or_refused(data: bytes, digest: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        LabelledList(data).open(digest)


@given(st.binary(max_size=3 * POINT_BYTES) | st.binary(min_size=2 * POINT_BYTES, max_size=2 * POINT_BYTES))
def test_any_bytes_are_an_answer_or_refused(response: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(Query.of(["a", "b"]).read(response)) == 2


@given(st.lists(st.binary(min_size=POINT_BYTES, max_size=POINT_BYTES), min_size=1, max_size=3))
def test_any_points_are_answered_or_refused(points: list[bytes]) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(answer(new_key(), b"".join(points))) == len(points) * POINT_BYTES
