"""Products of two columns."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS

N_ROWS = 1000


def people(rare: int = 200, seed: int = 0) -> pd.DataFrame:
    """Numbers and categories; `rare` rows are of the branch west."""
    rng = np.random.default_rng(seed)
    branch = np.array(["north", "south"])[rng.integers(0, 2, N_ROWS)]
    branch[rng.permutation(N_ROWS)[:rare]] = "west"
    return pd.DataFrame(
        {
            "age": rng.uniform(18, 90, N_ROWS),
            "income": np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.uniform(1, 5, N_ROWS)),
            "branch": pd.Series(branch, dtype="str"),
            "same": 1.0,
        }
    )


def fit(frame: pd.DataFrame, *pairs: tuple[str, str], **settings: Any) -> Preprocessing:
    config = {"whiten": False, "rare": 0, "interactions": pairs, **settings}
    return Preprocessing.fit(features_of(frame), PreprocessingConfig.model_validate(config), intercept=False)


def test_a_product_is_of_prepared_values() -> None:
    steps = fit(people(), ("income", "age"), clip=[0.1, 0.9], transform="log", missing_indicator=True)
    terms = dict(zip(steps.terms, steps.expand(features_of(people(seed=1))).T, strict=True))
    np.testing.assert_allclose(terms["log(income):log(age)"], terms["log(income)"] * terms["log(age)"])
    assert steps.features == ("age", "income", "branch")
    assert steps.n_row_values == 3


@pytest.mark.parametrize("pair", [("age", "branch"), ("branch", "age")])
def test_a_number_has_a_slope_in_each_category(pair: tuple[str, str]) -> None:
    steps = fit(people(), pair, spline={})
    assert [term for term in steps.terms if ":" in term] == ["age:branch=north", "age:branch=west"]
    assert [text.name for text in steps.texts] == ["branch"]
    rows = pd.DataFrame({"age": [50.0, 60, np.nan], "income": 1.0, "branch": ["west", "new", "west"]})
    np.testing.assert_array_equal(steps.expand(features_of(rows))[:2, -1], [50, 0])


@pytest.mark.parametrize(("rare", "has_slope"), [(MIN_ROWS, False), (8 * MIN_ROWS, True)])
def test_a_category_of_few_rows_has_no_slope_of_its_own(rare: int, has_slope: bool) -> None:
    steps = fit(people(rare), ("age", "branch"))
    assert "branch=west" in steps.terms
    assert ("age:branch=west" in steps.terms) is has_slope


def test_a_category_with_one_row_far_from_its_others_has_no_slope_of_its_own() -> None:
    frame = people()
    west = frame.index[frame["branch"] == "west"]
    frame.loc[west, "age"] = 30.0
    frame.loc[west[0], "age"] = 80.0
    steps = fit(frame, ("age", "branch"))
    assert "age:branch=west" not in steps.terms
    assert "age:branch=north" in steps.terms


def test_rows_of_the_reference_that_show_one_of_them_leave_the_interaction_out() -> None:
    frame = people()
    frame["branch"] = np.where(frame["branch"] == "north", "north", "south")
    frame["age"] = np.where(frame["branch"] == "south", 30.0, frame["age"])
    frame.loc[frame.index[frame["branch"] == "south"][0], "age"] = 80.0
    steps = fit(frame, ("age", "branch"))
    assert "would reveal them" in steps.left_out["age:branch"]


def test_a_product_that_one_row_dominates_is_left_out() -> None:
    """Neither factor is: each is large in other rows as well."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": np.zeros(N_ROWS), "b": np.zeros(N_ROWS)})
    frame.loc[:20, "a"] = frame.loc[20:40, "b"] = 1.0
    frame += rng.normal(0, 0.01, frame.shape)
    steps = fit(frame, ("a", "b"), clip=None)
    assert steps.terms == ("a", "b")
    assert "would reveal them" in steps.left_out["a:b"]


def test_an_interaction_with_a_column_that_is_left_out_is_left_out() -> None:
    steps = fit(people(), ("age", "same"))
    assert steps.left_out["age:same"] == "a factor that is left out itself"
    with pytest.raises(DataError, match="column 'age:same' has a factor that is left out itself"):
        fit(people(), ("age", "same"), constant="refuse")


@pytest.mark.parametrize(
    ("pair", "said"),
    [(("age", "shoes"), "names 'shoes', which is not a feature"), (("branch", "job"), "both categorical")],
)
def test_what_cannot_be_multiplied_is_refused(pair: tuple[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        fit(people().assign(job=pd.Series(["x", "y"] * (N_ROWS // 2), dtype="str")), pair)


@pytest.mark.parametrize("whiten", [True, False])
def test_the_model_is_the_same_after_json_and_in_units_of_the_terms(whiten: bool) -> None:
    steps = fit(people(), ("age", "income"), ("income", "branch"), whiten=whiten)
    rows = features_of(people(seed=1))
    coef = np.random.default_rng(1).standard_normal(steps.n_columns)
    again = Preprocessing.from_dict(json.loads(json.dumps(steps.to_dict())))
    assert again.to_dict() == steps.to_dict()
    np.testing.assert_array_equal(again.transform(rows), steps.transform(rows))
    weights, constant = steps.to_features(coef)
    np.testing.assert_allclose(steps.expand(rows) @ weights + constant, steps.transform(rows) @ coef, atol=1e-9)
    trained = steps.transform(features_of(people()))
    assert (np.mean(trained**2, axis=0) <= 1 + 1e-9).all()


@pytest.mark.parametrize(
    "damage", [{"with_terms": []}, {"with_terms": ["branch=east"]}, {"number": None}, {"other": {"kind": "x"}}]
)
def test_a_damaged_interaction_is_refused(damage: dict[str, Any]) -> None:
    state = fit(people(), ("age", "branch")).to_dict()
    state["columns"][-1].update(damage)
    with pytest.raises(DataError, match="the model's preprocessing"):
        Preprocessing.from_dict(state)
