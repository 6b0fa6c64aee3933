"""Categories as one number."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import OrdinalEncoder

from tests.support.frames import features_of
from trilateral.common.base.errors import DataError
from trilateral.common.config.dataset import PreprocessingConfig
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.preprocessing.few_rows import MIN_ROWS

SIZES = ["low", "medium", "high"]


def frame_of(values: Sequence[str | None]) -> pd.DataFrame:
    return pd.DataFrame({"size": pd.array(values, dtype="str"), "other": np.arange(float(len(values)))})


def fit(values: Sequence[str | None], encoding: Any, **settings: Any) -> Preprocessing:
    own = {"size": {"encoding": encoding}}
    config = PreprocessingConfig.model_validate({"whiten": False, "columns": own, **settings})
    return Preprocessing.fit(features_of(frame_of(values)), config, intercept=False)


def number_of(steps: Preprocessing, values: Sequence[str | None]) -> list[float]:
    return list(steps.expand(features_of(frame_of(values)))[:, 0])


def made(n_rows: int = 1000) -> list[str]:
    return [SIZES[place] for place in np.random.default_rng(0).choice(3, n_rows, p=[0.5, 0.3, 0.2])]


def test_a_frequency_is_that_of_pandas() -> None:
    values = made()
    steps = fit(values, "frequency")
    shares = pd.Series(values).value_counts(normalize=True)
    assert steps.terms == ("frequency(size)", "other")
    assert number_of(steps, values) == [shares[value] for value in values]
    columns = steps.transform(features_of(frame_of(values)))
    np.testing.assert_allclose([columns[:, 0].mean(), columns[:, 0].std()], [0, 1], atol=1e-12)


def test_an_order_is_that_of_scikit_learn() -> None:
    values = made()
    steps = fit(values, SIZES)
    assert steps.terms == ("ordinal(size)", "other")
    expected = OrdinalEncoder(categories=[SIZES]).fit_transform(frame_of(values)[["size"]].to_numpy(object))
    assert number_of(steps, values) == expected[:, 0].tolist()


def test_rare_missing_and_later_categories_have_the_share_of_all_of_them() -> None:
    values = ["a"] * 500 + ["b"] * 470 + ["c"] * 11 + ["d"] * 10 + [None] * 9
    steps = fit(values, "frequency", rare=0.012)
    assert number_of(steps, ["a", "b", "c", None, "new"]) == [0.5, 0.47, 0.03, 0.03, 0.03]
    often = fit([None] * 100 + ["a"] * 850 + ["b"] * 50, "frequency")
    assert number_of(often, [None, "a", "new"]) == [0.1, 0.85, 0.85]


def test_where_too_few_rows_are_rare_they_count_as_the_most_frequent_category() -> None:
    """Their number would be far from those of all others, and training would see little else."""
    steps = fit(["a"] * 500 + ["b"] * 400 + ["c"] * (MIN_ROWS - 1), "frequency")
    a, c, new = number_of(steps, ["a", "c", "new"])
    assert a == c == new


def test_missing_and_later_categories_have_the_median_place() -> None:
    values = ["low"] * 300 + ["high"] * 200 + ["medium"] * 250 + [None] * 20
    assert number_of(fit(values, SIZES), ["low", "high", None, "huge"]) == [0, 2, 1, 1]


def test_a_category_that_the_order_lacks_is_refused_without_naming_it() -> None:
    with pytest.raises(DataError, match="column 'size' has categories that its `encoding` does not list") as refusal:
        fit([*made(), "huge"], SIZES)
    assert "huge" not in str(refusal.value)


@pytest.mark.parametrize(
    ("values", "encoding", "reason"),
    [
        (["a"] * 50 + ["b"] * 50, "frequency", "categories of the same number"),
        (["low"] * 100, SIZES, "categories of the same number"),
        ([None] * 100, SIZES, "no value"),
        ([None] * 100, "frequency", "no value"),
        (["low"] * 500 + ["high"] * (MIN_ROWS - 1), SIZES, "would reveal them"),
        (["a"] * 500 + ["b"] * 500 + ["c"] * 10 + ["d"] * 2, "frequency", None),
    ],
)
def test_a_number_that_says_too_little_or_too_much_is_left_out(
    values: list[str | None], encoding: Any, reason: str | None
) -> None:
    steps = fit(values, encoding, rare=0)
    assert reason is None or reason in steps.left_out["size"]
    assert ("size" in steps.left_out) is (reason is not None)


def test_the_default_may_be_a_frequency_and_a_column_may_have_terms_of_0_and_1() -> None:
    frame = frame_of(made()).assign(branch=pd.Series(made()[::-1], dtype="str"))
    config = PreprocessingConfig.model_validate(
        {"encoding": "frequency", "columns": {"branch": {"encoding": "one_hot"}}}
    )
    steps = Preprocessing.fit(features_of(frame), config, intercept=False)
    assert steps.terms == ("frequency(size)", "other", "branch=high", "branch=medium")
    assert [text.name for text in steps.texts] == ["size", "branch"]
    assert steps.n_row_values == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"columns": {"other": {"encoding": "frequency"}}}, "'other', which is numeric: `encoding` is for"),
        ({"columns": {"size": {"encoding": "frequency", "fill": 0}}}, "'size', which is categorical: give it"),
        (
            {"columns": {"size": {"encoding": "frequency"}}, "interactions": [["size", "other"]]},
            "'size:other' has a factor that is divided into bins or encoded as a number",
        ),
    ],
)
def test_settings_that_do_not_suit_a_column_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Preprocessing.fit(features_of(frame_of(made())), PreprocessingConfig.model_validate(settings), intercept=False)


@pytest.mark.parametrize("encoding", ["frequency", SIZES])
def test_it_goes_through_json_to_the_last_bit(encoding: Any) -> None:
    steps = fit(made(), encoding)
    again = Preprocessing.from_dict(json.loads(json.dumps(steps.to_dict())))
    assert again.to_dict() == steps.to_dict()
    rows = features_of(frame_of([*SIZES, None, "new"]))
    np.testing.assert_array_equal(again.expand(rows), steps.expand(rows))


@pytest.mark.parametrize("damage", [{"numbers": [0.5]}, {"name": "other"}, {"encoding": "hash"}, {"missing": None}])
def test_a_damaged_encoding_is_refused(damage: dict[str, Any]) -> None:
    state = fit(made(), "frequency").to_dict()
    state["columns"][0].update(damage)
    with pytest.raises(DataError, match="the model's preprocessing"):
        Preprocessing.from_dict(state)
