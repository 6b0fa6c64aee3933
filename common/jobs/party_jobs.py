"""The jobs of a party, the same at the host and at the guest: accepting a job, and keeping its result."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import (
    BadKeyError,
    ConfigError,
    DataError,
    PeerError,
    ProtocolError,
    StoppedError,
    SuspendedError,
    TrilateralError,
    notes,
)
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage, report_progress
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import Engine, OpenEngine
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.features import Features
from trilateral.common.data.folds import decides_folds, make_folds
from trilateral.common.data.model.bins_file import BinsFile, save_bins
from trilateral.common.data.model.model_file import PartyModel, save_model
from trilateral.common.data.model.warm_start import warm_start
from trilateral.common.data.party_data import (
    PreparedData,
    check_labels,
    describe_few_labels,
    describe_left_out,
    describe_repeated,
    describe_scores_beyond,
    describe_split,
    make_party_data,
    read_party_table,
    split_rows,
)
from trilateral.common.data.tables.gathering import release_freed_memory
from trilateral.common.data.tables.id_form import describe_changes, form_of
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.bins_job import BinsWork, counted_columns
from trilateral.common.jobs.earlier_model import load_earlier
from trilateral.common.jobs.folder import JobFolder, writing
from trilateral.common.jobs.history import History
from trilateral.common.jobs.job_account import JobAccount
from trilateral.common.jobs.journal import Record
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.party_record import PartyRecord, RestoredMachine
from trilateral.common.jobs.permission import Permission
from trilateral.common.jobs.policy import (
    check_chosen_rows,
    check_effective_rows,
    check_holdout,
    check_offer,
    check_sizes,
    check_split,
    label_secrecy,
)
from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.jobs.runner import MachineRecord, MachineRunner
from trilateral.common.jobs.sealing import load_sealer
from trilateral.common.jobs.used_folds import JobFolds, UsedFolds
from trilateral.common.jobs.used_rows import EVALUATED, TRAINING, JobRows, UsedRows
from trilateral.common.observe.audit import Audit
from trilateral.common.paillier.cipher import PartyCipher
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import PublicKey, check_public_key
from trilateral.common.paillier.weak_keys import tabulate
from trilateral.common.pb.v1.coordinator_pb2 import ReportWaitingRequest, ReportWaitingResponse
from trilateral.common.protocol.alignment import Aligned, AlignmentProgress
from trilateral.common.protocol.arithmetic import PaillierSession, Session, SharesSession
from trilateral.common.protocol.batches import Batches
from trilateral.common.protocol.block import PartyData
from trilateral.common.protocol.bounds import max_evaluations
from trilateral.common.protocol.label_secrecy import draw_start
from trilateral.common.protocol.messages import (
    BinsResult,
    CountsDue,
    EvaluationRecord,
    Machine,
    Message,
    OpenJob,
    Result,
    ScoresDue,
    StepTaken,
    Waiting,
)
from trilateral.common.protocol.party import CheckPeer
from trilateral.common.protocol.phases import Phase
from trilateral.common.protocol.row_roles import Purpose, RoleExchange, RoleVector
from trilateral.common.protocol.shares.bins import BinsData, Release
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import EndedError
from trilateral.common.rpc.routes import route_for
from trilateral.common.scratch.arrays import Scratch
from trilateral.common.scratch.space import JobScratch, ScratchSpace
from trilateral.common.shares.keys import SEED_BYTES

log = logging.getLogger(__name__)


class MakeMachine(Protocol):
    """Makes a role's state machine."""

    def __call__(
        self,
        job: JobConfig,
        data: PartyData,
        session: Session,
        *,
        phase: Phase,
        check_peer: CheckPeer,
    ) -> RestoredMachine:
        """Make the machine of one job.

        Args:
            job: the job's settings.
            data: this party's prepared table.
            session: what the arithmetic of the job's protocol needs.
            phase: times the kinds of work.
            check_peer: refuses a peer with too many columns.
        """
        ...


