"""What a party's journal keeps about a job across sessions, and what a later session compares with that."""

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trilateral.common.base.arrays import FloatRows, FloatVector, Rows, blocks_of
from trilateral.common.base.errors import ConfigError, DataError, PeerError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.settings import Settings
from trilateral.common.data.features import Categories, Features
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.history import History
from trilateral.common.jobs.journal import Journal, Record, read_fact
from trilateral.common.jobs.sealing import Sealer
from trilateral.common.pb.v1.party_pb2 import BeginRoundRequest, FinishJobRequest
from trilateral.common.protocol.evaluation import HoldoutMetrics
from trilateral.common.protocol.messages import BeginRound, EvaluationRecord, FinishJob, Machine, RoundKey, StepTaken
from trilateral.common.protocol.row_roles import Purpose, RoleVector
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.routes import decode, encode, route_for

MAX_BEGUN = 100
"""How often a round may be begun, over all sessions. Each attempt shows the same sums."""
_NEW_SETTINGS = (
    "missing",
    "repeated_ids",
    "preprocessing.constant",
    "preprocessing.limits",
    "preprocessing.transform",
    "preprocessing.columns.*.limits",
    "preprocessing.binning",
    "preprocessing.spline",
    "preprocessing.encoding",
    "preprocessing.interactions",
    "preprocessing.columns.*.encoding",
    "preprocessing.columns.*.transform",
    "preprocessing.columns.*.spline",
    "label.weight",
    "label.class_weight",
    "label.classes",
    "split",
    "folds",
)
"""Settings of a dataset that 0.1.0 did not have; `*` is any name. At its default such a setting is not part of the
digest, so that a job that 0.1.0 began continues."""
_TABLE = "features and labels"
"""Name of the fact that holds the digest of the table."""
_OLD_TABLE = "table"
"""Name of the fact that holds the digest of the table by pandas. 0.1.0 wrote it."""
_ROLES = "row roles "
"""Start of the name of a fact that holds what the rows are for, compressed. The purpose follows."""
_EVALUATION = "evaluation "
"""Start of the name of a fact that holds an evaluation. The number of its round follows."""
_COUNTED = "training counted"
"""Name of the fact that holds the number of the other party's training columns with which the ledger has counted a
training."""
_START = "start"
"""Name of the fact that holds the guest's secret first weights."""
_NEWEST_POINT = "newest point"
"""Name of the fact that holds the round and the digest of the newest point at which the host scored rows."""
_OPENED_FOLDS = "opened folds"
"""Name of the fact that holds the `OpenedFolds` of the host."""
_REQUESTS = {b"B": BeginRoundRequest, b"F": FinishJobRequest}
_TOLERANCE = 1e-6
"""Tolerance of the comparison of training columns: another version of a library may round differently."""


@dataclass(frozen=True)
class OpenedFolds:
    """The openings of folds' scores by the host, in all sessions of a job."""

    counts: Mapping[int, int] = field(default_factory=dict)
    """How many points each fold was scored at, by its number."""
    newest: tuple[int, int] | None = None
    """Round and fold of the newest opening; None once another round has begun."""
    repeats: int = 0
    """How many openings were repeats, which `counts` does not have."""

    @classmethod
    def parse(cls, content: bytes) -> "OpenedFolds":
        """Read what was written as JSON."""
        kept = json.loads(content)
        counts = {int(fold): count for fold, count in kept["counts"].items()}
        return cls(counts, None if kept["newest"] is None else tuple(kept["newest"]), kept["repeats"])


class RestoredMachine(Machine, Protocol):
    """A party's state machine."""

    def restore(self, steps: Sequence[BeginRound | FinishJob], evaluations: Sequence[EvaluationRecord] = ()) -> None:
        """Return to the round that the earlier sessions reached.

        Args:
            steps: what the coordinator asked in each round, in order.
            evaluations: the evaluations of the rounds, in order.
        """
        ...


