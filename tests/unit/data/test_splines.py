"""Splines: which knots are left, and what a damaged one is."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS

KINDS = ["natural", "bspline"]


def fit(values: Any, **settings: Any) -> Preprocessing:
    config = PreprocessingConfig.model_validate({"whiten": False, "clip": None, **settings})
    return Preprocessing.fit(features_of(pd.DataFrame({"x": np.asarray(values, float)})), config, intercept=False)


def largest_leverage(steps: Preprocessing, values: Any) -> float:
    terms = steps.expand(features_of(pd.DataFrame({"x": np.asarray(values, float)})))
    centred = terms - terms.mean(axis=0)
    return float(np.max(np.einsum("ij,ji->i", centred, np.linalg.pinv(centred))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_rows", [40, 100, 1000])
def test_no_combination_of_terms_is_dominated_by_a_row(kind: str, n_rows: int) -> None:
    values = np.random.default_rng(0).standard_normal(n_rows)
    steps = fit(values, clip=[0.01, 0.99], spline={"kind": kind, "knots": 12})
    if len(steps.terms) > 1:
        assert largest_leverage(steps, values) <= 1 / MIN_ROWS + 1e-9
    else:
        assert steps.terms == ("x",)
    assert n_rows < 1000 or len(steps.terms) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_knots_that_few_rows_lie_between_are_left_out(kind: str) -> None:
    """Three rows lie far away, each between two of the given knots."""
    values = np.concatenate([np.linspace(0, 1, 997), [10, 20, 30]])
    given = [0.25, 0.5, 0.75, 5, 15, 25]
    steps = fit(values, limits=[0, 12], spline={"kind": kind, "knots": given})
    column = steps.to_dict()["columns"][0]
    assert "spline" not in column or not {5, 15, 25} & {*column["spline"]["knots"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_values", [2, 3, 4])
def test_a_number_with_few_different_values_has_no_more_terms_than_these_can_tell_apart(
    kind: str, n_values: int
) -> None:
    values = np.arange(600) % n_values
    steps = fit(values, spline={"kind": kind, "knots": 5})
    assert len(steps.terms) <= n_values - 1
    assert np.linalg.matrix_rank(steps.expand(features_of(pd.DataFrame({"x": values.astype(float)})))) == len(
        steps.terms
    )


def test_the_terms_of_a_spline_and_of_missing_values_are_named() -> None:
    values = np.where(np.arange(1000) % 5 == 0, np.nan, np.random.default_rng(0).uniform(1, 2, 1000))
    steps = fit(values, missing_indicator=True, transform="log", spline={"knots": 2})
    assert steps.terms == ("spline(log(x)) 1", "spline(log(x)) 2", "spline(log(x)) 3", "x is missing")
    assert steps.n_row_values == 1
    assert fit(values, spline={"kind": "bspline", "knots": 1}).terms == tuple(f"bspline(x) {j}" for j in range(1, 5))


@pytest.mark.parametrize("whiten", [True, False])
def test_weights_of_terms_give_the_same_scores(whiten: bool) -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    frame = pd.DataFrame({"x": [-9.0, 0, 0.3, 9, np.nan]})
    steps = fit(values, spline={}, whiten=whiten)
    coef = np.random.default_rng(1).standard_normal(steps.n_columns)
    weights, constant = steps.to_features(coef)
    scores = steps.transform(features_of(frame)) @ coef
    np.testing.assert_allclose(steps.expand(features_of(frame)) @ weights + constant, scores, atol=1e-9)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_terms_are_standardised_like_numbers(whiten: bool, kind: str) -> None:
    values = np.random.default_rng(0).standard_normal(1000) * 1e4
    columns = fit(values, spline={"kind": kind}, whiten=whiten).transform(features_of(pd.DataFrame({"x": values})))
    np.testing.assert_allclose(columns.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose((columns**2).mean(axis=0), 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda spline: spline["knots"].reverse(),
        lambda spline: spline["knots"].pop(),
        lambda spline: spline["coefs"][0].pop(),
        lambda spline: spline["coefs"][0][0].pop(),
        lambda spline: spline["coefs"].clear(),
        lambda spline: spline.update(kind="cubic"),
    ],
)
def test_a_damaged_spline_is_refused(damage: Any) -> None:
    state = fit(np.random.default_rng(0).standard_normal(1000), spline={}).to_dict()
    damage(state["columns"][0]["spline"])
    with pytest.raises(DataError, match="the model's preprocessing"):
        Preprocessing.from_dict(state)
