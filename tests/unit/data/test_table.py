"""Reading a party's table, and what is said about one that cannot be used."""

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.frames import frame_of
from trilateral.common.base.errors import DataError, notes
from trilateral.common.config.dataset import DatasetConfig, LabelConfig
from trilateral.common.data.tables.table import PartyTable, read_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def csv_table(folder: Path, text: str, **settings: Any) -> PartyTable:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read_table(DatasetConfig.model_validate({"path": path, **settings}))


def parquet_table(folder: Path, columns: dict[str, Any], **settings: Any) -> PartyTable:
    path = folder / "table.parquet"
    parquet.write_table(pa.table(columns), path)
    return read_table(DatasetConfig.model_validate({"path": path, **settings}))


def refusal(folder: Path, text: str, **settings: Any) -> str:
    """The text of the error, which must be public whatever the table holds."""
    return str(refused(folder, text, **settings))


def refused(folder: Path, text: str, **settings: Any) -> DataError:
    with pytest.raises(DataError) as error:
        csv_table(folder, text, **settings)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert str(folder) not in str(error.value)
    return error.value


# --- what is read


def test_rows_come_in_canonical_order_with_ids_as_text(folder: Path) -> None:
    table = csv_table(folder, "a,label,id,b\n1,1,9,0.5\n2,0,010,\n3,1,10,-1e3\n", label={})

    assert table.ids == ["010", "10", "9"]
    assert list(table.features.columns) == ["a", "b"]
    assert (frame_of(table.features).dtypes == np.float64).all()
    np.testing.assert_array_equal(frame_of(table.features), [[2, np.nan], [3, -1000], [1, 0.5]])
    np.testing.assert_array_equal(table.labels, [-1, 1, 1])


def test_compressed_and_parquet_tables_read_like_csv(folder: Path) -> None:
    text = "id,label,a,b\n007,1,1.5,3\n12,0,,4\n"
    (folder / "table.csv.gz").write_bytes(gzip.compress(text.encode()))

    plain = csv_table(folder, text, label={})
    packed = read_table(DatasetConfig(path=folder / "table.csv.gz", label=LabelConfig()))
    columns = {"id": ["007", "12"], "label": [1, 0], "a": [1.5, None], "b": [3, 4]}
    binary = parquet_table(folder, columns, label={})

    for other in (packed, binary):
        assert other.ids == plain.ids == ["007", "12"]
        np.testing.assert_array_equal(frame_of(other.features), frame_of(plain.features))
        np.testing.assert_array_equal(other.labels, plain.labels)


def test_integer_ids_in_parquet_become_text(folder: Path) -> None:
    table = parquet_table(folder, {"id": pa.array([20, 3], pa.int64()), "a": [1.0, 2.0]})

    assert table.ids == ["20", "3"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 0], pa.int8()),
        pa.array([True, None, False]),
        pa.array([Decimal("1.0"), None, Decimal("0.0")]),
        pa.array(["1", "NA", " 0 "]),
        pa.array(["1", None, "0"], pa.large_string()),
        pa.array([1, None, 0], pa.int64()).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_every_type_of_number_becomes_float(folder: Path, column: pa.Array) -> None:
    table = parquet_table(folder, {"id": ["a", "b", "c"], "x": column})

    np.testing.assert_array_equal(table.features["x"], [1, np.nan, 0])


def test_integers_too_long_for_a_float_are_rounded(folder: Path) -> None:
    table = parquet_table(folder, {"id": ["a"], "x": pa.array([2**60 + 1], pa.int64())})

    assert frame_of(table.features)["x"].tolist() == [2.0**60]


def test_a_number_after_many_integers_may_be_fractional(folder: Path) -> None:
    lines = "".join(f"{row},{row}\n" for row in range(300_000))

    table = csv_table(folder, f"id,a\n{lines}x,0.5\n")

    assert len(table.ids) == 300_001
    assert frame_of(table.features)["a"].iloc[-1] == 0.5


