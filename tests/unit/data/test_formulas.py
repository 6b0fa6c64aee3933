"""The formula of each term says what the term is."""

import numpy as np
import pandas as pd
import pytest

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig, SplineConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.formulas import (
    Clipped,
    Filled,
    Formula,
    IsMissing,
    Lookup,
    Number,
    Piecewise,
    Product,
    Transformed,
    evaluate,
)

N_ROWS = 500


def people(n_rows: int = N_ROWS, seed: int = 0) -> pd.DataFrame:
    """Columns of numbers and of categories, some with missing values."""
    rng = np.random.default_rng(seed)
    income = np.exp(rng.standard_normal(n_rows) + 8).round(2)
    income[rng.random(n_rows) < 0.2] = np.nan
    job = pd.Series(rng.choice(["a", "b", "c", "d"], n_rows, p=[0.5, 0.3, 0.19, 0.01]), dtype="str")
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, n_rows).astype(float),
            "income": income,
            "job": job,
            "branch": job[::-1].reset_index(drop=True).mask(rng.random(n_rows) < 0.1),
        }
    )


CONFIGS = [
    PreprocessingConfig(missing_indicator=True),
    PreprocessingConfig(clip=None, standardise=False, rare=0.0),
    PreprocessingConfig(transform="log", missing_indicator=True),
    PreprocessingConfig(transform="yeo_johnson", whiten=False),
    PreprocessingConfig(spline=SplineConfig(), missing_indicator=True),
    PreprocessingConfig(encoding="frequency"),
    PreprocessingConfig(interactions=[("age", "income"), ("age", "job"), ("branch", "income")]),
    PreprocessingConfig(spline=SplineConfig(kind="bspline"), whiten=False, transform="sqrt"),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_terms_are_what_their_formulas_say(config: PreprocessingConfig) -> None:
    steps = Preprocessing.fit(features_of(people()), config, intercept=False)
    rows = features_of(people(200, seed=1))

    terms = steps.expand(rows)

    formulas = [formula for column in steps.columns for formula in column.formulas]
    assert len(formulas) == len(steps.terms)
    for term, formula in enumerate(formulas):
        np.testing.assert_array_equal(terms[:, term], evaluate(formula, rows.columns, {}))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_term_that_is_called_binary_is_0_or_1_and_no_other_term_is(config: PreprocessingConfig) -> None:
    steps = Preprocessing.fit(features_of(people()), config, intercept=False)
    terms = steps.expand(features_of(people()))
    binary = [flag for column in steps.columns for flag in column.binary]
    assert [bool(np.isin(term, [0, 1]).all()) for term in terms.T] == binary


ROWS = features_of(
    pd.DataFrame({"x": [-3.0, 0.0, 1.0, 2.0, 5.0, np.nan], "t": pd.Series([*"abba", None, "z"], dtype="str")})
)
X = Number("x")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (X, [-3, 0, 1, 2, 5, np.nan]),
        (IsMissing("x"), [0, 0, 0, 0, 0, 1]),
        (IsMissing("t"), [0, 0, 0, 0, 1, 0]),
        (Lookup("t", {"a": 2.0, "b": 3.0}, -1.0, 7.0), [2, 3, 3, 2, -1, 7]),
        (Filled(X, 9.0), [-3, 0, 1, 2, 5, 9]),
        (Clipped(X, 0.0, None), [0, 0, 1, 2, 5, np.nan]),
        (Clipped(X, -1.0, 2.0), [-1, 0, 1, 2, 2, np.nan]),
        (Transformed(Clipped(X, 0.0, None), "sqrt", None), np.sqrt([0, 0, 1, 2, 5, np.nan])),
        (Transformed(X, "log", None), [np.nan, -np.inf, 0, np.log(2), np.log(5), np.nan]),
        (Transformed(Clipped(X, 0.0, None), "log1p", None), np.log([1, 1, 2, 3, 6, np.nan])),
        (Transformed(X, "yeo_johnson", 2.0), [-np.log(4), 0, 1.5, 4, 17.5, np.nan]),
        (Transformed(X, "yeo_johnson", 0.0), [-7.5, 0, np.log(2), np.log(3), np.log(6), np.nan]),
        # Below 0: 1 + 2 x. From 0 to 2: 3 + x. From 2 on: 4 + 5 (x - 2).
        (Piecewise(X, (0.0, 2.0), ((1.0, 2.0), (3.0, 1.0), (4.0, 5.0))), [-5, 3, 4, 4, 19, np.nan]),
        (Piecewise(X, (1.0,), ((10.0,), (20.0,))), [10, 10, 20, 20, 20, np.nan]),
        (Piecewise(X, (), ((1.0, 0.0, 1.0),)), [10, 1, 2, 5, 26, np.nan]),
        (Product(Filled(X, 0.0), Lookup("t", {"b": 1.0}, 0.0, 0.0)), [0, 0, 1, 0, 0, 0]),
    ],
)
def test_each_step_computes_what_it_says(formula: Formula, expected: list[float]) -> None:
    np.testing.assert_allclose(evaluate(formula, ROWS.columns, {}), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("formula", "said"),
    [(Number("t"), "'t' was numeric at training"), (Lookup("x", {}, 0.0, 0.0), "'x' was categorical at training")],
)
def test_a_column_of_another_type_is_named(formula: Formula, said: str) -> None:
    with pytest.raises(DataError, match=f"preprocessing mismatch: column {said}"):
        evaluate(formula, ROWS.columns, {})