class MakeBins(Protocol):
    """Makes a role's state machine for a bins job."""

    def __call__(self, data: BinsData, seed: bytes, release: Release) -> Machine:
        """Make the machine of one job.

        Args:
            data: this party's rows.
            seed: the coordinator's part of the seed of the streams that it has in common with this party.
            release: what the guest merges and tells the host.
        """
        ...


class CommonRowFinder(Protocol):
    """A role's side of the alignment for one run of a job."""

    async def common_rows(
        self, ids: Ids, form: Sequence[str], on_progress: Callable[[AlignmentProgress], None]
    ) -> Aligned:
        """Find the rows that both parties have.

        Args:
            ids: this party's IDs.
            form: the normal form of these IDs, as from `form_of`.
            on_progress: called with the progress, at the guest only.
        """
        ...


class Aligner(Protocol):
    """A role's side of all alignments."""

    def expect(self, run: JobKey, on_disclosure: Callable[[], None]) -> AbstractContextManager[CommonRowFinder]:
        """Within the block, allow the other party to align for this run.

        Args:
            run: the run of the job.
            on_disclosure: called before each shard; raises an error if the policy no longer permits the job.
        """
        ...


class PartyJobs(ProcessJobs):
    """The jobs of a host or a guest.

    Args:
        config: the configuration of this process.
        audit: records each decision.
        peers: the two other processes.
        make_machine: makes this role's state machine.
        aligner: this role's side of all alignments.
        ledger: what the other party has learnt about this party's rows.
        open_engine: makes the engine of a session.
        make_bins: makes this role's state machine for a bins job.
    """

    def __init__(
        self,
        config: ProcessConfig,
        audit: Audit,
        peers: Mapping[Role, Peer],
        make_machine: MakeMachine,
        aligner: Aligner,
        *,
        ledger: Ledger,
        open_engine: OpenEngine,
        make_bins: MakeBins,
    ) -> None:
        super().__init__(config, audit)
        self._peers = self.metrics.peers = peers
        self._make_machine = make_machine
        self._make_bins = make_bins
        self._aligner = aligner
        self._ledger = ledger
        self._used_rows = UsedRows(config.state, config.role)
        self._open_engine = open_engine
        self._scratch = ScratchSpace.of(config)

    def open(self) -> None:
        """Open the journal and the other files in the state folder; see `ProcessJobs.open`."""
        super().open()
        self._used_folds = UsedFolds(self.config.state, self.role, load_sealer(self.config.state_key))

    @property
    def _quota(self) -> ScoreQuota:
        return ScoreQuota.of(self.config)

    async def dispatch(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """Pass a message to its job; see `ProcessJobs.dispatch`. The first OpenJob of a run creates the job."""
        if not isinstance(message, OpenJob):
            await super().dispatch(sender, key, message, n_bytes)
            return
        if message.party is not self.role:
            raise ProtocolError(
                f"the coordinator called the {self.role} as the {message.party}: correct `peers.{message.party}` in "
                "the coordinator's configuration"
            )
        async with self._beginning:
            self._check_not_closing()
            if key in self._ended:
                await super().dispatch(sender, key, message, n_bytes)
            elif self._find_running(key) is None:
                try:
                    await self._open(key, message)
                except TrilateralError as error:
                    log.warning("job %s: refused: %s", key.name, error)
                    raise

    async def go_on(self) -> None:
        """Make tables for the first job, and ask the coordinator about the jobs that an earlier process did not end.

        The coordinator offers the jobs that continue again without being asked. Only this call finds out about jobs
        that ended in the meantime.
        """
        self._in_background(asyncio.to_thread(tabulate))
        for record in self.journal.all():
            if record.outcome is None:
                self._in_background(self._ask_after(record))

    async def _ask_after(self, record: Record) -> None:
        request = ReportWaitingRequest(job=record.job.name, run_id=record.id)
        route = route_for(self.role, Role.COORDINATOR, Waiting())
        coordinator, limits = self._peers[Role.COORDINATOR], self.config.limits
        try:
            await call_peer(coordinator, self.role, route.path, request, ReportWaitingResponse, limits=limits)
        except (EndedError, StoppedError) as error:
            log.info("job %s: %s", record.job.name, error)
            await self._set_outcome(record.id, error)
        except TrilateralError as error:
            log.debug("job %s: the coordinator does not know whether the job has ended: %s", record.job.name, error)

    # --- the start

    async def _open(self, key: JobKey, offer: OpenJob) -> None:  # noqa: PLR0915  It joins what the steps of a job need.
        job = offer.job
        job_id, known = await asyncio.to_thread(self._find_known, key, offer)
        caller, what = calling(), {"job": job.name, "run": key.run_id.hex()}
        # A bins job starts again after a fault, even if this party has its result and the other one does not.
        has_begun = known is not None or (
            job.task == "bins" and await asyncio.to_thread(self.journal.find, job_id) is not None
        )
        dataset = self._check_policy(job, known=has_begun)
        permission = Permission(job, lambda: self.config, self.audit, caller, what)
        self._check_secrets(offer)
        self.audit.allowed(
            caller,
            "OpenJob",
            **what,
            dataset=job.dataset,
            algorithm=job.algorithm.name,
            batch=job.batch,
            epochs=job.epochs,
            holdout=job.holdout,
            evaluations=max_evaluations(job),
            protocol=job.protocol,
            key_bits=job.key_bits if job.protocol == "paillier" else None,
        )
        await self._replace(job.name)
        folder = self._folder(job)
        history = History(
            folder,
            self.role,
            resumed=known is not None,
            hides_loss=job.protocol == "shares",
            on_event=self._observer_of(key),
        )
        record = await asyncio.to_thread(self._begin_record, key, job, job_id, known)
        engine, scratch = self._open_engine(), self._scratch.open(self.role)

        rows: JobRows | None = None
        folds: JobFolds | None = None

        def add_rows(policy: Policy) -> None:
            if rows is None:
                raise RuntimeError("something is about to leave before the rows are known")
            self._used_rows.add(rows, policy)
            if folds is not None:
                self._used_folds.add(folds, policy)

        bins: BinsWork | None = None
        if job.task == "bins":
            bins = BinsWork(job, key.run_id, permission, lambda: self._account_of(job.dataset), add_rows)

        async def begin() -> Machine:
            nonlocal rows, folds
            if bins is not None:
                with permission.recording():
                    table = await self._read(runner, dataset, job, record, permission, scratch=scratch)
                    roles = await self._roles(runner, job, record, table)
                    rows = await runner.in_thread(self._rows_of, job, table, roles)
                    return await runner.in_thread(self._begin_bins, bins, table, dataset, roles, offer.seed)
            # Nothing needs the key while the table is read.
            cipher = runner.beside(self._make_cipher, offer) if job.protocol == "paillier" else None
            with permission.recording():
                data, rows, folds = await self._read_and_prepare(
                    runner, dataset, job, record, permission, scratch=scratch
                )
                permission.data = data
                await runner.in_thread(release_freed_memory)
                await runner.in_thread(record.check_columns, data.block.columns)
                self._check_rows(job, data)
                permission.account = JobAccount(
                    job, key.run_id, record, lambda: self._account_of(job.dataset), data, add_rows=add_rows
                )
                await runner.in_thread(permission.account.open, self._quota)
            start = await runner.in_thread(self._start, job, record, data)
            is_secret = start is not None and job.protocol == "paillier"
            permission.secrecy = await runner.in_thread(label_secrecy, job, data.block, secret_start=is_secret)
            session = (
                SharesSession(offer.seed, engine, scratch, start)
                if cipher is None
                else PaillierSession(await cipher, start, engine, scratch)
            )
            machine = await runner.in_thread(
                self._make_machine,
                job,
                data,
                session,
                phase=history.stopwatch.phase,
                check_peer=permission.check_peer,
            )
            if cipher is None:  # The machine keeps its columns in another form.
                permission.data = replace(data, block=data.block.without_columns())
            await runner.in_thread(record.restore, machine, history)
            return machine

        def on_record(message: MachineRecord) -> Callable[[], None] | None:
            match message:
                case StepTaken():
                    permission.count(message)
                    return partial(record.write, message)
                case ScoresDue():
                    permission.count(message)
                case EvaluationRecord():
                    record.write(message)
                case CountsDue() if bins is not None:
                    bins.count(message)
                case BinsResult() if bins is not None:
                    self._keep_bins(job, job_id, bins.file(message))
                case Result() if permission.data is not None:
                    self._keep_result(
                        job,
                        job_id,
                        PartyModel.of(self.role, job, permission.data, dataset, message, run_id=key.run_id.hex()),
                        message,
                    )
            return None

        runner = MachineRunner(
            self.role,
            job,
            key,
            self._peers,
            limits=self.config.limits,
            history=history,
            on_message=lambda message: None,
            on_record=on_record,
            on_disclosure=permission.check_again,
        )
        log.info("job %s: accepted, dataset %s, protocol %s", job.name, job.dataset, job.protocol)

        async def on_end(error: TrilateralError | None) -> None:
            # The runner, which refers to the permission, waits for a garbage collection. The table must not.
            permission.data = None
            self._ledger.release(key.run_id)
            if runner.last_step is not None:  # It may still reserve points.
                runner.last_step.add_done_callback(lambda _: self._ledger.release(key.run_id))
            await asyncio.to_thread(_free, job, engine, scratch)
            # The journal already has the end of a finished job, and a job whose session is suspended still runs.
            if error is not None and not isinstance(error, SuspendedError):
                await self._set_outcome(job_id, error)

        self._launch(runner, begin, on_end)

    def _keep_result(self, job: JobConfig, job_id: bytes, model: PartyModel, result: Result) -> None:
        """Write this party's part of the model, and then that the job has finished."""
        path = self._folder(job).model
        with writing(self.role, path):
            save_model(path, model)
        self.journal.set_outcome(job_id, Outcome.FINISHED)
        _log_result(job, result)

    def _begin_bins(
        self, bins: BinsWork, table: PartyTable, dataset: DatasetConfig, roles: RoleVector | None, seed: bytes
    ) -> Machine:
        """Divide the table's columns into bins, and make the machine of a bins job."""
        with self._naming(dataset):
            data, release = bins.prepare(table, dataset, self.config.policy, roles)
        return self._make_bins(data, seed, release)

    def _keep_bins(self, job: JobConfig, job_id: bytes, bins: BinsFile) -> None:
        """Write what this party gets to know in a bins job, and then that the job has finished."""
        path = self._folder(job).bins
        with writing(self.role, path):
            save_bins(path, bins)
        self.journal.set_outcome(job_id, Outcome.FINISHED)
        log.info("job %s: bins of %d columns written", job.name, len(bins.columns) + len(bins.host_columns))

    def _start(self, job: JobConfig, record: PartyRecord, data: PreparedData) -> FloatVector | None:
        """Return this party's first weights, the same in every session of a job; None for zero.

        Under Paillier, the guest's are secret. Under the protocol on shares, where no party learns a step, they are
        those of an earlier model, if the job starts from one.
        """
        if self.role is Role.HOST or job.protocol == "shares":
            return data.start
        return record.start(lambda: draw_start(data.block.columns))

    def _warm_start(self, name: str, features: Features, rows: Rows, data: PreparedData) -> FloatVector:
        """Return the weights that the model of an earlier job gives the training columns."""
        model = load_earlier(self.config.state, self.role, name)
        return warm_start(model, features, rows, data.block.columns, intercept=data.preprocessing.intercept)

    def _begin_record(self, key: JobKey, job: JobConfig, job_id: bytes, known: Record | None) -> PartyRecord:
        if known is None:
            self.journal.add(job_id, job)
        else:
            self.journal.set_running(job_id)
        return PartyRecord(self.journal, self.role, key, job_id, known)

    def _find_known(self, key: JobKey, offer: OpenJob) -> tuple[bytes, Record | None]:
        """Return the job's ID, and this party's record if both parties were ready in an earlier session."""
        job_id = offer.job_id or key.run_id
        record = self.journal.find(job_id)
        if record is not None and record.job != offer.job:
            raise ProtocolError(
                f"the coordinator offers the job {record.job.name} with settings that differ from the earlier ones"
            )
        if not offer.was_ready:
            if record is not None and record.rounds:
                raise ProtocolError(
                    f"the coordinator says that the job {key.name} has not begun, but the {self.role} has"
                    f" {len(record.rounds)} rounds of it in its journal: start the training again under another name"
                )
            return job_id, None
        if record is None or record.replaced:
            raise PeerError(f"the {self.role} has no record of the job {key.name} in its journal: start the job again")
        return job_id, record

    async def _replace(self, name: str) -> None:
        """End a run of that name that is still in progress here.

        The coordinator has only one run of a name at a time, so it has lost the earlier one.
        """
        runner = self._running.get(name)
        if runner is not None:
            runner.fail(SuspendedError("the coordinator has begun another session"), told_by=Role.COORDINATOR)
            await asyncio.wait({self._tasks[runner.key]})

    def _check_policy(self, job: JobConfig, *, known: bool) -> DatasetConfig:
        dataset = check_offer(job, self.config, known=known)
        if job.name not in self._running:
            self._check_room()
        return dataset

    def _check_secrets(self, offer: OpenJob) -> None:
        """Check that the offer brings a public key, or a part of a seed under the protocol on shares."""
        on_shares = offer.job.protocol == "shares"
        expected = SEED_BYTES if on_shares else 0
        if len(offer.seed) != expected or (on_shares and offer.modulus):
            raise ProtocolError(
                f"the coordinator offers a job with `protocol: {offer.job.protocol}`, a seed of {len(offer.seed)} bytes"
                f" and a public key of {offer.modulus.bit_length()} bits: expected a seed of {expected} bytes and"
                f" {'no key' if on_shares else 'a key'}; install the same release of trilateral at all three"
            )

    def _make_cipher(self, offer: OpenJob) -> PartyCipher:
        return make_cipher(offer.job.cipher, self._check_key(offer))

    def _check_key(self, offer: OpenJob) -> PublicKey:
        bits = offer.modulus.bit_length()
        if bits != offer.job.key_bits:
            raise BadKeyError(f"the {self.role}: the public key has {bits} bits, but the job has {offer.job.key_bits}")
        try:
            return check_public_key(offer.modulus, self.config.policy.min_key_bits)
        except BadKeyError as error:
            raise BadKeyError(f"the {self.role}: {error}") from error

    def _check_rows(self, job: JobConfig, data: PreparedData) -> None:
        """Check the rows that count against the policy."""
        check_holdout(job, self.config.policy, len(data.block.holdout_columns), self.role)
        check_split(job, self.config.policy, data, self.role)
        check_effective_rows(job, self.config.policy, data.block, self.role)

    async def _read_and_prepare(
        self,
        runner: MachineRunner,
        dataset: DatasetConfig,
        job: JobConfig,
        record: PartyRecord,
        permission: Permission,
        *,
        scratch: Scratch,
    ) -> tuple[PreparedData, JobRows, JobFolds | None]:
        """Read the table and make the training columns. Nothing keeps the table, which the job needs no longer."""
        table = await self._read(runner, dataset, job, record, permission, scratch=scratch)
        roles = await self._roles(runner, job, record, table)
        folds = await self._folds(runner, job, record, table, dataset=dataset, roles=roles)
        rows = await runner.in_thread(self._rows_of, job, table, roles)
        used = await runner.in_thread(self._folds_of, job, table, roles, folds)
        data = await runner.in_thread(
            self._prepare, table, dataset, job, record, scratch=scratch, roles=roles, folds=folds
        )
        return data, rows, used

    async def _roles(
        self, runner: MachineRunner, job: JobConfig, record: PartyRecord, table: PartyTable
    ) -> RoleVector | None:
        """Agree with the other party what the common rows are for; None unless the job has `holdout: column`."""
        if job.holdout != "column":
            return None
        exchange = RoleExchange(self.role, Purpose.SPLIT, table.split, len(table.ids))
        roles = await self._row_roles(runner, Purpose.SPLIT, exchange, record)
        if table.split is None:
            check_chosen_rows(job, self.role)
        return roles

    async def _folds(
        self,
        runner: MachineRunner,
        job: JobConfig,
        record: PartyRecord,
        table: PartyTable,
        *,
        dataset: DatasetConfig,
        roles: RoleVector | None,
    ) -> RoleVector | None:
        """Agree with the other party in which fold each training row lies; None if the seed decides."""
        if job.fold_by == "random":
            return None
        train, _ = split_rows(len(table.ids), job, roles)
        own = None
        if decides_folds(job, table) and not record.resumed:
            with self._naming(dataset):
                own = await runner.in_thread(make_folds, job, table, train)
        exchange = RoleExchange(self.role, Purpose.FOLDS, own, len(train), job.folds or 0)
        return await self._row_roles(runner, Purpose.FOLDS, exchange, record)

    def _rows_of(self, job: JobConfig, table: PartyTable, roles: RoleVector | None) -> JobRows:
        """Return the rows that a job uses, once they differ from those of earlier jobs as the policy asks."""
        train, sets = split_rows(len(table.ids), job, roles)
        used = {TRAINING: train}
        if job.evaluate_every is not None:
            used[EVALUATED] = next(iter(sets.values()))
        rows = self._used_rows.of_job(job.name, table.ids, table.labels, used)
        self._used_rows.check(rows, self.config.policy)
        return rows

    def _folds_of(
        self, job: JobConfig, table: PartyTable, roles: RoleVector | None, folds: RoleVector | None
    ) -> JobFolds | None:
        """Return the folds of a training on shares, once they differ from earlier ones as the policy asks."""
        train, _ = split_rows(len(table.ids), job, roles)
        least = max(job.folds or 1, 1 if job.batch == "all" else job.batch)
        if job.protocol == "paillier" or least > len(train):  # The job is refused for the latter.
            return None
        parts = Batches.of(job, len(train)).part_of_rows() if folds is None else folds
        used = self._used_folds.of_job(job.name, table.ids, train, parts)
        self._used_folds.check(used, self.config.policy)
        return used

    async def _row_roles(
        self, runner: MachineRunner, purpose: Purpose, exchange: RoleExchange, record: PartyRecord
    ) -> RoleVector:
        """Learn what the rows are for from the other party or tell it, once for all sessions of the job."""
        if record.resumed:
            return record.row_roles(purpose, exchange.n_rows)
        roles = await runner.exchange_roles(exchange)
        await runner.in_thread(record.keep_row_roles, purpose, roles)
        return roles

    async def _read(
        self,
        runner: MachineRunner,
        dataset: DatasetConfig,
        job: JobConfig,
        record: PartyRecord,
        permission: Permission,
        *,
        scratch: Scratch,
    ) -> PartyTable:
        """Read the party's table, and select the rows that both parties have."""
        if job.aligned or record.resumed:
            table = await self._read_all(runner, dataset, job, record, scratch)
            if job.aligned:
                return table
            with self._naming(dataset):
                return await runner.in_thread(table.select, record.common_rows(len(table.ids)))
        with self._aligner.expect(runner.key, permission.check_again) as alignment:
            table = await self._read_all(runner, dataset, job, record, scratch)
            try:
                aligned = await alignment.common_rows(table.ids, form_of(dataset), runner.report_alignment)
            except PeerError as error:
                # The other party may have been restarted. The coordinator will notice that and begin another session.
                raise SuspendedError(str(error)) from error
        await runner.in_thread(record.keep_common_rows, aligned.rows, len(table.ids))
        log.info(
            "job %s: %d rows of the host and %d rows of the guest have %d IDs in common",
            job.name,
            aligned.n_host,
            aligned.n_guest,
            len(aligned.rows),
        )
        if not len(aligned.rows):
            raise DataError(
                "the host and the guest have no IDs in common: compare how both write their IDs, and see `id_form`"
            )
        with self._naming(dataset):
            return await runner.in_thread(table.select, aligned.rows)

    async def _read_all(
        self, runner: MachineRunner, dataset: DatasetConfig, job: JobConfig, record: PartyRecord, scratch: Scratch
    ) -> PartyTable:
        report_progress(Stage.READING, 0, 1)
        with self._naming(dataset):
            labelled = self.role is Role.GUEST
            table = await runner.in_thread(read_party_table, dataset, job, labelled=labelled, scratch=scratch)
            await runner.in_thread(record.check_table, table, dataset)
            await runner.in_thread(release_freed_memory)
        log.info("job %s: %d rows loaded", job.name, len(table.ids))
        if changes := describe_changes(table.changed_ids):
            log.info("job %s: IDs changed by rules of `id_form`: %s", job.name, changes)
        if repeated := describe_repeated(table.n_repeated, dataset):
            log.info("job %s: %s: %s", job.name, dataset.path.name, repeated)
        return table

    def _prepare(
        self,
        table: PartyTable,
        dataset: DatasetConfig,
        job: JobConfig,
        record: PartyRecord,
        *,
        scratch: Scratch,
        roles: RoleVector | None,
        folds: RoleVector | None,
    ) -> PreparedData:
        def check(n_train: int) -> None:
            check_sizes(job, self.config.policy, n_train, self.role, folds)

        report_progress(Stage.PREPARING, 0, 1)
        with self._naming(dataset):
            counted = counted_columns(self.config.state, dataset, job, table, roles)
            data = make_party_data(
                table, dataset.preprocessing, job, check, scratch, roles=roles, folds=folds, counted=counted
            )
            check_labels(data.block, is_chosen=roles is not None and table.split is None)
            if job.start_from is not None:
                rows, _ = split_rows(len(table.ids), job, roles)
                start = record.start(partial(self._warm_start, job.start_from, table.features, rows, data))
                data = replace(data, start=start)
        if few := describe_few_labels(data.block):
            log.warning("job %s: %s", job.name, few)
        if roles is not None:
            log.info("job %s: the split column gives %s", job.name, describe_split(data))
        for text in describe_left_out(data.left_out):
            log.info("job %s: %s: %s", job.name, dataset.path.name, text)
        return data

    @contextmanager
    def _naming(self, dataset: DatasetConfig) -> Iterator[None]:
        """Name the party in an error about its table; log the notes, which only this organisation may read."""
        try:
            yield
        except (ConfigError, DataError) as error:
            for note in notes(error):
                log.warning("%s: %s: %s", dataset.path.name, error, note)
            party = f"the {self.role}: "  # Errors of scratch space begin with it already.
            raise type(error)(party + str(error).removeprefix(party)) from error

    def _account_of(self, dataset: str) -> Account:
        return Account(self._ledger, self.config.policy, dataset, self.role)

    def _folder(self, job: JobConfig) -> JobFolder:
        return JobFolder(self.config.state, job.name)


def _free(job: JobConfig, engine: Engine, scratch: JobScratch) -> None:
    """Free what a session has used, whichever way it has ended."""
    engine.close()  # A step that waits for a task ends with it.
    scratch.close()
    if scratch.peak_bytes:
        log.info("job %s: %.1f GB of scratch space were used", job.name, scratch.peak_bytes / 1e9)


def _log_result(job: JobConfig, result: Result) -> None:
    log.info("job %s: model written after %d rounds, loss %.6f", job.name, result.rounds, result.loss)
    if beyond := describe_scores_beyond(job, result.holdout_scores):
        log.warning("job %s: %s", job.name, beyond)