@pytest.mark.parametrize(
    ("positive", "negative", "written"),
    [
        ("1", "0", ["1", "0", "1.0", "0.0", " 1", "00"]),
        ("1", "-1", ["1", "-1", "+1", "-1.0", "1e0", "-1"]),
        ("2", "1", ["2", "1", "2.", "1.", "2", "1"]),
        ("Yes", "no", ["yes", "No", "YES", "no ", "Yes", "NO"]),
        ("true", "false", ["True", "False", "true", "false", "TRUE", "FALSE"]),
        ("NA", "null", ["NA", "null", "NA", "null", "NA", "null"]),
    ],
)
def test_label_values_are_mapped_by_configuration(
    folder: Path, positive: str, negative: str, written: list[str]
) -> None:
    lines = "".join(f"{row},0,{value}\n" for row, value in enumerate(written))

    table = csv_table(folder, f"id,a,y\n{lines}", label={"column": "y", "positive": positive, "negative": negative})

    np.testing.assert_array_equal(table.labels, [1, -1, 1, -1, 1, -1])


@pytest.mark.parametrize("label", [[1, 0], [1.0, 0.0], ["1", "0"]])
def test_label_types_in_parquet_are_alike(folder: Path, label: list[Any]) -> None:
    table = parquet_table(folder, {"id": [1, 2], "label": label, "a": [1, 2]}, label={})

    np.testing.assert_array_equal(table.labels, [1, -1])


def test_features_are_chosen_by_name_or_by_exclusion(folder: Path) -> None:
    text = "id,a,b,note,label\n1,1,2,x,1\n2,3,4,y,0\n"

    chosen = csv_table(folder, text, label={}, features=["b", "a"])
    left = csv_table(folder, text, label={}, exclude=["note", "b"])

    assert list(chosen.features.columns) == ["a", "b"]
    assert list(left.features.columns) == ["a"]


def test_a_mark_of_a_spreadsheet_at_the_start_is_no_part_of_the_first_name(folder: Path) -> None:
    assert csv_table(folder, "\ufeffid,a\n1,2\n").ids == ["1"]


def test_a_value_may_span_lines(folder: Path) -> None:
    assert csv_table(folder, 'id,a\n"x\ny",2\n').ids == ["x\ny"]


def test_an_id_may_be_written_like_a_missing_value(folder: Path) -> None:
    assert csv_table(folder, "id,a\nNA,2\nnull,3\n").ids == ["NA", "null"]


# --- files


