"""Online scores at the guest: its own part from memory or from the request, and the host's part in one round trip.

See `trilateral.common.data.alignment.labelled_list` for what each party learns.
"""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import Counted, DataError, PeerError, PolicyError, ProtocolError
from trilateral.common.base.files import file_stamp
from trilateral.common.base.rate import Rate
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import start
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.process import MAX_REASONS, Limits, ProcessConfig
from trilateral.common.config.settings import JOB_NAME
from trilateral.common.data.alignment.labelled_list import ENTRY_BYTES, LabelledList, Query
from trilateral.common.data.model.calibration import calibrate
from trilateral.common.data.model.model_file import PartyModel, check_half, load_model
from trilateral.common.data.model.reasons import Places, Reasons, reason_names
from trilateral.common.data.model.scored_ids import ScoredIds
from trilateral.common.data.model.scoring import score_features, score_table
from trilateral.common.data.tables.id_form import SEPARATOR, are_blank, form_of, normalise
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table_file import table_stamp
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.policy import check_prediction
from trilateral.common.observe.metrics import Metrics
from trilateral.common.pb.v1 import online_pb2
from trilateral.common.rpc.calls import call_peer, collect_from_peer
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import MAX_ONLINE_ROWS, PACKAGE
from trilateral.common.scratch.space import ScratchSpace
from trilateral.guest_party.reasons import check_labels, read_codes

PATIENCE_SECONDS = 2.0
"""How long a request for scores waits for a host that is away."""
ANSWER_SECONDS = 10.0
"""How long the host may take for its answer."""
LIST_SECONDS = 600.0
"""How long the transfer of a list may take."""
MAX_LIST_ROWS = 100_000_000
"""Maximum number of rows of a host's list: 2.4 GB, and 0.1 GB for each reason of a row."""
MAX_REQUESTS = 64
"""Requests for scores in progress. Further ones are refused."""
MAX_ID_CHARACTERS = 1000
MAX_PARTS = 32
"""For how many pairs of a job and a dataset scores are kept in memory; those used last."""

T = TypeVar("T")

Features: TypeAlias = Mapping[str, str | float | bool | None]


class BusyError(PolicyError):
    """There are too many requests for scores at a time, or in a second."""

    http_status = 429


@dataclass(frozen=True)
class RowToScore:
    """A row that a program asks about.

    Attributes:
        id: the parts of the ID, as they are written.
        features: the guest's features of the row; None to take them from the guest's table.
    """

    id: tuple[str, ...] = field(repr=False)
    features: Features | None = field(default=None, repr=False)


@dataclass(frozen=True)
class RowScore:
    """The answer for a row.

    Attributes:
        score: u, the sum of both parties' parts; None if a party lacks the ID.
        probability: calibrated probability of the positive label; None like `score`.
        lacking: the party that does not hold the ID.
        reasons: the guest's columns that raise the score most, the strongest first.
        host_reasons: the host's labels of its columns that do.
    """

    score: float | None = field(default=None, repr=False)
    probability: float | None = field(default=None, repr=False)
    lacking: Role | None = None
    reasons: tuple[str, ...] = field(default=(), repr=False)
    host_reasons: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ReasonsWanted:
    """How many reasons of each row a program wants.

    Attributes:
        own: the guest's columns.
        host: the host's labels.

    Raises:
        ProtocolError: there are too many.
    """

    own: int = 0
    host: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.own <= MAX_REASONS and 0 <= self.host <= MAX_REASONS):
            raise ProtocolError(f"a request asks for an invalid number of reasons: expected 0 to {MAX_REASONS}")


_NO_REASONS = ReasonsWanted()


@dataclass(frozen=True)
class ScoredRequest:
    """The answer to a request.

    Attributes:
        rows: in the order of the request.
        calibration: how far the probabilities can be trusted, in words.
    """

    rows: tuple[RowScore, ...]
    calibration: str


@dataclass(frozen=True, eq=False)
class _HostList:
    id: bytes
    entries: LabelledList
    n_reasons: int
    labels: Sequence[str]


@dataclass(frozen=True, eq=False)
class _Found:
    """What the host's list has of a row."""

    score: float = np.nan
    reasons: tuple[str, ...] = ()


class _SeenError(Exception):
    """The first part of a list has come, and the rest is not needed."""


class _Kept(Generic[T]):
    """Something that takes long to make, kept for all requests until its stamp changes.

    The making goes on when a caller gives up. Otherwise impatient callers would start it again and again.
    """

    def __init__(self) -> None:
        self._stamp: object = None
        self._made: asyncio.Task[T] | None = None

    async def get(self, stamp: object, make: Callable[[], Coroutine[object, object, T]]) -> T:
        """Return it; make it if it has another stamp, or if the last attempt failed."""
        made = self._made
        if made is None or self._stamp != stamp or _has_failed(made):
            self._stamp, self._made = stamp, (made := start(make()))
        return await asyncio.shield(made)

    def forget(self, value: T) -> None:
        """Make it again for the next caller, unless another one has replaced this value already."""
        made = self._made
        if made is not None and made.done() and not _has_failed(made) and made.result() is value:
            self._made = None


