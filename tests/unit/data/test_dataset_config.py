"""Settings of a party's table."""

from typing import Any

import pytest
from pydantic import ValidationError

from trilateral.common.config.dataset import DatasetConfig, LabelConfig, PreprocessingConfig, label_key


def test_a_path_is_all_that_a_host_must_give() -> None:
    dataset = DatasetConfig.model_validate({"path": "table.csv"})

    assert dataset.id == "id"
    assert dataset.label is None
    assert dataset.features is None
    assert dataset.exclude == []
    assert dataset.preprocessing == PreprocessingConfig(fill="median", clip=(0.01, 0.99), whiten=True)


def test_label_values_may_be_written_as_numbers() -> None:
    assert LabelConfig.model_validate({"positive": 2, "negative": -1}) == LabelConfig(positive="2", negative="-1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": ["a"], "exclude": ["b"]}, "cannot be combined"),
        ({"features": []}, "at least 1 item"),
        ({"features": ["a", "a"]}, "names a column twice"),
        ({"features": ["id"]}, "an ID is not a feature"),
        ({"features": ["y"], "label": {"column": "y"}}, "a label is not a feature"),
        ({"id": "x", "label": {"column": "x"}}, "same column"),
        ({"label": {"positive": "Yes", "negative": " yes"}}, "a label needs two"),
        ({"label": {"classes": [1, 2, 3]}, "preprocessing": {"binning": {}}}, "takes a label of two values"),
        (
            {
                "label": {"classes": [1, 2, 3]},
                "preprocessing": {"binning": {"method": "width", "woe": False, "columns": {"a": {"woe": True}}}},
            },
            "takes a label of two values",
        ),
        ({"preprocessing": {"binning": {"method": [1, 2]}}}, "bounds and groups belong to one column"),
        ({"preprocessing": {"binning": {"columns": {"a": {"method": [2, 1]}}}}}, "in ascending order"),
        ({"preprocessing": {"binning": {"columns": {"a": {"method": [["x"], ["x"]]}}}}}, "names a category twice"),
        ({"preprocessing": {"binning": {"columns": {"a": {"method": [["x"]]}}}}}, "gives groups to 'a', which is not"),
        (
            {"categorical": ["a"], "preprocessing": {"binning": {"columns": {"a": {"method": [1, 2]}}}}},
            "gives bounds to 'a', which is categorical",
        ),
        ({"label": {}, "preprocessing": {"binning": {"job": "bins-1"}}}, "a setting of the host alone"),
        ({"label": {"positive": "1", "negative": "1.0"}}, "a label needs two"),
        ({"preprocessing": {"clip": [0.9, 0.1]}}, "0 <= lower < upper <= 1"),
        ({"preprocessing": {"clip": [0.0, 1.5]}}, "0 <= lower < upper <= 1"),
        ({"preprocessing": {"clip": [0.5, 0.5]}}, "0 <= lower < upper <= 1"),
        ({"preprocessing": {"limits": [2, 1]}}, "lower < upper"),
        ({"preprocessing": {"limits": [1, 1]}}, "lower < upper"),
        ({"preprocessing": {"limits": [None, None]}}, "a lower or an upper value"),
        ({"preprocessing": {"limits": [0, float("inf")]}}, "finite number"),
        ({"preprocessing": {"spline": {"knots": [2, 1]}}}, "ascending order"),
        ({"preprocessing": {"spline": {"knots": []}}}, "at least 1 item"),
        ({"preprocessing": {"spline": {"knots": 0}}}, "greater than or equal to 1"),
        ({"preprocessing": {"spline": {"kind": "cubic"}}}, "'natural' or 'bspline'"),
        ({"preprocessing": {"interactions": [["a", "a"]]}}, "two different columns"),
        ({"preprocessing": {"interactions": [["a", "b"], ["b", "a"]]}}, "a pair twice"),
        ({"categorical": ["a", "b"], "preprocessing": {"interactions": [["a", "b"]]}}, "both categorical"),
        ({"preprocessing": {"encoding": ["a", "b"]}}, "belongs to one column"),
        ({"preprocessing": {"columns": {"a": {"encoding": ["a", "a"]}}}}, "a category twice"),
        ({"preprocessing": {"columns": {"a": {"encoding": ["a"]}}}}, "at least 2 items"),
        (
            {"categorical": ["a"], "preprocessing": {"columns": {"a": {"encoding": "frequency", "fill": 0}}}},
            "`encoding`",
        ),
        ({"preprocessing": {"fill": "mode"}}, "'median' or 'mean'"),
        ({"preprocessing": {"fill": float("inf")}}, "finite number"),
        ({"preprocessing": {"rare": 1}}, "less than 1"),
        ({"preprocessing": {"columns": {"a": {"rare": 0.1}}}}, "Extra inputs"),
        ({"categorical": ["id"]}, "names 'id', which the other settings exclude"),
        ({"categorical": ["a"], "exclude": ["a"]}, "names 'a', which the other settings exclude"),
        ({"categorical": ["a"], "features": ["b"]}, "names 'a', which the other settings exclude"),
        ({"categorical": ["label"], "label": {}}, "names 'label', which the other settings exclude"),
        ({"categorical": ["a"], "preprocessing": {"columns": {"a": {}}}}, "'a', which is categorical"),
        ({"lable": {}}, "Extra inputs"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DatasetConfig.model_validate({"path": "table.csv", **settings})


def test_a_label_value_is_the_same_however_it_is_written() -> None:
    assert label_key("1") == label_key("1.0") == label_key(" 1e0 ") == label_key("+1")
    assert label_key("Yes") == label_key("YES ")
    assert label_key("-1") != label_key("1")
    assert label_key("yes") != label_key("no")