def test_a_file_that_is_not_there_is_named_without_its_folder(folder: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file gone\.csv at the dataset's `path`") as error:
        read_table(DatasetConfig(path=folder / "gone.csv"))
    assert str(folder) not in str(error.value)


def test_a_file_of_another_kind_is_refused(folder: Path) -> None:
    (folder / "table.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"must end in \.csv, \.csv\.gz or \.parquet"):
        read_table(DatasetConfig(path=folder / "table.xlsx"))


WHOLE = gzip.compress(b"id,a\n" + b"".join(b"%d,%d\n" % (row, row * row) for row in range(100_000)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", b""),
        ("blank.csv", b"\n\n"),
        ("latin.csv", "id,a\nM\u00fcller,1\n".encode("latin-1")),
        ("names.csv", "id,gr\u00f6\u00dfe\n1,1\n".encode("latin-1")),
        ("plain.csv.gz", b"id,a\n1,2\n"),
        ("cut.csv.gz", WHOLE[: len(WHOLE) // 2]),
        ("text.parquet", b"id,a\n1,2\n"),
        ("empty.parquet", b""),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)

    with pytest.raises(DataError, match="cannot be read as a") as error:
        read_table(DatasetConfig(path=folder / name))

    assert "ller" not in str(error.value)
    assert str(folder) not in str(error.value)
    assert error.value.__suppress_context__


def test_a_table_without_rows_is_refused(folder: Path) -> None:
    assert "has no rows" in refusal(folder, "id,a\n")


def test_lines_of_another_length_are_counted(folder: Path) -> None:
    message = refusal(folder, "id,a,b\n1,2,3\nsecret1,2\n3,4,5,6\n4,5,6\n")

    assert "has 2 lines with more or fewer values" in message
    assert "secret1" not in message
    assert "2 lines" in refusal(folder, "id,a,b\n1,2,text\nsecret1,2\n3,4,5,6\n")


def test_a_table_tells_how_many_ids_each_rule_has_changed(folder: Path) -> None:
    table = csv_table(folder, "id,a\n 17.0,1\n18,2\n19.0,3\n")

    assert table.ids == ["17", "18", "19"]
    assert table.changed_ids == {"spaces": 1, "unicode": 0, "decimals": 2}


# --- names of columns


def test_a_misspelt_column_is_named_and_the_other_names_stay_here(folder: Path) -> None:
    error = refused(folder, "id,income,zip_code\n1,2,3\n", exclude=["zipcode"])
    assert str(error) == "`exclude` names a column 'zipcode' that does not exist: correct the setting"
    assert error.__notes__ == ["did you mean 'zip_code' or 'income'?", "the columns are 'id', 'income', 'zip_code'"]
    far = refused(folder, "id,income\n1,2\n", exclude=["y"])
    assert far.__notes__ == ["the columns are 'id', 'income'"]


def test_the_names_of_a_table_without_features_stay_here(folder: Path) -> None:
    error = refused(folder, "id,income\n1,2\n2,3\n", exclude=["income"])
    assert "income" not in str(error)
    assert error.__notes__ == ["its columns are 'id', 'income'"]


@pytest.mark.parametrize(
    ("text", "settings", "way_out"),
    [
        ("alice,malignant,7x\nbob,benign,1\n", {}, "first line of the file, which must hold the column names"),
        ("alice,malignant,0.5\nbob,benign,1\n", {}, "seems to hold values"),
        ("alice,malignant,malignant\nbob,benign,\n", {}, "first line of the file, which must hold the column names"),
        ("alice,malignant,\nbob,benign,\n", {}, "first line of the file, which must hold the column names"),
        ("alice;malignant;0.5\nbob;benign;1\n", {}, "separated by semicolons"),
        ("alice;malignant;0,5\nbob;benign;1,5\n", {}, "separated by semicolons"),
        ("alice\tmalignant\t0.5\nbob\tbenign\t1\n", {}, "separated by tabs"),
        ("alice,malignant,id\nbob,benign,x\n", {}, "first line of the file, which must hold the column names"),
        ("alice,malignant,7x\nbob,benign,1\n", {"id": "alise", "label": {"column": "malignan"}}, "correct the setting"),
        ("alice,malignant,7x\nbob,benign,1\n", {"exclude": ["alise"]}, "correct the setting"),
    ],
)
def test_no_name_of_a_file_is_told_before_the_id_and_the_label_are_found(
    folder: Path, text: str, settings: dict[str, Any], way_out: str
) -> None:
    """It may be the first person's ID, with a label."""
    error = refused(folder, text, **{"label": {"column": "label"}, **settings})

    assert way_out in str(error)
    assert not any(word in str(error) for word in ("alice", "'malignant'", "0.5", "7x"))
    (note,) = notes(error)
    assert "alice" in note, "the party itself is told what stands there"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"features": ["a", "y"]}, "features"),
        ({"exclude": ["y"]}, "exclude"),
    ],
)
def test_every_configured_name_must_exist(folder: Path, settings: dict[str, Any], setting: str) -> None:
    assert f"`{setting}` names a column 'y' that does not exist" in refusal(folder, "id,a\n1,2\n", **settings)


def test_a_wide_table_is_not_listed_whole(folder: Path) -> None:
    names = [f"c{number}" for number in range(100)]

    *_, listed = refused(folder, f"id,{','.join(names)}\n", exclude=["y"]).__notes__

    assert "'c38' and 61 more" in listed
    assert "'c39'" not in listed


def test_a_name_that_comes_twice_is_refused(folder: Path) -> None:
    assert "several columns with the same name: 'a'" in refusal(folder, "id,a,b,a\n1,2,3,4\n")


def test_a_table_with_neither_feature_nor_label_is_refused(folder: Path) -> None:
    assert "no feature is left" in refusal(folder, "id,a\n1,2\n2,3\n", exclude=["a"])


def test_a_table_with_a_label_needs_no_feature(folder: Path) -> None:
    table = csv_table(folder, "id,label,a\n2,0,3\n1,1,2\n", label={}, exclude=["a"])
    assert table.ids == ["1", "2"]
    assert frame_of(table.features).shape == (2, 0)
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1]
    assert frame_of(table.select(np.array([0, 1])).features).shape == (2, 0)


