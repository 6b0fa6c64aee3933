"""Sets of rows that jobs use: which ones differ in too few rows, and what the file says about them."""

import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import ConfigError, PolicyError, notes
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.used_rows import (
    BY_ID,
    EVALUATED,
    MAX_SETS,
    N_PARTS,
    N_SUMS,
    TRAINING,
    USED_ROWS,
    RowSketch,
    UsedRows,
    least_changed,
)

N_ROWS = 2000
IDS = [f"person-{row}" for row in range(N_ROWS)]
LABELS: FloatVector = np.where(np.arange(N_ROWS) % 3 == 0, 1.0, -1.0)
ALL = np.arange(N_ROWS)
DEFAULT = Policy()


@pytest.fixture
def used(tmp_path: Path) -> UsedRows:
    used = UsedRows(tmp_path, Role.GUEST)
    add(used, name="first")
    return used


def add(
    used: UsedRows,
    rows: Rows = ALL,
    ids: Sequence[str] = IDS,
    labels: FloatVector | None = LABELS,
    *,
    name: str = "second",
    policy: Policy = DEFAULT,
    purpose: str = TRAINING,
) -> None:
    job = used.of_job(name, Ids.of(ids), labels, {purpose: rows})
    used.check(job, policy)
    used.add(job, policy)


def sketch(used: UsedRows, rows: Rows, labels: FloatVector | None = LABELS) -> RowSketch:
    return used.of_job("any", Ids.of(IDS), labels, {TRAINING: rows}).sketches[TRAINING][0]


# --- which rows are allowed


def test_the_same_rows_are_always_allowed_in_any_order(used: UsedRows) -> None:
    add(used)
    order = np.random.default_rng(0).permutation(N_ROWS)
    add(used, ids=[IDS[row] for row in order], labels=LABELS[order])


@pytest.mark.parametrize("n_changed", [1, 2, 10, 60])
def test_a_few_changed_rows_are_refused_without_their_number(used: UsedRows, n_changed: int) -> None:
    with pytest.raises(PolicyError) as caught:
        add(used, ALL[n_changed:])
    least = least_changed(DEFAULT, N_ROWS - n_changed)
    assert str(caught.value) == (
        f"the guest refuses the job under policy.min_changed_rows: fewer than about {least} training rows differ from"
        " those of an earlier job, so both results together would tell much about these few rows: use the same rows, or"
        f" wait until {math.ceil(1.2 * least)} have changed since the earlier job, which the log of the guest names"
    )
    (note,) = notes(caught.value)
    assert note.startswith("about ")
    assert note.endswith(" training rows differ from those of the job first")


def test_two_rows_are_never_taken_for_none(used: UsedRows) -> None:
    """In a sketch of 256 sums alone, one pair in 512 would cancel."""
    for row in range(0, N_ROWS, 2):
        assert sketch(used, np.delete(ALL, [row, row + 1])).n_changed(sketch(used, ALL)) > 0


def test_a_new_row_in_another_table_and_a_changed_label_are_refused(used: UsedRows) -> None:
    with pytest.raises(PolicyError):
        add(used, np.arange(N_ROWS + 1), [*IDS, "somebody"], np.append(LABELS, 1.0))
    changed = LABELS.copy()
    changed[7] *= -1
    with pytest.raises(PolicyError):
        add(used, labels=changed)


def test_a_changed_class_is_refused(used: UsedRows) -> None:
    classes: FloatVector = (np.arange(N_ROWS) % 4).astype(np.float64)
    add(used, labels=classes)
    changed = classes.copy()
    changed[3] = 2.0
    with pytest.raises(PolicyError):
        add(used, labels=changed)


SPELLINGS: dict[str, FloatVector] = {
    "with both values swapped": -LABELS,
    "as one of several classes": np.where(LABELS > 0, 2.0, np.arange(N_ROWS) % 2),
    "by another column": np.where(np.arange(N_ROWS) % 2 == 0, 1.0, -1.0),
}


@pytest.mark.parametrize("labels", SPELLINGS.values(), ids=SPELLINGS)
def test_rows_are_compared_however_their_labels_are_written(used: UsedRows, labels: FloatVector) -> None:
    """A model of the swapped label has the weights of the other one with the other sign."""
    with pytest.raises(PolicyError):
        add(used, ALL[1:], labels=labels)
    add(used, labels=labels)
    add(used, ALL[200:], labels=labels)


