"""Categories and missing indicators: terms of 0 and 1."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS
from trilateral.common.paillier.product import signed_digits
from trilateral.common.protocol.scales import RoundScale, round_scale

N_ROWS = 600
SHARES = 1 / np.arange(1, 21)


def people(n_rows: int = N_ROWS, seed: int = 0) -> pd.DataFrame:
    """Two columns of numbers, one with holes, and three of categories: with holes, many rare ones, and two values."""
    rng = np.random.default_rng(seed)
    income = np.exp(rng.standard_normal(n_rows))
    income[rng.random(n_rows) < 0.2] = np.nan
    branch = rng.choice(["north", "south", "east", "?"], n_rows, p=[0.5, 0.2, 0.2, 0.1])
    job = rng.choice([f"job {each}" for each in range(20)], n_rows, p=SHARES / SHARES.sum())
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, n_rows).astype(float),
            "branch": pd.Series(branch, dtype="str").mask(branch == "?"),
            "income": income,
            "job": pd.Series(job, dtype="str"),
            "owner": pd.Series(rng.choice(["yes", "no"], n_rows), dtype="str"),
        }
    )


def tomorrow(seed: int = 1) -> pd.DataFrame:
    """Other rows, some with categories that were never seen."""
    frame = people(50, seed)
    frame.loc[:4, "job"] = "never seen"
    frame.loc[3:7, "branch"] = ["west", None, "North", " north", ""]
    return frame


CONFIG = PreprocessingConfig(missing_indicator=True, rare=0.03, whiten=False)
CONFIGS = [CONFIG, CONFIG.model_copy(update={"whiten": True}), PreprocessingConfig(standardise=False)]


# --- against scikit-learn


def one_hot(train: pd.Series, rows: pd.Series, least: int) -> dict[str, np.ndarray]:
    encoder = OneHotEncoder(min_frequency=least, handle_unknown="infrequent_if_exist", sparse_output=False)

    def values(series: pd.Series) -> np.ndarray:
        return np.array([[None if pd.isna(value) else value] for value in series], dtype=object)

    encoded = encoder.fit(values(train)).transform(values(rows))
    names = [str(name).removeprefix("x_") for name in encoder.get_feature_names_out(["x"])]
    return dict(zip(names, encoded.T, strict=True))


@pytest.mark.parametrize("rows", [people(), tomorrow()], ids=["training rows", "other rows"])
def test_every_term_is_that_of_scikit_learns_transformers(rows: pd.DataFrame) -> None:
    train = people()
    fitted = Preprocessing.fit(features_of(train), CONFIG, intercept=False)

    columns = dict(zip(fitted.terms, fitted.transform(features_of(rows)).T, strict=True))

    for name in ("age", "income"):
        imputer = SimpleImputer(strategy="median").fit(train[[name]])
        filled = imputer.transform(train[[name]])
        limits = np.quantile(filled, [0.01, 0.99])
        scaler = StandardScaler().fit(filled.clip(*limits))
        expected = scaler.transform(imputer.transform(rows[[name]]).clip(*limits))
        np.testing.assert_allclose(columns.pop(name), expected[:, 0], atol=1e-12)
    indicator = MissingIndicator(features="all").fit(train[["income"]])
    np.testing.assert_array_equal(columns.pop("income is missing"), indicator.transform(rows[["income"]])[:, 0])
    for name in ("branch", "job", "owner"):
        expected = one_hot(train[name], rows[name], least=18)
        sizes = {category: values.sum() for category, values in one_hot(train[name], train[name], least=18).items()}
        del expected[max(sizes, key=lambda category: sizes[category])]
        special = {"None": f"{name} is missing", "infrequent_sklearn": f"{name} is other"}
        for category, values in expected.items():
            term = special.get(category, f"{name}={category}")
            np.testing.assert_array_equal(columns.pop(term), values, err_msg=term)
    assert columns == {}


# --- what becomes of a value


def column(values: list[Any], rare: float = 0.0) -> Preprocessing:
    frame = pd.DataFrame({"x": pd.Series(values, dtype="str")})
    return Preprocessing.fit(features_of(frame), PreprocessingConfig(rare=rare, whiten=False), intercept=False)


def row(fitted: Preprocessing, value: Any) -> dict[str, float]:
    columns = fitted.transform(features_of(pd.DataFrame({"x": pd.Series([value], dtype="str")})))
    return dict(zip(fitted.terms, columns[0].tolist(), strict=True))


def test_the_most_frequent_category_is_the_reference_and_rare_ones_are_one() -> None:
    fitted = column(["a"] * 20 + ["b"] * 60 + ["c"] * 9 + ["d"] * 4 + [None] * 15)

    assert fitted.terms == ("x=a", "x is missing", "x is other")
    assert row(fitted, "b") == {"x=a": 0, "x is missing": 0, "x is other": 0}
    assert row(fitted, "a") == {"x=a": 1, "x is missing": 0, "x is other": 0}
    assert row(fitted, None) == {"x=a": 0, "x is missing": 1, "x is other": 0}
    for other in ("c", "d", "never seen", "A", ""):
        assert row(fitted, other) == {"x=a": 0, "x is missing": 0, "x is other": 1}


def test_what_is_unseen_counts_as_the_reference_where_too_few_rows_are_rare() -> None:
    fitted = column(["a"] * 20 + ["b"] * 60 + ["c"] * (MIN_ROWS - 1))

    assert fitted.terms == ("x=a",)
    assert row(fitted, "c") == row(fitted, "never seen") == row(fitted, None) == {"x=a": 0}


def test_few_missing_values_are_among_the_others() -> None:
    fitted = column(["a"] * 20 + ["b"] * 60 + ["c"] * 7 + [None] * 7)

    assert fitted.terms == ("x=a", "x is other")
    assert row(fitted, None) == {"x=a": 0, "x is other": 1}


def test_missing_values_or_others_may_be_the_reference() -> None:
    missing = column(["a"] * 20 + ["b"] * 7 + ["c"] * 7 + [None] * 90)
    other = column(["a"] * 20 + [f"{each}" for each in range(80)])

    assert missing.terms == ("x=a", "x is other")
    assert row(missing, None) == {"x=a": 0, "x is other": 0}
    assert row(missing, "never seen") == {"x=a": 0, "x is other": 1}
    assert other.terms == ("x=a",)
    assert row(other, "7") == row(other, None) == row(other, "never seen") == {"x=a": 0}


def test_a_share_and_a_least_count_say_what_is_rare() -> None:
    values = ["a"] * 600 + ["b"] * 300 + ["c"] * 100

    assert column(values, rare=0.1).terms == ("x=b", "x=c")
    assert column(values, rare=0.101).terms == ("x=b", "x is other")
    assert column(["a"] * 600 + ["b"] * 10, rare=0.0).terms == ("x=b",)


def test_a_column_without_two_frequent_categories_is_left_out_or_refused_by_name() -> None:
    frame = people().assign(code=pd.Series([f"{each}" for each in range(N_ROWS)], dtype="str"), same="x", none=None)
    frame["none"] = frame["none"].astype("str").mask(frame["none"].isna())

    with pytest.raises(
        DataError, match="columns 'code', 'same' has fewer than two categories with at least 10"
    ) as refusal:
        Preprocessing.fit(features_of(frame), PreprocessingConfig(constant="refuse"), intercept=False)
    fitted = Preprocessing.fit(features_of(frame), PreprocessingConfig(), intercept=False)

    assert "column 'none' has no value in any training row" in str(refusal.value)
    assert list(fitted.left_out) == ["code", "same", "none"]
    assert not fitted.left_out.keys() & set(fitted.features)


def test_an_indicator_needs_missing_values_in_enough_rows() -> None:
    """A term that few rows have would tell their labels by its gradient."""
    frame = pd.DataFrame({name: np.arange(100.0) for name in "abcd"})
    frame.loc[:8, "b"] = frame.loc[:9, "c"] = frame.loc[:89, "d"] = np.nan

    fitted = Preprocessing.fit(
        features_of(frame), PreprocessingConfig(missing_indicator=True, whiten=False), intercept=False
    )

    assert fitted.terms == ("a", "b", "c", "c is missing", "d", "d is missing")


@pytest.mark.parametrize(
    ("value", "remembered"),
    [("1.5", True), ("0.25", True), ("1e-3", True), ("3", False), ("x", False), ("nan", False), (None, False)],
)
def test_a_column_remembers_whether_a_number_in_it_was_not_whole(value: str | None, remembered: bool) -> None:
    (fitted,) = column(["1"] * 20 + ["2"] * 20 + [value]).to_dict()["columns"]
    assert fitted["fractions"] is remembered


def test_settings_of_numbers_for_categories_are_refused() -> None:
    config = PreprocessingConfig.model_validate({"columns": {"job": {"fill": 0}}})
    with pytest.raises(DataError, match="names 'job', which is categorical: give it `encoding`"):
        Preprocessing.fit(features_of(people()), config, intercept=False)


def test_terms_of_the_same_name_are_refused() -> None:
    frame = people().assign(**{"owner=yes": np.arange(float(N_ROWS)), "owner=no": np.arange(float(N_ROWS))})
    with pytest.raises(DataError, match="several columns have a term with the same name, 'owner="):
        Preprocessing.fit(features_of(frame), CONFIG, intercept=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"age": "young"}, "column 'age' was numeric at training"),
        ({"job": 3.0}, "column 'job' was categorical at training"),
    ],
)
def test_a_column_of_another_type_is_named(changed: dict[str, Any], said: str) -> None:
    fitted = Preprocessing.fit(features_of(people()), CONFIG, intercept=False)
    with pytest.raises(DataError, match=f"preprocessing mismatch: {said}"):
        fitted.transform(features_of(people().assign(**changed)))


# --- any rows


FITTED = [Preprocessing.fit(features_of(people()), config, intercept=True) for config in CONFIGS]


@settings(max_examples=30)
@given(
    st.sampled_from(FITTED),
    st.lists(
        st.fixed_dictionaries(
            {
                "age": st.floats(allow_infinity=False),
                "branch": st.none() | st.sampled_from(["north", "south", "west"]) | st.text(),
                "income": st.floats(allow_infinity=False),
                "job": st.none() | st.text(),
                "owner": st.none() | st.sampled_from(["yes", "no", "YES"]),
            }
        ),
        min_size=1,
        max_size=5,
    ),
    st.permutations(["age", "branch", "income", "job", "owner"]),
)
def test_any_rows_become_the_same_columns_alone_or_together_and_in_any_order(
    fitted: Preprocessing, rows: list[dict[str, Any]], order: list[str]
) -> None:
    types = {name: "str" if name in ("branch", "job", "owner") else "float64" for name in order}
    frame = pd.DataFrame(rows).astype(types)

    columns = fitted.transform(features_of(frame))

    assert columns.shape == (len(rows), fitted.n_columns)
    assert np.isfinite(columns).all()
    for each in range(len(rows)):
        alone = fitted.transform(features_of(frame[order].iloc[[each]]))
        np.testing.assert_allclose(alone[0], columns[each], rtol=1e-9, atol=1e-12)


@settings(max_examples=20)
@given(st.sampled_from(CONFIGS), st.integers(0, 2**32 - 1), st.integers(150, 300), st.floats(0, 1))
def test_no_training_column_has_a_mean_square_above_one(
    config: PreprocessingConfig, seed: int, n_rows: int, l2: float
) -> None:
    frame = people(n_rows, seed)
    frame["share"] = np.random.default_rng(seed).random(n_rows)

    columns = Preprocessing.fit(features_of(frame), config, intercept=True, l2=l2).transform(features_of(frame))

    assert np.mean(columns**2, axis=0).max() <= 1 + 1e-9


# --- the model


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("config", CONFIGS[:2])
def test_weights_of_terms_give_the_same_scores(config: PreprocessingConfig, intercept: bool) -> None:
    fitted = Preprocessing.fit(features_of(people()), config, intercept)
    coef = np.random.default_rng(1).standard_normal(fitted.n_columns)

    weights, constant = fitted.to_features(coef)

    assert len(weights) == len(fitted.terms)
    terms = fitted.expand(features_of(tomorrow()))
    np.testing.assert_allclose(terms @ weights + constant, fitted.transform(features_of(tomorrow())) @ coef, atol=1e-9)


def test_the_penalised_optimum_is_the_same_with_whitening_and_without() -> None:
    """The penalty is on the same weights: of 0 and 1 as they are, of what is left as it is, of standard deviations."""
    frame = people().assign(share=np.random.default_rng(4).random(N_ROWS) / 100)
    y = np.where(frame["owner"].eq("yes") ^ (np.random.default_rng(3).random(N_ROWS) < 0.3), 1.0, -1.0)
    models = []
    for whiten in (True, False):
        config = PreprocessingConfig.model_validate(
            {"missing_indicator": True, "whiten": whiten, "columns": {"share": {"standardise": False}}}
        )
        fitted = Preprocessing.fit(features_of(frame), config, intercept=True, l2=0.1)
        X = fitted.transform(features_of(frame))
        hessian = X.T @ X / (4 * N_ROWS) + 0.1 * fitted.penalty
        w = np.linalg.solve(hessian, X.T @ y / (2 * N_ROWS)).astype(np.float64)
        beta = fitted.to_standardised(w)
        assert w @ fitted.penalty @ w == pytest.approx(beta @ beta)
        if whiten:
            np.testing.assert_allclose(hessian, np.eye(fitted.n_columns) / 4, atol=1e-9)
        models.append([*beta, *fitted.to_features(w)[0], fitted.to_features(w)[1]])

    np.testing.assert_allclose(models[0], models[1], atol=1e-9)


@pytest.mark.parametrize("config", CONFIGS)
def test_state_goes_through_json_to_the_last_bit(config: PreprocessingConfig) -> None:
    fitted = Preprocessing.fit(features_of(people()), config, intercept=True)

    restored = Preprocessing.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False)))

    assert restored.to_dict() == fitted.to_dict()
    assert restored.terms == fitted.terms
    np.testing.assert_array_equal(
        restored.transform(features_of(tomorrow())), fitted.transform(features_of(tomorrow()))
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("mean"),
        lambda state: state["mean"].pop(),
        lambda state: state["columns"].pop(),
        lambda state: state["columns"][0].update(kind="other"),
        lambda state: state["columns"][0].update(fill="x"),
        lambda state: state.update(columns=None),
        lambda state: state.update(directions=[[1.0]]),
        lambda state: state.update(scale="x"),
        lambda state: state.update(columns=["age", "branch"]),
        lambda state: state.update(columns=[]),
    ],
)
def test_a_damaged_state_is_refused(damage: Any) -> None:
    state = Preprocessing.fit(features_of(people()), CONFIG, intercept=True).to_dict()
    damage(state)
    with pytest.raises(DataError, match="the model's preprocessing"):
        Preprocessing.from_dict(state)


def test_a_state_in_another_form_is_refused_with_a_way_out() -> None:
    """One that has names of columns, and one number of each kind for each of them."""
    names = ["age", "income"]
    other = {
        "features": names,
        "fill": [1.0, 2.0],
        "lower": None,
        "upper": None,
        "mean": [0.0, 0.0],
        "scale": [1.0, 1.0],
    }
    for state in (other, {**other, "directions": None, "intercept": True}, {}):
        with pytest.raises(
            DataError,
            match="this version cannot read the model's preprocessing.*: train again",
        ):
            Preprocessing.from_dict(state)


# --- what they cost under encryption


def multiplications(columns: np.ndarray, width: int = 7) -> np.ndarray:
    """Of ciphertexts, by the encrypted product, for each column: a digit that is not zero is one."""
    job = JobConfig(name="j", dataset="d")
    scale: RoundScale = round_scale(job, len(columns), len(columns))
    digits = signed_digits(scale.encode_columns(columns), width)
    return np.asarray(sum(np.count_nonzero(each, axis=0) for each in digits))


def test_a_one_costs_one_multiplication_and_a_zero_none() -> None:
    frame = people()
    fitted = Preprocessing.fit(features_of(frame), CONFIG, intercept=False)
    columns = fitted.transform(features_of(frame))
    binary = np.array([term not in ("age", "income") for term in fitted.terms])

    counts = multiplications(columns)

    np.testing.assert_array_equal(counts[binary], columns[:, binary].sum(axis=0))
    assert (counts[~binary] > 2 * N_ROWS).all()
    assert counts[binary].sum() / columns[:, binary].size < 0.2


def test_centred_they_cost_what_numbers_cost() -> None:
    frame = people()
    whitened = Preprocessing.fit(
        features_of(frame), CONFIG.model_copy(update={"whiten": True}), intercept=False
    ).transform(features_of(frame))

    assert (multiplications(whitened) > 2 * N_ROWS).all()