class PartyRecord:
    """What one session of a job knows about the earlier sessions, and keeps for later ones.

    Args:
        journal: the journal of this process.
        role: the role of this process.
        key: the key of the session.
        job_id: run ID of the job's first session.
        known: the journal's record of the earlier sessions; None if the two parties were never both ready.
    """

    def __init__(self, journal: Journal, role: Role, key: JobKey, job_id: bytes, known: Record | None) -> None:
        self._journal = journal
        self._role = role
        self._key = key
        self._id = job_id
        self._known = known
        self._pending: dict[str, bytes] = {}
        """Facts that the journal needs from the first round on. They are written with the next other facts, or with
        that round: each write waits for the disk."""

    @property
    def id(self) -> bytes:
        """Run ID of the job's first session."""
        return self._id

    @property
    def resumed(self) -> bool:
        """Whether the job continues from an earlier session."""
        return self._known is not None

    # --- the data

    def check_table(self, table: PartyTable, dataset: DatasetConfig) -> None:
        """Check that the table and its settings are as in the earlier sessions.

        The first session records them, by its first round.

        Args:
            table: the table of this party.
            dataset: its settings.

        Raises:
            DataError: the table has changed.
            ConfigError: the settings have changed.
        """
        if not self._is_as_before("settings", settings_digest(dataset)):
            raise ConfigError(
                "the settings of the dataset have changed since the job began: restore them, or start the job again"
            )
        if not self._is_table_as_before(table):
            raise DataError(
                "the table has changed since the job began, or another release of trilateral began the job and reads"
                " the table in another way: restore the table, or start the job again"
            )

    def check_columns(self, columns: FloatRows) -> None:
        """Check that preprocessing has made the same training columns as in the earlier sessions.

        Args:
            columns: shape (n_train, n_columns).

        Raises:
            DataError: the columns differ.
        """
        random, sums = np.random.default_rng(0), np.zeros(columns.shape[1])
        for part in blocks_of(len(columns)):  # The numbers are the same as if all were drawn at once.
            block = columns[part]
            sums += random.standard_normal(len(block)) @ block
        known = self._fact("columns")
        if known is None:
            self._pending["columns"] = json.dumps(sums.tolist()).encode()
            return
        before = np.asarray(json.loads(known))
        if before.shape != sums.shape or not np.allclose(before, sums, rtol=0, atol=_TOLERANCE * len(columns) ** 0.5):
            raise DataError(
                f"the {self._role}'s training columns have changed since the job began, but its table has not: start"
                " the job again, or install the release with which it began"
            )

    def start(self, draw: Callable[[], FloatVector]) -> FloatVector | None:
        """Return this party's secret first weights. The first session draws and records them, by its first round.

        A later session must begin at the same weights: the steps that the coordinator has sent are relative to them. A
        job without a round has no steps yet, so it may begin at new ones.

        Args:
            draw: draws new weights, shape (n_columns,).

        Returns:
            Shape (n_columns,); None if a release without secret first weights began the rounds of the job.
        """
        if self._known is not None and (self._known.rounds or _START in self._known.facts):
            return _decoded(self._known.facts.get(_START))
        start = draw()
        self._pending[_START] = json.dumps(start.tolist()).encode()
        return start

    @property
    def has_spent_scores(self) -> bool:
        """Whether the scores of hold-out rows that this party will give were counted already."""
        return self._fact("scores counted") is not None

    def keep_spent_scores(self) -> None:
        """Record that the scores were counted."""
        self._keep({"scores counted": b""})

    @property
    def counted_columns(self) -> int | None:
        """The number of the other party's training columns, if an earlier session has counted this training."""
        counted = self._fact(_COUNTED)
        return None if counted is None else int(counted)

    def keep_counted_columns(self, n_columns: int) -> None:
        """Record that this training was counted, with so many training columns of the other party."""
        self._keep({_COUNTED: str(n_columns).encode()})

    def keep_newest_point(self, key: RoundKey, point: str) -> None:
        """Record a point at which rows are about to be scored, before the ledger counts it."""
        self._keep({_NEWEST_POINT: f"{key.round} {point}".encode()})

    @property
    def opened_folds(self) -> OpenedFolds:
        """The openings of the earlier sessions."""
        kept = self._fact(_OPENED_FOLDS)
        return OpenedFolds() if kept is None else OpenedFolds.parse(kept)

    def keep_opened_folds(self, opened: OpenedFolds) -> None:
        """Record the openings, before the scores leave."""
        self._keep({_OPENED_FOLDS: json.dumps(asdict(opened)).encode()})

    def n_scored_points(self, given: Collection[str]) -> int:
        """Return at how many points the host has scored its hold-out rows in earlier sessions.

        An earlier session may have ended in its newest round, before that round's point was counted.

        Args:
            given: the points that the ledger has.
        """
        rounds = {} if self._known is None else self._known.rounds
        scored = [number for number, content in rounds.items() if _scores(_asked(content))]
        if not scored:
            return 0
        number, _, point = (self._fact(_NEWEST_POINT) or b"").decode().partition(" ")
        newest = max(rounds)
        is_missing = scored[-1] == newest and not (number == str(newest) and point in given)
        return len(scored) - is_missing

    def keep_common_rows(self, rows: Rows, n_rows: int) -> None:
        """Record which of a table's `n_rows` rows both parties have."""
        mask = np.zeros(n_rows, dtype=bool)
        mask[rows] = True
        self._keep({"common rows": np.packbits(mask).tobytes()})

    def common_rows(self, n_rows: int) -> Rows:
        """Return the rows of a table of `n_rows` rows that both parties have, in ascending order.

        Raises:
            PeerError: the journal does not have these rows.
        """
        packed = self._fact("common rows")
        if packed is None:
            raise PeerError(f"the {self._role} no longer knows the common rows: start the job again")
        return np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8), count=n_rows))

    def keep_row_roles(self, purpose: Purpose, roles: RoleVector) -> None:
        """Record what the rows are for, which both parties know from here on."""
        self._keep({f"{_ROLES}{purpose}": zlib.compress(roles.tobytes(), 1)})

    def row_roles(self, purpose: Purpose, n_rows: int) -> RoleVector:
        """Return what the rows are for, shape (n_rows,).

        Raises:
            PeerError: the journal does not have these roles.
        """
        packed = self._fact(f"{_ROLES}{purpose}")
        roles = b"" if packed is None else zlib.decompress(packed)
        if len(roles) != n_rows:
            raise PeerError(f"the {self._role} no longer knows what the rows are for: start the job again")
        return np.frombuffer(roles, np.uint8)

    def _is_as_before(self, name: str, digest: bytes) -> bool:
        known = self._fact(name)
        if known is None:
            self._pending[name] = digest
        return known is None or known == digest

    def _is_table_as_before(self, table: PartyTable) -> bool:
        if (known := self._fact(_OLD_TABLE)) is not None:
            return known == old_table_digest(table)
        return self._is_as_before(_TABLE, table_digest(table))

    def _keep(self, facts: dict[str, bytes]) -> None:
        self._journal.set_facts(self._id, self._take_pending() | facts)

    def _take_pending(self) -> dict[str, bytes]:
        taken, self._pending = self._pending, {}
        return taken

    def _fact(self, name: str) -> bytes | None:
        return None if self._known is None else self._known.facts.get(name)

    # --- the rounds

    def restore(self, machine: RestoredMachine, history: History) -> None:
        """Bring a new state machine and history to the round that the party had reached.

        Args:
            machine: the machine of this session.
            history: the history of this session.

        Raises:
            ProtocolError: the journal has steps that this job does not allow.
        """
        if self._known is None:
            return
        steps = [_asked(content) for content in self._known.rounds.values()]
        evaluations = [
            _evaluated(content) for name, content in self._known.facts.items() if name.startswith(_EVALUATION)
        ]
        machine.restore(steps, sorted(evaluations, key=lambda each: each.key))
        begun = [step for step in steps if isinstance(step, BeginRound)]
        if begun:
            history.restore(begun[-1])

    def write(self, message: StepTaken | EvaluationRecord) -> None:
        """Keep what the state machine reports, before any message that depends on it leaves.

        Args:
            message: a step that was taken, or an evaluation.

        Raises:
            ProtocolError: the coordinator has begun a round too often.
            ConfigError: the journal cannot be written.
            ValueError: the step has shares. What was masked with a stream must not be stored: a journal that was put
                back would bring it into another session.
        """
        match message:
            case EvaluationRecord():
                content = json.dumps(asdict(message)).encode()
                self._keep({f"{_EVALUATION}{message.key.round}": content})
            case StepTaken(asked=asked):
                shares = asked.shares if isinstance(asked, BeginRound) else asked.share
                if shares is not None:
                    raise ValueError("a step with shares must not be written to the journal")
                kind, number = (b"B", asked.key.round) if isinstance(asked, BeginRound) else (b"F", asked.round)
                request = encode(self._key, asked, route_for(Role.COORDINATOR, self._role, asked))
                content = kind + request.SerializeToString()
                if self._journal.write_round(self._id, number, content, self._take_pending()) > MAX_BEGUN:
                    raise ProtocolError(f"the coordinator has begun round {number} more than {MAX_BEGUN} times")


