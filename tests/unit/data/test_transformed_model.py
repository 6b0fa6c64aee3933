"""A model with every kind of fitted column, from the table to scores."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import trilateral
from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.export import weights_of
from trilateral.common.data.model.model_file import PartyModel, load_model, save_model
from trilateral.common.data.model.scoring import score_features, score_table
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.data.party_data import load_party_data
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.protocol.messages import Result

N_ROWS = 600
TERMS = (
    *("log(income)", "income is missing"),
    *(f"spline(yeo_johnson(debt)) {term}" for term in range(1, 5)),
    *(f"bspline(age) {term}" for term in range(1, 5)),
    *("branch=south", "branch=west"),
    "ordinal(size)",
    "frequency(job)",
    "log(income):yeo_johnson(debt)",
    *("age:branch=south", "age:branch=west"),
)


def people(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    income = np.exp(rng.normal(8, 1, N_ROWS))
    return pd.DataFrame(
        {
            "id": np.arange(N_ROWS),
            "income": np.where(rng.random(N_ROWS) < 0.1, np.nan, income),
            "debt": rng.gamma(2, 1000, N_ROWS),
            "age": rng.uniform(18, 90, N_ROWS),
            "branch": rng.choice(["north", "south", "west"], N_ROWS, p=[0.5, 0.3, 0.2]),
            "size": rng.choice(["1", "2", "3"], N_ROWS),
            "job": rng.choice(["a", "b", "c", "d", ""], N_ROWS, p=[0.4, 0.3, 0.2, 0.05, 0.05]),
        }
    )


def dataset(path: Path) -> DatasetConfig:
    columns = {
        "income": {"transform": "log", "limits": [100, None], "missing_indicator": True},
        "debt": {"transform": "yeo_johnson", "spline": {"knots": 3}},
        "age": {"spline": {"kind": "bspline", "knots": [50]}},
        "size": {"encoding": [1, 2, 3]},
        "job": {"encoding": "frequency"},
    }
    return DatasetConfig.model_validate(
        {
            "path": path,
            "categorical": ["branch", "size", "job"],
            "preprocessing": {
                "clip": [0.02, 0.98],
                "columns": columns,
                "interactions": [["income", "debt"], ["age", "branch"]],
            },
        }
    )


@pytest.mark.parametrize("protocol", ["paillier", "shares"])
def test_the_scores_are_the_same_in_training_file_and_api(tmp_path: Path, protocol: str) -> None:
    people(0).to_csv(tmp_path / "train.csv", index=False)
    people(1).to_csv(tmp_path / "new.csv", index=False)
    job = JobConfig.model_validate({"name": "job", "dataset": "people", "holdout": 0.0, "protocol": protocol})
    data = load_party_data(dataset(tmp_path / "train.csv"), job, labelled=False)
    coef = np.random.default_rng(2).standard_normal(data.preprocessing.n_columns)
    result = Result(coef, 0.5, 7, 3, "converged")
    save_model(
        tmp_path / "model.json",
        PartyModel.of(Role.HOST, job, data, dataset(tmp_path / "train.csv"), result, run_id="0" * 32),
    )

    model = load_model(tmp_path / "model.json")

    assert tuple(model.weights) == TERMS
    assert model.steps.features == ("income", "debt", "age", "branch", "size", "job")
    assert model.steps.n_row_values == 6
    spread = {each.term: each.has_spread for each in weights_of(model)}
    assert not any(spread[term] for term in ("income is missing", "branch=south", "branch=west"))
    assert sum(spread.values()) == len(TERMS) - 3

    rows = ScoredRows(tmp_path, ["id"])
    assert score_table(model, dataset(tmp_path / "new.csv"), rows, lambda _: None) == []
    in_file = np.concatenate([np.asarray(batch["scores"].flatten()) for batch in rows._batches()])
    in_memory = trilateral.load_model(tmp_path / "model.json").score(people(1))
    np.testing.assert_allclose(in_file, in_memory, rtol=1e-12)
    trained = np.asarray(data.block.columns) @ coef
    again = trilateral.load_model(tmp_path / "model.json").score(people(0).iloc[::-1])
    np.testing.assert_allclose(np.sort(again), np.sort(trained), atol=1e-9)


def test_a_row_for_which_a_transform_is_not_defined_is_refused_with_a_way_out() -> None:
    amounts = pd.DataFrame({"amount": np.linspace(10, 20, 100)})
    config = PreprocessingConfig.model_validate({"transform": "log", "clip": None})
    steps = Preprocessing.fit(features_of(amounts), config, intercept=False)
    with pytest.raises(DataError, match="2 rows have values so far outside .* train with `clip`"):
        score_features(steps, np.ones(1), features_of(pd.DataFrame({"amount": [15.0, 0.0, -3.0]})))