# --- IDs


def test_rows_without_an_id_are_counted(folder: Path) -> None:
    assert "column 'id' has no ID in 2 of 3 rows" in refusal(folder, "id,a\nann,1\n,2\n  ,3\n")


def test_repeated_ids_are_counted_and_not_named(folder: Path) -> None:
    message = refusal(folder, "id,a\nann,1\nbob,2\nann,3\nann,4\n")

    assert "column 'id' repeats an earlier ID in 2 of 4 rows" in message
    assert "ann" not in message


def test_fractional_ids_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="column 'id' has a floating-point type and 1 number that is not whole"):
        parquet_table(folder, {"id": [1.5, 2.0], "a": [1, 2]})


def test_ids_that_are_lists_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="cannot be read as text"):
        parquet_table(folder, {"id": [[1], [2]], "a": [1, 2]})


def test_ids_missing_in_parquet_are_counted(folder: Path) -> None:
    with pytest.raises(DataError, match="no ID in 1 of 2 rows"):
        parquet_table(folder, {"id": ["x", None], "a": [1, 2]})


# --- labels


def test_rows_without_a_label_are_counted(folder: Path) -> None:
    assert "column 'label' has no label in 1 of 3 rows" in refusal(folder, "id,a,label\n1,1,1\n2,2,\n3,3,0\n", label={})


def test_other_label_values_are_counted_and_not_shown(folder: Path) -> None:
    message = refusal(folder, "id,a,label\n1,1,1\n2,2,maybe\n3,3,0\n4,4,maybe\n", label={})

    assert "column 'label' has a value other than the two labels in 2 of 4 rows" in message
    assert "expects '1' and '0'" in message
    assert "maybe" not in message


def test_neither_other_values_nor_the_names_of_classes_leave_the_guest(folder: Path) -> None:
    rows = ["1,1,own", "2,2,rent", "3,3,own", "4,4,rent"]
    for last, expected in (("5,5,maybe", "a value other than the classes in 1 of 5 rows"), ("5,5,own", "not all of")):
        table = "\n".join(["id,a,label", *rows, last, ""])
        message = refusal(folder, table, label={"classes": ["own", "rent", "free"]})
        assert expected in message
        assert not any(name in message for name in ("own", "rent", "free", "maybe"))


@pytest.mark.parametrize("value", ["0", "1"])
def test_a_label_that_never_varies_is_refused_without_saying_which_it_is(folder: Path, value: str) -> None:
    message = refusal(folder, f"id,a,label\n1,1,{value}\n2,2,{value}\n", label={})

    assert "column 'label' holds only one of the two values: `label` expects '1' and '0'" in message


# --- features


def test_values_that_are_not_numbers_are_counted_and_not_shown(folder: Path) -> None:
    message = refusal(folder, "id,a,job\nann,1,nurse\nbob,2,\ncid,3,4\ndan,4,baker\n")

    assert "column 'job' has 2 values that are not numbers" in message
    assert "decimal point" in message
    assert "exclude the column" in message
    assert not any(word in message for word in ("nurse", "baker", "ann", "bob"))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, None, 1], pa.timestamp("us")),
        pa.array(["u", None, "v"]).dictionary_encode(),
        pa.array(["u", None, "v"]),
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_are_not_numbers_are_refused(folder: Path, column: pa.Array) -> None:
    with pytest.raises(DataError, match="column 'when' has 2 values that are not numbers"):
        parquet_table(folder, {"id": [1, 2, 3], "when": column})


def test_infinite_values_are_counted(folder: Path) -> None:
    assert "column 'a' has 2 infinite values" in refusal(folder, "id,a\n1,inf\n2,3\n3,-inf\n")


def test_a_column_without_any_value_is_read(folder: Path) -> None:
    """Whether it has a value in the training rows is not known before the split."""
    assert frame_of(csv_table(folder, "id,a,b\n1,1,\n2,2,NA\n").features)["b"].isna().all()
