"""What a curious coordinator tries on the folds of a cross-validation: to read sums over few rows.

Each attack wins without the protection and loses with it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.protocol.test_shares_training import make_job, train
from tests.support.frames import features_of
from tests.support.three_machines import Tables, make_tables, with_folds
from trilateral.common.base.arrays import FloatMatrix, FloatVector
from trilateral.common.base.errors import DataError, PolicyError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.data.folds import MIN_FOLD_OF_LABEL, make_folds
from trilateral.common.data.party_data import PreparedData
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.account import Account, training_equations
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.policy import check_effective_rows, check_sizes
from trilateral.common.jobs.used_folds import UsedFolds, fewest_rows
from trilateral.common.jobs.used_rows import TRAINING, UsedRows
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol import batches as drawing
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.common.protocol.label_secrecy import LabelSecrecy, told_by
from trilateral.common.protocol.messages import ObservationRecord
from trilateral.common.protocol.row_roles import RoleVector, RowRole
from trilateral.coordinator import training as coordinator_training
from trilateral.coordinator.plan import GivenUp, Probe, Search


def sums_at_zero(
    job: JobConfig, tables: Tables, key: PrivateKey, batches: Sequence[Batch], monkeypatch: pytest.MonkeyPatch
) -> list[FloatVector]:
    """Let a hostile coordinator ask for the gradient at w = 0 of rows that it chooses; return the opened sums."""

    def search(*arguments: Any) -> Search:
        for batch in batches:
            yield Probe(np.zeros(tables.joined.columns.shape[1]), batch)
        return GivenUp("the coordinator has what it wants")

    monkeypatch.setattr(coordinator_training, "cross_validated_search", search)
    outcome = train(job, tables, key)
    seen = [message for *_, message in outcome.traffic if isinstance(message, ObservationRecord)]
    sizes = Batches.of(job, len(tables.joined.labels), tables.host.block.folds)
    return [
        np.asarray(each.gradient) * sizes.size(batch) for each, batch in zip(seen, batches, strict=True) if each.loss
    ]


def rows_times_labels(tables: Tables) -> FloatMatrix:
    """X'q / 2 of each row: what a row adds to a gradient at w = 0."""
    return np.asarray(tables.joined.columns) * -tables.joined.labels[:, np.newaxis] / 2


