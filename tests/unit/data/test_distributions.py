"""The histograms of a model file: what is a group, how few rows it may have, and how a shift is counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError
from trilateral.common.data.features import Categories, Features
from trilateral.common.data.model.distributions import (
    MAX_CATEGORIES,
    CategoryDistribution,
    Distributions,
    NumberDistribution,
    Shift,
    ShiftCounter,
    describe_shift,
    psi,
)

NAN = float("nan")


def features(columns: dict[str, FloatVector]) -> Features:
    return Features(columns, len(columns["x"]))


def categories(*texts: str | None) -> Categories:
    levels = sorted({text for text in texts if text is not None})
    codes = np.array([-1 if text is None else levels.index(text) for text in texts], np.int32)
    return Categories(codes, tuple(levels))


def test_numbers_that_all_differ_are_in_ten_bins_of_equal_size() -> None:
    distribution = NumberDistribution.of(np.arange(1000.0))
    assert distribution.bounds == [99.0, 199.0, 299.0, 399.0, 499.0, 599.0, 699.0, 799.0, 899.0]
    assert distribution.counts == [100] * 10 + [0]


def test_a_frequent_value_has_a_bin_of_its_own() -> None:
    values = np.concatenate([np.zeros(500), np.arange(1.0, 501.0)])
    distribution = NumberDistribution.of(values)
    assert distribution.bounds[0] == 0.0
    assert distribution.counts[0] == 500


def test_two_values_are_two_groups_whichever_is_more_frequent() -> None:
    for n_ones in (50, 950):
        distribution = NumberDistribution.of(np.repeat([0.0, 1.0], [1000 - n_ones, n_ones]))
        assert distribution.bounds == [0.0]
        assert distribution.counts == [1000 - n_ones, n_ones, 0]


@given(st.lists(st.one_of(st.just(NAN), st.integers(-3, 3).map(float), st.floats(-10, 10)), min_size=1, max_size=200))
def test_no_group_of_numbers_has_one_to_nine_rows(values: list[float]) -> None:
    distribution = NumberDistribution.of(np.array(values))
    assert sum(distribution.counts) == len(values)
    assert len(values) < 10 or all(count == 0 or count >= 10 for count in distribution.counts)


@given(st.lists(st.sampled_from([None, *"abcdefgh"]), min_size=1, max_size=200))
def test_no_group_of_categories_has_one_to_nine_rows(texts: list[str | None]) -> None:
    distribution = CategoryDistribution.of(categories(*texts))
    assert sum(distribution.counts) == len(texts)
    assert len(texts) < 10 or all(count == 0 or count >= 10 for count in distribution.counts)
    assert all(texts.count(category) >= 10 for category in distribution.categories)


def test_only_the_most_frequent_categories_are_named() -> None:
    texts = [f"c{number:03}" for number in range(80) for _ in range(20 + number)]
    distribution = CategoryDistribution.of(categories(*texts))
    assert distribution.categories == [f"c{number:03}" for number in range(80 - MAX_CATEGORIES, 80)]
    assert distribution.counts[-2] == sum(20 + number for number in range(80 - MAX_CATEGORIES))


def test_rows_like_those_of_the_training_have_no_shift() -> None:
    values = np.append(np.random.default_rng(0).normal(size=5000), [NAN] * 500)
    distribution = NumberDistribution.of(values)
    assert distribution.count(values).tolist() == distribution.counts
    assert psi(distribution.counts, distribution.count(values)) == 0
    texts = categories(*["a"] * 20, *["b"] * 30, *[None] * 15)
    of_texts = CategoryDistribution.of(texts)
    assert of_texts.count(texts).tolist() == of_texts.counts == [20, 30, 0, 15]


def test_values_of_no_training_row_are_counted_in_their_group() -> None:
    distribution = NumberDistribution.of(np.arange(100.0))
    counts = distribution.count(np.array([-1e300, 1e300, NAN, NAN]))
    assert counts[0] == counts[-2] == 1
    assert counts[-1] == 2
    of_texts = CategoryDistribution.of(categories(*["b"] * 20))
    assert of_texts.count(categories("a", "b", "c", None)).tolist() == [1, 2, 1]


def test_the_order_of_pieces_does_not_matter() -> None:
    values = np.random.default_rng(1).normal(size=300)
    counter = ShiftCounter(Distributions(columns={"x": NumberDistribution.of(values)}))
    counter.add(features({"x": values[200:]}))
    counter.add(features({"x": values[:200]}))
    assert counter.shift == Shift(300, {"x": 0.0})


def test_an_empty_group_has_a_finite_psi() -> None:
    assert 0 < psi([500, 500], [1000, 0]) < 10


def test_a_column_of_another_kind_is_refused_by_name_of_the_rule() -> None:
    with pytest.raises(DataError, match="preprocessing mismatch"):
        NumberDistribution.of(np.arange(100.0)).count(categories("a"))
    with pytest.raises(DataError, match="preprocessing mismatch"):
        CategoryDistribution.of(categories(*["a"] * 20)).count(np.zeros(2))


# --- what is reported of a shift


def test_few_rows_are_not_reported() -> None:
    assert Shift(999, {"x": 3.0}, 999, 3.0).reported is None
    assert describe_shift(Shift(999, {"x": 3.0}, 999, 3.0)) is None
    assert Shift(1000, {"x": 0.123}, 999, 3.0).reported == Shift(1000, {"x": 0.12}, 999, None)


def test_a_sentence_names_the_columns_that_have_shifted_the_largest_first() -> None:
    text = describe_shift(Shift(1000, {"calm": 0.01, "age": 0.118, "debt": 0.9}, 1000, 0.051))
    assert text == "shift since the training: PSI of the score 0.05; CSI of 0.1 or more: 'debt' 0.90, 'age' 0.12"
    text = describe_shift(Shift(1000, {"calm": 0.01}))
    assert text == "shift since the training: CSI of each column below 0.1"


def test_of_several_classes_the_largest_psi_counts() -> None:
    rng = np.random.default_rng(3)
    of_classes = [NumberDistribution.of(rng.normal(size=500)) for _ in range(3)]
    counter = ShiftCounter(Distributions(score=of_classes[0]), of_classes)
    counter.add_scores(np.empty((0, 3)))
    assert counter.shift.psi is None
    scores = rng.normal([0, 0, 2], 1, (2000, 3))
    for part in (scores[:300], scores[300:]):
        counter.add_scores(part)
    assert counter.shift.n_scored == 2000
    assert counter.shift.psi == psi(of_classes[2].counts, of_classes[2].count(scores[:, 2]))


def test_a_model_without_distributions_reports_nothing() -> None:
    counter = ShiftCounter(None)
    counter.add(features({"x": np.zeros(2000)}))
    counter.add_scores(np.zeros(2000))
    assert describe_shift(counter.shift) is None


def test_the_group_of_a_single_row_does_not_show_in_what_is_reported() -> None:
    """Two tables that differ by one row: exact figures name its group, the reported ones are the same."""
    rng = np.random.default_rng(2)
    distribution = Distributions(columns={"x": NumberDistribution.of(rng.normal(size=20_000))})

    def shift_with(value: float) -> Shift:
        counter = ShiftCounter(distribution)
        counter.add(features({"x": np.append(others, value)}))
        return counter.shift

    n_shown = 0
    for _ in range(100):
        others = rng.normal(0.3, size=1999)
        low, high = shift_with(-3.0), shift_with(3.0)
        assert low.csi != high.csi
        n_shown += low.reported != high.reported
    assert n_shown <= 15