def read_start(state: Path, job: str, sealer: Sealer | None = None) -> FloatVector | None:
    """Return the secret first weights of a job from the guest's state folder, shape (n_columns,), or None.

    Args:
        state: the state folder.
        job: name of the job.
        sealer: the key of the journal; None if it is not encrypted.
    """
    return _decoded(read_fact(state, job, _START, sealer))


def _decoded(start: bytes | None) -> FloatVector | None:
    return None if start is None else np.asarray(json.loads(start))


def settings_digest(dataset: DatasetConfig) -> bytes:
    """Return a digest that identifies the settings of a dataset, without its path."""
    exclude: dict[str, Any] = {"path": True, "reason_labels": True}
    for name in _NEW_SETTINGS:
        _exclude_default(dataset, name.split("."), exclude)
    return _digest([_part([dataset.model_dump_json(exclude=exclude).encode()])])


def _exclude_default(settings: Settings | None, keys: Sequence[str], excluded: dict[str, Any]) -> None:
    """Add a setting to those that are excluded if it has its default."""
    key, *rest = keys
    if settings is None:
        return
    if not rest:
        if getattr(settings, key) == type(settings).model_fields[key].default:
            excluded[key] = True
    elif rest[0] == "*":
        for name, each in getattr(settings, key).items():
            _exclude_default(each, rest[1:], excluded.setdefault(key, {}).setdefault(name, {}))
    else:
        _exclude_default(getattr(settings, key), rest, excluded.setdefault(key, {}))


