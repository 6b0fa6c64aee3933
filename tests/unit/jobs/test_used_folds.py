"""Folds of the jobs of a party: which combinations of two jobs' sums show few rows, and what the file keeps."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ConfigError, PolicyError, notes
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs import used_folds
from trilateral.common.jobs.sealing import Sealer
from trilateral.common.jobs.used_folds import MAX_FOLDS, UNUSED, USED_FOLDS, Folds, UsedFolds, fewest_rows

N_ROWS = 5000
IDS = [f"person-{row}" for row in range(N_ROWS)]
ALL = np.arange(N_ROWS)
DEFAULT = Policy()


@pytest.fixture(params=[None, Sealer(bytes(32))], ids=["plain", "encrypted"])
def used(tmp_path: Path, request: pytest.FixtureRequest) -> UsedFolds:
    return UsedFolds(tmp_path, Role.GUEST, request.param)


def add(
    used: UsedFolds, folds: Folds, rows: Rows = ALL, ids: Sequence[str] = IDS, *, least: int = 100, name: str = "a"
) -> None:
    used.add(used.of_job(name, Ids.of(ids), rows, folds[rows]), Policy(min_changed_rows=least))


def drawn(seed: int, n_folds: int = 5) -> Folds:
    return np.random.default_rng(seed).integers(0, n_folds, N_ROWS).astype(np.uint16)


def moved(folds: Folds, n_rows: int) -> Folds:
    result = folds.copy()
    result[np.flatnonzero(folds == 2)[:n_rows]] = 3
    return result


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(PolicyError, match=r"min_changed_rows: sums over the folds or batches of this job and"):
        yield


# --- which folds are allowed


def test_the_same_folds_and_others_drawn_at_random_are_allowed(used: UsedFolds) -> None:
    add(used, drawn(1))
    add(used, drawn(1))
    for number, n_folds in enumerate([2, 5, 20, 20], 2):
        add(used, drawn(number, n_folds))
    no_folds = np.zeros(N_ROWS, dtype=np.uint16)
    add(used, no_folds)
    add(used, no_folds, ALL[400:])


@pytest.mark.parametrize("n_moved", [1, 99])
def test_folds_that_differ_in_few_rows_are_refused(n_moved: int, used: UsedFolds) -> None:
    folds = drawn(1)
    add(used, folds, name="first")
    with pytest.raises(PolicyError) as caught:
        add(used, moved(folds, n_moved))
    assert str(caught.value) == (
        "the guest refuses the job under policy.min_changed_rows: sums over the folds or batches of this job and of an"
        " earlier one show a sum over fewer than 100 rows: use the same ones, let the job draw others by another `seed`"
        " or `fold_by: random`, or wait until more rows have changed since the earlier job, which the log of the guest"
        " names"
    )
    assert notes(caught.value) == [f"those of the job first and of this one show a sum over {n_moved} rows"]
    add(used, moved(folds, n_moved), least=n_moved)


def test_rows_are_recognised_in_a_table_of_other_rows_in_another_order(used: UsedFolds) -> None:
    folds = drawn(1)
    add(used, folds)
    # 600 new rows come to one fold, so no comparison of training rows refuses the job.
    ids = [f"new-{row}" for row in range(600)] + IDS
    with refused():
        add(used, np.concatenate([np.full(600, 4, np.uint16), moved(folds, 1)]), np.arange(len(ids)), ids)
    add(used, np.concatenate([drawn(2)[:600], moved(folds, 1)]), np.arange(len(ids)), ids)
    order = np.random.default_rng(3).permutation(N_ROWS)
    with refused():
        add(used, moved(folds, 1)[order], ids=[IDS[row] for row in order])
    add(used, folds[order], ids=[IDS[row] for row in order])


def test_other_people_are_other_rows(used: UsedFolds) -> None:
    add(used, drawn(1))
    add(used, moved(drawn(1), 1), ids=[f"other-{row}" for row in range(N_ROWS)])


def test_a_union_of_folds_that_differs_in_one_row_from_folds_of_another_job_is_refused(used: UsedFolds) -> None:
    rows = np.random.default_rng(1).permutation(N_ROWS)
    one, other = np.empty(N_ROWS, np.uint16), np.empty(N_ROWS, np.uint16)
    one[rows] = np.arange(N_ROWS) // 1000
    # Folds 0 to 2 have the rows of the other job's folds 0 to 2 in another order, but for one row.
    other[rows[: 3 * 1000 + 1]] = np.arange(3001) % 3
    other[rows[3001:]] = 3 + np.arange(1999) % 2
    add(used, one)
    assert fewest_rows(one, other) == 1
    with refused():
        add(used, other)


def test_a_training_without_folds_on_the_rows_of_a_fold_and_one_more_is_refused(used: UsedFolds) -> None:
    folds = drawn(1)
    add(used, folds)
    rows = np.sort(np.append(np.flatnonzero(folds == 2), np.flatnonzero(folds != 2)[0]))
    with refused():
        add(used, np.zeros(N_ROWS, np.uint16), rows)


def test_batches_are_compared_as_folds(used: UsedFolds) -> None:
    batches = drawn(1, n_folds=40)
    add(used, batches)
    add(used, drawn(2, n_folds=40))
    with refused():
        add(used, moved(drawn(2, n_folds=40), 1))
    with refused():
        add(used, moved(batches, 1))
    # Folds of another job that are unions of batches, but for one row.
    folds = batches // 10
    folds[np.flatnonzero(folds == 2)[0]] = 3
    with refused():
        add(used, folds)


def test_more_batches_than_can_be_told_apart_are_one(used: UsedFolds) -> None:
    batches = (ALL % MAX_FOLDS).astype(np.uint16)
    add(used, batches)
    with refused():
        add(used, moved(batches, 1), least=4)
    add(used, (ALL % (MAX_FOLDS + 1)).astype(np.uint16), least=4)


@pytest.mark.parametrize("seed", range(40))
def test_the_fewest_rows_are_those_of_every_combination_of_sums(seed: int) -> None:
    random = np.random.default_rng(seed)
    one, other = random.integers(0, 3, (2, 12 + seed)).astype(np.uint16)
    if seed % 2:
        other[one == 0] = 0
    for folds in (one, other):
        folds[random.random(len(folds)) < 0.2] = UNUSED
    found = [math.inf]
    for factors in product([0, 1], repeat=6):
        of_one, of_other = np.zeros((2, UNUSED + 1), np.int64)
        of_one[:3], of_other[:3] = factors[:3], factors[3:]
        if n_rows := np.count_nonzero(of_one[one] - of_other[other]):
            found.append(int(n_rows))
    assert fewest_rows(one, other) == min(found)
    for least in range(1, 12):
        assert (fewest_rows(one, other, least) < least) is (min(found) < least)


# --- the file


def test_a_check_adds_nothing(used: UsedFolds) -> None:
    used.check(used.of_job("checked", Ids.of(IDS), ALL, drawn(1)), DEFAULT)
    add(used, moved(drawn(1), 1))


def test_another_process_compares_with_the_same_file(used: UsedFolds, tmp_path: Path) -> None:
    add(used, drawn(1))
    with refused():
        add(UsedFolds(tmp_path, Role.GUEST, used._sealer), moved(drawn(1), 1))


def test_of_two_jobs_that_begin_at_the_same_time_one_is_refused(tmp_path: Path) -> None:
    jobs = [UsedFolds(tmp_path, Role.GUEST) for _ in range(4)]
    folds = [used.of_job(f"job-{n}", Ids.of(IDS), ALL, moved(drawn(1), n)) for n, used in enumerate(jobs)]
    for used, one in zip(jobs, folds, strict=True):
        used.check(one, DEFAULT)

    def added(number: int) -> bool:
        try:
            jobs[number].add(folds[number], DEFAULT)
        except PolicyError:
            return False
        return True

    with ThreadPoolExecutor(len(jobs)) as threads:
        assert sum(threads.map(added, range(len(jobs)))) == 1


def test_the_newest_jobs_are_kept(used: UsedFolds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used_folds, "MAX_JOBS", 2)
    for seed in (1, 2, 3):
        add(used, drawn(seed))
    add(used, moved(drawn(1), 1))
    with refused():
        add(used, moved(drawn(3), 1))


def test_the_file_holds_no_id_and_is_the_owners_alone(used: UsedFolds, tmp_path: Path) -> None:
    add(used, drawn(1), name="public-name")
    content = (tmp_path / USED_FOLDS).read_bytes()
    assert b"person" not in content
    assert (b"sealed" in content) is (used._sealer is not None)
    assert (b"public-name" in content) is (used._sealer is None)
    assert (tmp_path / USED_FOLDS).stat().st_mode & 0o777 == 0o600


def test_a_plain_file_is_encrypted_once_there_is_a_key(tmp_path: Path) -> None:
    add(UsedFolds(tmp_path, Role.HOST), drawn(1))
    sealed = UsedFolds(tmp_path, Role.HOST, Sealer(bytes(32)))
    add(sealed, drawn(2))
    with refused():
        add(sealed, moved(drawn(1), 1))
    for without in (None, Sealer(bytes(31) + b"\1")):
        with pytest.raises(ConfigError, match="list of used folds is damaged"):
            add(UsedFolds(tmp_path, Role.HOST, without), drawn(3))


@pytest.mark.parametrize("n_bytes", [0, 10, 19, 200, -300, -1])
def test_a_damaged_file_lets_no_job_begin(n_bytes: int, used: UsedFolds, tmp_path: Path) -> None:
    add(used, drawn(1))
    path = tmp_path / USED_FOLDS
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(ConfigError, match="list of used folds is damaged"):
        add(used, drawn(2))