def test_a_file_without_sets_by_id_is_still_read(used: UsedRows, tmp_path: Path) -> None:
    path = tmp_path / USED_ROWS
    content = {name: part for name, part in json.loads(path.read_text()).items() if not name.endswith(BY_ID)}
    path.write_text(json.dumps(content))
    with pytest.raises(PolicyError):
        add(used, ALL[1:])
    add(used)
    with pytest.raises(PolicyError):
        add(used, ALL[1:], labels=-LABELS)


def test_rows_are_compared_with_those_of_every_job_of_the_same_purpose(used: UsedRows) -> None:
    add(used, ALL[1:], name="evaluated", purpose=EVALUATED)
    add(used, ALL[1000:], name="third")
    for rows, purpose, earlier in ((ALL[1:], TRAINING, "first"), (ALL, EVALUATED, "evaluated")):
        with pytest.raises(PolicyError, match=f"{purpose} rows differ") as caught:
            add(used, rows, purpose=purpose)
        assert notes(caught.value)[0].endswith(f"of the job {earlier}")


@pytest.mark.parametrize("seed", range(20))
def test_a_fifth_more_rows_than_the_limit_are_always_enough(tmp_path: Path, seed: int) -> None:
    used = UsedRows(tmp_path, Role.HOST)
    for start in (0, 120):
        add(used, ALL[start:], [f"{seed}-{one}" for one in IDS], None)


def test_a_table_that_grows_is_allowed_once_enough_rows_are_new(tmp_path: Path) -> None:
    used, ids = UsedRows(tmp_path, Role.GUEST), [f"{row}" for row in range(20_000)]
    allowed = []
    for day in range(10):
        n_rows = 19_000 + 50 * day
        try:
            add(used, np.arange(n_rows), ids, np.ones(len(ids)))
        except PolicyError:
            continue
        allowed.append(day)
    assert allowed[0] == 0
    assert all(2 <= later - day <= 3 for day, later in pairwise(allowed))
    assert len(allowed) >= 4


def test_of_a_small_table_a_twentieth_is_enough(tmp_path: Path) -> None:
    used = UsedRows(tmp_path, Role.GUEST)
    add(used, ALL[:200])
    add(used, ALL[12:200])
    with pytest.raises(PolicyError, match="fewer than about 9 training rows"):
        add(used, ALL[8:200])


def test_a_policy_of_single_rows_allows_all(used: UsedRows) -> None:
    add(used, ALL[1:], policy=Policy(min_changed_rows=0))


# --- the sketch


def test_the_estimate_is_close_to_the_number_of_changed_rows(used: UsedRows) -> None:
    every = sketch(used, ALL)
    for n_changed in (1, 100, 1000):
        found = []
        for start in range(0, N_ROWS - n_changed, 37):
            found.append(every.n_changed(sketch(used, np.delete(ALL, np.s_[start : start + n_changed]))))
        assert np.median(found) == pytest.approx(n_changed, rel=0.1)
        assert np.std(found) <= 0.09 * n_changed
        assert n_changed > 1 or set(found) == {1}


def test_rows_with_equal_sums_in_one_part_are_no_more_than_they_are(used: UsedRows) -> None:
    """Whoever finds such rows by trying could otherwise pass 10 rows off as 100."""
    every = sketch(used, ALL)
    signs: dict[tuple[int, int], list[int]] = {}
    for row in range(1000):
        change = every.sums[0] - sketch(used, np.delete(ALL, row)).sums[0]
        (place,) = np.flatnonzero(change)
        signs.setdefault((int(place), int(change[place])), []).append(row)
    alike = max(signs.values(), key=len)
    rest = sketch(used, np.delete(ALL, alike))
    assert np.sum((every.sums[0] - rest.sums[0]).astype(np.int64) ** 2) == len(alike) ** 2
    assert every.n_changed(rest) < 2 * len(alike)