class TestFoldsOfFewRows:
    """The difference of two gradients at one point is a sum over one fold."""

    job = make_job(folds=20, l2=0.01, holdout=0.0)

    def test_show_their_rows_to_a_coordinator_that_subtracts(
        self, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tables = make_tables(self.job, n_rows=40)
        asked = [Batch(1), Batch(1, fold=7)]
        whole, rest = sums_at_zero(self.job, tables, private_key, asked, monkeypatch)
        rows = Batches.of(self.job, 40).rows(Batch(1, fold=7, held_out=True))
        assert len(rows) == 2
        np.testing.assert_allclose(whole - rest, rows_times_labels(tables)[rows].sum(axis=0), atol=0.02)

    @pytest.mark.parametrize("role", PARTIES)
    def test_are_refused_by_either_party(self, role: Role) -> None:
        """A party that allows them in its own file cannot allow them for the other."""
        check_sizes(self.job, Policy(min_batch=1), 40, role)
        with pytest.raises(PolicyError, match="policy.min_batch: the minimum is 100; a fold has 2"):
            check_sizes(self.job, Policy(), 40, role)
        check_sizes(self.job, Policy(), 2000, role)
        with pytest.raises(PolicyError, match="a fold has 99"):
            check_sizes(self.job, Policy(), 1999, role)

    def test_cannot_hide_behind_rows_without_weight(self) -> None:
        """A fold in which three rows have nearly all weight is a sum over three rows."""
        tables = make_tables(self.job, n_rows=4000)
        block = tables.guest.block
        weights = np.ones(4000)
        weights[Batches.of(self.job, 4000).part_rows(3)[3:]] = 0.015625
        light = replace(block, sample_weights=weights, weight_bits=6)
        check_effective_rows(make_job(), Policy(), light, Role.GUEST)
        with pytest.raises(PolicyError, match="policy.min_batch"):
            check_effective_rows(self.job, Policy(), light, Role.GUEST)


class TestTwoJobs:
    """Folds that differ by one row show that row as their difference."""

    def test_with_one_seed_and_one_more_row_show_no_more_than_two_trainings_do(
        self, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The remaining risk that docs/security.md states: the sums of all rows differ by the new row as well."""
        job = make_job(folds=5, l2=0.01, holdout=0.0)
        tables = make_tables(job, n_rows=1201)
        host, guest = (
            replace(each, block=replace(each.block, columns=0.98 * np.asarray(each.block.columns)))
            for each in (tables.host, tables.guest)
        )
        tables, n_rows = Tables(host, guest), 1200
        before = Tables(_first_rows(tables.host, n_rows), _first_rows(tables.guest, n_rows))
        first = sums_at_zero(job, before, private_key, [Batch(1)], monkeypatch)
        second = sums_at_zero(job, tables, private_key, [Batch(1)], monkeypatch)
        np.testing.assert_allclose(second[0] - first[0], rows_times_labels(tables)[n_rows], atol=0.01)

    @pytest.mark.parametrize(
        "is_apart", [False, True], ids=["one order of the rows", "an order for each number of folds"]
    )
    def test_with_other_numbers_of_folds_show_one_row_unless_their_orders_differ(
        self, is_apart: bool, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The seed is the same, and so are the rows: no comparison of training rows stops these two jobs."""
        jobs = [make_job(folds=n_folds, l2=0.01, holdout=0.0) for n_folds in (19, 20)]
        tables = make_tables(jobs[0], n_rows=380)
        if not is_apart:
            order = drawing._order
            monkeypatch.setattr(drawing, "_order", lambda *arguments: order(*arguments[:4]))
        fold = Batch(1, fold=1, held_out=True)
        larger, smaller = (set(Batches.of(job, 380).rows(fold)) for job in jobs)
        found = [sums_at_zero(job, tables, private_key, [Batch(1, fold=1)], monkeypatch)[0] for job in jobs]
        rows = sorted(larger ^ smaller)
        assert (len(rows) == 1) is not is_apart
        if is_apart:
            assert len(rows) > 20  # Of 39 if they had no row in common.
        else:
            np.testing.assert_allclose(found[1] - found[0], rows_times_labels(tables)[rows[0]], atol=0.02)

    @pytest.mark.parametrize("is_apart", [False, True])
    def test_with_other_sizes_of_batches_differ_in_one_row_unless_their_orders_differ(self, is_apart: bool) -> None:
        """Without an order for each size, a coordinator subtracts the first gradients of two trainings."""
        one, other = (Batches(10_100, size, 7, is_apart=is_apart) for size in (100, 101))
        changed = [
            len(np.setxor1d(one.part_rows(part), other.part_rows(another))) for part in range(3) for another in range(3)
        ]
        assert (min(changed) > 180) if is_apart else (min(changed) == 1)
        assert Batches.of(make_job(algorithm={"name": "sgd"}, batch=100), 10_100).is_apart

    def test_on_a_table_that_grows_have_other_folds(self) -> None:
        """100 new rows are enough for `policy.min_changed_rows`, but would add five rows to each of 20 folds."""
        one, other = (Batches.of(make_job(folds=20), n_rows) for n_rows in (2000, 2100))
        for fold in range(20):
            assert len(np.setxor1d(one.part_rows(fold), other.part_rows(fold))) > 150  # Of 205.

    def test_with_other_seeds_have_folds_that_differ_in_most_rows(self) -> None:
        one, other = (Batches.of(make_job(folds=5, seed=seed), 1200) for seed in (1, 2))
        for fold in range(5):
            for another in range(5):
                changed = np.setxor1d(one.part_rows(fold), other.part_rows(another))
                assert len(changed) > 240  # Of 480 if they had no row in common.


class TestManySearches:
    """Each search with another seed shows the coordinator a sum over each of other folds. Enough of them give each row.

    The sums are those at w = 0, where each fit of a search begins: of one training column times q = 1 or -1 by label.
    """

    n_rows, n_folds = 600, 10
    job = make_job(folds=n_folds, l2=0.01, holdout=0.0)

    def explained(self, n_searches: int) -> float:
        """Return the share of the variance of x q over the rows that the best linear estimate explains."""
        rng = np.random.default_rng(4)
        products = rng.normal(size=self.n_rows)
        drawn = [Batches.of(self.job.model_copy(update={"seed": seed}), self.n_rows) for seed in range(n_searches)]
        members = np.zeros((n_searches * self.n_folds, self.n_rows))
        for place, fold in enumerate(np.concatenate([each._parts for each in drawn])):
            members[place, fold] = 1
        sums = members @ products + rng.normal(scale=0.01, size=len(members))
        found = np.linalg.lstsq(members, sums, rcond=1e-3)[0]
        return 1 - float(np.var(products - found) / np.var(products))

    def permitted(self, role: Role, folder: Path) -> int:
        """Return how many searches a party permits if the other one permits all, and has one column."""
        account = Account(Ledger(folder, role), Policy(), "people", role)
        labels = np.where(np.arange(self.n_rows) % 2, 1.0, -1.0)
        secrecy = LabelSecrecy.of_result(labels, None, told_by(self.job, with_table=False))
        own = secrecy if role is Role.GUEST else None
        equations = training_equations(self.job, (self.n_rows, 5), 1, own), account.max_equations(self.n_rows, own)
        for number in range(self.n_rows):
            try:
                account.spend_training(*equations)
            except PolicyError:
                return number
        raise AssertionError("the ledger has no limit")

    def test_show_every_row_without_the_ledgers(self) -> None:
        assert self.explained(2 * self.n_rows // self.n_folds) > 0.99

    @pytest.mark.parametrize(("role", "most"), [(Role.HOST, 0.34), (Role.GUEST, 0.05)])
    def test_show_a_small_part_with_the_ledger_of_one_party(self, role: Role, most: float, tmp_path: Path) -> None:
        assert 0 < self.explained(self.permitted(role, tmp_path)) < most


class TestFoldsOfAParty:
    """A party that decides the folds can choose the rows over which the coordinator reads a sum."""

    job = make_job(folds=3, fold_by="group", l2=0.01, holdout=0.0)
    n_rows = 1200

    def tables(self) -> Tables:
        tables = make_tables(self.job, n_rows=self.n_rows)
        host, guest = (
            replace(each, block=replace(each.block, columns=0.98 * np.asarray(each.block.columns)))
            for each in (tables.host, tables.guest)
        )
        return Tables(host, guest)

    def test_read_a_row_from_two_jobs_whose_folds_differ_by_it(
        self, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tables, row = self.tables(), 77
        folds, moved = two_jobs(self.n_rows, row)
        seen = [
            sums_at_zero(self.job, with_folds(tables, each), private_key, [Batch(1, fold=1)], monkeypatch)[0]
            for each in (folds, moved)
        ]
        np.testing.assert_allclose(seen[1] - seen[0], rows_times_labels(tables)[row], atol=0.01)

    @pytest.mark.parametrize("role", PARTIES)
    @pytest.mark.parametrize("n_dropped", [0, 1, 120], ids=["the same rows", "one row less", "120 rows less"])
    def test_cannot_start_the_second_job_even_if_they_drop_rows(
        self, n_dropped: int, role: Role, tmp_path: Path
    ) -> None:
        """Each party compares by its own policy, and by ID. The laxest file of the other one does not matter.

        Whoever drops a row from its own table changes the numbers of later rows among the common rows. If it drops 120
        rows of another fold, no comparison of the training rows refuses the job.
        """
        ids = Ids.of([f"{row:06d}" for row in range(self.n_rows)])
        folds, moved = two_jobs(self.n_rows, 777)
        left = np.delete(np.arange(self.n_rows), np.flatnonzero(folds == 2)[:n_dropped])
        common, folds_left = ids.take(left), moved[left]
        for least, is_allowed in ((0, True), (Policy().min_changed_rows, False)):
            (folder := tmp_path / str(least)).mkdir()
            used, policy = UsedFolds(folder, role), Policy(min_changed_rows=least)
            used.add(used.of_job("first", ids, np.arange(self.n_rows), folds), policy)
            second = used.of_job("second", common, np.arange(len(left)), folds_left)
            if is_allowed:
                used.add(second, policy)
                continue
            for step in (used.check, used.add):
                with pytest.raises(PolicyError, match="policy.min_changed_rows"):
                    step(second, policy)
        rows = UsedRows(tmp_path, role)
        rows.add(rows.of_job("first", ids, None, {TRAINING: np.arange(self.n_rows)}), Policy())
        if n_dropped != 1:
            rows.check(rows.of_job("second", common, None, {TRAINING: np.arange(len(left))}), Policy())

    def test_would_escape_a_comparison_by_the_place_among_the_common_rows(self) -> None:
        folds, moved = two_jobs(self.n_rows, 777)
        dropped = np.flatnonzero(folds == 2)[:120]
        by_id, by_place = moved.copy(), np.full(self.n_rows, RowRole.UNUSED, np.uint8)
        by_id[dropped] = RowRole.UNUSED
        by_place[:-120] = np.delete(moved, dropped)
        assert fewest_rows(folds.astype(np.uint16), by_id.astype(np.uint16)) == 1
        assert fewest_rows(folds.astype(np.uint16), by_place.astype(np.uint16)) > Policy().min_changed_rows

    def test_read_the_mean_of_rows_that_have_one_label(
        self, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tables = self.tables()
        labels = np.asarray(tables.joined.labels)
        rows = np.flatnonzero(labels > 0)[:150]
        folds = np.arange(self.n_rows).astype(np.uint8) % 2
        folds[rows] = 2
        asked = [Batch(1), Batch(1, fold=3)]
        whole, rest = sums_at_zero(self.job, with_folds(tables, folds), private_key, asked, monkeypatch)
        means = np.asarray(tables.joined.columns)[rows].mean(axis=0)
        np.testing.assert_allclose((whole - rest) / (-0.5 * len(rows)), means, atol=0.01)

    def test_have_rows_of_both_labels_if_the_guest_decides(self) -> None:
        labels = np.asarray(self.tables().joined.labels)
        assert np.sum(labels > 0) > self.n_rows / 3
        times = np.argsort(np.argsort(-labels, kind="stable")).astype(np.float64)  # All positive rows are the earliest.
        ids = Ids.of([f"{row:06d}" for row in range(self.n_rows)])
        table = PartyTable(ids, features_of(pd.DataFrame({"x": times})), labels, fold_values=times, fold_by="time")
        by_time = self.job.model_copy(update={"fold_by": "time"})
        with pytest.raises(DataError, match=f"fewer than {MIN_FOLD_OF_LABEL} training rows of a label"):
            make_folds(by_time, table, np.arange(self.n_rows))
        by_label = self.job.model_copy(update={"fold_by": "label"})
        folds = make_folds(by_label, table, np.arange(self.n_rows))
        for label in (-1, 1):
            assert np.bincount(folds[labels == label]).min() >= np.sum(labels == label) // 3

    def test_count_as_equations_about_the_labels_if_they_follow_them(self) -> None:
        of_seed = self.job.model_copy(update={"fold_by": "random"})
        by_label = self.job.model_copy(update={"fold_by": "label"})
        assert told_by(by_label, with_table=False) == told_by(of_seed, with_table=False) + 3
        assert told_by(self.job, with_table=False) == told_by(of_seed, with_table=False)


def two_jobs(n_rows: int, row: int) -> tuple[RoleVector, RoleVector]:
    """Return folds that differ by a row, which lies in fold 0 and then in fold 1."""
    folds = np.random.default_rng(2).integers(0, 3, n_rows).astype(np.uint8)
    folds[row] = 0
    moved = folds.copy()
    moved[row] = 1
    return folds, moved


def _first_rows(data: PreparedData, n_rows: int) -> PreparedData:
    block = data.block
    labels = None if block.labels is None else block.labels[:n_rows]
    cut = replace(block, columns=np.asarray(block.columns)[:n_rows], labels=labels)
    return replace(data, block=cut, n_rows=n_rows)
