"""What the servers of the two parties have in common: taking a job in, and keeping its result."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from trilateral.common.base.errors import (
    BadKeyError,
    ConfigError,
    DataError,
    PeerError,
    PolicyError,
    ProtocolError,
    SuspendedError,
    TrilateralError,
    notes,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig, IdForm
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import PartyModel, save_model
from trilateral.common.data.party_data import PartyData, make_party_data, read_party_table
from trilateral.common.data.tables.table import PartyTable
from trilateral.common.jobs.folder import JobFolder, writing
from trilateral.common.jobs.history import History
from trilateral.common.jobs.journal import Record, State
from trilateral.common.jobs.party_place import PartyPlace, RestoredMachine
from trilateral.common.jobs.policy import JOB, check_holdout, check_offer, check_sizes, holdout_scores, take_scores
from trilateral.common.jobs.process_jobs import STOPPED, ProcessJobs
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.jobs.runner import MachineRunner, without_lock
from trilateral.common.observe.audit import Audit
from trilateral.common.paillier.keys import PublicKey, check_public_key
from trilateral.common.pb.v1.coordinator_pb2 import ReportWaitingRequest, ReportWaitingResponse
from trilateral.common.protocol.alignment import Aligned, AlignmentProgress
from trilateral.common.protocol.bounds import max_evaluations
from trilateral.common.protocol.messages import Evaluated, Machine, Message, OpenJob, Result, StepTaken, Waiting
from trilateral.common.protocol.phases import Phase
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.calls import call_peer
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey, route_for
from trilateral.common.rpc.errors import EndedError

log = logging.getLogger(__name__)


class MakeMachine(Protocol):
    """A role's state machine class, seen from here."""

    def __call__(self, job: JobConfig, data: PartyData, public_key: PublicKey, *, phase: Phase) -> RestoredMachine:
        """Make the machine of one job."""
        ...


class JobAlignment(Protocol):
    """The alignment of one run of a job, seen from here."""

    async def common_rows(
        self, ids: Sequence[str], form: IdForm, on_progress: Callable[[AlignmentProgress], None]
    ) -> Aligned:
        """Find the rows that both parties have; one of them reports how far it is."""
        ...


class Aligner(Protocol):
    """A role's side of all alignments, seen from here."""

    def expect(self, run: JobKey) -> AbstractContextManager[JobAlignment]:
        """Within the block, the parties may align for this run."""
        ...


