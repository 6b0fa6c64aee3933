"""In how many training rows the jobs on a dataset differ.

The results of two trainings on nearly the same rows differ by a sum over the few rows that are in one of them only. If
it is one row, each weight's difference shows the label of that row, or the host's part of its score. So a party keeps
the training rows of each job, and refuses a job whose rows differ from those of an earlier one in a few rows. The other
party can choose the rows: by its split column, or by leaving rows out of its own table. Whoever starts the job can
choose them by `holdout` and `seed`.

The same holds for the rows on which a training is evaluated: the coordinator gets their loss, a mean over labels.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.policy import refusal

TRAINED, EVALUATED = "training rows", "evaluated rows"
"""Names of the facts that hold the rows on which a job trains, and those on which it is evaluated meanwhile."""
MAX_SHARE = 0.05
"""A job may differ in this share of its rows, however many rows the policy asks for. Otherwise two random
hold-outs of a small table would be too similar."""
_DIGEST_BYTES = 32


@dataclass(frozen=True, eq=False)
class UsedRows:
    """The rows of a party's table that a job uses for one purpose."""

    ids: bytes
    """Digest of the IDs of the whole table, 32 bytes: rows of another table cannot be compared."""
    rows: Rows
    """Their numbers in the table."""
    n_rows: int
    """Rows of the whole table."""

    @cached_property
    def content(self) -> bytes:
        """What the journal keeps."""
        mask = np.zeros(self.n_rows, dtype=bool)
        mask[self.rows] = True
        return self.ids + zlib.compress(np.packbits(mask).tobytes(), 1)

    def difference(self, content: bytes) -> int | None:
        """Return how many rows are in one of two jobs only; None if the other job had another table.

        Args:
            content: of the other job.
        """
        if content[:_DIGEST_BYTES] != self.ids:
            return None
        return int(np.bitwise_count(_bits(self.content) ^ _bits(content)).sum(dtype=np.int64))


def _bits(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(content[_DIGEST_BYTES:]), np.uint8)


def check_changed_rows(
    journal: Journal, job_id: bytes, job: JobConfig, used: Mapping[str, UsedRows], *, policy: Policy, role: Role
) -> None:
    """Keep the rows that a job uses, and compare them with those of the other jobs on the dataset.

    Args:
        journal: the journal of this party.
        job_id: the run ID of the job's first session.
        job: the job.
        used: the rows, by the name of the fact.
        policy: the policy of this party.
        role: this party.

    Raises:
        PolicyError: the rows differ from those of another job in too few rows.
        ConfigError: the journal cannot be used.
    """
    # Another job that begins at the same time sees these rows, or this job sees those of the other one.
    journal.set_facts(job_id, {fact: rows.content for fact, rows in used.items()})
    for fact, rows in used.items():
        least = least_changed(policy, len(rows.rows))
        for other, difference in _differences(journal, job_id, job, fact, rows):
            if 0 < difference < least:
                raise refusal(
                    role,
                    "policy.min_changed_rows",
                    f"the {fact} are those of the job {other} but for fewer than {least} rows, so both results"
                    " together would tell much about these few rows: use the same rows, change more of them, or give"
                    " a table of new rows a new dataset name",
                )


def least_changed(policy: Policy, n_rows: int) -> int:
    """Return in how many rows a job must differ from another one, unless its rows are the same.

    Args:
        policy: the policy of this party.
        n_rows: rows of the job.
    """
    return min(policy.min_changed_rows, int(MAX_SHARE * n_rows))


def _differences(
    journal: Journal, job_id: bytes, job: JobConfig, fact: str, rows: UsedRows
) -> Iterator[tuple[str, int]]:
    for other_id, other, content in journal.of_begun(fact):
        if other_id != job_id and other.dataset == job.dataset:
            difference = rows.difference(content)
            if difference is not None:
                yield other.name, difference
