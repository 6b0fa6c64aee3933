"""The host's lists of masked scores for online scoring: which there are, who gets them, and how many points it answers.

See `trilateral.common.data.alignment.labelled_list` for what a list and an answer tell the guest.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from secrets import token_bytes

import numpy as np

from trilateral.common.base.arrays import FloatVector, blocks_of
from trilateral.common.base.errors import DataError, PeerError, TrilateralError
from trilateral.common.base.files import file_stamp
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.process import Precomputed, ProcessConfig
from trilateral.common.data.alignment.labelled_list import Entries, answer, make_entries, new_key, sort_entries
from trilateral.common.data.model.model_file import PartyModel
from trilateral.common.data.model.reasons import Places, Reasons, encode_places
from trilateral.common.data.model.scoring import score_table
from trilateral.common.data.tables.id_form import form_of
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.repeated_ids import repeated_error
from trilateral.common.data.tables.table_file import table_stamp
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.arithmetic import processors
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.policy import PREDICTION, check_prediction, check_scores, refusal
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.metrics import Metrics
from trilateral.common.protocol.evaluation import round_scores
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.codec import JobKey
from trilateral.common.scratch.space import ScratchSpace, writing
from trilateral.host_party.alignments import check_form
from trilateral.host_party.online_counts import OnlineCounts
from trilateral.host_party.own_model import check_other_half, load_own_part, reasons_of, score_points

log = logging.getLogger(__name__)

LIST_BYTES = 16
"""Bytes of the identifier of a list."""
LOOK_SECONDS = 1.0
"""Interval at which to look for a change of a table, a model or the settings. A change of a file counts once the file
is the same at two looks."""
_IDS_AT_A_TIME = 4096
_MAX_WAITING = 32
"""Blocks of IDs in memory that wait to be masked, because a table is read faster than that."""


@dataclass(frozen=True)
class ListRequest:
    """The guest's request for a list.

    Attributes:
        run: run of the job that trained the model.
        model: `PartyModel.shared_digest` of the guest's part.
        dataset: name of the host's table.
        form: rules of the normal form of the guest's IDs.
    """

    run: JobKey
    model: bytes
    dataset: str
    form: Sequence[str]


@dataclass(frozen=True, eq=False)
class MaskedList:
    """A list for the guest, and the key that opens it.

    Attributes:
        wanted: its entry in `online.precompute`.
        made_of: identifies the settings of the table, and the files, that it was made of.
        model: the host's part of the model.
        reasons: finds the reason codes of its rows; None without.
        form: the normal form of the IDs.
        data: the entries, sorted by tag.
        id: its identifier.
        n_rows: the number of entries.
    """

    wanted: Precomputed
    made_of: object
    model: PartyModel
    reasons: Reasons | None
    form: Sequence[str]
    data: bytes
    n_rows: int
    key: bytes = field(repr=False)
    id: bytes = field(default_factory=lambda: token_bytes(LIST_BYTES))

    @property
    def record(self) -> dict[str, str]:
        """The fields of every line about this list in the audit log."""
        return {"job": self.wanted.job, "run": self.model.run_id, "dataset": self.wanted.dataset}


class OnlineLists:
    """All lists of one host.

    A new list replaces the last one when the table, the model or the settings of the table have changed. Each has a key
    of its own, so that a guest with two lists cannot tell which rows differ. A list that `online.precompute` no longer
    names is dropped with its key. Keys are in memory alone.

    Args:
        config: configuration of this process.
        audit: records each list that leaves, and each answer.
        ledger: at how many points rows were scored.
        metrics: counts the answers.

    Attributes:
        config: as given. While the process runs, a changed configuration replaces it.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, ledger: Ledger, metrics: Metrics) -> None:
        self.config = config
        self._audit = audit
        self._ledger = ledger
        self._metrics = metrics
        self._scratch = ScratchSpace.of(config)
        self._lists: dict[Precomputed, MaskedList] = {}
        self._refused: dict[Precomputed, tuple[object, str]] = {}
        """What could not be scored: what it was made of, and why, as a public text."""
        self._counts = OnlineCounts(lambda: self.config)
        self._counting = asyncio.Lock()
        self._sent: set[bytes] = set()
        """Lists whose point is in the ledger."""
        self._over = threading.Event()
        """Ends the thread that reads a table."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make the lists, and replace them after changes, within the block."""
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._over.set()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    # --- the guest's calls

    async def open(self, request: ListRequest) -> MaskedList:
        """Return the list that the guest asks for, and count its point before it leaves.

        Raises:
            PolicyError: the policy does not allow it.
            DataError: the parts of the model do not belong together, or the table cannot be scored.
            PeerError: the list is not ready yet.
            ConfigError: the IDs have another form, or the count or the audit log cannot be written.
        """
        wanted = self._wanted(request.run.name, request.dataset)
        self._check(wanted)
        found = self._lists.get(wanted)
        if found is None:
            _, why = self._refused.get(wanted, (None, ""))
            raise (
                DataError(why)
                if why
                else PeerError(
                    f"the host is not ready to score {wanted.dataset} with job {wanted.job}: it is reading its table"
                )
            )
        check_other_half(found.model, request.run, request.model)
        check_form(request.form, found.form)
        check_scores(1 + wanted.reasons, ScoreQuota.of(self.config), PREDICTION)
        async with self._counting:
            if found.id not in self._sent:
                n_columns = found.model.steps.n_row_values
                for point in score_points(found.model, found.reasons):
                    await asyncio.to_thread(self._account(wanted).spend_point, point, n_columns, PREDICTION)
                self._sent.add(found.id)
        self._audit.allowed(calling(), "GetList", **found.record, n_rows={"host": found.n_rows})
        return found

    async def answer(self, list_id: bytes, points: bytes, n_points: int) -> bytes | None:
        """Multiply points of the guest by the key of a list. Each counts before any is answered.

        Args:
            list_id: identifies the list.
            points: the points, concatenated.
            n_points: how many there are.

        Returns:
            The products, in the same order; None if there is no such list any more, and nothing was counted.

        Raises:
            PolicyError: the policy no longer allows it, or not so many. No point is answered.
            ProtocolError: a point has low order. The points count all the same.
            ConfigError: the counts or the audit log cannot be written. No point is answered.
        """
        found = next((each for each in self._lists.values() if each.id == list_id), None)
        if found is None or found.id not in self._sent:
            return None
        self._check(found.wanted)
        n_reasons = found.wanted.reasons
        left = await self._counts.spend(n_points, n_reasons)
        self._check(found.wanted)  # The settings may have changed while the disk was busy.
        n_scores = n_points * (1 + n_reasons)
        self._audit.allowed(calling(), "AnswerPoints", **found.record, n_scores=n_scores, n_left=left)
        products = await asyncio.to_thread(answer, found.key, points)
        self._metrics.answered_points(n_points)
        return products

    def _wanted(self, job: str, dataset: str) -> Precomputed:
        """Return the entry of `online.precompute` for a job and a dataset; one that is not there if there is none."""
        entries = ((each.job, each.dataset, each) for each in self.config.online.precompute)
        found = next((each for *names, each in entries if names == [job, dataset]), None)
        return found or Precomputed(job=job, dataset=dataset)

    def _check(self, wanted: Precomputed) -> DatasetConfig:
        """Return the dataset of a list, if the policy and the settings permit it now."""
        config = self.config
        table = check_prediction(
            wanted.job, wanted.dataset, config.datasets, config.policy, Role.HOST, n_reasons=wanted.reasons
        )
        if wanted not in config.online.precompute:
            raise refusal(
                Role.HOST,
                "online.precompute",
                f"it does not name job {wanted.job} with dataset {wanted.dataset}; the host adds them, or use"
                " `trilateral predict`",
                PREDICTION,
            )
        return table

    def _account(self, wanted: Precomputed) -> Account:
        return Account(self._ledger, self.config.policy, wanted.dataset, Role.HOST)

    # --- making lists

    async def _watch(self) -> None:
        seen: dict[Precomputed, object] = {}
        while True:
            try:
                await self._look(seen)
            except Exception as error:  # The next change must be seen, whatever this one was.
                log.error("the lists for online scores could not be renewed: unexpected error: %s", where(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, seen: dict[Precomputed, object]) -> None:
        wanted = self.config.online.precompute
        for old in {*self._lists, *self._refused, *seen} - {*wanted}:
            if self._lists.pop(old, None) is not None:
                log.info("job %s: dataset %s is no longer scored online", old.job, old.dataset)
            self._refused.pop(old, None)
            seen.pop(old, None)
        for each in wanted:
            made_of = await asyncio.to_thread(self._made_of, each)
            known = self._lists[each].made_of if each in self._lists else self._refused.get(each, (None, ""))[0]
            is_settled = each not in seen or seen[each] == made_of
            seen[each] = made_of
            if made_of != known and is_settled:
                await self._make(each, made_of)
        self._sent &= {each.id for each in self._lists.values()}

    async def _make(self, wanted: Precomputed, made_of: object) -> None:
        try:
            with writing(self.config.scratch_folder, f"the {Role.HOST}: "):
                made = await asyncio.to_thread(self._score, wanted, made_of)
        except TrilateralError as error:
            text = str(error)
            self._refused[wanted] = made_of, text if text.startswith("the host") else f"the host: {text}"
            old = self._lists.pop(wanted, None)
            log.error(
                "job %s: dataset %s cannot be scored online%s: %s",
                wanted.job,
                wanted.dataset,
                "" if old is None else " any more",
                error,
            )
            return
        self._refused.pop(wanted, None)
        self._lists[wanted] = made
        log.info("job %s: dataset %s is scored online: %d rows", wanted.job, wanted.dataset, made.n_rows)

    def _score(self, wanted: Precomputed, made_of: object) -> MaskedList:
        """Score the table and mask the scores under a new key."""

        def check_over(_: int) -> None:
            if self._over.is_set():
                raise PeerError("the host stops")

        table = self._check(wanted)
        model = load_own_part(self.config, wanted.job)
        if model.classes is not None:
            raise DataError("a model of several classes is not scored online: use `trilateral predict`")
        reasons = reasons_of(model, wanted.dataset, table.reason_labels, wanted.reasons)
        self._account(wanted).check_further(score_points(model, reasons), model.steps.n_row_values, PREDICTION)
        key = new_key()
        with ThreadPoolExecutor(processors(), thread_name_prefix="online") as threads, self._scratch.open() as scratch:
            rows = _MaskedRows(key, threads)
            try:
                warnings = score_table(model, table, rows, check_over, scratch, reasons=reasons)
                data, n_repeated = sort_entries(rows.entries())
            finally:
                threads.shutdown(cancel_futures=True)
        for warning in warnings:
            log.warning("job %s: dataset %s: %s", wanted.job, wanted.dataset, warning)
        if n_repeated:
            raise repeated_error(table.id_columns, n_repeated, rows.n_ids)
        return MaskedList(wanted, made_of, model, reasons, form_of(table), data, rows.n_ids, key)

    def _made_of(self, wanted: Precomputed) -> object:
        config = self.config
        table = config.datasets.get(wanted.dataset)
        return (
            config.policy,
            table,
            table and table_stamp(table.path),
            file_stamp(JobFolder(config.state, wanted.job).model),
        )


class _MaskedRows:
    """Masks scores while the table is read, see `ScoreSink`."""

    def __init__(self, key: bytes, threads: ThreadPoolExecutor) -> None:
        self._key = key
        self._threads = threads
        self._entries: list[Future[Entries]] = []
        self.n_ids = 0

    def add(self, ids: Ids, written: Ids, scores: FloatVector, reasons: Places | None) -> None:
        del written
        rounded = round_scores(scores)
        codes = None if reasons is None else encode_places(reasons)
        for part in blocks_of(len(ids), _IDS_AT_A_TIME):
            if len(self._entries) >= _MAX_WAITING:
                self._entries[-_MAX_WAITING].result()
            self._entries.append(
                self._threads.submit(
                    make_entries, self._key, ids[part], rounded[part], None if codes is None else codes[part]
                )
            )
        self.n_ids += len(ids)

    def finish(self) -> None:
        pass

    def entries(self) -> Entries:
        """Return all entries, in the order of the table."""
        return np.concatenate([each.result() for each in self._entries])
