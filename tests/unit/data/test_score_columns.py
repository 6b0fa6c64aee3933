"""The names of the columns of a file of scores, and IDs whose columns have such names."""

import pytest

from trilateral.common.data.model.score_columns import clash_of, figures_of_class, figures_of_classes, reason_headers

CLASSES = ["own", "rent", "free"]


@pytest.mark.parametrize("name", ["score", "probability", *reason_headers(10, 10), "reason_11"])
def test_an_id_of_several_columns_has_none_of_these_names(name: str) -> None:
    clash = clash_of(["country", name], None)
    assert clash is not None
    assert f"`id` names the column {name!r}" in clash
    assert "rename the column" in clash


@pytest.mark.parametrize("name", ["class", "score_own", "probability_free", "host_reason_1"])
def test_in_a_model_of_classes_further_names_are_taken(name: str) -> None:
    assert clash_of([name, "country"], CLASSES) is not None


@pytest.mark.parametrize(
    ("columns", "classes"),
    [
        (["score"], None),  # A single column is called `id` in the file.
        (["class", "score_own"], None),
        (["score", "country"], CLASSES),
        (["reason", "reason_x", "a_reason_1"], None),
    ],
)
def test_other_names_can_be_told_from_scores(columns: list[str], classes: list[str] | None) -> None:
    assert clash_of(columns, classes) is None


def test_each_class_has_a_score_and_a_probability() -> None:
    pairs = [name for each in CLASSES for name in figures_of_class(each)]
    assert sorted(pairs) == sorted(figures_of_classes(CLASSES))
    assert figures_of_classes(CLASSES)[:3] == ["score_own", "score_rent", "score_free"]
