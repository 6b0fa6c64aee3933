"""The coordinator's jobs: what an operator can start, watch and stop."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self

import numpy as np

from trilateral.common.base.errors import ConfigError, PeerError, ProtocolError, SuspendedError, TrilateralError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history import History
from trilateral.common.jobs.journal import Record, State
from trilateral.common.jobs.process_jobs import MAX_ENDED, STOPPED, ProcessJobs
from trilateral.common.jobs.runner import MachineRunner
from trilateral.common.jobs.states import ENDED
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.logs import Place
from trilateral.common.paillier.factory import make_decryptor
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STARTING,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobStatus,
)
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.messages import (
    Began,
    BeginRound,
    Evaluation,
    Failed,
    FinishJob,
    JobEnded,
    Machine,
    Message,
    ObservationRecord,
    OpenJob,
    Ready,
    RoundReport,
    Waiting,
)
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.calls import Silence
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import EndedError, NameTakenError, UnknownJobError
from trilateral.coordinator.machine import CoordinatorMachine, Past
from trilateral.coordinator.plan import Observation

log = logging.getLogger(__name__)

MAX_FRUITLESS = 100
"""Sessions of a job in a row that come no further and end within a peer timeout, before it is given up."""
VECTORS = ("gradient", "curvature")
STATUS = "status"
"""The fact under which the journal has a job's last status."""


