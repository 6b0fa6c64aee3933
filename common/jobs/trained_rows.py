"""On which rows a party has trained, so that no two trainings differ in a few rows only: a file on disk.

`changed_rows` compares the jobs on one table row by row. This module compares all trainings of a party, whatever their
tables and datasets are called: a new row, a row that is gone and a changed label count. The difference of two models
tells about the rows in which their trainings differ, whether the second one starts from the first model or at zero.

The file has no rows. Of each set of training rows it has a *sketch*: 128 sums of 1 and -1, of which each row adds to
one. A keyed hash of the row's ID and label chooses the sum and the sign. The sum of the squared differences of two
sketches is a random number whose mean is the number of rows in only one of the sets. It is 0 for equal sets, and never
for sets that differ in one row; its standard deviation is at most an eighth of the mean. Source: Charikar, Chen and
Farach-Colton (2004), Finding Frequent Items in Data Streams, for the sketch; Alon, Matias and Szegedy (1999), The Space
Complexity of Approximating the Frequency Moments, for the estimate.
"""

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.files import write_whole
from trilateral.common.base.locks import lock_file
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.changed_rows import least_changed
from trilateral.common.jobs.policy import refusal
from trilateral.common.jobs.quota import file_errors

TRAINED_ROWS = ".trained-rows.json"
"""Name in the state folder. No job has this name, because a job's name never begins with a dot."""
VERSION = 1
N_SUMS = 128
MAX_SETS = 1000
"""Sets of rows that are kept, the newest ones. Each takes 1 KiB."""
_KEY_BYTES = 32
_ROWS_AT_A_TIME = 65_536

Sketch = NDArray[np.int32]
"""The sums of a set of rows, shape (N_SUMS,)."""


class TrainedRows:
    """The sets of rows of one party. Any number of processes and threads may use it at the same time.

    Args:
        state: the state folder, which exists when this is used.
        role: the party.
    """

    def __init__(self, state: Path, role: Role) -> None:
        self._path = state / TRAINED_ROWS
        self._lock_path = self._path.with_suffix(".lock")
        self._role = role
        self._lock = threading.Lock()

    def sketch(self, ids: Ids, labels: FloatVector | None) -> Sketch:
        """Return the sketch of a set of rows, which only this state folder can compare.

        Args:
            ids: the IDs in their normal form.
            labels: -1 or +1, shape (n_rows,); None at the host.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        key = bytes.fromhex(self._change(lambda content: None)["key"])
        sums: Sketch = np.zeros(N_SUMS, np.int32)
        hashes = _hashes(key, ids, labels)
        while some := b"".join(islice(hashes, _ROWS_AT_A_TIME)):
            numbers = np.frombuffer(some, "<u4")
            signs = 1.0 - 2.0 * (numbers >> 31)
            sums += np.rint(np.bincount(numbers % N_SUMS, signs, N_SUMS)).astype(np.int32)
        return sums

    def check(self, rows: Sketch, n_rows: int, policy: Policy) -> None:
        """Check that a set of rows equals every earlier one, or differs from it in enough rows, without adding it.

        Args:
            rows: of the training rows.
            n_rows: their number.
            policy: of this party.

        Raises:
            PolicyError: it differs from an earlier set in a few rows.
            ConfigError: the file cannot be read or written.
        """
        self._check(rows, least_changed(policy, n_rows), self._change(lambda content: None))

    def add(self, rows: Sketch, n_rows: int, policy: Policy) -> None:
        """Add a set of rows, before the first round of its training; see `check` for the arguments and the errors."""

        def add(content: dict[str, Any]) -> None:
            self._check(rows, least_changed(policy, n_rows), content)
            written = rows.astype("<i4").tobytes().hex()
            content["sets"] = [*(each for each in content["sets"] if each != written), written][-MAX_SETS:]

        self._change(add)

    def _check(self, rows: Sketch, least: int, content: dict[str, Any]) -> None:
        earlier = [np.frombuffer(bytes.fromhex(each), "<i4") for each in content["sets"]]
        n_changed = [int(np.sum((rows.astype(np.int64) - each) ** 2)) for each in earlier]
        few = min((n for n in n_changed if n), default=least)
        if few >= least:
            return
        error = refusal(
            self._role,
            "policy.min_changed_rows",
            "the training rows are those of an earlier training, perhaps on another dataset, but for fewer than"
            f" {least} rows, so both results together would tell much about these few rows: use the same rows, or"
            " change more of them; the log of this party has the number",
        )
        error.add_note(f"about {few} training rows differ from those of an earlier training")
        raise error

    def _change(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Change the content on disk, and return it. The first use draws the key."""
        with self._public_errors(), self._lock, lock_file(self._lock_path):
            before = self._read()
            content = before or {"version": VERSION, "key": secrets.token_hex(_KEY_BYTES), "sets": []}
            content = dict(content)
            change(content)
            if content != before:
                write_whole(self._path, json.dumps(content) + "\n")
            return content

    def _read(self) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        sizes = {len(bytes.fromhex(each)) for each in content["sets"]}
        if content["version"] != VERSION or len(bytes.fromhex(content["key"])) != _KEY_BYTES or sizes - {4 * N_SUMS}:
            raise ValueError
        return content

    def _public_errors(self) -> AbstractContextManager[None]:
        return file_errors(self._path, f"the {self._role} accepts no job", "list of trained rows")


def _hashes(key: bytes, ids: Ids, labels: FloatVector | None) -> Iterator[bytes]:
    """Yield 4 bytes for each row."""
    keyed = hashlib.blake2b(key=key, digest_size=4)
    ends = b"\0" * len(ids) if labels is None else bytes(np.where(labels > 0, 1, 2).astype(np.uint8))
    for one, end in zip(ids, ends, strict=True):
        hashed = keyed.copy()  # Half the time of a new one.
        hashed.update(one.encode())
        hashed.update(b"\0" + bytes([end]))
        yield hashed.digest()
