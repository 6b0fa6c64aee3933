"""The hold-out split and the batches, which each party draws by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trilateral.common.protocol.batches import Batch, Batches, holdout_split, subsample

seeds = st.integers(0, 2**63 - 1)


@given(st.integers(0, 300), st.floats(0, 1, exclude_max=True), seeds)
def test_split_is_a_partition_of_the_asked_size(n_rows: int, fraction: float, seed: int) -> None:
    train, holdout = holdout_split(n_rows, fraction, seed)

    assert len(holdout) == round(fraction * n_rows)
    assert np.array_equal(np.sort(np.concatenate([train, holdout])), np.arange(n_rows))
    assert (np.diff(train) > 0).all()
    assert (np.diff(holdout) > 0).all()


@given(st.integers(1, 300), st.data(), seeds, st.integers(1, 1000))
def test_batches_of_an_epoch_are_a_partition_into_equal_parts(
    n_train: int, data: st.DataObject, seed: int, epoch: int
) -> None:
    batch = data.draw(st.integers(1, n_train))
    batches = Batches(n_train, batch, seed)

    rows = [batches.rows(Batch(epoch, index)) for index in range(batches.count)]

    sizes = [len(one) for one in rows]
    assert min(sizes) >= batch
    assert max(sizes) - min(sizes) <= 1
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(n_train))
    assert all((np.diff(one) > 0).all() for one in rows)


@given(st.integers(2, 300), st.data(), seeds)
def test_every_epoch_has_the_same_batches(n_train: int, data: st.DataObject, seed: int) -> None:
    """Others would be new sums over the same labels; see `Batches`."""
    batches = Batches(n_train, data.draw(st.integers(1, n_train)), seed)
    epochs = [
        {tuple(batches.rows(Batch(epoch, index)).tolist()) for index in range(batches.count)} for epoch in (1, 2, 9)
    ]
    assert epochs[0] == epochs[1] == epochs[2]
    sizes = [batches.size(Batch(2, index)) for index in range(batches.count)]
    assert sizes == [len(batches.rows(Batch(2, index))) for index in range(batches.count)]


def test_each_epoch_seed_and_purpose_has_an_order_of_its_own() -> None:
    drawn = [
        Batches(1000, 100, seed=1).rows(Batch(1, 0)),
        Batches(1000, 100, seed=1).rows(Batch(2, 0)),
        Batches(1000, 100, seed=2).rows(Batch(1, 0)),
        subsample(1000, 100, seed=1, draw=1),
        subsample(1000, 100, seed=1, draw=2),
        holdout_split(1000, 0.1, seed=1)[1],
    ]

    assert len({tuple(rows) for rows in drawn}) == len(drawn)


def test_all_is_one_batch_of_every_row() -> None:
    batches = Batches(7, "all", seed=3)

    assert batches.count == 1
    assert np.array_equal(batches.rows(Batch(4, 0)), np.arange(7))


@given(st.integers(1, 100), st.data(), seeds, st.integers(1, 1000))
def test_a_curvature_batch_has_different_rows(n_train: int, data: st.DataObject, seed: int, draw: int) -> None:
    size = data.draw(st.integers(1, n_train))

    rows = subsample(n_train, size, seed, draw)

    assert len(rows) == size
    assert (np.diff(rows) > 0).all()
    assert rows[0] >= 0
    assert rows[-1] < n_train


@pytest.mark.parametrize(("n_train", "batch"), [(9, 10), (0, 1), (10, 0), (10, -1)])
def test_a_batch_that_the_rows_cannot_fill_is_refused(n_train: int, batch: int) -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        Batches(n_train, batch, seed=0)


@pytest.mark.parametrize(("epoch", "index"), [(0, 1), (1, 3), (1, -1)])
def test_a_batch_that_does_not_exist_is_refused(epoch: int, index: int) -> None:
    with pytest.raises(ValueError, match="there is no batch"):
        Batches(30, 10, seed=0).rows(Batch(epoch, index))


@pytest.mark.parametrize(("size", "draw"), [(11, 1), (0, 1), (5, 0)])
def test_a_curvature_batch_that_cannot_be_drawn_is_refused(size: int, draw: int) -> None:
    with pytest.raises(ValueError, match="not possible"):
        subsample(10, size, seed=0, draw=draw)


def test_orders_stay_as_they_are() -> None:
    """Two parties may run different versions of everything: a change here breaks their jobs in silence."""
    assert holdout_split(20, 0.25, seed=7)[1].tolist() == [1, 2, 9, 12, 13]
    assert Batches(1000, 100, seed=7).rows(Batch(1, 0))[:8].tolist() == [8, 14, 16, 17, 28, 35, 38, 49]
    assert Batches(1000, 100, seed=2**63 - 1).rows(Batch(100_000, 9))[:8].tolist() == [22, 26, 37, 53, 57, 93, 102, 115]
    assert Batches(1000, 100, seed=7, is_apart=True).rows(Batch(1, 0))[:8].tolist() == [8, 22, 39, 49, 59, 77, 82, 87]
    assert Batches(1000, "all", seed=7, n_folds=10).part_rows(0)[:8].tolist() == [1, 3, 14, 21, 23, 26, 29, 34]
    assert subsample(1000, 8, seed=7, draw=1).tolist() == [100, 277, 553, 707, 737, 751, 809, 931]


def philox(key: tuple[int, int], count: int) -> list[int]:
    """Philox4x64-10 of Salmon et al. (2011) in plain integers; the counter starts at 1, as numpy's does."""
    low = 2**64 - 1
    words: list[int] = []
    for counter in range(1, -(-count // 4) + 1):
        x, (k0, k1) = [counter, 0, 0, 0], key
        for _ in range(10):
            left, right = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
            x = [right >> 64 ^ x[1] ^ k0, right & low, left >> 64 ^ x[3] ^ k1, left & low]
            k0, k1 = k0 + 0x9E3779B97F4A7C15 & low, k1 + 0xBB67AE8584CAA73B & low
        words += x
    return words[:count]


@given(st.integers(1, 60), seeds, st.integers(1, 2**20))
def test_orders_are_those_of_the_published_generator(n_train: int, seed: int, draw: int) -> None:
    words = philox((seed, 3 << 48 | draw), n_train)
    order = sorted(range(n_train), key=words.__getitem__)
    size = (n_train + 1) // 2

    assert subsample(n_train, size, seed, draw).tolist() == sorted(order[:size])


def test_the_order_of_a_part_of_the_rows_is_that_of_all_rows() -> None:
    """Jobs of 0.1.0 sorted all rows to hold some out."""

    def sorted_first(n_rows: int, size: int, seed: int, purpose: int, number: int) -> NDArray[np.int64]:
        key = np.array([seed, purpose << 48 | number], dtype=np.uint64)
        order = np.argsort(np.random.Philox(key=key).random_raw(n_rows), kind="stable")
        return np.sort(order[:size])

    for n_rows in (1, 10, 1001):
        for fraction in (0, 0.1, 0.5, 1):
            train, holdout = holdout_split(n_rows, fraction, seed=3)
            np.testing.assert_array_equal(holdout, sorted_first(n_rows, round(fraction * n_rows), 3, 1, 0))
            np.testing.assert_array_equal(train, np.setdiff1d(np.arange(n_rows), holdout))
        for size in {1, (n_rows + 1) // 2, n_rows}:
            np.testing.assert_array_equal(subsample(n_rows, size, 3, 2), sorted_first(n_rows, size, 3, 3, 2))
