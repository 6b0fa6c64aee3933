"""From features to training columns and back."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.features import Features
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS

PLAIN = PreprocessingConfig(clip=None, whiten=False)
CONFIGS = [
    PreprocessingConfig(),
    PLAIN,
    PreprocessingConfig(fill="mean", clip=(0.05, 0.9), whiten=False),
    PreprocessingConfig(fill=0, clip=None, whiten=True),
]


def features(n_rows: int = 400, n_features: int = 5, seed: int = 0, missing: float = 0.0) -> pd.DataFrame:
    """Correlated columns of very different scales, some with a heavy tail."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features)) @ rng.standard_normal((n_features, n_features))
    X = X * 10.0 ** rng.integers(-3, 6, n_features) + 100 * rng.standard_normal(n_features)
    X[:, 0] = np.exp(rng.standard_normal(n_rows) * 2)
    X[rng.random(X.shape) < missing] = np.nan
    return pd.DataFrame(X, columns=[f"f{j}" for j in range(n_features)])


def rms(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.mean(columns**2, axis=0)))


# --- the steps


@pytest.mark.parametrize("fill", ["median", "mean"])
def test_filling_and_standardising_are_those_of_scikit_learn(fill: str) -> None:
    frame = features(missing=0.2)

    columns = Preprocessing.fit(
        features_of(frame),
        PreprocessingConfig.model_validate({"fill": fill, "clip": None, "whiten": False}),
        intercept=False,
    ).transform(features_of(frame))

    expected = StandardScaler().fit_transform(SimpleImputer(strategy=fill).fit_transform(frame))
    np.testing.assert_allclose(columns, expected, atol=1e-12)


def test_a_missing_value_can_become_zero() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, 2.0]})

    fitted = Preprocessing.fit(
        features_of(frame), PreprocessingConfig(fill=0, clip=None, whiten=False), intercept=False
    )

    np.testing.assert_allclose(fitted.transform(features_of(frame))[:, 0], (np.array([1, 0, 2]) - 1) / np.sqrt(2 / 3))


def test_new_rows_are_filled_and_clipped_by_the_training_rows() -> None:
    train = pd.DataFrame({"a": np.arange(101.0)})
    fitted = Preprocessing.fit(features_of(train), PreprocessingConfig(clip=(0.1, 0.9), whiten=False), intercept=False)

    columns = fitted.transform(features_of(pd.DataFrame({"a": [-1e9, np.nan, 1e9]})))

    scale = np.arange(101.0).clip(10, 90).std()
    np.testing.assert_allclose(columns[:, 0], np.array([-40, 0, 40]) / scale)


@pytest.mark.parametrize(
    ("limits", "fill", "expected"),
    [
        ([0, 120], "mean", [0, 120, (5050 + 120) / 102]),
        ([None, 120], "median", [-1e9, 120, 50.5]),
        ([10, None], 0, [10, 1e9, 10]),
    ],
)
def test_fixed_limits_apply_before_anything_is_fitted(
    limits: list[float | None], fill: str | float, expected: list[float]
) -> None:
    ages = np.array([*range(101), 999, np.nan])
    config = PreprocessingConfig.model_validate({"limits": limits, "clip": None, "fill": fill, "whiten": False})

    fitted = Preprocessing.fit(features_of(pd.DataFrame({"a": ages})), config, intercept=False)

    terms = fitted.expand(features_of(pd.DataFrame({"a": [-1e9, 1e9, np.nan]})))
    np.testing.assert_allclose(terms[:, 0], expected)


def test_quantiles_are_those_of_the_values_within_fixed_limits() -> None:
    ages = np.array([*range(101), *[1e6] * 101])
    config = PreprocessingConfig.model_validate({"limits": [None, 100], "clip": [0.1, 0.9], "whiten": False})
    (column,) = Preprocessing.fit(features_of(pd.DataFrame({"a": ages})), config, intercept=False).to_dict()["columns"]
    assert (column["lower"], column["upper"]) == (pytest.approx(20.1), 100)


