"""What the other party has learnt about the rows of each dataset, over all jobs: a file on disk.

The daily counters of `quota` bound how much leaves in a day. The ledger bounds how much leaves in total, because
equations about the same rows add up, however long the time between them. It counts two things for each dataset:

- *Points* at which the host scored rows for the guest. A point is one set of the host's weights, and each gives one
  linear function of every row. The same model makes the same point again, whatever it scores. Each reason code of a
  row counts like a score: the first reasons of all rows are one more point, the second ones another.
- *Equations* about the training rows. Each training gives the other party one for each of its columns in each batch.
  The guest counts only what its secret start does not cover, see `trilateral.common.protocol.label_secrecy`.

An entry is on disk before anything leaves. After a crash, something may therefore be counted that was not given, but
never the reverse. If the ledger cannot be read and written, nothing is given. No message of a peer removes an entry.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.files import write_whole
from trilateral.common.base.locks import lock_file
from trilateral.common.base.roles import Role
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.jobs.quota import file_errors

LEDGER = ".ledger.json"
"""Name in the state folder. No job has this name, because a job's name never begins with a dot."""
VERSION = 1
MAX_COUNT = 2**53
"""The largest count that an entry can have."""


@dataclass(frozen=True)
class Entry:
    """What was given about the rows of one dataset."""

    trainings: int = 0
    """Trainings that have begun a round."""
    equations: int = 0
    """Equations about the training rows, over all trainings."""
    points: tuple[str, ...] = ()
    """Points at which rows were scored, see `point_of`, in the order in which they were first used."""

    def __post_init__(self) -> None:
        for count in (self.trainings, self.equations):
            if type(count) is not int or not 0 <= count <= MAX_COUNT:
                raise ValueError
        if not all(isinstance(point, str) for point in self.points):
            raise ValueError


def point_of(steps: Preprocessing, weights: FloatVector) -> str:
    """Return what identifies a point: a digest of the function that turns a row of the table into the host's score.

    Args:
        steps: the host's fitted preprocessing.
        weights: the host's weights in training units, shape (n_columns,).

    Returns:
        SHA-256 in hexadecimal.
    """
    weights = weights + 0.0  # -0.0 is the same weight as 0.0.
    return hashlib.sha256(json.dumps([steps.to_dict(), weights.tolist()]).encode()).hexdigest()


def reason_point(point: str, groups: Sequence[int], place: int) -> str:
    """Return what identifies the function that gives a row's first, second or further reason.

    The names of the reasons do not count, because other names for the same columns tell nothing new.

    Args:
        point: of the model, see `point_of`.
        groups: for each of the host's columns, the place of its reason.
        place: which of a row's reasons, from 0.

    Returns:
        SHA-256 in hexadecimal.
    """
    return hashlib.sha256(json.dumps(["reason", point, [*groups], place]).encode()).hexdigest()


class Ledger:
    """The ledger of one party. Any number of processes and threads may use it at the same time.

    Args:
        state: the state folder, which exists when the ledger is used.
        role: the party.
    """

    def __init__(self, state: Path, role: Role) -> None:
        self._path = state / LEDGER
        self._lock_path = self._path.with_suffix(".lock")
        self._refusal = f"the {role} accepts no job and gives no scores"
        self._lock = threading.RLock()
        self._reserved: dict[bytes, tuple[str, int]] = {}
        """Points that running jobs of this process may still use: by job, the dataset and their number."""

    def entry(self, dataset: str) -> Entry:
        """Return what was given about the rows of a dataset.

        Raises:
            ConfigError: the ledger cannot be read.
        """
        with self._public_errors():
            return self._read().get(dataset, Entry())

    def n_reserved(self, dataset: str, job: bytes = b"") -> int:
        """Return how many points of a dataset are reserved for running jobs other than `job`."""
        with self._lock:
            return sum(n for each, (name, n) in self._reserved.items() if name == dataset and each != job)

    def add_training(self, dataset: str, n_equations: int, most: int) -> bool:
        """Count a training and its equations, unless the sum would exceed `most`; return whether they were counted.

        Raises:
            ConfigError: the ledger cannot be read or written. Nothing may be given then.
        """
        return self._add_equations(dataset, n_equations, most, n_trainings=1)

    def add_counts(self, dataset: str, n_equations: int, most: int) -> bool:
        """Count the equations of a bins job, which is no training; see `add_training`."""
        return self._add_equations(dataset, n_equations, most, n_trainings=0)

    def _add_equations(self, dataset: str, n_equations: int, most: int, *, n_trainings: int) -> bool:
        def add(entry: Entry) -> Entry | None:
            equations = entry.equations + n_equations
            if equations > most:
                return None
            return replace(entry, trainings=entry.trainings + n_trainings, equations=equations)

        return self._change(dataset, add)

    def reserve(self, dataset: str, job: bytes, n_points: int, most: int) -> bool:
        """Reserve points for a job until `release`, in place of its earlier ones, if that many are left.

        Reservations are not on disk. They only keep a job from failing late because another one was faster.

        Raises:
            ConfigError: the ledger cannot be read.
        """
        with self._lock:
            given = len(self.entry(dataset).points)
            if given + self.n_reserved(dataset, job) + n_points > most:
                return False
            self._reserved[job] = dataset, n_points
            return True

    def release(self, job: bytes) -> None:
        """Give up what is left of a job's reservation, if it has one."""
        with self._lock:
            self._reserved.pop(job, None)

    def add_point(self, dataset: str, point: str, most: int, job: bytes = b"") -> bool:
        """Count a point, unless it is in the ledger already or the number of points would exceed `most`.

        Args:
            dataset: name of the dataset whose rows are scored.
            point: see `point_of`.
            most: the largest number of points.
            job: the job that scores the rows and whose reservation is used; empty for a prediction.

        Returns:
            Whether the point may be used.

        Raises:
            ConfigError: the ledger cannot be read or written. Nothing may be given then.
        """

        def add(entry: Entry) -> Entry | None:
            if point in entry.points:
                return entry
            with self._lock:
                if len(entry.points) + self.n_reserved(dataset, job) + 1 > most:
                    return None
                if job in self._reserved:
                    self._reserved[job] = dataset, max(self._reserved[job][1] - 1, 0)
            return replace(entry, points=(*entry.points, point))

        return self._change(dataset, add)

    def _change(self, dataset: str, change: Callable[[Entry], Entry | None]) -> bool:
        """Change an entry on disk; return False if `change` returns None."""
        with self._public_errors(), lock_file(self._lock_path):
            entries = self._read()
            before = entries.get(dataset, Entry())
            after = change(before)
            if after is not None and after != before:
                datasets = {name: asdict(entry) for name, entry in (entries | {dataset: after}).items()}
                write_whole(self._path, json.dumps({"version": VERSION, "datasets": datasets}, indent=2) + "\n")
            return after is not None

    def _read(self) -> dict[str, Entry]:
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        if content["version"] != VERSION:
            raise ValueError
        return {name: _entry(fields) for name, fields in content["datasets"].items()}

    def _public_errors(self) -> AbstractContextManager[None]:
        return file_errors(self._path, self._refusal, "ledger")


def _entry(fields: dict[str, Any]) -> Entry:
    return Entry(**fields | {"points": tuple(fields["points"])})