def table_digest(table: PartyTable) -> bytes:
    """Return a digest that identifies a table by its IDs, columns, labels and weights."""
    return _digest(_parts(table, _column_parts(table.features)))


def old_table_digest(table: PartyTable) -> bytes:
    """Return the digest of a table as 0.1.0 computed it."""
    import pandas as pd  # The import takes 40 MB, and only a job that 0.1.0 began needs it.

    columns = {
        name: pd.Series(column.to_list(), dtype="str") if isinstance(column, Categories) else column[:]
        for name, column in table.features.columns.items()
    }
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(table.ids)))
    return _digest(_parts(table, [_part([pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()])]))


def _column_parts(features: Features) -> Iterator[bytes]:
    for column in features.columns.values():
        if isinstance(column, Categories):
            yield _part([json.dumps(column.levels).encode()])
            yield _part(column.codes[block].data for block in blocks_of(len(column)))
        else:
            yield _part(column[block].data for block in blocks_of(len(column)))


def _parts(table: PartyTable, columns: Iterable[bytes]) -> Iterator[bytes]:
    yield _part(table.ids.lines())
    yield _part(["\n".join(table.features.columns).encode()])
    yield from columns
    yield _part([] if table.labels is None else [table.labels.data])
    if table.weights is not None:  # Without weights, the digest is that of 0.1.0.
        yield _part([table.weights.data])
    if table.split is not None:
        yield _part([table.split.data])
    if table.fold_values is not None:
        yield _part([table.fold_values.data])


def _digest(parts: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(parts), digest_size=32).digest()


def _part(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of one part of a table or its settings, which comes in pieces."""
    part = blake2b(digest_size=32)
    for piece in pieces:
        part.update(piece)
    return part.digest()


def _asked(content: bytes) -> BeginRound | FinishJob:
    request = _REQUESTS[content[:1]]()
    request.ParseFromString(content[1:])
    asked = decode(request)
    if not isinstance(asked, BeginRound | FinishJob):
        raise ProtocolError("the journal has an invalid round")
    return asked


def _scores(asked: BeginRound | FinishJob) -> bool:
    return isinstance(asked, FinishJob) or asked.evaluate_at is not None


def _evaluated(content: bytes) -> EvaluationRecord:
    fields = json.loads(content)
    metrics = fields["metrics"]
    lift = metrics["lift"]
    metrics["lift"] = None if lift is None else tuple(lift)
    return EvaluationRecord(RoundKey(**fields["key"]), fields["epochs"], HoldoutMetrics(**metrics))