@pytest.mark.parametrize("dtype", [float, bool])
def test_a_column_of_two_values_is_not_clipped(dtype: type) -> None:
    """However rare one of them is: a rare event would be lost, or its size changed."""
    rows = np.arange(2000)
    frame = features(2000).assign(rare=(rows < MIN_ROWS).astype(dtype), seldom=5.0 * (rows < 15))

    fitted = Preprocessing.fit(features_of(frame), PreprocessingConfig(whiten=False), intercept=False)

    np.testing.assert_array_equal(fitted.expand(features_of(frame))[:, -2:], frame[["rare", "seldom"]].astype(float))


def test_where_nearly_all_values_are_the_same_the_rest_is_clipped_at_its_own_quantiles() -> None:
    """Else the column would become constant."""
    amounts = np.zeros(1000)
    amounts[:10] = [3, 3, 4, 4, 5, 5, 6, 6, 1e9, 1e9]
    fitted = Preprocessing.fit(
        features_of(pd.DataFrame({"a": amounts})), PreprocessingConfig(clip=(0, 0.75)), intercept=False
    )

    terms = fitted.expand(features_of(pd.DataFrame({"a": [-1.0, 0, 5, 1e6]})))

    np.testing.assert_array_equal(terms[:, 0], [0, 0, 5, 6])


def refusing(config: PreprocessingConfig) -> PreprocessingConfig:
    return config.model_copy(update={"constant": "refuse"})