class Job:
    """What is known of one job, for people.

    Args:
        config: its settings.
        job_id: run ID of its first session.
        known: its status as an earlier process wrote it down.
    """

    def __init__(self, config: JobConfig, job_id: bytes, known: JobStatus | None = None) -> None:
        self.config = config
        self.id = job_id
        self.fruitless = 0
        """Sessions in a row that ended soon and came no further than the one before."""
        self.ended = asyncio.Event()
        self.error: TrilateralError | None = None
        self.stopped = False
        self.finishing = False
        """The parties may have their models already, so there is no way back."""
        self._status = known or JobStatus(job=config.name, n_epochs=config.epochs)
        self._seconds = self._status.seconds
        self.begin_session()
        self._left = False
        self._waiting: dict[Role, str] = {}
        self._aligned = False
        self._started = time.monotonic()
        self._changed = asyncio.Event()

    @classmethod
    def of_record(cls, record: Record) -> Self:
        """As the journal has it."""
        known = None
        if STATUS in record.facts:
            known = JobStatus.FromString(record.facts[STATUS])
        job = cls(record.job, record.id, known)
        if record.state is not State.RUNNING:
            job.stopped = record.state is State.STOPPED
            job.end(None if record.state is State.FINISHED else PeerError(record.reason))
        return job

    def begin_session(self, why: str | None = None) -> None:
        """A session begins; `why`, if it is not the first."""
        self._status.state, self._status.detail = JOB_STATE_STARTING, "making the job's key"
        self._n_opened = self._n_caught_up = 0
        if why is not None:
            self._status.notes.append(f"goes on in another session: {why}")

    def leave(self) -> None:
        """The process stops, and the job goes on when it is started again: nobody can watch it meanwhile."""
        self._left = True
        self.show()

    def status(self, n_known_notes: int | None = 0) -> JobStatus:
        """What the job is doing now, with the notes that are not known yet; None leaves them all out."""
        status = JobStatus()
        status.CopyFrom(self._status)
        del status.notes[:n_known_notes]
        if not self.ended.is_set():
            status.seconds = self._seconds + time.monotonic() - self._started
            status.detail = "; ".join(self._waiting.values()) or status.detail
        return status

    async def watch(self) -> AsyncIterator[JobStatus]:
        """The status now and whenever it has changed, until the job ends.

        Whoever is slow to ask for the next gets the newest: nothing is queued for a watcher.
        """
        n_notes = 0
        while True:
            changed = self._changed
            status = self.status(n_notes)
            n_notes += len(status.notes)
            yield status
            if status.state in ENDED or self._left:
                return
            await changed.wait()

    def show(self, **fields: Any) -> None:
        """Change fields of the status, and wake whoever watches."""
        for name, value in fields.items():
            setattr(self._status, name, value)
        self._changed.set()
        self._changed = asyncio.Event()

    def wait_for(self, peer: Peer, silence: Silence | None) -> None:
        """A peer has not answered for a while, or has again."""
        self._waiting.pop(peer.role, None)
        if silence is not None:
            self._waiting[peer.role] = str(silence)
        self.show()

    async def observe(self, message: Message) -> None:
        """Follow what the state machine says."""
        match message:
            case OpenJob():
                self._n_opened += 1
                if self._n_opened == len(PARTIES):
                    self.show(detail="the parties read their tables")
            case AlignmentProgress() if self._status.state == JOB_STATE_STARTING:
                counts = f"the host has {message.n_host:,} rows, the guest {message.n_guest:,}"
                if message.done < message.n_shards:
                    self.show(
                        detail=f"the parties look for their common rows: {message.done} of {message.n_shards} parts, "
                        f"{message.n_common:,} found; {counts}"
                    )
                elif not self._aligned:
                    self._aligned = True
                    self._status.notes.append(f"{counts}, and {message.n_common:,} are common")
                    self.show(detail="the parties prove their IDs to each other")
            case BeginRound(key=key, over=True):
                self._n_caught_up += 1
                self.show(detail=f"bringing a party whose journal is behind past round {key.round}")
            case BeginRound(key=key) if (key.round, key.attempt) != (self._status.round, self._status.attempt):
                if self._n_caught_up:
                    self._status.notes.append(
                        f"round {key.round}: a journal was behind, and {self._n_caught_up} steps were sent again"
                    )
                    self._n_caught_up = 0
                if key.attempt > 1:
                    self._status.notes.append(f"round {key.round} was begun again, attempt {key.attempt}")
                self.show(state=JOB_STATE_TRAINING, detail="training", round=key.round, attempt=key.attempt)
            case RoundReport():
                if message.note:
                    self._status.notes.append(f"round {message.key.round}: {message.note}")
                if message.loss is not None:
                    self._status.loss = message.loss
                if message.evaluation is not None:
                    self._status.notes.append(_described(message.evaluation, message.epoch - 1))
                if not message.loss_only:  # which is of the whole training set, not of a batch
                    self._status.batch = message.batch
                self.show(epoch=message.epoch, n_batches=message.n_batches)
            case FinishJob():
                self.finishing = True
                self.show(detail="the parties keep their parts of the model")
            case Failed():  # `end` shows why.
                self._waiting.clear()
                self.show(detail=f"telling the others that the job {'was stopped' if self.stopped else 'has failed'}")
            case JobEnded(loss=float(loss)):  # `end` shows it.
                self._status.detail, self._status.epoch, self._status.loss = message.reason, message.epochs, loss

    def last_status(self, error: TrilateralError | None) -> JobStatus:
        """What the status will be once the job has ended; what is to be written down before anyone hears of it."""
        status = JobStatus()
        status.CopyFrom(self._status)
        status.seconds = self._seconds + time.monotonic() - self._started
        status.state = JOB_STATE_FINISHED
        if error is not None:
            status.state = JOB_STATE_STOPPED if self.stopped else JOB_STATE_FAILED
            status.detail = str(error)
        return status

    def end(self, error: TrilateralError | None) -> None:
        """The job is over."""
        self._status, self.error = self.last_status(error), error
        self.ended.set()
        self.show()


def _described(evaluation: Evaluation, epochs: int) -> str:
    auc = "" if evaluation.auc is None else f", AUC {evaluation.auc:.4f}"
    return f"after epoch {epochs}, on the hold-out rows: log loss {evaluation.log_loss:.5g}{auc}"


def _observation(content: bytes) -> Observation | None:
    fields = json.loads(content)
    if fields["loss"] is None:
        return None
    gradient, curvature = (None if fields[name] is None else np.asarray(fields[name]) for name in VECTORS)
    return Observation(fields["loss"], gradient, curvature, fields["holdout_loss"])