def _has_failed(task: "asyncio.Task[T]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class _Part:
    """What the guest keeps in memory for one model and one dataset. A new model starts anew, with the host's list too.

    Attributes:
        model: the guest's part.
        steps: those of the model, which take a millisecond to restore.
        n_reasons: the most reasons of a row that a program has asked for. The table is read again for more of them.
        table: the scores of the guest's table.
        host_list: the host's list for this model.
    """

    def __init__(self, model: PartyModel) -> None:
        self.model = model
        self.steps = model.steps
        self.n_reasons = 0
        self.table = _Kept[ScoredIds]()
        self.host_list = _Kept[_HostList]()


class OnlineScores:
    """Answers requests for scores.

    Args:
        config: configuration of the guest.
        host: the host.
        metrics: counts requests.
        clock: returns seconds.

    Attributes:
        config: as given. While the process runs, a changed configuration replaces it.
    """

    def __init__(
        self, config: ProcessConfig, host: Peer, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self._host = host
        self._metrics = metrics
        self._clock = clock
        self._rate = Rate(config.online.max_per_second, clock)
        self._parts: dict[tuple[str, str], _Kept[_Part]] = {}
        self._n_requests = 0
        patience = min(config.limits.peer_timeout, PATIENCE_SECONDS)
        self._limits: Limits = config.limits.model_copy(update={"peer_timeout": patience})

    async def score(
        self, job: str, dataset: str, rows: Sequence[RowToScore], reasons: ReasonsWanted = _NO_REASONS
    ) -> ScoredRequest:
        """Score some rows.

        Args:
            job: name of the job that trained the model.
            dataset: name of the dataset in the configurations of both parties.
            rows: one to `MAX_ONLINE_ROWS` rows.
            reasons: how many reasons of each row to name.

        Returns:
            A score for each row, or the party that lacks its ID. The host counts each row that the guest has features
            for, also if the host lacks its ID.

        Raises:
            PolicyError: a party's policy refuses.
            BusyError: there are too many requests.
            ProtocolError: the job or the dataset has an invalid name.
            DataError: the model, the table, an ID or the features of a row cannot be used.
            PeerError: the host does not answer, or is not ready.
        """
        begun = self._clock()
        if any(re.fullmatch(JOB_NAME, name) is None for name in (job, dataset)):  # The job's name becomes a path.
            raise ProtocolError("received an invalid job name or dataset name")
        table = check_prediction(job, dataset, self.config.datasets, self.config.policy, Role.GUEST)
        if self._n_requests >= MAX_REQUESTS:
            raise BusyError(f"{MAX_REQUESTS} requests for scores are in progress, the maximum: try again")
        self._n_requests += 1
        try:
            scored = await self._score(job, dataset, table, rows, reasons)
        finally:
            self._n_requests -= 1
        self._metrics.scored_online(self._clock() - begun, [row.lacking for row in scored.rows])
        return scored

    async def _score(
        self, job: str, dataset: str, table: DatasetConfig, rows: Sequence[RowToScore], reasons: ReasonsWanted
    ) -> ScoredRequest:
        ids = _normal_ids(rows, table)
        part = await self._part(job, dataset)
        calibration = part.model.calibration
        if calibration is None:
            raise DataError("the guest's part of the model has no calibration")
        own, own_reasons = await self._own_scores(part, table, ids, rows, reasons.own)
        asked = np.flatnonzero(~np.isnan(own))
        totals = np.full(len(rows), np.nan)
        host_reasons: list[tuple[str, ...]] = [()] * len(rows)
        if len(asked):
            if not self._rate.take(len(asked)):
                raise BusyError(
                    f"`online.max_per_second` of the guest permits {self.config.online.max_per_second:g} IDs a second:"
                    " ask later, or raise it"
                )
            for place, found in zip(
                asked,
                await self._ask(part, table, dataset, [ids[place] for place in asked], reasons.host),
                strict=True,
            ):
                totals[place], host_reasons[place] = own[place] + found.score, found.reasons
        answers = [RowScore(lacking=Role.GUEST if lacks else Role.HOST) for lacks in np.isnan(own)]
        scored = np.flatnonzero(~np.isnan(totals))
        for place, probability in zip(scored, calibrate(totals[scored], calibration), strict=True):
            answers[place] = RowScore(
                float(totals[place]), float(probability), None, own_reasons[place], host_reasons[place]
            )
        return ScoredRequest(tuple(answers), part.model.calibration_summary or "")

    async def _part(self, job: str, dataset: str) -> _Part:
        kept = self._parts.pop(job_and_dataset := (job, dataset), None) or _Kept()
        self._parts[job_and_dataset] = kept
        if len(self._parts) > MAX_PARTS:
            del self._parts[next(iter(self._parts))]
        path = JobFolder(self.config.state, job).find_model()

        async def load() -> _Part:
            model = await asyncio.to_thread(load_model, path)
            check_half(model, Role.GUEST, job, model.run_id)
            if model.classes is not None:
                raise DataError("a model of several classes is not scored online: use `trilateral predict`")
            return _Part(model)

        return await kept.get(file_stamp(path), load)

    # --- the guest's part

    async def _own_scores(
        self, part: _Part, table: DatasetConfig, ids: Sequence[str], rows: Sequence[RowToScore], n_reasons: int
    ) -> tuple[FloatVector, list[tuple[str, ...]]]:
        """Return u_B of each row, NaN where the guest's table lacks the ID; and its reasons."""
        own = np.full(len(rows), np.nan)
        reasons: list[tuple[str, ...]] = [()] * len(rows)
        names = tuple(column.name for column in part.steps.columns)
        given = [place for place, row in enumerate(rows) if row.features is not None]
        if given:
            features = [rows[place].features or {} for place in given]
            own[given], found = await asyncio.to_thread(_score_given, part, features, n_reasons)
            for place, places in zip(given, found, strict=True):
                reasons[place] = reason_names(names, places.tolist())
        if len(given) < len(rows):
            scored = await self._table(part, table, n_reasons)
            for place, row in enumerate(rows):
                if row.features is None and (score := scored.score(ids[place])) is not None:
                    own[place] = score
                    reasons[place] = reason_names(names, scored.reasons(ids[place])[:n_reasons])
        return own, reasons

    async def _table(self, part: _Part, table: DatasetConfig, n_reasons: int) -> ScoredIds:
        part.n_reasons = kept = max(part.n_reasons, n_reasons)

        def read() -> ScoredIds:
            rows = ScoredIds(table.id_columns)
            reasons = Reasons.of_columns(part.model, kept) if kept else None
            with ScratchSpace.of(self.config).open() as scratch:
                score_table(part.model, table, rows, lambda _: None, scratch, reasons=reasons)
            return rows

        return await part.table.get((table, table_stamp(table.path), kept), lambda: asyncio.to_thread(read))

    # --- the host's part

    async def _ask(
        self, part: _Part, table: DatasetConfig, dataset: str, ids: Sequence[str], n_reasons: int
    ) -> list[_Found]:
        """Return u_A of each ID, NaN where the host lacks it, and the host's reasons."""
        form = form_of(table)
        for _ in range(2):  # The host may have made a new list since.
            found = await part.host_list.get(form, lambda: self._fetch(part.model, form, dataset))
            if n_reasons > found.n_reasons:
                if await self._is_replaced(part.model, form, dataset, found):
                    part.host_list.forget(found)
                    continue
                raise DataError(
                    f"the host prepares {found.n_reasons} reasons of each row, and {n_reasons} are asked for: ask for"
                    " fewer, or the host raises `reasons` in `online.precompute`"
                )
            query = Query.of(ids)
            request = online_pb2.AnswerPointsRequest(list=found.id, points=query.points)
            answer = await call_peer(
                self._host,
                Role.GUEST,
                f"/{PACKAGE}.OnlineService/AnswerPoints",
                request,
                online_pb2.AnswerPointsResponse,
                limits=self._limits,
                seconds=ANSWER_SECONDS,
            )
            if not answer.unknown_list:
                return [_opened(found, digest, n_reasons) for digest in query.read(answer.points)]
            part.host_list.forget(found)
        raise PeerError("the host has replaced its list twice while it was asked: try again")

    async def _is_replaced(self, model: PartyModel, form: Sequence[str], dataset: str, known: _HostList) -> bool:
        """Ask whether the host has another list by now, without fetching it."""
        is_replaced = False

        def look(response: online_pb2.GetListResponse) -> None:
            nonlocal is_replaced
            is_replaced = response.list != known.id
            raise _SeenError

        with suppress(_SeenError):
            await self._get_list(model, form, dataset, look)
        return is_replaced

    async def _fetch(self, model: PartyModel, form: Sequence[str], dataset: str) -> _HostList:
        pieces: list[bytes] = []
        n_bytes = 0
        about: tuple[bytes, int, tuple[str, ...]] | None = None

        def take(response: online_pb2.GetListResponse) -> None:
            nonlocal n_bytes, about
            n_bytes += len(response.entries)
            n_reasons = response.n_reasons
            if n_reasons > MAX_REASONS:
                raise ProtocolError(f"the host sends a list of {n_reasons} reasons: expected at most {MAX_REASONS}")
            entry_bytes = ENTRY_BYTES + n_reasons
            if not response.entries or not n_bytes <= response.n_rows * entry_bytes <= MAX_LIST_ROWS * entry_bytes:
                raise ProtocolError(f"the host sends {n_bytes} bytes of a list of {response.n_rows} rows")
            part = response.list, n_reasons, check_labels(response.labels)
            about = about or part
            if part != about:
                raise ProtocolError("the host sends parts of several lists")
            pieces.append(response.entries)

        await self._get_list(model, form, dataset, take)
        if about is None:
            raise ProtocolError("the host sends no list")
        name, n_reasons, labels = about
        entries = await asyncio.to_thread(LabelledList, b"".join(pieces), n_reasons)
        return _HostList(name, entries, n_reasons, labels)

    async def _get_list(
        self,
        model: PartyModel,
        form: Sequence[str],
        dataset: str,
        on_response: Callable[[online_pb2.GetListResponse], None],
    ) -> None:
        request = online_pb2.GetListRequest(
            job=model.job.name,
            run_id=bytes.fromhex(model.run_id),
            model=model.shared_digest,
            dataset=dataset,
            form=form,
        )
        await collect_from_peer(
            self._host,
            Role.GUEST,
            f"/{PACKAGE}.OnlineService/GetList",
            request,
            response=online_pb2.GetListResponse,
            on_response=on_response,
            limits=self._limits,
            seconds=LIST_SECONDS,
        )


def _opened(found: _HostList, digest: bytes, n_reasons: int) -> _Found:
    """Return what a list has of the ID of a digest."""
    score = found.entries.open(digest)
    if score is None:
        return _Found()
    if not np.isfinite(score):
        raise ProtocolError("the host's list has a score that is not finite")
    (codes,) = read_codes(found.entries.codes(digest), 1, found.n_reasons, found.labels)
    return _Found(score, reason_names(found.labels, codes[:n_reasons].tolist()))


def _normal_ids(rows: Sequence[RowToScore], table: DatasetConfig) -> list[str]:
    """Return the IDs in their normal form. No error quotes one."""
    n_columns = len(table.id_columns)
    if not 1 <= len(rows) <= MAX_ONLINE_ROWS:
        raise DataError(f"a request asks for {len(rows)} rows: expected 1 to {MAX_ONLINE_ROWS}")
    for number, row in enumerate(rows, 1):
        if len(row.id) != n_columns:
            raise DataError(f"row {number} has an ID of {Counted(len(row.id)):part|parts}: expected {n_columns}")
        if any(SEPARATOR in each or len(each) > MAX_ID_CHARACTERS for each in row.id):
            raise DataError(
                f"row {number} has an ID of more than {MAX_ID_CHARACTERS} characters, or one with the control character"
                " U+001F"
            )
    written = [part for row in rows for part in row.id]
    if are_blank(Ids.of(written).texts).any():
        raise DataError("a row has an empty ID")
    ids = [*normalise(Ids.of(SEPARATOR.join(row.id) for row in rows), table.id_form, n_columns).ids]
    if len({*ids}) < len(ids):
        raise DataError("a request has the same ID twice: ask for each once, because each counts at the host")
    return ids


def _score_given(part: _Part, given: Sequence[Features], n_reasons: int) -> tuple[FloatVector, Places]:
    """Score rows whose features came with the request, and find their reasons. No error quotes a value."""
    import pandas as pd  # It takes 40 MB, and only requests with features need it.

    from trilateral.common.data.tables.table import read_frame

    model, steps = part.model, part.steps
    for number, features in enumerate(given, 1):
        gone = [name for name in steps.features if name not in features]
        if gone:
            raise DataError(
                f"preprocessing mismatch: of the rows with features, row {number} lacks {', '.join(map(repr, gone))}:"
                " give each feature of the model, null where it is missing"
            )
    try:
        columns = {name: _alike([features[name] for features in given]) for name in steps.features}
        frame = pd.DataFrame(columns, index=range(len(given)))
        read = read_frame(frame, steps.features, steps.texts, model.missing)
    except OverflowError:
        raise DataError("a feature of a row is a number of more than 64 bits: write categories as text") from None
    scores = score_features(steps, np.array(model.training_weights), read)
    return scores, Reasons.of_columns(model, n_reasons).find(read)


def _alike(values: Sequence[str | float | bool | None]) -> Sequence[str | float | bool | None]:
    """Return a column of values of one type: of text, if some rows have text and others numbers."""
    if not any(isinstance(value, str) for value in values):
        return values
    return [
        value if value is None else str(value).lower() if isinstance(value, bool) else str(value) for value in values
    ]