RARE = {
    "one": np.arange(1000) == 7,
    "falls": np.where(np.arange(1000) < 9, -5.0, 3.0),
    "amounts": np.where(np.arange(1000) < 9, 10.0 + np.arange(1000), 0.0),
    "rounded": np.where(np.arange(1000) < 9, 2.0, 1 + 1e-16 * np.arange(1000)),
    "missing": np.where(np.arange(1000) < 9, 1.0, np.nan),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_column_in_which_few_rows_differ_from_the_rest_is_left_out_or_refused_by_name(
    config: PreprocessingConfig,
) -> None:
    """Its part of a gradient would be the sum of the residuals of those rows: with one, that row's label."""
    frame = features(1000).assign(**RARE)
    config = config.model_copy(update={"fill": 0.0})

    with pytest.raises(
        DataError, match="each of the columns 'one', 'falls', 'amounts', 'rounded', 'missing' has the "
    ) as refusal:
        Preprocessing.fit(features_of(frame), refusing(config), intercept=False)
    fitted = Preprocessing.fit(features_of(frame), config, intercept=False)

    assert "the same value in all but fewer than 10 training rows" in str(refusal.value)
    assert "exclude these columns" in str(refusal.value)
    assert list(fitted.left_out) == [*RARE]
    assert fitted.terms == Preprocessing.fit(features_of(features(1000)), config, intercept=False).terms


def test_a_column_in_which_enough_rows_differ_from_the_rest_is_taken() -> None:
    few = np.arange(1000) < MIN_ROWS
    frame = pd.DataFrame({"one": few.astype(float), "amounts": np.where(few, 10.0 + np.arange(1000), 0.0)})

    for config in CONFIGS:
        terms = Preprocessing.fit(features_of(frame), config, intercept=False).expand(features_of(frame))
        assert (np.count_nonzero(terms, axis=0) == MIN_ROWS).all()


def test_a_column_may_have_settings_of_its_own() -> None:
    frame = features(missing=0.1)
    config = PreprocessingConfig.model_validate(
        {"whiten": False, "clip": [0.1, 0.9], "columns": {"f2": {"clip": None, "fill": -1}, "f3": {"fill": "mean"}}}
    )

    terms = Preprocessing.fit(features_of(frame), config, intercept=False).expand(features_of(frame))

    np.testing.assert_array_equal(terms[:, 2], frame["f2"].fillna(-1))
    for name, fill in (("f1", frame["f1"].median()), ("f3", frame["f3"].mean())):
        filled = frame[name].fillna(fill).to_numpy(np.float64)
        np.testing.assert_allclose(terms[:, int(name[1])], filled.clip(*np.quantile(filled, [0.1, 0.9])))


def test_settings_for_a_column_that_is_none_are_refused() -> None:
    config = PreprocessingConfig.model_validate({"columns": {"f7": {"fill": 0}}})
    with pytest.raises(DataError, match="`preprocessing.columns` names 'f7', which is not a feature"):
        Preprocessing.fit(features_of(features()), config, intercept=False)


def test_a_column_can_be_left_as_it_is() -> None:
    frame = pd.DataFrame({"share": np.linspace(0.2, 1, 50), "age": np.linspace(20, 70, 50)})
    config = PreprocessingConfig.model_validate(
        {"clip": None, "whiten": False, "columns": {"share": {"standardise": False}}}
    )

    columns = Preprocessing.fit(features_of(frame), config, intercept=False).transform(features_of(frame))

    np.testing.assert_array_equal(columns[:, 0], frame["share"])
    np.testing.assert_allclose(columns[:, 1], StandardScaler().fit_transform(frame[["age"]])[:, 0])


def test_a_column_too_large_to_be_left_as_it_is_is_named() -> None:
    """The width of a slot rests on a mean square of at most 1."""
    frame = pd.DataFrame({"share": np.linspace(0, 1, 50), "age": np.linspace(20, 70, 50), "sign": [1.0, -1] * 25})
    config = PreprocessingConfig(clip=None, whiten=False, standardise=False)

    with pytest.raises(DataError, match="column 'age' has a mean square above 1") as refusal:
        Preprocessing.fit(features_of(frame), config, intercept=False)

    assert "'share'" not in str(refusal.value)
    assert Preprocessing.fit(features_of(frame.drop(columns="age")), config, intercept=False).n_columns == 2


def test_columns_left_as_they_are_are_whitened_whatever_their_size() -> None:
    frame = features()
    frame["tiny"], frame["vast"] = 1e-12 * frame["f1"] ** 2, 1e9 * frame["f3"] ** 2
    config = PreprocessingConfig(clip=None, standardise=False)

    fitted = Preprocessing.fit(features_of(frame), config, intercept=True, l2=0.0)
    columns = fitted.transform(features_of(frame))

    np.testing.assert_allclose(columns.T @ columns / len(frame), np.eye(8), atol=1e-9)
    np.testing.assert_array_equal(fitted.scale, 1)


def test_whitened_columns_are_orthogonal_with_mean_square_one() -> None:
    frame = features(missing=0.1)

    columns = Preprocessing.fit(features_of(frame), PreprocessingConfig(), intercept=True).transform(features_of(frame))

    np.testing.assert_allclose(columns.T @ columns / len(frame), np.eye(6), atol=1e-9)


def test_the_intercept_is_a_last_column_of_ones() -> None:
    frame = features()

    for config in CONFIGS:
        columns = Preprocessing.fit(features_of(frame), config, intercept=True).transform(features_of(frame))
        assert (columns[:, -1] == 1).all()


def test_whitening_spans_the_standardised_columns() -> None:
    frame = features()
    Z = Preprocessing.fit(features_of(frame), PLAIN, intercept=False).transform(features_of(frame))
    columns = Preprocessing.fit(features_of(frame), PreprocessingConfig(clip=None), intercept=False).transform(
        features_of(frame)
    )

    np.testing.assert_allclose(columns @ (columns.T @ Z) / len(Z), Z, atol=1e-10)


@pytest.mark.parametrize("l2", [0.0, 1e-3, 0.1])
def test_whitening_leaves_a_quarter_of_the_identity_of_the_partys_own_hessian(l2: float) -> None:
    """The penalty included, however near to dependent the columns are."""
    frame = features()
    frame["near"] = frame["f1"] + 1e-4 * frame["f2"]
    fitted = Preprocessing.fit(features_of(frame), PreprocessingConfig(clip=None), intercept=False, l2=l2)
    columns = fitted.transform(features_of(frame))

    hessian = columns.T @ columns / (4 * len(frame)) + l2 * fitted.penalty

    np.testing.assert_allclose(hessian, np.eye(fitted.n_columns) / 4, atol=1e-9)


def test_whitening_drops_a_dependent_column() -> None:
    frame = features()
    frame["sum"] = frame["f1"] - 3 * frame["f2"]

    fitted = Preprocessing.fit(features_of(frame), PreprocessingConfig(clip=None), intercept=True)
    columns = fitted.transform(features_of(frame))

    assert fitted.n_columns == columns.shape[1] == 6
    np.testing.assert_allclose(columns.T @ columns / len(frame), np.eye(6), atol=1e-9)


def test_the_same_rows_give_the_same_columns_and_a_turned_sign_changes_none() -> None:
    frame = features()
    config = PreprocessingConfig(clip=None)
    columns = Preprocessing.fit(features_of(frame), config, intercept=False).transform(features_of(frame))

    again = Preprocessing.fit(features_of(frame.copy()), config, intercept=False).transform(features_of(frame))
    reversed_rows = Preprocessing.fit(features_of(frame[::-1]), config, intercept=False).transform(features_of(frame))

    np.testing.assert_array_equal(columns, again)
    np.testing.assert_allclose(columns, reversed_rows, atol=1e-9)


@example(seed=268435457, config=CONFIGS[2], intercept=False, nearness=0.0, n_rows=3)  # The mean of "offset" is rounded.
@given(st.integers(0, 2**32 - 1), st.sampled_from(CONFIGS), st.booleans(), st.floats(0, 9), st.integers(3, 40))
def test_no_training_column_has_a_mean_square_above_one(
    seed: int, config: PreprocessingConfig, intercept: bool, nearness: float, n_rows: int
) -> None:
    """The width of a slot relies on it, however near to dependent the columns are."""
    frame = features(n_rows, 3, seed)
    noise = np.random.default_rng(seed).standard_normal(n_rows)
    frame["near"] = frame["f1"] + frame["f1"].std() * 10**-nearness * noise
    frame["offset"] = 1e9 + noise

    columns = Preprocessing.fit(features_of(frame), config, intercept).transform(features_of(frame))

    assert (rms(columns) ** 2).max() <= 1 + 1e-9


@pytest.mark.parametrize("n_others", [10, 1000])
def test_a_column_that_varies_by_little_more_than_its_rounding_errors_has_a_mean_square_of_one(n_others: int) -> None:
    """The rounding error of the mean is then no small part of the standard deviation."""
    values = np.full(100_000, 1e9)
    values[:n_others] += 0.0011

    fitted = Preprocessing.fit(Features({"v": values}, len(values)), PLAIN, intercept=False)

    np.testing.assert_allclose(rms(fitted.transform(Features({"v": values}, len(values)))), 1, atol=1e-10)


# --- the way back


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("config", CONFIGS)
def test_weights_of_features_give_the_same_scores_on_raw_rows(config: PreprocessingConfig, intercept: bool) -> None:
    frame = features()
    fitted = Preprocessing.fit(features_of(frame), config, intercept)
    coef = np.random.default_rng(1).standard_normal(fitted.n_columns)
    inside = frame
    if config.clip is not None:
        limits = frame.quantile(list(config.clip))
        inside = frame[((frame >= limits.iloc[0]) & (frame <= limits.iloc[1])).all(axis=1)]

    weights, constant = fitted.to_features(coef)

    assert len(inside) > 50
    np.testing.assert_allclose(
        inside.to_numpy() @ weights + constant, fitted.transform(features_of(inside)) @ coef, atol=1e-9
    )


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("config", CONFIGS)
def test_penalty_is_the_square_of_the_standardised_weights(config: PreprocessingConfig, intercept: bool) -> None:
    frame = features(missing=0.1)
    fitted = Preprocessing.fit(features_of(frame), config, intercept)
    coef = np.random.default_rng(2).standard_normal(fitted.n_columns)
    Z = Preprocessing.fit(features_of(frame), config.model_copy(update={"whiten": False}), intercept=False).transform(
        features_of(frame)
    )
    scores = fitted.transform(features_of(frame)) @ coef - (coef[-1] if intercept else 0)

    beta = np.linalg.lstsq(Z, scores)[0]

    np.testing.assert_allclose(fitted.to_standardised(coef), beta, atol=1e-9)
    np.testing.assert_allclose(coef @ fitted.penalty @ coef, beta @ beta, rtol=1e-9)


def test_whitening_does_not_change_a_penalised_optimum() -> None:
    frame = features()
    y = np.sign(frame["f1"].to_numpy() + 50 * np.random.default_rng(3).standard_normal(len(frame)))
    scores = []
    for config in (PLAIN, PreprocessingConfig(clip=None)):
        fitted = Preprocessing.fit(features_of(frame), config, intercept=True)
        X = fitted.transform(features_of(frame))
        # The gradient of the Taylor loss and of lambda/2 ||beta||^2 is zero: (X'X/4n + lambda P) w = X'y/2n.
        w = np.linalg.solve(X.T @ X / (4 * len(y)) + 0.1 * fitted.penalty, X.T @ y / (2 * len(y)))
        scores.append(X @ w)

    np.testing.assert_allclose(scores[0], scores[1], atol=1e-10)


# --- state


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("config", CONFIGS)
def test_state_goes_through_json_to_the_last_bit(config: PreprocessingConfig, intercept: bool) -> None:
    frame = features(missing=0.1)
    fitted = Preprocessing.fit(features_of(frame), config, intercept)

    restored = Preprocessing.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False)))

    assert restored.to_dict() == fitted.to_dict()
    assert restored.n_columns == fitted.n_columns
    np.testing.assert_array_equal(restored.transform(features_of(frame)), fitted.transform(features_of(frame)))