class CoordinatorJobs(ProcessJobs):
    """The coordinator's jobs, how to start and stop one, and what became of the last `MAX_ENDED`.

    Args:
        config: of this process.
        audit: takes down each decision.
        peers: the two parties.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer]) -> None:
        super().__init__(config, audit)
        self._peers = self.metrics.peers = peers
        self._jobs: dict[str, Job] = {}

    def open(self) -> None:
        """See `ProcessJobs.open`; what became of the jobs of earlier processes is known from then on."""
        super().open()
        for record in self.journal.all():
            self._jobs[record.job.name] = Job.of_record(record)
        self._forget_oldest()

    async def go_on(self) -> None:
        """Go on with the jobs that had not ended when the process before this one did."""
        for job in list(self._jobs.values()):
            if not job.ended.is_set():
                await self._begin_session(job, "the coordinator was restarted")

    async def close(self) -> None:
        """See `ProcessJobs.close`."""
        for job in self._jobs.values():
            job.leave()
        await super().close()

    async def take(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """See `ProcessJobs.take`; a party that was away when a job ended hears of its end when it asks."""
        job = self._jobs.get(key.name)
        if isinstance(message, Waiting) and job is not None and job.ended.is_set() and job.error is not None:
            raise EndedError(f"the {self.role} has ended the job: {job.error}")
        await super().take(sender, key, message, n_bytes)

    async def start(self, config: JobConfig) -> None:
        """Start a job. Whether both parties take it, its status tells.

        Raises:
            NameTakenError: the job's name is in use.
            PolicyError: too many jobs run.
            ConfigError: the state folder or the audit log cannot be written.
        """
        folder = JobFolder(self.config.state, config.name)
        async with self._beginning:
            self._check_goes_on()
            if config.name in self._running or folder.history.exists():
                raise NameTakenError(f"the coordinator already has a job named {config.name}: choose another name")
            self._check_room()
            key = JobKey.draw(config.name)
            self.audit.allowed(calling(), "StartJob", job=config.name, run=key.run_id.hex(), dataset=config.dataset)
            history = History(folder, self.role, tell=self._tell_of(key))
            await asyncio.to_thread(self.journal.add, key.run_id, config)
            with Place(config.name).current():
                log.info("job %s: starts, %s with a %d-bit key", config.name, config.algorithm.name, config.key_bits)
            self._launch_session(self._place(Job(config, key.run_id)), key, history)

    async def resume(self, name: str) -> None:
        """Take a job that was stopped or has failed up where it was.

        Raises:
            UnknownJobError: there is no such job.
            ProtocolError: it goes on, or has finished.
            PolicyError: too many jobs run.
            ConfigError: the state folder or the audit log cannot be written.
        """
        async with self._beginning:
            self._check_goes_on()
            before = self.find(name)
            if not before.ended.is_set():
                raise ProtocolError(f"the job {name} goes on: watch it")
            if before.error is None:
                raise ProtocolError(f"the job {name} has finished: train under another name")
            record = await asyncio.to_thread(self.journal.find, before.id)
            if record is None:
                raise UnknownJobError(f"the coordinator has nothing of the job {name} in its journal: start it anew")
            self._check_room()
            self.audit.allowed(calling(), "ResumeJob", job=name, run=before.id.hex())
            await asyncio.to_thread(self.journal.mark, before.id, State.RUNNING)
            job = self._place(Job(record.job, record.id, before.status()))
            await self._begin_session(job, "resumed by the operator")

    def _place(self, job: Job) -> Job:
        """Have a job in the list, as the last; another of its name leaves it."""
        self._jobs.pop(job.config.name, None)
        self._jobs[job.config.name] = job
        self._forget_oldest()
        return job

    # --- sessions

    async def _begin_session(self, job: Job, why: str) -> None:
        """Begin a session that is not the first."""
        job.begin_session(why)
        with Place(job.config.name).current():
            log.info("job %s: goes on in another session: %s", job.config.name, why)
        key = JobKey.draw(job.config.name)
        try:
            folder = JobFolder(self.config.state, job.config.name)
            history = History(folder, self.role, resumed=True, tell=self._tell_of(key))
        except ConfigError as error:
            await self._end(job, error)
        else:
            self._launch_session(job, key, history)

    def _launch_session(self, job: Job, key: JobKey, history: History) -> None:
        config, is_first, begun_at = job.config, key.run_id == job.id, time.monotonic()

        async def observe(message: Message) -> None:
            match message:
                case Began() | ObservationRecord():
                    job.fruitless = 0
                    await runner.in_thread(self._keep, job.id, message, job.status().SerializeToString())
                case _:
                    await job.observe(message)

        async def ended(error: TrilateralError | None) -> None:
            if not isinstance(error, SuspendedError) or job.stopped:
                await self._end(job, error)
            elif not self._closing:
                is_short = time.monotonic() - begun_at < self.config.limits.peer_timeout
                job.fruitless = job.fruitless + 1 if is_short else 0
                if job.fruitless < MAX_FRUITLESS:
                    await self._begin_session(job, str(error))
                else:
                    await self._end(job, PeerError(f"{MAX_FRUITLESS} sessions in a row came no further: {error}"))

        runner = MachineRunner(
            self.role,
            config,
            key,
            self._peers,
            limits=self.config.limits,
            history=history,
            observe=observe,
            on_wait=job.wait_for,
        )

        async def begin() -> Machine:
            private_key = await runner.in_thread(generate_private_key, config.key_bits)
            past = None if is_first else await runner.in_thread(self._past, job)
            job.show(detail="offering the job to both parties")
            decryptor = make_decryptor(config.cipher, private_key)
            return CoordinatorMachine(config, decryptor, phase=history.stopwatch.phase, past=past)

        self._launch(runner, begin, ended)

    async def _end(self, job: Job, error: TrilateralError | None) -> None:
        state = State.FINISHED if error is None else State.STOPPED if job.stopped else State.FAILED
        await self._mark(job.id, state, "" if error is None else str(error))
        await self._keep_status(job.id, job.last_status(error))
        job.end(error)

    def _keep(self, job_id: bytes, message: Began | ObservationRecord, status: bytes) -> None:
        self.journal.set_fact(job_id, STATUS, status)
        if isinstance(message, Began):
            for party, ready in message.ready.items():
                sizes = {"n_train": ready.n_train, "n_columns": ready.n_columns}
                self.journal.set_fact(job_id, party, json.dumps(sizes).encode())
            return
        content = {
            "loss": message.loss,
            "gradient": None if message.gradient is None else message.gradient.tolist(),
            "curvature": None if message.curvature is None else message.curvature.tolist(),
            "holdout_loss": message.holdout_loss,
        }
        self.journal.write_round(job_id, message.round, json.dumps(content).encode())

    def _past(self, job: Job) -> Past:
        record = self.journal.find(job.id)
        if record is None:
            raise PeerError(f"the coordinator has nothing of the job {job.config.name} in its journal: start it anew")
        sizes = {party: record.facts[party] for party in PARTIES if party in record.facts}
        if len(sizes) < len(PARTIES):
            return Past(job.id)
        ready = {party: Ready(**json.loads(content)) for party, content in sizes.items()}
        return Past(job.id, ready, [_observation(content) for content in record.rounds.values()])

    def find(self, name: str) -> Job:
        """The job of that name; UnknownJobError if there is none."""
        if name not in self._jobs:
            raise UnknownJobError(
                f"the coordinator knows of no job named {name}: see `trilateral status --config FILE`"
            )
        return self._jobs[name]

    def all(self) -> Iterable[Job]:
        """Every job, in the order in which they were started."""
        return self._jobs.values()

    async def stop(self, name: str) -> None:
        """End a job without a model; returns once the parties have been told."""
        job = self.find(name)
        if job.ended.is_set() or name not in self._running:
            raise ProtocolError(f"the job {name} has ended already")
        if job.finishing:
            raise ProtocolError(f"the job {name} is finishing: it is too late to stop it")
        self.audit.allowed(calling(), "StopJob", job=name, run=self._running[name].key.run_id.hex())
        job.stopped = True
        self._running[name].fail(PeerError(STOPPED))
        await job.ended.wait()

    async def _keep_status(self, job_id: bytes, status: JobStatus) -> None:
        try:
            await asyncio.to_thread(self.journal.set_fact, job_id, STATUS, status.SerializeToString())
        except ConfigError as error:
            log.error("the last status of a job is not written down: %s", error)

    def _forget_oldest(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.ended.is_set()]
        for name in ended[:-MAX_ENDED]:
            del self._jobs[name]
