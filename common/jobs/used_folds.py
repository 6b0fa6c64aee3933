"""Which folds the trainings of a party had, so that no sums of two of them show a sum over few rows: a file on disk.

Under `shares`, the coordinator has sums over each fold of a cross-validation, over each batch, and over all rows of a
training without folds and batches. It can add and subtract the sums of two jobs. If a fold of the second job is a fold
of the first one but for a row, the difference of their sums is what this row adds. So is the difference of two unions
of folds. In this module, a batch is a fold as well, because every epoch has the same batches.

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
from itertools import accumulate, count
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

USED_FOLDS = ".used-folds"
"""Name in the state folder. No job has this name, because a job's name never begins with a dot."""
MAX_JOBS = 1000
"""Jobs that are kept, the newest ones with different folds."""
MAX_FOLDS = 500
"""The most folds of a job that are told apart. A job with more batches counts as one fold."""
UNUSED = 2**16 - 1
"""In place of the fold of a row that does not train."""
_PLAIN, _SEALED = b"trilateral folds 1\n", b"trilateral folds 1 sealed\n"
"""Beginning of the file."""
_SALT_BYTES = 16
_PLACE = "folds"
_MANY_NODES = 50
"""From so many nodes on, one look at the whole graph is faster than the search for a cut."""

Hashes = NDArray[np.uint64]
Folds = NDArray[np.uint16]
"""The fold of each row, from 0 up, or `UNUSED`; shape (n_rows,)."""


@dataclass(frozen=True, eq=False)
class JobFolds:
    """The folds of a job."""

    job: str
    """Name of the job."""
    hashes: Hashes
    """Of the IDs of the training rows, shape (n_train,)."""
    folds: Folds
    """The fold of each of them, from 0 up; 0 in a job without folds and batches."""


@dataclass(frozen=True, eq=False)
class _Content:
    key: bytes
    rows: Hashes
    """Of every ID that was used, in the order of the first use."""
    jobs: tuple[tuple[str, bytes], ...] = ()
    """Name, and the compressed fold of each of the first rows. All later ones do not train."""

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

    def with_rows(self, job: JobFolds) -> tuple[Hashes, Folds]:
        """Return all rows, those of a job among them, and the fold of each in this job; shapes (n_rows,)."""
        # Both in the order of the hashes: a search for one row after the other would wait for memory.
        order = np.argsort(job.hashes)
        hashes, own = job.hashes[order], job.folds[order]
        known = np.argsort(self.rows)
        at = np.searchsorted(self.rows[known], hashes)
        is_new = at == len(known)
        is_new[~is_new] = self.rows[known[at[~is_new]]] != hashes[~is_new]
        rows = np.concatenate([self.rows, hashes[is_new]])
        folds = np.full(len(rows), UNUSED, dtype=np.uint16)
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

    def of_job(self, job: str, ids: Ids, train: Rows, folds: NDArray[np.integer]) -> JobFolds:
        """Return the folds of a job.

        Args:
            job: name of the job.
            ids: the IDs of the common rows, in their normal form.
            train: the training rows among these.
            folds: the fold or the batch of each of them, from 0 up; shape (n_train,).

        Raises:
            ConfigError: the file cannot be read or written.
        """
        if folds.max(initial=0) >= MAX_FOLDS:
            folds = np.zeros_like(folds)
        with self._locked() as content:
            key = content.key
        hashes = [each[:, 0] for each in hashes_of(key, ids, None, train)]
        return JobFolds(job, np.concatenate([np.zeros(0, np.uint64), *hashes]), folds.astype(np.uint16))

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
            kept = folds[: int(np.flatnonzero(folds != UNUSED).max(initial=-1)) + 1]
            packed = zlib.compress(kept.astype("<u2").data, 1)
            others = [each for each in content.jobs if each[1] != packed]
            self._write(_Content(content.key, rows, (*others, (job.job, packed))[-MAX_JOBS:]))

    def _check(self, job: JobFolds, policy: Policy, content: _Content) -> tuple[Hashes, Folds]:
        rows, folds = content.with_rows(job)
        changed, size = least_changed(policy, len(job.folds)), _smallest_fold(folds)
        for name, packed in content.jobs if changed else ():
            others = np.full(len(rows), UNUSED, dtype=np.uint16)
            kept = np.frombuffer(zlib.decompress(packed), "<u2")
            others[: len(kept)] = kept
            # A fold by itself may have fewer rows: `min_batch` is the limit for it.
            least = min(changed, size, _smallest_fold(others))
            n_rows = fewest_rows(folds, others, least)
            if n_rows >= least:
                continue
            error = refusal(
                self._role,
                "policy.min_changed_rows",
                f"sums over the folds or batches of this job and of an earlier one show a sum over fewer than {least}"
                " rows: use the same ones, let the job draw others by another `seed` or `fold_by: random`, or wait"
                f" until more rows have changed since the earlier job, which the log of the {self._role} names",
            )
            error.add_note(f"those of the job {name} and of this one show a sum over {n_rows} rows")
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