def test_columns_are_taken_by_name() -> None:
    frame = features()
    fitted = Preprocessing.fit(features_of(frame), PreprocessingConfig(), intercept=True)

    shuffled = frame[["f3", "f0", "f4", "f2", "f1"]].assign(another="text")

    np.testing.assert_array_equal(fitted.transform(features_of(shuffled)), fitted.transform(features_of(frame)))


def test_a_column_that_is_gone_is_named() -> None:
    fitted = Preprocessing.fit(features_of(features()), PreprocessingConfig(), intercept=True)

    with pytest.raises(
        DataError, match="preprocessing mismatch: .* lacks columns that the model was fitted on: 'f1', 'f3'"
    ):
        fitted.transform(features_of(features().drop(columns=["f3", "f1"])))


def test_no_rows_give_no_columns_to_score() -> None:
    fitted = Preprocessing.fit(features_of(features()), PreprocessingConfig(), intercept=True)

    assert fitted.transform(features_of(features().iloc[:0])).shape == (0, fitted.n_columns)


# --- what cannot be fitted


@pytest.mark.parametrize("value", [0.0, 0.1, -1e15, 1e300])
def test_a_constant_column_is_left_out_or_refused_by_name(value: float) -> None:
    frame = features().assign(same=value)

    for config in CONFIGS:
        with pytest.raises(DataError, match="column 'same' has the same value in all training rows: exclude it"):
            Preprocessing.fit(features_of(frame), refusing(config), intercept=False)
        fitted = Preprocessing.fit(features_of(frame), config, intercept=False)
        assert fitted.left_out == {"same": "the same value in all training rows"}
        np.testing.assert_array_equal(
            fitted.transform(features_of(frame)),
            Preprocessing.fit(features_of(features()), config, intercept=False).transform(features_of(features())),
        )


