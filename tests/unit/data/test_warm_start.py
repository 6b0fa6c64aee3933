"""An earlier model in the units of new training columns: the same scores, as far as a start can have them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, LabelConfig, PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.warm_start import warm_start
from trilateral.common.data.party_data import PreparedData, load_party_data, read_party_table
from trilateral.common.protocol.messages import Result

STEP = 2.0**-12
N_ROWS = 400


def people(seed: int, mean: float = 0.0, branches: str = "ab") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(mean, 1 + abs(mean), size=(N_ROWS, 3)), columns=["age", "debt", "income"])
    table["debt"] += 0.8 * table["age"]
    table["branch"] = rng.choice([*branches], N_ROWS)
    table["label"] = (table["age"] + rng.logistic(size=N_ROWS) > mean).astype(int)
    table.insert(0, "id", [f"person-{seed}-{row}" for row in range(N_ROWS)])
    return table


def prepare(folder: Path, table: pd.DataFrame, role: Role, **settings: Any) -> tuple[DatasetConfig, PreparedData]:
    path = folder / "table.csv"
    (table if role is Role.GUEST else table.drop(columns="label")).to_csv(path, index=False)
    dataset = DatasetConfig(
        path=path,
        label=LabelConfig() if role is Role.GUEST else None,
        categorical=["branch"] if "branch" in table else [],
        preprocessing=PreprocessingConfig(clip=None, **settings),
    )
    return dataset, load_party_data(dataset, JOB, labelled=role is Role.GUEST)


JOB = JobConfig(name="may", dataset="people", protocol="shares", holdout=0.0)


def train(folder: Path, role: Role, table: pd.DataFrame, job: JobConfig = JOB, **settings: Any) -> PartyModel:
    dataset, data = prepare(folder, table, role, **settings)
    coef = np.random.default_rng(9).normal(size=data.block.columns.shape[1])
    return PartyModel.of(role, job, data, dataset, Result(coef, 0.5, 7, 3, "converged"), run_id="0" * 32)


def start_of(model: PartyModel, data: PreparedData, folder: Path) -> FloatVector:
    path = folder / "table.csv"
    exclude = [name for name in pd.read_csv(path).columns if name == "label"]
    table = read_party_table(DatasetConfig(path=path, categorical=["branch"], exclude=exclude), JOB, labelled=False)
    rows = np.arange(len(table.ids))
    steps = data.preprocessing
    return warm_start(model, table.features, rows, data.block.columns, intercept=steps.intercept)


@pytest.mark.parametrize("role", [Role.GUEST, Role.HOST])
@pytest.mark.parametrize("whiten", [True, False])
def test_on_the_same_rows_a_start_is_the_earlier_weights(tmp_path: Path, role: Role, whiten: bool) -> None:
    model = train(tmp_path, role, people(1), whiten=whiten)
    start = start_of(model, prepare(tmp_path, people(1), role, whiten=whiten)[1], tmp_path)
    np.testing.assert_allclose(start, model.training_weights, rtol=0, atol=STEP / 2 + 1e-9)
    assert (start / STEP == np.rint(start / STEP)).all()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("role", [Role.GUEST, Role.HOST])
def test_other_rows_get_the_scores_of_the_earlier_model(tmp_path: Path, role: Role, before: bool, after: bool) -> None:
    """The guest's are equal, the host's up to a constant. Another category is the reference of the other rows."""
    model = train(tmp_path, role, people(1, branches="aab"), whiten=before)
    other_rows = people(2, mean=0.7, branches="abb")
    data = prepare(tmp_path, other_rows, role, whiten=after)[1]
    assert set(data.preprocessing.terms) != set(model.weights)
    difference = np.asarray(data.block.columns) @ start_of(model, data, tmp_path) - plain_scores(model, other_rows)
    if role is Role.HOST:
        difference -= difference.mean()
    assert np.abs(difference).max() < 20 * STEP


def plain_scores(model: PartyModel, table: pd.DataFrame) -> FloatVector:
    """Add up weights times values, in canonical order of the IDs."""
    ordered = table.sort_values("id")
    scores = np.full(len(table), model.intercept)
    for term, weight in model.weights.items():
        name, _, category = term.partition("=")
        values = (ordered[name] == category) if category else ordered[name]
        scores += weight * values.to_numpy(np.float64)
    return scores


def test_a_category_that_the_earlier_model_lacks_begins_with_the_score_of_the_reference(tmp_path: Path) -> None:
    model = train(tmp_path, Role.HOST, people(1, branches="aab"), whiten=False)
    data = prepare(tmp_path, people(2, branches="aabc"), Role.HOST, whiten=False)[1]
    start = dict(zip(data.preprocessing.terms, start_of(model, data, tmp_path), strict=True))
    assert start["branch=c"] == 0.0


def test_a_column_that_is_gone_is_refused(tmp_path: Path) -> None:
    model = train(tmp_path, Role.HOST, people(1))
    data = prepare(tmp_path, people(2).rename(columns={"debt": "owed"}), Role.HOST)[1]
    with pytest.raises(DataError, match=r"lacks columns of the model of job \S+: 'debt': .*`start_from`"):
        start_of(model, data, tmp_path)


@pytest.mark.parametrize("constant_before", [True, False])
def test_a_column_that_was_left_out_for_lack_of_values_may_differ(tmp_path: Path, constant_before: bool) -> None:
    changing, constant = people(1), people(2).assign(debt=1.0)
    before, after = (constant, changing) if constant_before else (changing, constant)
    model = train(tmp_path, Role.HOST, before)
    data = prepare(tmp_path, after, Role.HOST)[1]
    assert len(start_of(model, data, tmp_path)) == data.preprocessing.n_columns


def test_a_model_of_the_other_protocol_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = train(tmp_path, Role.HOST, people(1), job=JOB.model_copy(update={"protocol": "paillier"}))
    with pytest.raises(DataError, match="hides the guest's weights from the coordinator"):
        start_of(model, prepare(tmp_path, people(1), Role.HOST)[1], tmp_path)
