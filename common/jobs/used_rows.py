"""Which rows the jobs of a party have used, so that no two jobs differ in a few rows only: a file on disk.

The results of two trainings on nearly the same rows differ by a sum over the rows that are in one of them only. If it
is one row, each weight's difference shows the label of that row, or the host's part of its score. The names of tables
and datasets make no difference, nor does a start from the first model. The other party can choose the rows: by its
split column, or by leaving rows out of its own table. Whoever starts the job can choose them by `holdout` and `seed`.
The counts of a bins job tell the same, and so does the loss on evaluated rows, which is a mean over labels.

The guest compares rows twice: with their labels, because a changed label changes a result too, and by their IDs alone.
One label may be written in two ways, such as with `positive` and `negative` swapped, or as a class of several. Then all
rows differ by their labels, although the results differ by a few rows.

The file has no rows. It has a *sketch* of each set of rows, whose size does not depend on their number. It answers two
questions:

- *Are two sets equal?* A sketch has the sum of a keyed hash of each row, modulo 2^64. The key never leaves this party,
  so nobody else can find two sets with equal sums.
- *In how many rows do they differ?* A sketch has `N_PARTS` parts of `N_SUMS` sums of 1 and -1. In each part, a row adds
  to one sum. Its hash chooses the sum and the sign. The sum of the squared differences of two parts is a random number.
  Its mean is the number of rows in only one of the sets, and its standard deviation at most the mean times
  sqrt(2 / N_SUMS), 9%. The median of the parts is the estimate. To raise it, a few rows must have equal sums and signs
  in most parts. A single part would not do: whoever may try many sets of rows can see from the refusals which rows have
  equal sums. Sources: Alon, Matias and Szegedy (1999), The Space Complexity of Approximating the Frequency Moments, for
  the estimate; Charikar, Chen and Farach-Colton (2004), Finding Frequent Items in Data Streams, for sums by hash.
"""

import base64
import json
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.files import write_whole
from trilateral.common.base.locks import lock_file
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.data.tables.arrow_arrays import bytes_of
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.policy import refusal
from trilateral.common.jobs.quota import file_errors

USED_ROWS = ".used-rows.json"
"""Name in the state folder. No job has this name, because a job's name never begins with a dot."""
VERSION = 1
TRAINING, EVALUATED = "training", "evaluated"
"""What rows are used for: a training or the counts of a bins job, or the evaluations of a training."""
BY_ID = "_by_id"
"""Ends the name of a list of sets that were hashed without their labels, at the guest."""
N_PARTS, N_SUMS = 5, 256
MAX_SHARE = 0.05
"""A job may differ in this share of its rows, however many rows the policy asks for. Otherwise two random hold-outs of
a small table would be too similar."""
ENOUGH = 1.2
"""So many times the smallest number of rows are always enough, although the number is an estimate."""
MAX_SETS = 1000
"""Sets of rows that are kept for each purpose, the newest ones. Each takes 7 KB."""
KEY_BYTES = 32
"""Bytes of the key of the hash."""
_BLOCK_BYTES = 16
_ROWS_AT_A_TIME = 16_384


@dataclass(frozen=True, eq=False)
class RowSketch:
    """The sketch of a set of rows."""

    total: int
    """Sum of the hashes, modulo 2^64."""
    sums: NDArray[np.int32]
    """Shape (N_PARTS, N_SUMS)."""

    def n_changed(self, other: "RowSketch") -> int:
        """Estimate in how many rows two sets differ: 0 if they are equal, and at least 1 if they are not."""
        if self.total == other.total:
            return 0
        parts = np.sum((self.sums.astype(np.int64) - other.sums) ** 2, axis=1)
        return max(int(np.median(parts)), 1)

    def to_dict(self, job: str) -> dict[str, Any]:
        """Return an entry of the file."""
        sums = base64.b64encode(self.sums.astype("<i4").tobytes()).decode()
        return {"job": job, "total": self.total, "sums": sums}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> "RowSketch":
        """Read an entry of the file.

        Raises:
            ValueError, TypeError, KeyError: it is damaged.
        """
        sums = np.frombuffer(base64.b64decode(entry["sums"], validate=True), "<i4").reshape(N_PARTS, N_SUMS)
        if type(entry["total"]) is not int or not isinstance(entry["job"], str):
            raise ValueError
        return cls(entry["total"], sums)


@dataclass(frozen=True, eq=False)
class JobRows:
    """The rows that a job uses."""

    job: str
    """Name of the job."""
    sketches: Mapping[str, tuple[RowSketch, int]]
    """For each purpose, the sketch of the rows and their number; with labels, also under the name that ends in `BY_ID`
    the sketch of the IDs alone."""


