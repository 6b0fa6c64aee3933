"""Which texts mean a missing value is a setting of the table, and the model reads new rows as it read the old ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.frames import features_of, frame_of
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.data.model.scoring import score_features
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.tables.column_reader import MISSING
from trilateral.common.data.tables.table import read_frame, read_table, stream_table
from trilateral.common.protocol.messages import Result

TEXTS = ["NA", "None", "b", "", " NA ", "?"]


def read(path: Path, values: list[Any], **settings: Any) -> list[Any]:
    """Read the values as categories, and return them with None for missing."""
    ids = [f"{row}" for row in range(len(values))]
    if path.suffix == ".csv":
        path.write_text("id,x\n" + "".join(f"{one},{value}\n" for one, value in zip(ids, values, strict=True)))
    else:
        parquet.write_table(pa.table({"id": ids, "x": values}), path)
    table = read_table(DatasetConfig.model_validate({"path": path, "categorical": ["x"], **settings}))
    return [None if pd.isna(value) else value for value in frame_of(table.features)["x"]]


@pytest.mark.parametrize(
    ("name", "missing", "expected"),
    [
        ("t.csv", None, [None, None, "b", None, None, "?"]),
        ("t.csv", [], ["NA", "None", "b", None, "NA", "?"]),
        ("t.csv", ["None", "?"], ["NA", None, "b", None, "NA", None]),
        ("t.parquet", None, ["NA", "None", "b", None, "NA", "?"]),
        ("t.parquet", ["NA"], [None, "None", "b", None, None, "?"]),
    ],
)
def test_the_list_says_which_categories_are_missing(
    tmp_path: Path, name: str, missing: list[str] | None, expected: list[str | None]
) -> None:
    assert read(tmp_path / name, TEXTS, missing=missing) == expected


def test_nulls_of_parquet_are_missing_whatever_the_list_says(tmp_path: Path) -> None:
    assert read(tmp_path / "t.parquet", ["a", None, "NA"], missing=[]) == ["a", None, "NA"]


@pytest.mark.parametrize(
    "column",
    [pa.array(["1", "-999", "NA", "-999.0", None]), pa.array([1, -999, None, -999, None]), pa.array([1.0, -999] * 2)],
)
def test_a_number_that_means_missing_is_missing_however_it_is_written(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"id": [f"{row}" for row in range(len(column))], "x": column}), path)
    table = read_table(DatasetConfig.model_validate({"path": path, "missing": [-999]}))
    assert frame_of(table.features)["x"].dropna().unique().tolist() == [1]


def test_a_category_that_is_a_number_may_mean_missing(tmp_path: Path) -> None:
    assert read(tmp_path / "t.parquet", [1.0, 9.0, None, 2.5], missing=[9]) == ["1", None, None, "2.5"]


def test_the_usual_texts_are_missing_numbers_even_if_they_are_categories(tmp_path: Path) -> None:
    """No number is written like that, so nothing is lost."""
    path = tmp_path / "t.csv"
    path.write_text("id,x,c\n1,NA,NA\n2,.,b\n3,3,b\n")
    table = read_table(DatasetConfig(path=path, categorical=["c"], missing=["."]))
    np.testing.assert_array_equal(table.features["x"], [np.nan, np.nan, 3])
    assert frame_of(table.features)["c"].tolist() == ["NA", "b", "b"]
    with pytest.raises(DataError, match="column 'x' has 1 value that is not a number: .* or list their spelling"):
        read_table(DatasetConfig(path=path, categorical=["c"]))


# --- a model and new rows


def train(folder: Path, name: str, **settings: Any) -> PartyModel:
    """Train on a column whose categories are "NA" and "b", with some values missing."""
    values = ["NA", "b", None, "b"] * 30
    path = folder / name
    frame = pd.DataFrame({"id": [f"{row:03}" for row in range(120)], "x": values, "n": range(120)})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    dataset = DatasetConfig.model_validate({"path": path, "categorical": ["x"], **settings})
    job = JobConfig(name="job", dataset="people", holdout=0.0)
    data = load_party_data(dataset, job, labelled=False)
    result = Result(np.ones(data.block.columns.shape[1]), 0.5, 7, 3, "converged")
    save_model(folder / "model.json", PartyModel.of(Role.HOST, job, data, dataset, result, run_id="0" * 32))
    return load_model(folder / "model.json")


def new_rows(model: PartyModel, path: Path, text: str, **settings: Any) -> list[Any]:
    path.write_text(text)
    columns = model.steps.texts
    dataset = DatasetConfig.model_validate({"path": path, **settings})
    chunks = stream_table(dataset, model.steps.features, columns, missing=model.missing)
    values = [value for chunk in chunks for value in frame_of(chunk.features)["x"]]
    return [None if pd.isna(value) else value for value in values]


ROWS = "id,x,n\n1,NA,1\n2,b,2\n3,,3\n4,None,4\n"


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("t.csv", {"missing": []}, ["NA", "b", None, "None"]),
        ("t.csv", {"missing": ["b"]}, ["NA", None, None, "None"]),
        ("t.csv", {}, [None, "b", None, None]),
        # The CSV file writes missing values as text, which the Parquet file did not need.
        ("t.parquet", {}, ["NA", "b", None, None]),
    ],
)
def test_new_rows_are_read_like_those_of_the_training(
    tmp_path: Path, name: str, settings: dict[str, Any], expected: list[str | None]
) -> None:
    model = train(tmp_path, name, **settings)
    assert new_rows(model, tmp_path / "new.csv", ROWS) == expected


def test_the_list_of_the_new_table_takes_precedence(tmp_path: Path) -> None:
    model = train(tmp_path, "t.parquet")
    assert new_rows(model, tmp_path / "new.csv", ROWS, missing=["None", "NA"]) == [None, "b", None, None]


def test_a_frame_in_memory_is_read_as_the_model_says(tmp_path: Path) -> None:
    model = train(tmp_path, "t.parquet")
    steps = model.steps
    columns = steps.texts
    frame = pd.DataFrame({"x": ["NA", "b", None], "n": [1, 2, 3]})
    read = frame_of(read_frame(frame, steps.features, columns, model.missing))
    assert read["x"].tolist()[:2] == ["NA", "b"]
    assert len(set(score_features(steps, np.array(model.training_weights), features_of(read.assign(n=1.0))))) == 3


def test_a_model_of_an_older_release_reads_as_that_release_did(tmp_path: Path) -> None:
    model = train(tmp_path, "t.csv")
    old = PartyModel.model_validate(model.model_dump(exclude={"missing", "left_out"}))
    assert old.missing == MISSING
    assert old.left_out == {}
