"""A party compares the training rows of a job with those of every job that has begun on the same table."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.changed_rows import EVALUATED, TRAINED, UsedRows, check_changed_rows
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.sealing import Sealer

N_ROWS = 5000
ALL = np.arange(N_ROWS)
FIRST, SECOND = bytes(16), bytes(15) + b"\1"


@pytest.fixture(params=[None, Sealer(bytes(32))], ids=["plain", "encrypted"])
def journal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Journal]:
    with closing(Journal(tmp_path, Role.GUEST, 90, request.param)) as journal:
        yield journal


def check(
    journal: Journal,
    job_id: bytes,
    rows: Rows,
    *,
    table: bytes = bytes(32),
    dataset: str = "d",
    least: int = 100,
    n_rows: int = N_ROWS,
    begins: bool = True,
    fact: str = TRAINED,
) -> None:
    job = JobConfig(name=f"job-{job_id[-1]}", dataset=dataset)
    journal.add(job_id, job)
    trained = UsedRows(table, rows, n_rows)
    policy = Policy(min_changed_rows=least)
    try:
        check_changed_rows(journal, job_id, job, {fact: trained}, policy=policy, role=Role.GUEST)
    except PolicyError:
        journal.set_outcome(job_id, Outcome.FAILED)
        raise
    if begins:
        journal.write_round(job_id, 1, b"B")
    journal.set_outcome(job_id, Outcome.FINISHED if begins else Outcome.FAILED)


@pytest.mark.parametrize("n_fewer", [1, 99])
def test_a_few_other_rows_are_refused_whoever_has_them(journal: Journal, n_fewer: int) -> None:
    check(journal, FIRST, ALL[n_fewer:])
    with pytest.raises(PolicyError) as error:
        check(journal, SECOND, ALL)
    assert str(error.value).startswith(
        "the guest refuses the job under policy.min_changed_rows: the training rows are those of the job job-0 but for"
        " fewer than 100 rows"
    )
    check(journal, FIRST[:-1] + b"\2", ALL[: N_ROWS - 1 - n_fewer], dataset="other")
    with pytest.raises(PolicyError):  # As many rows, but others.
        check(journal, FIRST[:-1] + b"\3", ALL[: N_ROWS - n_fewer], least=2 * n_fewer + 1)


@pytest.mark.parametrize("rows", [ALL[1:], ALL[101:], ALL[::2]], ids=["the same", "100 fewer", "half"])
def test_the_same_rows_and_many_other_rows_are_permitted(journal: Journal, rows: Rows) -> None:
    check(journal, FIRST, ALL[1:])
    check(journal, SECOND, rows)


def test_a_job_that_has_shown_nothing_does_not_count(journal: Journal) -> None:
    check(journal, FIRST, ALL[1:], begins=False)
    check(journal, SECOND, ALL)


def test_a_job_that_has_just_begun_counts(journal: Journal) -> None:
    job = JobConfig(name="running", dataset="d")
    journal.add(FIRST, job)
    trained = UsedRows(bytes(32), ALL[1:], N_ROWS)
    check_changed_rows(journal, FIRST, job, {TRAINED: trained}, policy=Policy(), role=Role.GUEST)
    with pytest.raises(PolicyError, match="of the job running"):
        check(journal, SECOND, ALL)


def test_rows_are_compared_with_those_of_the_same_purpose(journal: Journal) -> None:
    check(journal, FIRST, ALL[1:], fact=EVALUATED)
    check(journal, SECOND, ALL)
    with pytest.raises(PolicyError, match="the evaluated rows are those of the job job-0 but for fewer than 100 rows"):
        check(journal, FIRST[:-1] + b"\2", ALL, fact=EVALUATED)


def test_a_replaced_job_counts(journal: Journal) -> None:
    check(journal, FIRST, ALL[1:])
    journal.add(SECOND, JobConfig(name="job-0", dataset="d"))
    with pytest.raises(PolicyError, match="of the job job-0"):
        check(journal, SECOND, ALL)


@pytest.mark.parametrize(("other", "least"), [({"table": bytes(31) + b"\1"}, 100), ({"dataset": "e"}, 100), ({}, 0)])
def test_another_table_another_dataset_and_a_lax_policy_permit_any_rows(
    journal: Journal, other: dict[str, object], least: int
) -> None:
    check(journal, FIRST, ALL[1:])
    check(journal, SECOND, ALL, least=least, **other)  # type: ignore[arg-type]


def test_of_a_small_table_a_twentieth_is_enough(journal: Journal) -> None:
    check(journal, FIRST, ALL[:200], n_rows=200)
    check(journal, SECOND, ALL[10:200], n_rows=200)
    with pytest.raises(PolicyError, match="fewer than 9 rows"):
        check(journal, FIRST[:-1] + b"\2", ALL[9:200], n_rows=200)
