"""Which folds the trainings of a party had, so that no sums of two of them show a sum over few rows: a file on disk.

Under `shares`, the coordinator has sums over each fold of a cross-validation, and over all rows of a training without
folds. It can add and subtract the sums of two jobs. If a fold of the second job is a fold of the first one but for a
row, the difference of their sums is what this row adds. So is the difference of two unions of folds.

A row is recognised by its ID, wherever it lies in a table, whatever the table is called, and whether it trains or not.
If rows were numbered among the common rows, the other party could escape the comparison: it drops a row from its own
table, and the numbers of all later rows change. If the number in this party's own table were used, the comparison would
end with the table of the next month.

The file has a keyed hash of each ID that was ever used, and the fold of each of these rows in each job. The key is in
the file, so whoever reads the file can test whether an ID was used. With `state_key`, the file is encrypted as the
journal is.
"""

import json
import math
import secrets
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.base.files import write_whole
from trilateral.common.base.locks import lock_file
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.policy import refusal
from trilateral.common.jobs.quota import file_errors
from trilateral.common.jobs.sealing import Sealer
from trilateral.common.jobs.used_rows import KEY_BYTES, hashes_of, least_changed
from trilateral.common.protocol.row_roles import MAX_FOLDS, RoleVector, RowRole

USED_FOLDS = ".used-folds"
"""Name in the state folder. No job has this name, because a job's name never begins with a dot."""
MAX_JOBS = 1000
"""Jobs that are kept, the newest ones with different folds."""
_PLAIN, _SEALED = b"trilateral folds 1\n", b"trilateral folds 1 sealed\n"
"""Beginning of the file."""
_SALT_BYTES = 16
_PLACE = "folds"

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class JobFolds:
    """The folds of a job."""

    job: str
    """Name of the job."""
    hashes: Hashes
    """Of the IDs of the training rows, shape (n_train,)."""
    folds: RoleVector
    """The fold of each of them, from 0 up; 0 in a job without folds."""


@dataclass(frozen=True, eq=False)
class _Content:
    key: bytes
    rows: Hashes
    """Of every ID that was used, in the order of the first use."""
    jobs: tuple[tuple[str, bytes], ...] = ()
    """Name, and the compressed fold of each of the first rows; `RowRole.UNUSED` for other rows and all later ones."""

    @classmethod
    def parse(cls, content: bytes) -> "_Content":
        head, _, body = content.partition(b"\n")
        fields = json.loads(head)
        sizes = [8 * fields["rows"], *(job["bytes"] for job in fields["jobs"])]
        ends = list(accumulate(sizes))
        if ends[-1] != len(body) or len(key := bytes.fromhex(fields["key"])) != KEY_BYTES:
            raise ValueError("it is cut off")
        rows, *folds = (body[end - size : end] for size, end in zip(sizes, ends, strict=True))
        names = (job["name"] for job in fields["jobs"])
        return cls(key, np.frombuffer(rows, "<u8"), tuple(zip(names, folds, strict=True)))

    def to_bytes(self) -> bytes:
        # Not an .npz file: numpy reads its headers as Python, which two threads of CPython 3.11 cannot do at a time.
        jobs = [{"name": name, "bytes": len(folds)} for name, folds in self.jobs]
        head = json.dumps({"key": self.key.hex(), "rows": len(self.rows), "jobs": jobs}).encode()
        return b"".join([head, b"\n", self.rows.astype("<u8").tobytes(), *(folds for _, folds in self.jobs)])

    def with_rows(self, job: JobFolds) -> tuple[Hashes, RoleVector]:
        """Return all rows, those of a job among them, and the fold of each in this job; shapes (n_rows,)."""
        # Both in the order of the hashes: a search for one row after the other would wait for memory.
        order = np.argsort(job.hashes)
        hashes, own = job.hashes[order], job.folds[order]
        known = np.argsort(self.rows)
        at = np.searchsorted(self.rows[known], hashes)
        is_new = at == len(known)
        is_new[~is_new] = self.rows[known[at[~is_new]]] != hashes[~is_new]
        rows = np.concatenate([self.rows, hashes[is_new]])
        folds = np.full(len(rows), RowRole.UNUSED, dtype=np.uint8)
        folds[known[at[~is_new]]] = own[~is_new]
        folds[len(self.rows) :] = own[is_new]
        return rows, folds


