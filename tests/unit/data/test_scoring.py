"""One party's rows scored by its part of a model, and what it is told of its own table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.data.party_data import load_party_data
from trilateral.common.protocol.messages import Result

N_ROWS = 300


def people(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": [f"id-{row}" for row in range(N_ROWS)],
            "age": rng.normal(40, 10, N_ROWS),
            "branch": rng.choice(["north", "south"], N_ROWS),
        }
    )


@pytest.fixture
def model(tmp_path: Path) -> PartyModel:
    job = JobConfig(name="job", dataset="people", holdout=0.0)
    table = DatasetConfig(path=tmp_path / "train.csv", categorical=["branch"])
    people().to_csv(table.path, index=False)
    data = load_party_data(table, job, labelled=False)
    coef = np.ones(data.block.columns.shape[1])
    return PartyModel.of(Role.HOST, job, data, table, Result(coef, 0.5, 7, 3, "converged"), run_id="0" * 32)


def warnings(model: PartyModel, rows: pd.DataFrame, folder: Path) -> list[str]:
    rows.to_csv(folder / "new.csv", index=False)
    return score_table(model, DatasetConfig(path=folder / "new.csv"), ScoredRows(folder, ["id"]), lambda _: None)


def test_rows_like_those_of_the_training_are_scored_without_a_warning(model: PartyModel, tmp_path: Path) -> None:
    assert not warnings(model, people(1), tmp_path)


def test_values_that_are_missing_are_not_warned_of(model: PartyModel, tmp_path: Path) -> None:
    assert not warnings(model, people(1).assign(branch=None), tmp_path)


def test_categories_of_which_nearly_none_is_known_are_warned_of(model: PartyModel, tmp_path: Path) -> None:
    rows = people(1)
    rows["branch"] = rows["branch"].str.upper()
    rows.loc[:1, "branch"] = "north"
    rows.loc[2:9, "branch"] = None

    (warning,) = warnings(model, rows, tmp_path)

    assert "the model knows the category in column 'branch' in only 2 of 292 rows" in warning
    assert "NORTH" not in warning