def test_the_hash_is_the_cbc_mac_of_the_length_the_label_and_the_id(tmp_path: Path) -> None:
    used = UsedRows(tmp_path, Role.GUEST)
    ids = ["", "ab", "x" * 16, "é" * 20]
    job = used.of_job("any", Ids.of(ids), np.array([1.0, -1.0, 1.0, 3.0]), {TRAINING: np.arange(4)})
    key = bytes.fromhex(json.loads((tmp_path / USED_ROWS).read_text())["key"])
    total = 0
    for one, label in zip(ids, (1, -1, 1, 3), strict=True):
        text = one.encode()
        message = len(text).to_bytes(8, "little") + label.to_bytes(8, "little", signed=True) + text
        message += bytes(-len(message) % 16)
        total += int.from_bytes(Cipher(AES(key), CBC(bytes(16))).encryptor().update(message)[-16:-8], "little")
    assert job.sketches[TRAINING][0].total == total % 2**64


def test_many_rows_have_the_sum_of_their_parts(used: UsedRows) -> None:
    n_rows = 40_000
    ids = Ids.of(hashlib.sha256(str(row).encode()).hexdigest()[: row % 64] + str(row) for row in range(n_rows))
    rows = {"all": np.arange(n_rows)} | {str(n): part for n, part in enumerate(np.split(np.arange(n_rows), 4))}
    whole, *parts = (each for each, _ in used.of_job("any", ids, None, rows).sketches.values())
    assert np.array_equal(whole.sums, np.sum([part.sums for part in parts], axis=0))
    assert whole.total == sum(part.total for part in parts) % 2**64


# --- the file


def test_of_two_jobs_that_begin_at_the_same_time_one_is_refused(tmp_path: Path) -> None:
    jobs = [UsedRows(tmp_path, Role.GUEST) for _ in range(8)]
    rows = [used.of_job(f"job-{n}", Ids.of(IDS), LABELS, {TRAINING: ALL[n:]}) for n, used in enumerate(jobs)]
    for used, one in zip(jobs, rows, strict=True):
        used.check(one, DEFAULT)

    def added(number: int) -> bool:
        try:
            jobs[number].add(rows[number], DEFAULT)
        except PolicyError:
            return False
        return True

    with ThreadPoolExecutor(len(jobs)) as threads:
        assert sum(threads.map(added, range(len(jobs)))) == 1


def test_another_process_compares_with_the_same_file(used: UsedRows, tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        add(UsedRows(tmp_path, Role.GUEST), ALL[1:])


def test_a_check_adds_nothing(tmp_path: Path) -> None:
    used = UsedRows(tmp_path, Role.GUEST)
    used.check(used.of_job("checked", Ids.of(IDS), LABELS, {TRAINING: ALL}), DEFAULT)
    add(used, ALL[1:])


def test_the_file_holds_no_id_and_is_the_owners_alone(used: UsedRows, tmp_path: Path) -> None:
    path = tmp_path / USED_ROWS
    assert "person" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_state_folders_have_different_sketches(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    one, other = (sketch(UsedRows(folder, Role.HOST), ALL, None) for folder in folders)
    assert one.total != other.total
    assert not np.array_equal(one.sums, other.sums)


def test_the_newest_sets_are_kept(used: UsedRows, tmp_path: Path) -> None:
    path = tmp_path / USED_ROWS
    content = json.loads(path.read_text())
    content[TRAINING] = content[TRAINING] * MAX_SETS
    path.write_text(json.dumps(content))
    add(used, ALL[1000:])
    kept = [each["job"] for each in json.loads(path.read_text())[TRAINING]]
    assert len(kept) == MAX_SETS
    assert kept[-1] == "second"


WRONG_SUMS = RowSketch(1, np.zeros((N_PARTS, N_SUMS - 1), np.int32)).to_dict("first")
DAMAGED = {
    "empty": "",
    "a list": "[]",
    "a later version": '{"version": 2}',
    "a short key": '{"version": 1, "key": "ab", "training": [], "evaluated": []}',
    "too few sums": json.dumps({"version": 1, "key": "ab" * 32, "training": [WRONG_SUMS], "evaluated": []}),
    "no total": json.dumps({"version": 1, "key": "ab" * 32, "training": [], "evaluated": [{"job": "a"}]}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_lets_no_job_begin(used: UsedRows, tmp_path: Path, content: str) -> None:
    (tmp_path / USED_ROWS).write_text(content)
    with pytest.raises(ConfigError, match="list of used rows is damaged"):
        add(used)