class PartyJobs(ProcessJobs):
    """The jobs of a host or a guest.

    Args:
        config: of this process.
        audit: takes down each decision.
        peers: the two other processes.
        make_machine: this role's state machine.
        aligner: this role's side of alignments.
    """

    def __init__(
        self,
        config: ProcessConfig,
        audit: Audit,
        peers: Mapping[Role, Peer],
        make_machine: MakeMachine,
        aligner: Aligner,
    ) -> None:
        super().__init__(config, audit)
        self._peers = self.metrics.peers = peers
        self._make_machine = make_machine
        self._aligner = aligner
        self._asking: set[asyncio.Task[None]] = set()
        self._quota = ScoreQuota(config.state, config.policy.max_scores_a_day)

    async def take(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """See `ProcessJobs.take`; the first OpenJob of a run makes its job."""
        if not isinstance(message, OpenJob):
            await super().take(sender, key, message, n_bytes)
            return
        if message.party is not self.role:
            raise ProtocolError(
                f"the coordinator called the {self.role} as {message.party}: correct `peers.{message.party}` in the "
                "coordinator's configuration"
            )
        async with self._beginning:
            self._check_goes_on()
            if key in self._ended:
                await super().take(sender, key, message, n_bytes)
            elif self._find_running(key) is None:
                try:
                    await self._open(key, message)
                except TrilateralError as error:
                    log.warning("job %s: refused: %s", key.name, error)
                    raise

    async def go_on(self) -> None:
        """Ask the coordinator about the jobs that had not ended when the process before this one did.

        Those that go on it offers again by itself. Of those that have ended meanwhile this party hears by this alone.
        """
        for record in self.journal.all():
            if record.state is State.RUNNING:
                task = asyncio.create_task(self._ask_after(record), name=f"end of {record.job.name}")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        """See `ProcessJobs.close`."""
        for task in self._asking:
            task.cancel()
        await super().close()

    async def _ask_after(self, record: Record) -> None:
        request = ReportWaitingRequest(job=record.job.name, run_id=record.id)
        route = route_for(self.role, Role.COORDINATOR, Waiting())
        coordinator, limits = self._peers[Role.COORDINATOR], self.config.limits
        try:
            await call_peer(coordinator, self.role, route.path, request, ReportWaitingResponse, limits=limits)
        except EndedError as error:
            log.info("job %s: %s", record.job.name, error)
            await self._mark(record.id, State.STOPPED if str(error).endswith(STOPPED) else State.FAILED, str(error))
        except TrilateralError as error:
            log.debug("job %s: the coordinator does not say that it has ended: %s", record.job.name, error)

    # --- the start

    async def _open(self, key: JobKey, offer: OpenJob) -> None:
        job = offer.job
        job_id, record = await asyncio.to_thread(self._known, key, offer)
        dataset = self._check_policy(job, known=record is not None)
        public_key = await asyncio.to_thread(without_lock, self._check_key, offer)
        caller, what = calling(), {"job": job.name, "run": key.run_id.hex()}
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
            key_bits=public_key.bits,
        )
        await self._replace(job.name)
        folder = self._folder(job)
        history = History(folder, self.role, resumed=record is not None, tell=self._tell_of(key))
        if record is None:
            await asyncio.to_thread(self.journal.add, job_id, job)
        else:
            await asyncio.to_thread(self.journal.mark, job_id, State.RUNNING)
        place = PartyPlace(self.journal, self.role, key, job_id, record)
        data: PartyData | None = None

        async def begin() -> Machine:
            nonlocal data
            try:
                table = await self._read(runner, dataset, job, place)
                data = await runner.in_thread(self._prepare, table, dataset, job)
                await runner.in_thread(place.check_columns, data.block.columns)
                check_holdout(job, self.config.policy, len(data.block.holdout_columns), self.role)
                if not place.has_counted_scores:
                    await runner.in_thread(self._take_scores, job, data)
                    await runner.in_thread(place.keep_counted_scores)
            except PolicyError as error:
                self.audit.refused(caller, "OpenJob", str(error), **what)
                raise
            machine = await runner.in_thread(self._make_machine, job, data, public_key, phase=history.stopwatch.phase)
            await runner.in_thread(place.restore, machine, history)
            return machine

        async def observe(message: Message) -> None:
            if isinstance(message, StepTaken | Evaluated):
                await runner.in_thread(place.keep, message)
            elif isinstance(message, Result) and data is not None:
                run_id = key.run_id.hex()
                model = await runner.in_thread(PartyModel.of, self.role, job, data, dataset, message, run_id=run_id)
                with writing(self.role, folder.model):
                    await runner.in_thread(save_model, folder.model, model)
                await runner.in_thread(self.journal.mark, job_id, State.FINISHED)
                log.info("job %s: model written after %d rounds, loss %.6f", job.name, message.rounds, message.loss)

        runner = MachineRunner(
            self.role, job, key, self._peers, limits=self.config.limits, history=history, observe=observe
        )
        log.info("job %s: opened on dataset %s, %d-bit key", job.name, job.dataset, public_key.bits)

        async def ended(error: TrilateralError | None) -> None:
            if error is not None and not isinstance(error, SuspendedError):
                await self._mark(job_id, State.STOPPED if str(error) == STOPPED else State.FAILED, str(error))

        self._launch(runner, begin, ended)

    def _known(self, key: JobKey, offer: OpenJob) -> tuple[bytes, Record | None]:
        """The job's ID, and what this party has of its earlier sessions if both parties were ready in one."""
        job_id = offer.job_id or key.run_id
        record = self.journal.find(job_id)
        if record is not None and record.job != offer.job:
            raise ProtocolError(
                f"the coordinator has offered the job {record.job.name} with other settings than before"
            )
        if not offer.was_ready:
            return job_id, None
        if record is None:
            raise PeerError(f"the {self.role} has nothing of the job {key.name} in its journal: start it anew")
        return job_id, record

    async def _replace(self, name: str) -> None:
        """End the run of that name which goes on here: the coordinator has one at a time, so it has lost that one."""
        runner = self._running.get(name)
        if runner is not None:
            runner.fail(SuspendedError("the coordinator has begun another session"), told_by=Role.COORDINATOR)
            await asyncio.wait({self._tasks[runner.key]})

    def _check_policy(self, job: JobConfig, *, known: bool) -> DatasetConfig:
        dataset = check_offer(job, self.config, known=known)
        if job.name not in self._running:
            self._check_room()
        return dataset

    def _check_key(self, offer: OpenJob) -> PublicKey:
        try:
            public_key = check_public_key(offer.modulus, self.config.policy.min_key_bits)
        except BadKeyError as error:
            raise BadKeyError(f"the {self.role}: {error}") from error
        if public_key.bits != offer.job.key_bits:
            raise BadKeyError(f"the public key has {public_key.bits} bits where the job says {offer.job.key_bits}")
        return public_key

    async def _read(
        self, runner: MachineRunner, dataset: DatasetConfig, job: JobConfig, place: PartyPlace
    ) -> PartyTable:
        """The party's table, with the rows alone that the other party has too."""
        if job.aligned:
            return await self._read_all(runner, dataset, job, place)
        if place.resumed:
            table = await self._read_all(runner, dataset, job, place)
            with self._naming(dataset):
                return await runner.in_thread(table.select, place.common_rows(len(table.ids)))
        with self._aligner.expect(runner.key) as alignment:
            table = await self._read_all(runner, dataset, job, place)
            try:
                aligned = await alignment.common_rows(table.ids, dataset.id_form, runner.tell_coordinator)
            except PeerError as error:
                # The other may have been restarted. The coordinator finds out, and begins another session.
                raise SuspendedError(str(error)) from error
        await runner.in_thread(place.keep_common_rows, aligned.rows, len(table.ids))
        log.info(
            "job %s: %d rows of the host and %d of the guest have %d IDs in common",
            job.name,
            aligned.n_host,
            aligned.n_guest,
            len(aligned.rows),
        )
        if not len(aligned.rows):
            raise DataError(
                "the host and the guest have no ID in common: compare how both write their IDs, and see `id_form`"
            )
        with self._naming(dataset):
            return await runner.in_thread(table.select, aligned.rows)

    async def _read_all(
        self, runner: MachineRunner, dataset: DatasetConfig, job: JobConfig, place: PartyPlace
    ) -> PartyTable:
        with self._naming(dataset):
            table = await runner.in_thread(read_party_table, dataset, job, labelled=self.role is Role.GUEST)
            await runner.in_thread(place.check_table, table, dataset)
        log.info("job %s: %d rows loaded", job.name, len(table.ids))
        return table

    def _prepare(self, table: PartyTable, dataset: DatasetConfig, job: JobConfig) -> PartyData:
        def check(n_train: int, n_features: int) -> None:
            check_sizes(job, self.config.policy, n_train, n_features, self.role)

        with self._naming(dataset):
            return make_party_data(table, dataset, job, check)

    @contextmanager
    def _naming(self, dataset: DatasetConfig) -> Iterator[None]:
        """Say in an error whose table it is about; what only this organisation may read goes to its log."""
        try:
            yield
        except (ConfigError, DataError) as error:
            for note in notes(error):
                log.warning("%s: %s: %s", dataset.path.name, error, note)
            raise type(error)(f"the {self.role}: {error}") from error

    def _take_scores(self, job: JobConfig, data: PartyData) -> None:
        """Count what the host will give of the hold-out rows, when they are known, and long before they leave."""
        n_scores = holdout_scores(job, len(data.block.holdout_columns), self.role)
        if n_scores:
            left = take_scores(n_scores, self._quota, JOB)
            log.info("%d scores of hold-out rows are counted as given, %d are left today", n_scores, left)

    def _folder(self, job: JobConfig) -> JobFolder:
        return JobFolder(self.config.state, job.name)