class UsedFolds:
    """The folds of a party's trainings. Any number of processes and threads may use them at the same time.

    Args:
        state: the state folder, which exists when this is used.
        role: the party.
        sealer: encrypts the file.
    """

    def __init__(self, state: Path, role: Role, sealer: Sealer | None = None) -> None:
        self._path = state / USED_FOLDS
        self._lock_path = state / f"{USED_FOLDS}.lock"
        self._role = role
        self._sealer = sealer
        self._lock = threading.Lock()

    def of_job(self, job: str, ids: Ids, train: Rows, folds: RoleVector) -> JobFolds:
        """Return the folds of a job.

        Args:
            job: name of the job.
            ids: the IDs of the common rows, in their normal form.
            train: the training rows among these.
            folds: the fold of each of them, shape (n_train,).

        Raises:
            ConfigError: the file cannot be read or written.
        """
        with self._locked() as content:
            key = content.key
        hashes = [each[:, 0] for each in hashes_of(key, ids, None, train)]
        return JobFolds(job, np.concatenate([np.zeros(0, np.uint64), *hashes]), folds)

    def check(self, job: JobFolds, policy: Policy) -> None:
        """Compare the folds of a job with those of each earlier one, without adding them.

        Args:
            job: the job.
            policy: of this party.

        Raises:
            PolicyError: sums over folds of this job and of an earlier one add up to a sum over few rows.
            ConfigError: the file cannot be read.
        """
        with self._locked() as content:
            self._check(job, policy, content)

    def add(self, job: JobFolds, policy: Policy) -> None:
        """Add the folds of a job, before any sum leaves; see `check` for the arguments and the errors."""
        with self._locked() as content:
            rows, folds = self._check(job, policy, content)
            packed = zlib.compress(folds[: int(np.flatnonzero(folds != RowRole.UNUSED).max(initial=-1)) + 1].data, 1)
            others = [each for each in content.jobs if each[1] != packed]
            self._write(_Content(content.key, rows, (*others, (job.job, packed))[-MAX_JOBS:]))

    def _check(self, job: JobFolds, policy: Policy, content: _Content) -> tuple[Hashes, RoleVector]:
        rows, folds = content.with_rows(job)
        changed, size = least_changed(policy, len(job.folds)), _smallest_fold(folds)
        for name, packed in content.jobs if changed else ():
            others = np.full(len(rows), RowRole.UNUSED, dtype=np.uint8)
            kept = np.frombuffer(zlib.decompress(packed), np.uint8)
            others[: len(kept)] = kept
            # A fold by itself may have fewer rows: `min_batch` is the limit for it.
            least = min(changed, size, _smallest_fold(others))
            n_rows = fewest_rows(folds, others)
            if n_rows >= least:
                continue
            error = refusal(
                self._role,
                "policy.min_changed_rows",
                f"sums over the folds of this job and of an earlier one show a sum over fewer than {least} rows: use"
                " the same folds, let the job draw others by another `seed` or `fold_by: random`, or wait until more"
                f" rows have changed since the earlier job, which the log of the {self._role} names",
            )
            error.add_note(f"the folds of the job {name} and of this one show a sum over {n_rows} rows")
            raise error
        return rows, folds

    @contextmanager
    def _locked(self) -> Iterator[_Content]:
        """Lock the file, and yield its content. The first use draws the key."""
        public = file_errors(self._path, f"the {self._role} accepts no job", "list of used folds")
        with public, self._lock, lock_file(self._lock_path):
            try:
                content = self._read()
                if content is None:
                    content = _Content(secrets.token_bytes(KEY_BYTES), np.zeros(0, np.uint64))
                    self._write(content)
                yield content
            except zlib.error as error:
                raise ValueError("it is cut off") from error

    def _read(self) -> _Content | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if content.startswith(_PLAIN):
            return _Content.parse(content[len(_PLAIN) :])
        salt, sealed = content[len(_SEALED) :][:_SALT_BYTES], content[len(_SEALED) + _SALT_BYTES :]
        if not content.startswith(_SEALED) or self._sealer is None:
            raise ValueError("it has another format, or is encrypted")
        return _Content.parse(self._sealer.unseal(sealed, salt, _PLACE))

    def _write(self, content: _Content) -> None:
        plain = content.to_bytes()
        if self._sealer is None:
            write_whole(self._path, _PLAIN + plain)
        else:
            salt = secrets.token_bytes(_SALT_BYTES)
            write_whole(self._path, _SEALED + salt + self._sealer.seal(plain, salt, _PLACE))