class UsedRows:
    """The sets of rows of one party. Any number of processes and threads may use it at the same time.

    Args:
        state: the state folder, which exists when this is used.
        role: the party.
    """

    def __init__(self, state: Path, role: Role) -> None:
        self._path = state / USED_ROWS
        self._lock_path = self._path.with_suffix(".lock")
        self._role = role
        self._lock = threading.Lock()

    def of_job(self, job: str, ids: Ids, labels: FloatVector | None, rows: Mapping[str, Rows]) -> JobRows:
        """Return the rows that a job uses.

        Args:
            job: name of the job.
            ids: the IDs of the common rows, in their normal form.
            labels: -1 or +1, or numbers of classes, shape (n_ids,); None at the host.
            rows: numbers of the rows among these, by what they are used for.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        key = bytes.fromhex(self._change(_keep)["key"])
        sketches = {each: (_sketch(key, ids, labels, some), len(some)) for each, some in rows.items()}
        if labels is not None:
            sketches |= {f"{each}{BY_ID}": (_sketch(key, ids, None, some), len(some)) for each, some in rows.items()}
        return JobRows(job, sketches)

    def check(self, rows: JobRows, policy: Policy) -> None:
        """Check that each set of a job equals every earlier one, or differs from it in enough rows, without adding it.

        Args:
            rows: of the job.
            policy: of this party.

        Raises:
            PolicyError: a set differs from an earlier one in a few rows.
            ConfigError: the file cannot be read or written.
        """
        self._check(rows, policy, self._change(_keep))

    def add(self, rows: JobRows, policy: Policy) -> None:
        """Add the rows of a job, before anything about them leaves; see `check` for the arguments and the errors."""

        def add(content: dict[str, Any]) -> None:
            self._check(rows, policy, content)
            for purpose, (sketch, _) in rows.sketches.items():
                others = [each for each in content.get(purpose, []) if each["total"] != sketch.total]
                content[purpose] = [*others, sketch.to_dict(rows.job)][-MAX_SETS:]

        self._change(add)

    def _check(self, rows: JobRows, policy: Policy, content: dict[str, Any]) -> None:
        for name, (sketch, n_rows) in rows.sketches.items():
            least, purpose = least_changed(policy, n_rows), name.removesuffix(BY_ID)
            for entry in content.get(name, []):
                n_changed = sketch.n_changed(RowSketch.from_dict(entry))
                if not 0 < n_changed < least:
                    continue
                error = refusal(
                    self._role,
                    "policy.min_changed_rows",
                    f"fewer than about {least} {purpose} rows differ from those of an earlier job, so both results"
                    " together would tell much about these few rows: use the same rows, or wait until"
                    f" {math.ceil(ENOUGH * least)} have changed since the earlier job, which the log of the"
                    f" {self._role} names",
                )
                error.add_note(f"about {n_changed} {purpose} rows differ from those of the job {entry['job']}")
                raise error

    def _change(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Change the content on disk, and return it. The first use draws the key."""
        with self._public_errors(), self._lock, lock_file(self._lock_path):
            before = self._read()
            new = {"version": VERSION, "key": secrets.token_hex(KEY_BYTES), TRAINING: [], EVALUATED: []}
            content = dict(before or new)
            change(content)
            if content != before:
                write_whole(self._path, json.dumps(content) + "\n")
            return content

    def _read(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        if content["version"] != VERSION or len(bytes.fromhex(content["key"])) != KEY_BYTES:
            raise ValueError
        for purpose in (TRAINING, EVALUATED):
            for entry in (*content[purpose], *content.get(f"{purpose}{BY_ID}", [])):
                RowSketch.from_dict(entry)
        return content

    def _public_errors(self) -> AbstractContextManager[None]:
        return file_errors(self._path, f"the {self._role} accepts no job", "list of used rows")


def least_changed(policy: Policy, n_rows: int) -> int:
    """Return in how many rows a job must differ from another one, unless its rows are the same.

    Args:
        policy: the policy of this party.
        n_rows: rows of the job.
    """
    return min(policy.min_changed_rows, int(MAX_SHARE * n_rows))


def _keep(content: dict[str, Any]) -> None:
    """Change nothing."""


def _sketch(key: bytes, ids: Ids, labels: FloatVector | None, rows: Rows) -> RowSketch:
    total = 0
    sums = np.zeros((N_PARTS, N_SUMS))
    for hashes in hashes_of(key, ids, labels, rows):
        total += int(hashes[:, 0].sum(dtype=np.uint64))
        for number in range(N_PARTS):
            bits = (hashes[:, 1] >> np.uint64(12 * number)).astype(np.uint16)
            sums[number] += np.bincount(bits % N_SUMS, 1.0 - 2.0 * (bits // N_SUMS % 2), N_SUMS)
    return RowSketch(total % 2**64, np.rint(sums).astype(np.int32))


def hashes_of(key: bytes, ids: Ids, labels: FloatVector | None, rows: Rows) -> Iterator[NDArray[np.uint64]]:
    """Hash some rows at a time.

    The hash is the CBC-MAC of AES-256 over the length of the ID, the label and the ID. A message that begins with its
    length is the beginning of no other, so this is a pseudorandom function. Source: Bellare, Kilian and Rogaway (2000),
    The Security of the Cipher Block Chaining Message Authentication Code. Many rows are hashed at a time, one block of
    each.

    Args:
        key: of the hash, `KEY_BYTES` bytes.
        ids: the IDs.
        labels: shape (n_ids,); None for a hash of the ID alone.
        rows: numbers of the rows to hash.

    Yields:
        16 bytes for each of the next rows, shape (n_some, 2).
    """
    encrypt = Cipher(AES(key), ECB()).encryptor().update  # noqa: S305  One block of each row: no row has two in a call.
    within = np.arange(_BLOCK_BYTES)
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        some = rows[first : first + _ROWS_AT_A_TIME]
        starts, text = bytes_of(ids.take(some).texts)
        lengths = np.diff(starts)
        state = np.zeros((len(some), 2), "<u8")
        state[:, 0] = lengths
        if labels is not None:
            state[:, 1] = labels[some].astype(np.int64).view(np.uint64)
        state = np.frombuffer(encrypt(state.tobytes()), "<u8").reshape(-1, 2).copy()
        for begin in range(0, int(lengths.max(initial=0)), _BLOCK_BYTES):
            longer = np.flatnonzero(lengths > begin)
            bytes_there = text.take(starts[longer, None] + begin + within, mode="clip")
            block = np.where(within < (lengths[longer, None] - begin), bytes_there, np.uint8(0)).view("<u8")
            mixed = (state[longer] ^ block).tobytes()
            state[longer] = np.frombuffer(encrypt(mixed), "<u8").reshape(-1, 2)
        yield state
