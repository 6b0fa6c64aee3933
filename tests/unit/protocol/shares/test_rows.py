"""Where the rows lie: each training row once, sections one after the other, and blocks that cover a range."""

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shares_rounds import rows_in_order
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.batches import WHOLE_SET, Batch, Batches
from trilateral.common.protocol.shares.rows import RowPlan, RowRange
from trilateral.common.shares.layout import BLOCK_ROWS, ROWS


@st.composite
def plans(draw: st.DrawFn) -> RowPlan:
    n_train = draw(st.integers(1, 500))
    batch: int | Literal["all"] = draw(st.one_of(st.integers(1, n_train), st.sampled_from(["all"])))
    return RowPlan.of(Batches(n_train, batch, draw(st.integers(0, 2**63 - 1))), draw(st.integers(0, 100)))


@given(plans())
def test_sections_follow_one_another_and_end_in_whole_groups(plan: RowPlan) -> None:
    first = n_real = 0
    for section in plan.sections:
        assert section.first == first
        assert section.n_rows % ROWS == 0
        assert 0 <= section.n_rows - section.n_real < ROWS
        first, n_real = section.end, n_real + section.n_real
    assert (plan.training.first, plan.training.n_rows, plan.training.n_real) == (0, first, n_real)
    assert n_real == plan.batches.n_train
    assert plan.holdout.first == first
    assert plan.holdout.n_real == plan.n_holdout
    assert plan.n_rows == plan.holdout.end


@given(plans(), st.integers(1, 50))
def test_the_range_of_a_batch_holds_the_rows_of_the_batch(plan: RowPlan, epoch: int) -> None:
    at = 0
    rows = []
    order = rows_in_order(plan)
    for section in plan.sections:
        rows.append(order[at : at + section.n_real])
        at += section.n_real
    assert np.array_equal(np.sort(order), np.arange(plan.batches.n_train))

    ranges = []
    for index in range(plan.batches.count):
        batch = Batch(epoch, index)
        selection = plan.selection(batch)
        (number,) = selection.numbers
        assert selection.ranges == (plan.section(number),)
        assert np.array_equal(rows[number], plan.batches.rows(batch))
        ranges.append(number)
    assert sorted(ranges) == list(range(plan.n_sections))
    assert plan.selection(WHOLE_SET).ranges == (plan.training,)
    assert plan.selection(WHOLE_SET).numbers == range(plan.n_sections)


@st.composite
def plans_with_folds(draw: st.DrawFn) -> RowPlan:
    n_train, n_folds, seed = draw(st.integers(20, 500)), draw(st.integers(2, 20)), draw(st.integers(0, 2**63 - 1))
    job = JobConfig(name="j", dataset="d", protocol="shares", folds=n_folds, seed=seed)
    folds = None
    if draw(st.booleans()):
        random = np.random.default_rng(seed)
        # Every fold has a row.
        folds = np.append(np.arange(n_folds), random.geometric(0.4, n_train - n_folds) % n_folds).astype(np.uint8)
        random.shuffle(folds)
    return RowPlan.of(Batches.of(job, n_train, folds), 7)


@given(plans_with_folds(), st.data())
def test_rows_are_cut_at_the_ends_of_folds(plan: RowPlan, data: st.DataObject) -> None:
    groups = st.integers(0, plan.n_rows // ROWS)
    first, end = sorted(data.draw(st.lists(groups, min_size=2, max_size=2, unique=True)))
    rows = RowRange(first * ROWS, (end - first) * ROWS)
    parts = list(plan.by_section(rows))
    assert sum(part.n_rows for _, part in parts) == rows.n_rows
    at = rows.first
    for number, part in parts:
        section = plan.holdout if number == plan.n_sections else plan.section(number)
        assert section.first <= part.first == at
        assert part.end <= section.end
        at = part.end


@given(plans_with_folds(), st.integers(1, 5))
def test_a_fold_and_the_rows_outside_of_it_are_all_training_rows(plan: RowPlan, epoch: int) -> None:
    n, n_folds = plan.batches.n_train, plan.batches.n_folds
    order = np.split(rows_in_order(plan), np.cumsum([section.n_real for section in plan.sections])[:-1])
    everything = plan.selection(Batch(epoch))
    assert [each.n_real for each in everything.ranges] == [len(rows) for rows in order]
    assert (everything.n_rows, everything.n_real) == (plan.training.n_rows, n)
    for fold in range(1, n_folds + 1):
        alone, rest = (Batch(epoch, fold=fold, held_out=held_out) for held_out in (True, False))
        (section,) = plan.selection(alone).ranges
        assert sorted([*plan.selection(rest).ranges, section], key=lambda each: each.first) == list(plan.sections)
        assert np.array_equal(order[fold - 1], plan.batches.rows(alone))
        assert np.array_equal(np.setdiff1d(np.arange(n), order[fold - 1]), plan.batches.rows(rest))
        assert plan.batches.size(alone) + plan.batches.size(rest) == n
        for selection in map(plan.selection, (alone, rest)):
            assert sum(block.n_rows for run in selection.runs(2) for block in run) == selection.n_rows


def test_there_is_no_fold_that_the_job_does_not_have() -> None:
    plan = RowPlan.of(Batches(100, "all", 0, n_folds=5), 0)
    with pytest.raises(ValueError, match="no fold 6"):
        plan.selection(Batch(1, fold=6))
    with pytest.raises(ValueError, match="101 folds"):
        Batches(100, "all", 0, n_folds=101)


@pytest.mark.parametrize("n_rows", [ROWS, BLOCK_ROWS, BLOCK_ROWS + ROWS, 3 * BLOCK_ROWS])
def test_blocks_cover_their_range_in_order(n_rows: int) -> None:
    blocks = list(RowRange(32, n_rows).blocks())

    assert blocks[0].first == 32
    assert all(one.end == other.first for one, other in itertools.pairwise(blocks))
    assert all(block.n_rows == BLOCK_ROWS for block in blocks[:-1])
    assert 0 < blocks[-1].n_rows <= BLOCK_ROWS
    assert blocks[-1].end == 32 + n_rows


def test_a_plan_of_many_rows_draws_none_of_them() -> None:
    plan = RowPlan.of(Batches(10**12, 10**9, 0), 10**11)
    assert plan.training.n_real == 10**12
    assert plan.selection(Batch(3, 7)).n_real == 10**9


def test_there_is_no_range_for_a_batch_that_the_job_does_not_have() -> None:
    plan = RowPlan.of(Batches(100, 10, 0), 0)
    with pytest.raises(ValueError, match="no batch 10 of epoch 1"):
        plan.selection(Batch(1, 10))
