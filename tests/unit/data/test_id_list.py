"""The IDs of a table as Arrow holds them."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.data.tables.id_list import Ids

id_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(id_text))
def test_the_ids_are_a_sequence_of_texts(ids: list[str]) -> None:
    listed = Ids.of(ids)
    assert (len(listed), [*listed], [listed[place] for place in range(len(ids))]) == (len(ids), ids, ids)
    assert listed == ids
    assert listed == Ids.of(ids)
    assert listed != [*ids, "more"]
    assert listed[1:] == ids[1:]
    assert Ids.join([listed[:2], listed[2:]]) == ids


def test_the_order_follows_bytes_and_not_a_language_or_numbers() -> None:
    ids = ["é", "10", "b", "9", "B", "a", "\N{GRINNING FACE}", "\N{FULLWIDTH LATIN SMALL LETTER A}"]

    listed = Ids.of(ids)

    assert listed.take(listed.order()) == [
        "10",
        "9",
        "B",
        "a",
        "b",
        "é",
        "\N{FULLWIDTH LATIN SMALL LETTER A}",
        "\N{GRINNING FACE}",
    ]


@given(st.lists(id_text, unique=True), st.randoms())
def test_the_order_does_not_depend_on_the_file(ids: list[str], random: Random) -> None:
    shuffled = ids.copy()
    random.shuffle(shuffled)

    one, other = Ids.of(ids), Ids.of(shuffled)
    assert one.take(one.order()) == other.take(other.order()) == sorted(ids)


@given(st.lists(id_text))
def test_rows_of_the_same_id_stay_in_their_order(ids: list[str]) -> None:
    twice = Ids.of([*ids, *ids])
    assert twice.order().tolist() == sorted(range(2 * len(ids)), key=[*ids, *ids].__getitem__)


@given(st.lists(id_text))
def test_ascending_ids_are_known_as_such(ids: list[str]) -> None:
    assert Ids.of(ids).is_ascending == (ids == sorted(ids))


@given(st.lists(id_text, min_size=1))
def test_a_repeated_id_does_not_start_anything(ids: list[str]) -> None:
    assert Ids.of(ids).starts().tolist() == [
        True,
        *(one != other for one, other in zip(ids[1:], ids[:-1], strict=True)),
    ]


def test_digest_and_lines_of_many_ids_are_those_of_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = Ids.of(f"{row:x}" for row in range(1000))
    digest = ids.digest()
    monkeypatch.setattr("trilateral.common.data.tables.id_list._IDS_AT_A_TIME", 7)
    assert ids.digest() == digest
    assert b"".join(ids.lines()) == "\n".join(ids).encode()
    assert [*ids[10:30]] == [f"{row:x}" for row in range(10, 30)]


def test_part_of_a_column_of_any_text_type_is_its_own_list() -> None:
    for kind in (pa.string(), pa.large_string()):
        column = pa.chunked_array([["a", "bc"], [], ["d\u00e9", "f"]], kind)
        part = Ids(column.slice(1))
        assert part == ["bc", "d\u00e9", "f"]
        assert part.digest() == Ids.of(["bc", "d\u00e9", "f"]).digest()
        assert part.take(np.array([2, 0])) == ["f", "bc"]


def test_ids_do_not_show_in_a_log() -> None:
    assert "alice" not in f"{Ids.of(['alice'])!r} {Ids.of(['alice'])}"
