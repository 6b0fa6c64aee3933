"""A guest opens the score of an ID that it holds, and of no other."""

import numpy as np
import pytest

from trilateral.common.base.errors import ProtocolError
from trilateral.common.curve25519.points import POINT_BYTES
from trilateral.common.data.alignment.labelled_list import (
    ENTRY_BYTES,
    LabelledList,
    Query,
    answer,
    make_entries,
    new_key,
    sort_entries,
)

IDS = [f"P{number:04d}" for number in range(50)]
SCORES = np.linspace(-3, 5, 50)


def a_list(key: bytes) -> LabelledList:
    data, n_repeated = sort_entries(make_entries(key, IDS, SCORES))
    assert n_repeated == 0
    return LabelledList(data)


def test_an_answer_opens_the_scores_of_the_ids_that_were_asked_for() -> None:
    key = new_key()
    query = Query.of(["P0007", "nobody", "P0049", "Größe"])
    opened = [a_list(key).open(digest) for digest in query.read(answer(key, query.points))]
    assert opened == [SCORES[7], None, SCORES[49], None]


def test_entries_of_parts_are_those_of_the_whole() -> None:
    key = new_key()
    parts = [make_entries(key, IDS[part], SCORES[part]) for part in (slice(20), slice(20, 50))]
    assert (np.concatenate(parts) == make_entries(key, IDS, SCORES)).all()


def test_two_questions_about_an_id_have_nothing_in_common() -> None:
    assert Query.of(["P0007"]).points != Query.of(["P0007"]).points


def test_two_lists_of_the_same_rows_have_no_entry_in_common() -> None:
    lists = [make_entries(new_key(), IDS, SCORES) for _ in range(2)]
    for start, end in ((0, 16), (16, 24)):
        one, other = ({bytes(entry[start:end]) for entry in entries} for entries in lists)
        assert not one & other


def test_an_answer_of_another_key_opens_nothing() -> None:
    query = Query.of(IDS)
    digests = query.read(answer(new_key(), query.points))
    assert {a_list(new_key()).open(digest) for digest in digests} == {None}


def test_repeated_ids_are_counted() -> None:
    entries = make_entries(new_key(), ["a", "b", "a", "a"], np.zeros(4))
    assert sort_entries(entries)[1] == 2


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[ENTRY_BYTES:] + data[:ENTRY_BYTES]])
def test_a_list_that_is_cut_off_or_not_in_order_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    data, _ = sort_entries(make_entries(new_key(), IDS, SCORES))
    with pytest.raises(ProtocolError, match="received a list"):
        LabelledList(change(data))


def test_a_list_with_an_entry_twice_is_refused() -> None:
    data, _ = sort_entries(make_entries(new_key(), IDS, SCORES))
    with pytest.raises(ProtocolError, match="twice"):
        LabelledList(data[:ENTRY_BYTES] + data)


@pytest.mark.parametrize("response", [b"", bytes(POINT_BYTES), bytes(2 * POINT_BYTES)])
def test_an_answer_of_another_length_or_of_low_order_is_refused(response: bytes) -> None:
    with pytest.raises(ProtocolError, match="answers|low order"):
        Query.of(["a", "b"]).read(response)


def test_points_of_low_order_are_not_answered() -> None:
    with pytest.raises(ProtocolError, match="low order"):
        answer(new_key(), bytes(POINT_BYTES))


def test_no_repr_shows_a_key() -> None:
    query = Query.of(["a"])
    assert str(query._keys) not in repr(query)