def test_a_column_that_filling_makes_constant_is_left_out_or_refused_by_name() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.0, np.nan, 0.0], "c": [5.0, 5.0, np.nan]})

    with pytest.raises(DataError, match="each of the columns 'b', 'c' has the same value"):
        Preprocessing.fit(features_of(frame), refusing(PLAIN), intercept=False)
    assert list(Preprocessing.fit(features_of(frame), PLAIN, intercept=False).left_out) == ["b", "c"]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_column_without_a_value_in_the_training_rows_is_left_out_or_refused_by_name(
    config: PreprocessingConfig,
) -> None:
    frame = features().assign(void=np.nan)

    with pytest.raises(DataError, match="column 'void' has no value in any training row: exclude it, or set"):
        Preprocessing.fit(features_of(frame), refusing(config), intercept=False)
    assert list(Preprocessing.fit(features_of(frame), config, intercept=False).left_out) == ["void"]


def test_a_table_of_constant_columns_alone_is_refused() -> None:
    with pytest.raises(
        DataError,
        match="no feature is left: column 'a' has the same value in all training rows; add a column that varies, or",
    ):
        Preprocessing.fit(features_of(pd.DataFrame({"a": [1.0] * 9})), PreprocessingConfig(), intercept=False)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("size", [1e160, 1.7e308, 1e-170])