def _smallest_fold(folds: Folds) -> int:
    sizes = np.bincount(_nodes(folds))[1:]
    return int(sizes[sizes > 0].min(initial=len(folds)))


def _nodes(folds: Folds) -> NDArray[np.int64]:
    """Return 0 for rows outside of the training, and one more than the fold for others."""
    return (folds + np.uint16(1)).astype(np.int64)


def fewest_rows(one: Folds, other: Folds, least: float = math.inf) -> float:
    """Return the fewest rows, but at least one, whose sum follows from the sums over the folds of two jobs.

    A combination of the sums gives each fold of each job a factor. In it, a row counts with the difference of the
    factors of its two folds; rows outside of the training have the factor 0. So the rows that count are the edges of a
    graph between nodes of different factors, where a row is an edge between its two folds. Without such an edge nothing
    is learned. The fewest are the minimum cut of a connected component, found as by M. Stoer and F. Wagner, "A simple
    min-cut algorithm", J. ACM 44 (1997). Nodes that no cut of fewer than `least` edges separates become one, as by
    H. Nagamochi and T. Ibaraki, "Computing edge-connectivity in multigraphs and capacitated graphs", SIAM J. Discrete
    Math. 5 (1992).

    Args:
        one: the fold of each row in one job, `UNUSED` outside of its training rows; shape (n_rows,).
        other: the same in the other job.
        least: which number of rows is enough. The result is below it if the fewest are, and at least it otherwise.

    Returns:
        The number of rows, the fewest by default; infinite if no combination leaves any row.
    """
    rows, columns = _nodes(one), _nodes(other)
    n_rows, n_columns = (int(nodes.max(initial=0)) + 1 for nodes in (rows, columns))
    counts = np.bincount(rows * n_columns + columns, minlength=n_rows * n_columns).reshape(n_rows, n_columns)
    # Node 0 is for rows outside of the training. The folds of the first job follow, and then those of the other one.
    weights = np.zeros((n_rows + n_columns - 1,) * 2, np.int64)
    weights[np.ix_(np.arange(n_rows), np.array([0, *range(n_rows, len(weights))]))] = counts
    weights = weights + weights.T
    fewest = math.inf
    for number in count():
        np.fill_diagonal(weights, 0)
        used = np.flatnonzero(weights.any(axis=0))
        weights = weights[np.ix_(used, used)]
        # The first pass may leave few nodes. What it leaves of folds that were drawn at random is clear at once.
        if not len(used) or fewest < least < math.inf or (number == 1 and _has_no_cut_below(weights, least)):
            break
        last, joined = _by_adjacency(weights, least)
        if (n_edges := int(weights[last].sum())) > 0:
            fewest = min(fewest, n_edges)
        weights = _join(_join(weights, joined).T, joined)
    return fewest


def _has_no_cut_below(weights: NDArray[np.int64], least: float) -> bool:
    """Return whether it is clear from degrees and eigenvalues that each cut has at least so many edges.

    Between k of n nodes and the others are at least k (n - k) / n times as many edges as the second eigenvalue of the
    Laplacian. Source: M. Fiedler, "Algebraic connectivity of graphs", Czechoslovak Math. J. 23 (1973).
    """
    n_nodes, degrees = len(weights), weights.sum(axis=0)
    if n_nodes < _MANY_NODES or degrees.min() < least:
        return False
    second = np.linalg.eigvalsh(np.diag(degrees.astype(np.float64)) - weights)[1]
    return bool(second * 2 * (n_nodes - 2) / n_nodes > least + 1e-6)


def _by_adjacency(weights: NDArray[np.int64], least: float) -> tuple[int, Rows]:
    """Go through the nodes in an order in which each has the most edges to those before it.

    Returns:
        The last node, and for each node the number of the node that it becomes part of. Only the edges of the last node
        may be a cut of fewer than `least` edges between nodes that become one.
    """
    group = np.arange(len(weights))
    to_taken = np.zeros(len(weights), dtype=np.int64)
    is_left = np.ones(len(weights), dtype=bool)
    is_alone = is_left.copy()
    before_last = last = 0
    for _ in range(len(weights)):
        before_last, last = last, int(np.argmax(np.where(is_left, to_taken, -1)))
        is_left[last] = False
        to_taken += weights[last]
        # A cut between this node and one that is left has at least as many edges as lead from that one to nodes before.
        near = is_left & is_alone & (weights[last] > 0) & (to_taken >= least)
        group[near] = group[last]
        is_alone &= ~near
    group[last] = group[before_last]
    return last, np.unique_inverse(group).inverse_indices


def _join(weights: NDArray[np.int64], group: Rows) -> NDArray[np.int64]:
    joined = np.zeros((int(group.max()) + 1, weights.shape[1]), np.int64)
    np.add.at(joined, group, weights)
    return joined
