"""Tables of shares: every row at its place, wherever the table lies, and integers whose mean is right."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.shares_rounds import rows_in_order
from tests.unit.protocol.shares.test_rows import plans
from trilateral.common.base.arrays import RowArray, Rows
from trilateral.common.base.errors import DataError
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.shares import tables
from trilateral.common.protocol.shares.rows import RowPlan, RowRange
from trilateral.common.protocol.shares.tables import SectionOrder, Table, measure, round_columns
from trilateral.common.scratch.arrays import IN_MEMORY
from trilateral.common.scratch.space import JobScratch, ScratchSpace
from trilateral.common.shares.layout import tile


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobScratch]:
    folder: Path = tmp_path_factory.mktemp("scratch")
    with ScratchSpace(folder, max_bytes=None, memory_bytes=0, encrypt=True).open() as scratch:
        yield scratch


@pytest.fixture(autouse=True, scope="module")
def _many_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "SHUFFLE_BYTES", 300)
        yield


def on_disk(scratch: JobScratch, values: NDArray[Any]) -> RowArray[Any]:
    array = scratch.array(np.float64, values.shape)
    array.append(values)
    return array.finish()


@given(plans())
def test_blocks_have_the_rows_of_the_sections_in_order(disk: JobScratch, plan: RowPlan) -> None:
    n_train, n_holdout = plan.batches.n_train, plan.n_holdout
    values = np.arange(n_train + n_holdout, dtype=float)[:, np.newaxis] + [0.0, 0.5]
    matrices = values[:n_train], values[n_train:]

    of_memory = list(SectionOrder(plan, IN_MEMORY).blocks(*matrices))
    of_disk = list(SectionOrder(plan, disk).blocks(*(on_disk(disk, each) for each in matrices)))

    found = np.concatenate([np.zeros((0, 2)), *(each for _, _, each in of_memory)])
    expected = np.concatenate([values[rows_in_order(plan)], matrices[1]])
    assert np.array_equal(found, expected)
    rows = [(number, rows) for number, rows, _ in of_memory]
    assert rows == [(number, rows) for number, rows, _ in of_disk]
    assert all(np.array_equal(one[2], other[2]) for one, other in zip(of_memory, of_disk, strict=True))
    assert sum(each.n_rows for _, each in rows) == plan.n_rows
    for number, each in rows:
        assert list(plan.by_section(each)) == [(number, each)]


@given(plans(), st.data())
def test_rows_are_cut_at_the_ends_of_sections(plan: RowPlan, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, plan.n_rows - 1))
    end = data.draw(st.integers(first + 1, plan.n_rows))
    sections = [*plan.sections, plan.holdout]
    parts = list(plan.by_section(RowRange(first, end - first)))
    assert parts[0][1].first == first
    assert parts[-1][1].end == end
    assert all(one.end == other.first for (_, one), (_, other) in pairwise(parts))
    for number, part in parts:
        assert part.n_rows > 0
        assert sections[number].first <= part.first < part.end <= sections[number].end


def test_a_table_on_disk_is_read_once_and_not_once_for_each_batch(disk: JobScratch) -> None:
    class Counted:
        n_read = 0

        def __init__(self, values: NDArray[Any]) -> None:
            self.array, self.shape = values, values.shape

        def __len__(self) -> int:
            return len(self.array)

        def __getitem__(self, rows: slice | Rows, /) -> NDArray[Any]:
            self.n_read += len(self.array[rows])
            return self.array[rows]

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
            raise AssertionError("all rows at once")

    plan = RowPlan.of(Batches(1000, 10, 3), 0)
    values = np.random.default_rng(0).normal(size=(1000, 3))
    counted = Counted(values)
    found = [each for _, _, each in SectionOrder(plan, disk).blocks(counted, values[:0])]
    assert np.array_equal(np.concatenate(found), values[rows_in_order(plan)])
    assert counted.n_read == len(values)


@pytest.mark.parametrize("n_columns", [0, 1, 3])
def test_a_table_is_read_as_it_was_appended(disk: JobScratch, n_columns: int) -> None:
    matrix = np.random.default_rng(1).integers(0, 2**60, (64, n_columns)).astype(np.uint64)
    flat = tile(matrix, 64)
    for scratch in (IN_MEMORY, disk):
        table = Table(scratch, np.uint64, 64, n_columns)
        for first, end in ((0, 16), (16, 24), (24, 64)):
            table.append(RowRange(first, end - first), flat[first * n_columns : end * n_columns])
        assert np.array_equal(table[RowRange(0, 64)], flat)
        assert np.array_equal(table[RowRange(8, 40)], flat[8 * n_columns : 48 * n_columns])
    with pytest.raises(ValueError, match="rows from 80, but those from 64 come next"):
        table.append(RowRange(80, 16), flat[:0])


def test_sizes_are_those_of_the_whole_matrix(disk: JobScratch) -> None:
    values = np.random.default_rng(2).normal(size=(200_000, 3)) * [1, 2, 3]
    for columns in (values, on_disk(disk, values)):
        sizes = measure(columns)
        assert sizes.norm == pytest.approx(np.linalg.norm(values, axis=1).max())
        assert sizes.spread == pytest.approx(np.linalg.svd(values, compute_uv=False)[0])
        assert sizes.fourth == pytest.approx((values**4).sum(axis=0).max())
    assert measure(values[:0]) == measure(values[:, :0]) == tables.Sizes(0.0, 0.0, 0.0)


def test_columns_are_rounded_to_neighbours_with_the_right_mean() -> None:
    values = np.full((4000, 2), [0.3, -1.75])
    rounded = round_columns(values, 4016, 1, np.random.default_rng(3))
    matrix = rounded.reshape(-1, 2, 8).transpose(0, 2, 1).reshape(-1, 2)
    assert not matrix[4000:].any()
    assert set(matrix[:4000, 0]) == {0, 1}
    assert set(matrix[:4000, 1]) == {-2, -1}
    assert np.allclose(matrix[:4000].mean(axis=0), values[0], atol=0.04)


def test_a_value_that_does_not_fit_is_refused_by_its_limit() -> None:
    with pytest.raises(DataError, match=r"exceeds 2\.09715e\+06 standard deviations"):
        round_columns(np.array([[2.0**22]]), 16, 1024, np.random.default_rng())
