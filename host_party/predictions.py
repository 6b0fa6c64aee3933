"""The host's open predictions: which ones are allowed, on which rows, and how many scores leave."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar

from trilateral.common.base.errors import DataError, PeerError, PolicyError, ProtocolError, TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.base.tasks import start
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.model.distributions import ShiftCounter, describe_shift
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.reasons import Reasons
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.data.party_data import describe_left_out
from trilateral.common.data.tables.id_form import form_of
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.drift_file import keep_shift
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.policy import (
    PREDICTION,
    check_counted,
    check_prediction,
    check_scores,
    spend_ids,
    spend_scores,
)
from trilateral.common.jobs.quota import IdQuota, ScoreQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.logs import LogContext
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.codec import JobKey
from trilateral.common.scratch.folders import scratch_folder, sweep_scratch
from trilateral.common.scratch.space import ScratchSpace, writing
from trilateral.host_party.alignments import Alignments, Asked, Offer, check_form
from trilateral.host_party.own_model import check_other_half, load_own_part, reasons_of, score_points
from trilateral.host_party.score_release import ReleasedScores, SameIds, ScoreRelease

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_OPEN = 2
"""Maximum number of open predictions. Each reads a table and keeps it on disk."""


@dataclass(frozen=True)
class PredictionRequest:
    """The guest's request to open a prediction.

    Attributes:
        run: run of the job that trained the model.
        model: `PartyModel.shared_digest` of the guest's part.
        dataset: name of the host's table.
        n_reasons: how many of the host's reason codes of each row the guest wants.
    """

    run: JobKey
    model: bytes
    dataset: str
    n_reasons: int = 0


@dataclass(frozen=True)
class OpenAnswer:
    """The host's answer to a `PredictionRequest`.

    Attributes:
        n_rows: number of rows of the host's table.
        labels: what the reason codes mean.
    """

    n_rows: int
    labels: Sequence[str]


@dataclass(frozen=True)
class AlignRequest:
    """The guest's request to align the rows of a prediction.

    Attributes:
        nonce: the guest's nonce.
        n_rows: number of rows in the guest's table.
        form: rules of the normal form of the guest's IDs.
        aligned: whether both tables hold the same IDs already.
    """

    nonce: bytes
    n_rows: int
    form: Sequence[str]
    aligned: bool


@dataclass(frozen=True)
class AlignAnswer:
    """The host's answer to an `AlignRequest`.

    Attributes:
        nonce: the host's nonce.
        session: identifier of the alignment; empty if the tables are aligned already.
    """

    nonce: bytes
    session: bytes


@dataclass(eq=False)
class _Open:
    """One open prediction and its state."""

    name: bytes
    request: PredictionRequest
    table: DatasetConfig
    model: PartyModel
    reasons: Reasons | None
    folder: Path
    rows: ScoredRows
    resources: ExitStack
    stopped: threading.Event = field(default_factory=threading.Event)
    """Ends the thread that reads the table."""
    working: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """Tasks that use the folder, including those whose caller hung up."""
    reading: "asyncio.Task[None] | None" = None
    align_request: AlignRequest | None = None
    aligning: "asyncio.Task[AlignAnswer] | None" = None
    session: bytes = b""
    """Identifier of the alignment, if there is one."""
    release: ScoreRelease | None = None
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    n_counted: int | None = None
    """Number of scores counted against the quota before the first one left; None until then."""
    fetched: set[int] = field(default_factory=set)
    """Shards whose scores have left."""
    n_calls: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def record(self) -> dict[str, str]:
        """The fields of every line about this prediction in the audit log."""
        run = self.request.run
        return {"job": run.name, "run": run.run_id.hex(), "dataset": self.request.dataset}

    @property
    def points(self) -> list[str]:
        """The points at which rows are scored. Each counts once, and each row for each of them."""
        return score_points(self.model, self.reasons)

    @property
    def is_complete(self) -> bool:
        """Whether all scores have left."""
        return self.release is not None and len(self.fetched) == self.release.n_shards


class Predictions:
    """All open predictions of one host. A prediction without a call for `Limits.party_timeout` seconds ends.

    Args:
        config: configuration of this process.
        audit: records each prediction and how many scores leave.
        alignments: finds the common rows.
        ledger: at how many points rows were scored.

    Attributes:
        config: as given. While the process runs, a changed configuration replaces it.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, alignments: Alignments, ledger: Ledger) -> None:
        self.config = config
        self._audit = audit
        self._alignments = alignments
        self._ledger = ledger
        self._open: dict[bytes, _Open] = {}
        self._holding: set[_Open] = set()
        """Predictions with a folder on disk. A thread may outlive its prediction."""
        sweep_scratch(config.scratch_folder)
        self._scratch = ScratchSpace.of(config)

    @property
    def _quota(self) -> ScoreQuota:
        return ScoreQuota.of(self.config)

    async def open(self, name: bytes, request: PredictionRequest) -> OpenAnswer:
        """Read and score the host's table, if the policy allows it.

        A repeated request waits for the same work.

        Raises:
            PolicyError: the policy does not allow it, or too many predictions are open.
            DataError: the host has no part of this model, or its table cannot be used.
            ConfigError: the quota cannot be recorded, or the state folder cannot be written.
        """
        opened = self._open.get(name)
        if opened is None:
            opened = self._admit(name, request)
        elif opened.request != request:
            raise ProtocolError("the guest opens a prediction twice with different requests")
        async with self._using(name) as opened:
            if opened.reading is not None:
                await asyncio.shield(opened.reading)
            return OpenAnswer(opened.rows.n_ids, opened.reasons.names if opened.reasons else ())

    async def align(self, name: bytes, align_request: AlignRequest) -> AlignAnswer:
        """Begin the alignment. A repeated request gets the same answer.

        Raises:
            ProtocolError: the host is still reading its table, or the guest aligns twice with different requests.
            TrilateralError: the alignment is refused.
        """
        async with self._using(name) as opened:
            if opened.reading is None or not opened.reading.done():
                raise ProtocolError("the guest aligns a prediction before the host has read its table")
            if opened.aligning is None:
                opened.align_request = align_request
                opened.aligning = self._start(opened, self._align(opened, align_request))
            elif opened.align_request != align_request:
                raise ProtocolError("the guest aligns a prediction twice with different requests")
            return await asyncio.shield(opened.aligning)

    async def settle(self, name: bytes, shard: int, proof: bytes) -> None:
        """Settle the common rows of a shard; see `ScoreRelease`.

        A wrong proof ends the prediction. Otherwise, each try would tell the guest a little about the host's IDs
        without counting against a quota.
        """
        async with self._using(name) as opened:
            work = self._settle(opened, _release_of(opened), shard, proof)
            await asyncio.shield(self._start(opened, work))

    async def _settle(self, opened: _Open, release: ScoreRelease, shard: int, proof: bytes) -> None:
        try:
            with self._writing():
                await asyncio.to_thread(release.settle, shard, proof)
        except TrilateralError:
            self._end(opened)
            raise

    async def scores(self, name: bytes, shard: int) -> ReleasedScores:
        """Return u_A and the reason codes of the common rows of a shard.

        The first call counts the scores and codes of all shards, and the model.

        Raises:
            PolicyError: the quota of the day does not allow so many scores, or the policy no further model. No score
                leaves.
            ConfigError: the counts or the audit log cannot be written. No score leaves.
            ProtocolError: a shard is not settled.
        """
        async with self._using(name) as opened:
            return await asyncio.shield(self._start(opened, self._scores(opened, _release_of(opened), shard)))

    async def _scores(self, opened: _Open, release: ScoreRelease, shard: int) -> ReleasedScores:
        with self._writing():
            scores = await asyncio.to_thread(release.scores, shard)
        async with opened.counting:
            if opened.n_counted is not None:
                await asyncio.to_thread(check_counted, self._quota, Role.HOST, PREDICTION)
            else:
                points = opened.points
                n_scores = release.n_common * len(points)
                left = await asyncio.to_thread(spend_scores, n_scores, self._quota, PREDICTION)
                if n_scores:
                    account = self._account(opened.request.dataset)
                    for point in points:
                        await asyncio.to_thread(account.spend_point, point, opened.model.steps.n_row_values, PREDICTION)
                self._audit.allowed(calling(), "GetScores", **opened.record, n_scores=n_scores, n_left=left)
                opened.n_counted = n_scores
        opened.fetched.add(shard)
        return scores

    def close(self, name: bytes) -> None:
        """End a prediction, if it is open."""
        if name in self._open:
            self._end(self._open[name])

    async def stop(self) -> None:
        """End all predictions because the process stops."""
        for opened in list(self._open.values()):
            self._end(opened)
        working = [task for opened in self._holding for task in opened.working]
        if working:
            await asyncio.wait(working)

    # --- opening

    def _admit(self, name: bytes, request: PredictionRequest) -> _Open:
        config, run = self.config, request.run
        table = self._check(request)
        if len(self._holding) >= MAX_OPEN:
            raise PolicyError(f"the host has {MAX_OPEN} predictions open, the maximum: wait until one has ended")
        check_scores(1, self._quota, PREDICTION)
        model = load_own_part(config, run.name)
        check_other_half(model, run, request.model)
        reasons = reasons_of(model, request.dataset, table.reason_labels, request.n_reasons)
        self._account(request.dataset).check_further(score_points(model, reasons), model.steps.n_row_values, PREDICTION)
        with ExitStack() as resources, self._writing():
            folder = resources.enter_context(scratch_folder(config.scratch_folder))
            rows = ScoredRows(folder, table.id_columns, len(model.parts), request.n_reasons)
            resources.callback(rows.finish)
            opened = _Open(name, request, table, model, reasons, folder, rows, resources)
            self._audit.allowed(calling(), "OpenPrediction", **opened.record)
            opened.resources = resources.pop_all()
        self._holding.add(opened)
        opened.resources.callback(self._holding.discard, opened)
        self._open[name] = opened
        with LogContext(run.name).current():
            opened.reading = self._start(opened, self._read(opened))
            log.info("job %s: prediction on dataset %s", run.name, request.dataset)
        return opened

    def _account(self, dataset: str) -> Account:
        return Account(self._ledger, self.config.policy, dataset, Role.HOST)

    def _check(self, request: PredictionRequest) -> DatasetConfig:
        """Return the dataset of a prediction, if the policy permits the prediction now."""
        config = self.config
        return check_prediction(
            request.run.name, request.dataset, config.datasets, config.policy, Role.HOST, n_reasons=request.n_reasons
        )

    async def _read(self, opened: _Open) -> None:
        def check_stopped(_: int) -> None:
            if opened.stopped.is_set():
                raise PeerError("the prediction has ended")

        name, dataset, counter = (
            opened.request.run.name,
            opened.request.dataset,
            ShiftCounter(opened.model.distributions),
        )

        def read() -> list[str]:
            with self._scratch.open() as scratch:
                warnings = score_table(
                    opened.model,
                    opened.table,
                    opened.rows,
                    check_stopped,
                    scratch,
                    shift=counter,
                    reasons=opened.reasons,
                )
            keep_shift(JobFolder(self.config.state, name), dataset, counter.shift)
            return warnings

        try:
            with self._using_table():
                warnings = await asyncio.to_thread(read)
        except BaseException:
            self._end(opened)
            raise
        for warning in warnings:
            log.warning("job %s: dataset %s: %s", name, dataset, warning)
        for note in describe_left_out(opened.model.left_out):
            log.info("job %s: dataset %s: %s", name, dataset, note)
        if shift := describe_shift(counter.shift):
            log.info("job %s: dataset %s: %s", name, dataset, shift)
        log.info("job %s: scored %d rows for a prediction", name, opened.rows.n_ids)

    async def _align(self, opened: _Open, align_request: AlignRequest) -> AlignAnswer:
        return await (
            self._prove(opened, align_request) if align_request.aligned else self._intersect(opened, align_request)
        )

    async def _intersect(self, opened: _Open, align_request: AlignRequest) -> AlignAnswer:
        def load() -> Offer:
            return Offer(opened.rows, form_of(opened.table))

        purpose = {"job": opened.request.run.name, "dataset": opened.request.dataset}
        with self._using_table():
            alignment = await self._alignments.open_loose(
                opened.name, load, Asked(align_request.form, align_request.n_rows, align_request.nonce, purpose)
            )
            opened.session = alignment.id
            await asyncio.shield(alignment.dealt)
        if opened.stopped.is_set():
            self._alignments.close(alignment.id)
            raise PeerError("the prediction has ended")
        n_shards = alignment.session.dealing.n_shards
        opened.release = ScoreRelease(opened.rows.dealt(n_shards), n_shards, alignment.session, opened.folder)
        return AlignAnswer(alignment.nonce, alignment.id)

    async def _prove(self, opened: _Open, align_request: AlignRequest) -> AlignAnswer:
        rows, n_guest = opened.rows, align_request.n_rows
        check_form(align_request.form, form_of(opened.table))
        if n_guest != rows.n_ids:
            raise DataError(
                f"the host has {rows.n_ids} rows and the guest has {n_guest}: both must hold the same IDs; if they do"
                " not, leave out --aligned"
            )
        check_scores(rows.n_ids * len(opened.points), self._quota, PREDICTION)
        quota = IdQuota.of(self.config)
        await asyncio.to_thread(spend_ids, n_guest, quota, Role.HOST)
        nonce = token_bytes(NONCE_BYTES)
        dealing = Dealing.of(align_request.nonce, nonce, n_guest, rows.n_ids)
        with self._using_table():
            shards = await asyncio.to_thread(rows.deal, dealing)
        settling = SameIds(shards, align_request.nonce, nonce)
        opened.release = ScoreRelease(shards, dealing.n_shards, settling, opened.folder)
        return AlignAnswer(nonce, b"")

    # --- the life of a prediction

    @asynccontextmanager
    async def _using(self, name: bytes) -> AsyncIterator[_Open]:
        """Keep a prediction from expiring during a call, and restart its timer afterwards.

        Raises:
            PeerError: there is no such prediction.
            PolicyError: the policy no longer permits it. The prediction ends.
        """
        opened = self._open.get(name)
        if opened is None:
            raise PeerError("the host does not know this prediction: it has ended, or the host was restarted")
        try:
            self._check(opened.request)
        except PolicyError:
            self._end(opened)
            raise
        opened.n_calls += 1
        if opened.timer is not None:
            opened.timer.cancel()
        with LogContext(opened.request.run.name).current():
            try:
                yield opened
            finally:
                opened.n_calls -= 1
                if not opened.n_calls and not opened.stopped.is_set():
                    seconds = self.config.limits.party_timeout
                    opened.timer = asyncio.get_running_loop().call_later(seconds, self._end, opened)

    def _end(self, opened: _Open) -> None:
        if opened.stopped.is_set():
            return
        opened.stopped.set()
        del self._open[opened.name]
        if opened.timer is not None:
            opened.timer.cancel()
        self._alignments.close(opened.session)
        release = opened.release
        self._audit.ended(
            Outcome.FINISHED if opened.is_complete else Outcome.FAILED,
            method="OpenPrediction",
            **opened.record,
            n_rows={"host": opened.rows.n_ids, "guest": opened.align_request.n_rows if opened.align_request else None},
            n_common=release.n_common if release else None,
            n_scores=opened.n_counted or 0,
        )
        log.info("job %s: the prediction has ended", opened.request.run.name)
        self._release(opened)

    def _start(self, opened: _Open, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task that uses the folder of a prediction. The folder stays until the task ends."""

        def done(task: "asyncio.Task[T]") -> None:
            opened.working.discard(task)
            self._release(opened)

        task = start(work)
        opened.working.add(task)
        task.add_done_callback(done)
        return task

    def _release(self, opened: _Open) -> None:
        """Remove the folder of a prediction that has ended, once no thread uses it."""
        if opened.stopped.is_set() and not opened.working:
            opened.resources.close()

    @contextmanager
    def _using_table(self) -> Iterator[None]:
        """Name the host in errors about its table."""
        try:
            with self._writing():
                yield
        except DataError as error:
            raise DataError(f"the host: {error}") from error

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.config.scratch_folder, f"the {Role.HOST}: ")


def _release_of(opened: _Open) -> ScoreRelease:
    if opened.release is None:
        raise ProtocolError("the guest asks for the rows of a prediction before it has aligned them")
    return opened.release
