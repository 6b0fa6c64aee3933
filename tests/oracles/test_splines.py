"""Splines against those of patsy and scikit-learn."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from patsy import dmatrix
from sklearn.preprocessing import SplineTransformer

from tests.support.frames import features_of
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing

N_ROWS = 6000


def made(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.uniform(18, 90, N_ROWS), "income": 100 + 9000 * rng.beta(2, 2, N_ROWS)})


def fitted(frame: pd.DataFrame, **settings: Any) -> tuple[Preprocessing, list[list[float]]]:
    """Return the fitted steps, and the knots of each column."""
    config = PreprocessingConfig.model_validate({"clip": None, "whiten": False, **settings})
    steps = Preprocessing.fit(features_of(frame), config, intercept=False)
    return steps, [column["spline"]["knots"] for column in steps.to_dict()["columns"]]


@pytest.mark.parametrize("n_knots", [1, 3, 5])
def test_a_natural_spline_is_the_cubic_regression_spline_of_patsy(n_knots: int) -> None:
    frame = made()
    steps, (knots, _) = fitted(frame[["age"]].assign(same=frame["age"]), spline={"knots": n_knots})

    np.testing.assert_allclose(knots, np.quantile(frame["age"], np.linspace(0, 1, n_knots + 2)))
    ages = np.linspace(knots[0], knots[-1], 500)
    expected = dmatrix(
        "cr(x, knots=knots[1:-1], lower_bound=knots[0], upper_bound=knots[-1]) - 1", {"x": ages, "knots": knots}
    )
    terms = steps.expand(features_of(pd.DataFrame({"age": ages, "same": ages})))
    np.testing.assert_allclose(terms[:, : n_knots + 1], np.asarray(expected)[:, 1:], atol=1e-12)


def test_a_natural_spline_is_straight_beyond_its_ends_and_smooth_there() -> None:
    frame = made()[["age"]]
    steps, (knots,) = fitted(frame, spline={})
    step = 1e-3

    def slopes(at: float) -> NDArray[np.float64]:
        ages = at + step * np.arange(2)
        first, second = steps.expand(features_of(pd.DataFrame({"age": ages})))
        return np.asarray((second - first) / step)

    for end, outside, inside in ((knots[0], knots[0] - 50, knots[0]), (knots[-1], knots[-1] + 50, knots[-1] - step)):
        np.testing.assert_allclose(slopes(outside), slopes(inside), atol=1e-4)
        np.testing.assert_allclose(slopes(end - 5 * step), slopes(end + 5 * step), atol=1e-3)


@pytest.mark.parametrize("n_knots", [1, 2, 4])
def test_b_splines_are_those_of_scikit_learn(n_knots: int) -> None:
    frame = made()
    steps, _ = fitted(frame, spline={"kind": "bspline", "knots": n_knots})
    transformer = SplineTransformer(n_knots=n_knots + 2, knots="quantile", extrapolation="constant").fit(frame)

    rows = made(1) * 1.2 - 50

    expected = transformer.transform(rows).reshape(len(rows), 2, -1)[:, :, 1:].reshape(len(rows), -1)
    np.testing.assert_allclose(steps.expand(features_of(rows)), expected, atol=1e-9)


def test_knots_may_be_given_in_units_of_the_table_and_are_transformed_with_it() -> None:
    frame = made()[["income"]]
    _, (knots,) = fitted(frame, spline={"knots": [1000, 2000, 5000]})
    _, (logs,) = fitted(frame, spline={"knots": [1000, 2000, 5000]}, transform="log", limits=[400, None])
    assert knots[1:-1] == [1000, 2000, 5000]
    np.testing.assert_allclose(logs[1:-1], np.log([1000, 2000, 5000]))


def test_a_curve_fits_what_a_line_cannot() -> None:
    """Least squares on the training columns is that on the basis of patsy."""
    frame = made()[["age"]]
    y = np.sin(frame["age"] / 10)
    X = Preprocessing.fit(
        features_of(frame), PreprocessingConfig.model_validate({"clip": None, "spline": {"knots": 6}}), intercept=True
    ).transform(features_of(frame))
    knots = np.quantile(frame["age"], np.linspace(0, 1, 8))[1:-1]
    basis = np.asarray(dmatrix("cr(age, knots=knots) - 1", {"age": frame["age"], "knots": knots}))
    own, theirs = (Z @ np.linalg.lstsq(Z, y)[0] for Z in (X, basis))
    np.testing.assert_allclose(own, theirs, atol=1e-8)
    assert np.var(y - own) < 0.01 * np.var(y)