def test_values_that_cannot_be_squared_are_refused(config: PreprocessingConfig, size: float) -> None:
    frame = features().assign(huge=np.linspace(-1, 1, 400) * size)

    with pytest.raises(DataError, match="column 'huge' has values too large or too small"):
        Preprocessing.fit(features_of(frame), config, intercept=False)


def test_a_column_of_large_and_close_values_is_not_constant() -> None:
    frame = pd.DataFrame({"time": 1.7e9 + np.arange(50.0)})

    columns = Preprocessing.fit(features_of(frame), PLAIN, intercept=False).transform(features_of(frame))

    np.testing.assert_allclose(rms(columns), 1)


# --- transforms


def test_a_transform_applies_to_clipped_values_and_names_its_term() -> None:
    amounts = np.arange(1.0, 102)
    config = PreprocessingConfig.model_validate(
        {"whiten": False, "clip": [0.1, 0.9], "columns": {"b": {"transform": "log"}, "c": {"transform": "sqrt"}}}
    )
    frame = pd.DataFrame(dict.fromkeys("abc", amounts))

    fitted = Preprocessing.fit(features_of(frame), config, intercept=False)

    assert fitted.terms == ("a", "log(b)", "sqrt(c)")
    assert fitted.features == ("a", "b", "c")
    terms = fitted.expand(features_of(pd.DataFrame({name: [-5.0, 50, 1000, np.nan] for name in "abc"})))
    np.testing.assert_allclose(terms[:, 0], [11, 50, 91, 51])
    np.testing.assert_allclose(terms[:, 1], np.log([11, 50, 91, 51]))
    np.testing.assert_allclose(terms[:, 2], np.sqrt([11, 50, 91, 51]))


@pytest.mark.parametrize(
    ("transform", "smallest", "said"),
    [("log", 0.0, "values above 0:"), ("log1p", -1.0, "above -1:"), ("sqrt", -0.5, "of at least 0:")],
)
def test_a_transform_that_is_not_defined_in_all_training_rows_is_refused(
    transform: str, smallest: float, said: str
) -> None:
    frame = pd.DataFrame({"amount": smallest + np.arange(200.0), "other": smallest + np.arange(200.0)})
    config = PreprocessingConfig.model_validate({"transform": transform, "clip": None})
    with pytest.raises(DataError, match=f"columns 'amount', 'other' has values .*{said} set `limits`"):
        Preprocessing.fit(features_of(frame), config, intercept=False)
    within = config.model_copy(update={"limits": (smallest + 5, None)})
    assert len(Preprocessing.fit(features_of(frame), within, intercept=False).terms) == 2


def test_a_row_that_dominates_a_transformed_column_leaves_it_out() -> None:
    """Of 1000 rows, one has a logarithm far below all others."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=1000), "tiny": np.where(np.arange(1000) == 3, 1e-200, 1 + rng.random(1000))}
    )
    config = PreprocessingConfig.model_validate({"clip": None, "columns": {"tiny": {"transform": "log"}}})
    fitted = Preprocessing.fit(features_of(frame), config, intercept=False)
    assert fitted.terms == ("a",)
    assert "would reveal them" in fitted.left_out["tiny"]


def test_a_column_without_a_transform_has_the_fields_of_0_1_0() -> None:
    fitted = Preprocessing.fit(features_of(features()), PreprocessingConfig(), intercept=False)
    assert [*fitted.to_dict()["columns"][0]] == [
        "kind", "name", "fill", "lower", "upper", "missing_indicator", "standardise"
    ]  # fmt: skip


@pytest.mark.parametrize("update", [{"transform": "log"}, {"transform": None}])
def test_a_power_without_its_transform_is_refused(update: dict[str, object]) -> None:
    config = PreprocessingConfig(transform="yeo_johnson")
    state = Preprocessing.fit(features_of(features()), config, intercept=False).to_dict()
    state["columns"][0].update(update)
    with pytest.raises(DataError, match="cannot read the model's preprocessing"):
        Preprocessing.from_dict(state)
