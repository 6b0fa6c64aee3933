"""Rows with the same ID: refused, the first of them, or one row of all. IDs of several columns."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import features_of, frame_of
from trilateral.common.base.errors import ConfigError, DataError, notes
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.settings import parse_settings
from trilateral.common.data.features import Features
from trilateral.common.data.preprocessing.terms import CategoryColumn
from trilateral.common.data.tables.id_form import SEPARATOR
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import DistinctIds, aggregate_column
from trilateral.common.data.tables.table import PartyTable, read_table, read_table_ids, stream_table

ROWS = """id,y,n,c
b,0,1,x
a,1,10,
b ,0,,y
c,1,5,z
b,0,4,y
a,1,20,w
"""


def dataset(folder: Path, text: str = ROWS, **settings: Any) -> DatasetConfig:
    path = folder / "t.csv"
    path.write_text(text)
    return DatasetConfig.model_validate({"path": path, "categorical": ["c"], "label": {"column": "y"}, **settings})


def read(folder: Path, text: str = ROWS, **settings: Any) -> PartyTable:
    return read_table(dataset(folder, text, **settings))


def test_by_default_repeated_ids_are_refused_with_all_ways_out(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path)
    assert str(error.value) == (
        "column 'id' repeats an earlier ID in 3 of 6 rows, 1 of them only after the rules of `id_form`: keep one row "
        "for each ID, set `repeated_ids` to first or aggregate, or list all columns of the ID in `id`"
    )
    assert notes(error.value) == ["the first is in line 4, column 'id'"]


def test_the_first_row_of_each_id_may_be_kept(tmp_path: Path) -> None:
    table = read(tmp_path, repeated_ids="first")
    assert table.ids == ["a", "b", "c"]
    np.testing.assert_array_equal(table.features["n"], [10, 1, 5])
    assert frame_of(table.features)["c"].tolist()[1:] == ["x", "z"]
    assert pd.isna(frame_of(table.features)["c"][0])
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1, 1]
    assert table.n_repeated == 3


def test_the_rows_of_an_id_may_become_one(tmp_path: Path) -> None:
    table = read(tmp_path, repeated_ids="aggregate")
    assert table.ids == ["a", "b", "c"]
    np.testing.assert_array_equal(table.features["n"], [15, 2.5, 5])
    assert frame_of(table.features)["c"].tolist() == ["w", "y", "z"]
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1, 1]


def test_rows_of_one_id_with_different_labels_are_not_aggregated(tmp_path: Path) -> None:
    text = ROWS.replace("b,0,4", "b,1,4")
    with pytest.raises(DataError, match="different labels in rows of the same ID, for 1 ID: correct") as error:
        read(tmp_path, text, repeated_ids="aggregate")
    assert notes(error.value) == ["the first is in line 6, column 'y'"]
    assert read(tmp_path, text, repeated_ids="first").ids == ["a", "b", "c"]


def test_a_table_without_repeated_ids_is_the_same_in_every_case(tmp_path: Path) -> None:
    text = "id,y,n,c\nb,0,1,x\na,1,,\n"
    tables = [read(tmp_path, text, repeated_ids=how) for how in ("refuse", "first", "aggregate")]
    for table in tables:
        pd.testing.assert_frame_equal(frame_of(table.features), frame_of(tables[0].features))
        assert ([*table.ids], table.n_repeated) == (["a", "b"], 0)


@pytest.mark.parametrize("how", ["first", "aggregate"])
def test_an_alignment_and_a_prediction_see_the_same_ids_as_a_training(tmp_path: Path, how: str) -> None:
    config = dataset(tmp_path, repeated_ids=how)
    category = CategoryColumn(name="c", reference="x", categories=["y"], missing="other", other="term")
    chunks = list(stream_table(config, ["n", "c"], [category], rows=2))
    rows = pd.concat([frame_of(chunk.features) for chunk in chunks])
    trained = read_table(config)

    assert read_table_ids(config).ids == trained.ids
    assert [chunk.ids for chunk in chunks] == [["b", "a"], ["c"]]
    assert rows["n"].tolist() == frame_of(trained.features)["n"].take([1, 0, 2]).tolist()


LETTERS = st.sampled_from(["a", "b", "c", None])


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.none() | st.integers(-5, 5), LETTERS), min_size=1))
def test_aggregation_agrees_with_a_plain_loop(rows: list[tuple[str, int | None, str | None]]) -> None:
    ids = [one for one, _, _ in rows]
    frame = pd.DataFrame(
        {
            "n": pd.Series([number for _, number, _ in rows], dtype=float),
            "c": pd.Series([letter for _, _, letter in rows], dtype="str"),
        }
    )
    distinct = DistinctIds.of(Ids.of(ids))
    columns = features_of(frame).columns.items()
    aggregated = {name: aggregate_column(distinct.owners(), column) for name, column in columns}
    result = frame_of(Features(aggregated, len(distinct.ids)))

    assert distinct.ids == sorted(set(ids))
    assert distinct.first.tolist() == [ids.index(one) for one in distinct.ids]
    assert distinct.n_repeated == len(ids) - len(set(ids))
    for place, one in enumerate(distinct.ids):
        own = [row for row in rows if row[0] == one]
        numbers = [number for _, number, _ in own if number is not None]
        letters = [letter for _, _, letter in own if letter is not None]
        np.testing.assert_allclose(result["n"][place], np.mean(numbers) if numbers else np.nan)
        # `Counter` keeps the order of the first occurrences.
        expected = Counter(letters).most_common(1)[0][0] if letters else None
        assert expected == (None if pd.isna(result["c"][place]) else result["c"][place])


# --- IDs of several columns

PAIRS = "country,number,y,n\nDE,7.0,0,1\nFR, 7,1,2\nDE,71,1,3\n"


def test_several_columns_are_one_id(tmp_path: Path) -> None:
    config = dataset(tmp_path, PAIRS, id=["country", "number"], categorical=[])
    table = read_table(config)
    assert table.ids == [SEPARATOR.join(pair) for pair in (("DE", "7"), ("DE", "71"), ("FR", "7"))]
    assert list(frame_of(table.features)) == ["n"]
    assert table.changed_ids == {"spaces": 1, "unicode": 0, "decimals": 1}
    assert read_table_ids(config).ids == table.ids


def test_parts_do_not_run_together(tmp_path: Path) -> None:
    table = read(tmp_path, "p,q,y,n\na,bc,0,1\nab,c,1,2\n", id=["p", "q"], categorical=[])
    assert len(set(table.ids)) == 2


def test_a_list_of_one_column_is_that_column(tmp_path: Path) -> None:
    assert read(tmp_path, "k,y,n\n1,0,3\n2,1,4\n", id=["k"], categorical=[]).ids == ["1", "2"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("DE,,0,1", "column 'number' has no ID in 1 of 4 rows"),
        ("DE,71,0,1", "columns 'country', 'number' repeat an earlier ID in 1 of 4 rows"),
        (f"D{SEPARATOR}E,7,0,1", r"column 'country' has the control character U\+001F"),
    ],
)
def test_faults_in_ids_of_several_columns_are_named(tmp_path: Path, row: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as error:
        read(tmp_path, f"{PAIRS}{row}\n", id=["country", "number"], categorical=[])
    assert "line 5" in notes(error.value)[0]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"id": ["a", "a"]}, "t: `id` names a column twice"),
        ({"id": ["a", "b"], "features": ["b"]}, "t: `features` names the ID column: an ID is not a feature"),
        ({"id": ["a", "b"], "label": {"column": "b"}}, "t: the label and the ID are the same column"),
        ({"id": ["a", 3]}, "t: id.1: expected text (put a number, or a word such as yes, in quotes), not 3"),
        ({"id": []}, "t: id: expected text (put a number, or a word such as yes, in quotes) or at least 1 in the list"),
        ({"repeated_ids": "last"}, "t: repeated_ids: expected refuse, first or aggregate, not last"),
        ({"missing": "NA"}, "t: missing: expected a list, such as [a, b], not NA"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_settings(DatasetConfig, {"path": "t.csv", **settings}, "t")
    assert str(error.value) == problem


@pytest.mark.parametrize("repeated", ["first", "aggregate"])
def test_a_table_without_features_has_a_row_for_each_id(tmp_path: Path, repeated: str) -> None:
    table = read(tmp_path, "id,y\na,0\nb,1\na,0\n", repeated_ids=repeated, categorical=[])
    assert (len(table.ids), len(table.features)) == (2, 2)
