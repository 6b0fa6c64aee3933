"""The host's predictions: who may have one, on which rows, and how many scores leave."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import DataError, PeerError, PolicyError, ProtocolError, TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import Role
from trilateral.common.base.scratch import SCRATCH, scratch_folder, sweep_scratch
from trilateral.common.base.tasks import start
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.model.model_file import PartyModel, check_half, load_model
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.model.spool import ScoredRows
from trilateral.common.jobs.folder import JobFolder, writing
from trilateral.common.jobs.policy import PREDICTION, check_prediction, check_scores, spend_ids, spend_scores
from trilateral.common.jobs.quota import IdQuota, ScoreQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.logs import LogContext
from trilateral.common.protocol.ids import NONCE_BYTES
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.codec import JobKey
from trilateral.host_party.alignments import Alignments, Asked, Offer, check_form
from trilateral.host_party.prediction import HostPrediction, SameIds

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST = 2
"""Predictions at a time: each reads a table, and has it on disk."""


@dataclass(frozen=True)
class Wanted:
    """What the guest asks for.

    Attributes:
        run: of the job whose model it is.
        model: `PartyModel.shared_digest` of the guest's half of it.
        dataset: name of the host's table.
    """

    run: JobKey
    model: bytes
    dataset: str


@dataclass(frozen=True)
class Beginning:
    """How the guest begins the alignment.

    Attributes:
        nonce: the guest's.
        n_rows: of the guest's table.
        form: rules of its IDs' normal form.
        aligned: both tables hold the same IDs already.
    """

    nonce: bytes
    n_rows: int
    form: Sequence[str]
    aligned: bool


@dataclass(frozen=True)
class Begun:
    """What the guest is answered.

    Attributes:
        nonce: the host's.
        session: of the alignment; empty if the tables are aligned already.
    """

    nonce: bytes
    session: bytes


@dataclass(eq=False)
class _Open:
    """A prediction that goes on, and how far it has come."""

    name: bytes
    wanted: Wanted
    table: DatasetConfig
    model: PartyModel
    folder: Path
    rows: ScoredRows
    resources: ExitStack
    stopped: threading.Event = field(default_factory=threading.Event)
    """Ends the reading, in whatever thread it goes on."""
    working: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """All that goes on with the folder, for those too who have hung up."""
    reading: "asyncio.Task[None] | None" = None
    beginning: Beginning | None = None
    aligning: "asyncio.Task[Begun] | None" = None
    session: bytes = b""
    """Of the alignment, if there is one."""
    prediction: HostPrediction | None = None
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    n_counted: int | None = None
    """Scores that were counted as given, before the first of them left."""
    fetched: set[int] = field(default_factory=set)
    """Shards whose scores have left."""
    n_calls: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def record(self) -> dict[str, str]:
        """What the audit log says of it each time."""
        run = self.wanted.run
        return {"job": run.name, "run": run.run_id.hex(), "dataset": self.wanted.dataset}

    @property
    def is_complete(self) -> bool:
        """Whether all scores have left."""
        return self.prediction is not None and len(self.fetched) == self.prediction.n_shards


class Predictions:
    """All predictions of one host. One that is asked nothing for `Limits.party_timeout` ends.

    Args:
        config: of this process.
        audit: takes down each prediction, and how many scores leave.
        alignments: find the common rows.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, alignments: Alignments) -> None:
        self._config = config
        self._audit = audit
        self._alignments = alignments
        self._quota = ScoreQuota(config.state, config.policy.max_scores_a_day)
        self._ids_quota = IdQuota(config.state, config.policy.max_ids_a_day)
        self._open: dict[bytes, _Open] = {}
        self._holding: set[_Open] = set()
        """Those that have a folder on disk: what goes on in a thread may outlive the prediction."""
        sweep_scratch(config.state)

    async def open(self, name: bytes, wanted: Wanted) -> int:
        """Read and score the host's table, if it is permitted; return the number of its rows.

        The same again waits for the same.

        Raises:
            PolicyError: it is not permitted, or too many go on.
            DataError: the host has no half of that model, or its table cannot be used.
            ConfigError: no score may leave, since none could be counted; or the state folder cannot be written.
        """
        opened = self._open.get(name)
        if opened is None:
            opened = self._admit(name, wanted)
        elif opened.wanted != wanted:
            raise ProtocolError("a prediction was asked for again, and not the same")
        async with self._using(name) as opened:
            if opened.reading is not None:
                await asyncio.shield(opened.reading)
            return opened.rows.n_ids

    async def align(self, name: bytes, beginning: Beginning) -> Begun:
        """Begin the alignment; the same again gets the same.

        Raises:
            TrilateralError: the prediction is not that far, or what the alignment says against it.
        """
        async with self._using(name) as opened:
            if opened.reading is None or not opened.reading.done():
                raise ProtocolError("the guest aligns a prediction before the host has read its table")
            if opened.aligning is None:
                opened.beginning = beginning
                opened.aligning = self._start(opened, self._align(opened, beginning))
            elif opened.beginning != beginning:
                raise ProtocolError("the guest aligns a prediction a second time")
            return await asyncio.shield(opened.aligning)

    async def settle(self, name: bytes, shard: int, told: bytes) -> None:
        """Take which rows of a shard are common; see `HostPrediction`.

        What is not so ends the prediction: each try would tell the guest a little of the host's IDs, uncounted.
        """
        async with self._using(name) as opened:
            work = self._settle(opened, _begun(opened), shard, told)
            await asyncio.shield(self._start(opened, work))

    async def _settle(self, opened: _Open, prediction: HostPrediction, shard: int, told: bytes) -> None:
        try:
            with self._writing():
                await asyncio.to_thread(prediction.settle, shard, told)
        except TrilateralError:
            self._end(opened)
            raise

    async def scores(self, name: bytes, shard: int) -> FloatVector:
        """u_A of the common rows of a shard; the first time, those of all shards are counted.

        Raises:
            PolicyError: so many scores may not leave today. None does.
            ConfigError: they cannot be counted, or written into the audit log. None leaves.
            ProtocolError: a shard is not settled.
        """
        async with self._using(name) as opened:
            return await asyncio.shield(self._start(opened, self._scores(opened, _begun(opened), shard)))

    async def _scores(self, opened: _Open, prediction: HostPrediction, shard: int) -> FloatVector:
        with self._writing():
            scores = await asyncio.to_thread(prediction.scores, shard)
        async with opened.counting:
            if opened.n_counted is None:
                n_scores = prediction.n_common
                left = await asyncio.to_thread(spend_scores, n_scores, self._quota, PREDICTION)
                self._audit.allowed(calling(), "GetScores", **opened.record, n_scores=n_scores, n_left=left)
                opened.n_counted = n_scores
        opened.fetched.add(shard)
        return scores

    def close(self, name: bytes) -> None:
        """End a prediction, if it goes on."""
        if name in self._open:
            self._end(self._open[name])

    async def stop(self) -> None:
        """End all, since the process stops."""
        for opened in list(self._open.values()):
            self._end(opened)
        working = [task for opened in self._holding for task in opened.working]
        if working:
            await asyncio.wait(working)

    # --- the start

    def _admit(self, name: bytes, wanted: Wanted) -> _Open:
        config, run = self._config, wanted.run
        table = check_prediction(run.name, wanted.dataset, config.datasets, config.policy, Role.HOST)
        if len(self._holding) >= MOST:
            raise PolicyError(f"the host has {MOST} predictions open: wait until one has ended")
        check_scores(1, self._quota, PREDICTION)
        model = self._load_model(wanted)
        with ExitStack() as resources, self._writing():
            folder = resources.enter_context(scratch_folder(config.state))
            rows = ScoredRows(folder, table.id)
            resources.callback(rows.finish)
            opened = _Open(name, wanted, table, model, folder, rows, resources)
            self._audit.allowed(calling(), "OpenPrediction", **opened.record)
            opened.resources = resources.pop_all()
        self._holding.add(opened)
        opened.resources.callback(self._holding.discard, opened)
        self._open[name] = opened
        with LogContext(run.name).current():
            opened.reading = self._start(opened, self._read(opened))
            log.info("job %s: prediction on dataset %s", run.name, wanted.dataset)
        return opened

    def _load_model(self, wanted: Wanted) -> PartyModel:
        """The host's half, if it belongs to the guest's."""
        run = wanted.run
        path = JobFolder(self._config.state, run.name).model
        if not path.exists():
            raise DataError(f"the host has no model of a job {run.name}")
        try:
            model = load_model(path)
        except DataError as error:
            log.error("%s", error)
            raise DataError(f"the host's model of the job {run.name} cannot be read: see its log") from None
        check_half(model, Role.HOST, run.name, run.run_id.hex())
        if model.shared_digest != wanted.model:
            raise DataError(
                f"the two halves of the model of job {run.name}, run {run.run_id.hex()}, do not belong together: one of"
                " the files was changed"
            )
        return model

    async def _read(self, opened: _Open) -> None:
        def check_stopped(_: int) -> None:
            if opened.stopped.is_set():
                raise PeerError("the prediction has ended")

        try:
            with self._using_table():
                warnings = await asyncio.to_thread(score_table, opened.model, opened.table, opened.rows, check_stopped)
        except BaseException:
            self._end(opened)
            raise
        for warning in warnings:
            log.warning("job %s: dataset %s: %s", opened.wanted.run.name, opened.wanted.dataset, warning)
        log.info("job %s: %d rows scored for a prediction", opened.wanted.run.name, opened.rows.n_ids)

    async def _align(self, opened: _Open, beginning: Beginning) -> Begun:
        return await (self._prove(opened, beginning) if beginning.aligned else self._intersect(opened, beginning))

    async def _intersect(self, opened: _Open, beginning: Beginning) -> Begun:
        def load() -> Offer:
            return Offer(opened.rows, opened.table.id_form)

        purpose = {"job": opened.wanted.run.name, "dataset": opened.wanted.dataset}
        with self._using_table():
            alignment = await self._alignments.open_loose(
                opened.name, load, Asked(beginning.form, beginning.n_rows, beginning.nonce, purpose)
            )
        if opened.stopped.is_set():
            self._alignments.close(alignment.id)
            raise PeerError("the prediction has ended")
        opened.session, n_shards = alignment.id, alignment.session.dealing.n_shards
        opened.prediction = HostPrediction(opened.rows.dealt(n_shards), n_shards, alignment.session, opened.folder)
        return Begun(alignment.nonce, alignment.id)

    async def _prove(self, opened: _Open, beginning: Beginning) -> Begun:
        rows, n_guest = opened.rows, beginning.n_rows
        check_form(beginning.form, opened.table.id_form)
        if n_guest != rows.n_ids:
            raise DataError(
                f"the host has {rows.n_ids} rows and the guest {n_guest}: both must hold the same IDs, or leave"
                " --aligned out"
            )
        check_scores(rows.n_ids, self._quota, PREDICTION)
        await asyncio.to_thread(spend_ids, n_guest, self._ids_quota, Role.HOST)
        nonce = token_bytes(NONCE_BYTES)
        dealing = Dealing.of(beginning.nonce, nonce, n_guest, rows.n_ids)
        with self._using_table():
            shards = await asyncio.to_thread(rows.deal, dealing)
        settling = SameIds(shards, beginning.nonce, nonce)
        opened.prediction = HostPrediction(shards, dealing.n_shards, settling, opened.folder)
        return Begun(nonce, b"")

    # --- a prediction's life

    @asynccontextmanager
    async def _using(self, name: bytes) -> AsyncIterator[_Open]:
        """Keep a prediction from ending of idleness while it is asked something, and for a while after."""
        opened = self._open.get(name)
        if opened is None:
            raise PeerError("the host does not know this prediction: it has ended, or the host was restarted")
        opened.n_calls += 1
        if opened.timer is not None:
            opened.timer.cancel()
        with LogContext(opened.wanted.run.name).current():
            try:
                yield opened
            finally:
                opened.n_calls -= 1
                if not opened.n_calls and not opened.stopped.is_set():
                    seconds = self._config.limits.party_timeout
                    opened.timer = asyncio.get_running_loop().call_later(seconds, self._end, opened)

    def _end(self, opened: _Open) -> None:
        if opened.stopped.is_set():
            return
        opened.stopped.set()
        del self._open[opened.name]
        if opened.timer is not None:
            opened.timer.cancel()
        self._alignments.close(opened.session)
        prediction = opened.prediction
        self._audit.ended(
            Outcome.FINISHED if opened.is_complete else Outcome.FAILED,
            method="OpenPrediction",
            **opened.record,
            n_rows={"host": opened.rows.n_ids, "guest": opened.beginning.n_rows if opened.beginning else None},
            n_common=prediction.n_common if prediction else None,
            n_scores=opened.n_counted or 0,
        )
        log.info("job %s: the prediction has ended", opened.wanted.run.name)
        self._release(opened)

    def _start(self, opened: _Open, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begin what goes on with the folder of a prediction, which is there as long."""

        def done(task: "asyncio.Task[T]") -> None:
            opened.working.discard(task)
            self._release(opened)

        task = start(work)
        opened.working.add(task)
        task.add_done_callback(done)
        return task

    def _release(self, opened: _Open) -> None:
        """Remove the folder of a prediction that has ended, once no thread writes to it any more."""
        if opened.stopped.is_set() and not opened.working:
            opened.resources.close()

    @contextmanager
    def _using_table(self) -> Iterator[None]:
        """Say whose table it is that cannot be used."""
        try:
            with self._writing():
                yield
        except DataError as error:
            raise DataError(f"the host: {error}") from error

    def _writing(self) -> AbstractContextManager[None]:
        return writing(Role.HOST, self._config.state / SCRATCH)


def _begun(opened: _Open) -> HostPrediction:
    if opened.prediction is None:
        raise ProtocolError("the guest asks for a prediction's rows before it has begun the alignment")
    return opened.prediction
