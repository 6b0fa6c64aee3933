"""A party's place in a job across sessions: what its journal keeps, and what that is compared with."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Protocol

import numpy as np
import pandas as pd

from trilateral.common.base.arrays import FloatMatrix, Rows
from trilateral.common.base.errors import ConfigError, DataError, PeerError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.history import History
from trilateral.common.jobs.journal import Journal, Record
from trilateral.common.pb.v1.party_pb2 import BeginRoundRequest, FinishJobRequest
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.messages import BeginRound, EvaluationRecord, FinishJob, Machine, RoundKey, StepTaken
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.routes import decode, encode, route_for

MAX_BEGUN = 100
"""How often one round may be begun in all sessions together; each attempt shows the same sums."""
_REQUESTS = {b"B": BeginRoundRequest, b"F": FinishJobRequest}
_TOLERANCE = 1e-6
"""Of the comparison of training columns: another version of a library may round otherwise, and no more."""


class RestoredMachine(Machine, Protocol):
    """A party's state machine, seen from here."""

    def restore(self, steps: Sequence[BeginRound | FinishJob], evaluations: Sequence[EvaluationRecord] = ()) -> None:
        """Take up the place of earlier sessions."""
        ...


class PartyPlace:
    """What one session of a job knows of those before it, and keeps for those after it.

    Args:
        journal: of this process.
        role: of this process.
        key: of the session.
        job_id: under which the journal has the job.
        record: of the earlier sessions; None if this is the first, or both parties were never ready.
    """

    def __init__(self, journal: Journal, role: Role, key: JobKey, job_id: bytes, record: Record | None) -> None:
        self._journal = journal
        self._role = role
        self._key = key
        self._id = job_id
        self._record = record

    @property
    def resumed(self) -> bool:
        """Whether the job goes on from an earlier session."""
        return self._record is not None

    # --- the data

    def check_table(self, table: PartyTable, dataset: DatasetConfig) -> None:
        """See that it is the table, and that these are the settings, of the earlier sessions; keep that in the first.

        Raises:
            DataError: it is another table.
            ConfigError: the settings have changed.
        """
        if not self._is_as_before("settings", _digest([dataset.model_dump_json(exclude={"path"}).encode()])):
            raise ConfigError(
                "the settings of the dataset have changed since the job began: put them back, or start anew"
            )
        if not self._is_as_before("table", table_digest(table)):
            raise DataError("the table has changed since the job began: put it back, or start the job anew")

    def check_columns(self, columns: FloatMatrix) -> None:
        """See that preprocessing has made the same training columns, shape (n_train, n_columns), as before.

        Raises:
            DataError: they are others.
        """
        weights = np.random.default_rng(0).standard_normal(len(columns))
        sums = weights @ columns
        known = self._fact("columns")
        if known is None:
            self._journal.set_fact(self._id, "columns", json.dumps(sums.tolist()).encode())
            return
        before = np.asarray(json.loads(known))
        if before.shape != sums.shape or not np.allclose(before, sums, rtol=0, atol=_TOLERANCE * len(columns) ** 0.5):
            raise DataError(
                f"the {self._role}'s training columns are not those with which the job began, though its table is:"
                " was another version installed? Start the job anew"
            )

    @property
    def has_counted_scores(self) -> bool:
        """Whether what this party will give of its hold-out rows is counted already, whatever the coordinator says."""
        return self._fact("scores counted") is not None

    def keep_counted_scores(self) -> None:
        """Keep that it is."""
        self._journal.set_fact(self._id, "scores counted", b"")

    def keep_common_rows(self, rows: Rows, n_rows: int) -> None:
        """Keep which of a table's rows both parties have."""
        mask = np.zeros(n_rows, dtype=bool)
        mask[rows] = True
        self._journal.set_fact(self._id, "common rows", np.packbits(mask).tobytes())

    def common_rows(self, n_rows: int) -> Rows:
        """Those that were kept, ascending.

        Raises:
            PeerError: none were.
        """
        packed = self._fact("common rows")
        if packed is None:
            raise PeerError(f"the {self._role} does not know the common rows any more: start the job anew")
        return np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8), count=n_rows))

    def _is_as_before(self, name: str, digest: bytes) -> bool:
        known = self._fact(name)
        if known is None:
            self._journal.set_fact(self._id, name, digest)
        return known is None or known == digest

    def _fact(self, name: str) -> bytes | None:
        return None if self._record is None else self._record.facts.get(name)

    # --- the rounds

    def restore(self, machine: RestoredMachine, history: History) -> None:
        """Bring a new state machine to where the party was.

        Raises:
            ProtocolError: the journal has steps that are not of this job.
        """
        if self._record is None:
            return
        steps = [_asked(content) for content in self._record.rounds.values()]
        evaluations = [
            _evaluated(content) for name, content in self._record.facts.items() if name.startswith("evaluation ")
        ]
        machine.restore(steps, sorted(evaluations, key=lambda each: each.key))
        begun = [step for step in steps if isinstance(step, BeginRound)]
        if begun:
            history.restore(begun[-1])

    def keep(self, message: StepTaken | EvaluationRecord) -> None:
        """Write down what the state machine says, before anything that follows from it leaves.

        Raises:
            ProtocolError: the coordinator has begun a round too often.
            ConfigError: the journal cannot be written.
        """
        match message:
            case EvaluationRecord():
                content = json.dumps(asdict(message)).encode()
                self._journal.set_fact(self._id, f"evaluation {message.key.round}", content)
            case StepTaken(asked=asked):
                kind, number = (b"B", asked.key.round) if isinstance(asked, BeginRound) else (b"F", asked.round)
                request = encode(self._key, asked, route_for(Role.COORDINATOR, self._role, asked))
                content = kind + request.SerializeToString()
                if self._journal.write_round(self._id, number, content) > MAX_BEGUN:
                    raise ProtocolError(f"the coordinator has begun round {number} more than {MAX_BEGUN} times")


def table_digest(table: PartyTable) -> bytes:
    """Return what tells a table from any other: its IDs, columns and labels."""
    return _digest(_parts(table))


def _parts(table: PartyTable) -> Iterator[bytes]:
    yield "\n".join(table.ids).encode()
    yield "\n".join(map(str, table.features.columns)).encode()
    yield pd.util.hash_pandas_object(table.features, index=False).to_numpy().tobytes()
    yield b"" if table.labels is None else table.labels.tobytes()


def _digest(parts: Sequence[bytes] | Iterator[bytes]) -> bytes:
    whole = blake2b(digest_size=32)
    for part in parts:
        whole.update(blake2b(part, digest_size=32).digest())
    return whole.digest()


def _asked(content: bytes) -> BeginRound | FinishJob:
    request = _REQUESTS[content[:1]]()
    request.ParseFromString(content[1:])
    asked = decode(request)
    if not isinstance(asked, BeginRound | FinishJob):
        raise ProtocolError("the journal has a round that is none")
    return asked


def _evaluated(content: bytes) -> EvaluationRecord:
    fields = json.loads(content)
    metrics = fields["metrics"]
    lift = metrics["lift"]
    metrics["lift"] = None if lift is None else tuple(lift)
    return EvaluationRecord(RoundKey(**fields["key"]), fields["epochs"], HoldoutMetrics(**metrics))