def _smallest_fold(folds: RoleVector) -> int:
    sizes = np.bincount(folds, minlength=256)[:MAX_FOLDS]
    return int(sizes[sizes > 0].min(initial=len(folds)))


def fewest_rows(one: RoleVector, other: RoleVector) -> float:
    """Return the fewest rows, but at least one, whose sum follows from the sums over the folds of two jobs.

    A combination of the sums gives each fold of each job a factor. In it, a row counts with the difference of the
    factors of its two folds; rows outside of the training have the factor 0. So the rows that count are the edges of a
    graph between nodes of different factors, where a row is an edge between its two folds. Without such an edge nothing
    is learned. The fewest are the minimum cut of a connected component, found as by M. Stoer and F. Wagner, "A simple
    min-cut algorithm", J. ACM 44 (1997).

    Args:
        one: the fold of each row in one job, `RowRole.UNUSED` outside of its training rows; shape (n_rows,).
        other: the same in the other job.

    Returns:
        The number of rows; infinite if no combination leaves any row.
    """
    counts = np.bincount(one.astype(np.uint16) << 8 | other, minlength=256**2).reshape(256, 256)
    # Node 0 is for rows outside of the training. The folds of the first job follow, and then those of the other one.
    nodes = np.array([RowRole.UNUSED, *range(MAX_FOLDS)])
    of_other = np.array([0, *range(1 + MAX_FOLDS, 1 + 2 * MAX_FOLDS)])
    weights = np.zeros((1 + 2 * MAX_FOLDS, 1 + 2 * MAX_FOLDS), np.int64)
    weights[np.ix_(np.arange(1 + MAX_FOLDS), of_other)] = counts[np.ix_(nodes, nodes)]
    weights = weights + weights.T
    np.fill_diagonal(weights, 0)
    used = np.flatnonzero(weights.any(axis=0))
    weights = weights[np.ix_(used, used)]
    fewest = math.inf
    while len(weights) > 1:
        *_, before_last, last = _by_adjacency(weights)
        # No cut between these two nodes has fewer edges than the last one has, so they can become one.
        if (n_edges := int(weights[last].sum())) > 0:
            fewest = min(fewest, n_edges)
        weights[before_last] += weights[last]
        weights[:, before_last] += weights[:, last]
        weights[before_last, before_last] = 0
        weights = np.delete(np.delete(weights, last, axis=0), last, axis=1)
    return fewest


def _by_adjacency(weights: NDArray[np.int64]) -> list[int]:
    """Return nodes in an order in which each has the most edges to those before it."""
    order: list[int] = []
    to_taken = np.zeros(len(weights), dtype=np.int64)
    for _ in range(len(weights)):
        order.append(int(np.argmax(to_taken)))
        to_taken += weights[order[-1]]
        to_taken[order] = -1
    return order
