"""The coordinator's jobs: what an operator can start, watch and stop."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from common.audit import Audit
from common.config.job import JobConfig
from common.config.process import ProcessConfig
from common.data.alignment.aligned import AlignmentProgress
from common.errors import PeerError, ProtocolError, TrilateralError
from common.jobs.folder import JobFolder
from common.jobs.history import History
from common.jobs.process_jobs import MOST_ENDED, STOPPED, ProcessJobs
from common.jobs.runner import MachineRunner
from common.jobs.states import ENDED
from common.paillier.keys import generate_private_key
from common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STARTING,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobStatus,
)
from common.protocol.messages import BeginRound, Evaluation, FinishJob, JobEnded, Machine, Message, OpenJob, RoundReport
from common.roles import PARTIES, Role
from common.rpc.access import calling
from common.rpc.channel import Peer
from common.rpc.codec import JobKey
from common.rpc.errors import NameTakenError, UnknownJobError
from coordinator.machine import CoordinatorMachine

log = logging.getLogger(__name__)


class Job:
    """What is known of one job, for people."""

    def __init__(self, config: JobConfig) -> None:
        self.ended = asyncio.Event()
        self.error: TrilateralError | None = None
        self.stopped = False
        self.finishing = False
        """The parties may have their models already, so there is no way back."""
        self._status = JobStatus(
            job=config.name, state=JOB_STATE_STARTING, detail="making the job's key", n_epochs=config.epochs
        )
        self._waiting: dict[Role, str] = {}
        self._n_opened = 0
        self._aligned = False
        self._started = time.monotonic()
        self._changed = asyncio.Event()

    def status(self, n_known_notes: int | None = 0) -> JobStatus:
        """What the job is doing now, with the notes that are not known yet; None leaves them all out."""
        status = JobStatus()
        status.CopyFrom(self._status)
        del status.notes[:n_known_notes]
        if not self.ended.is_set():
            status.seconds = time.monotonic() - self._started
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
            if status.state in ENDED:
                return
            await changed.wait()

    def show(self, **fields: Any) -> None:
        """Change fields of the status, and wake whoever watches."""
        for name, value in fields.items():
            setattr(self._status, name, value)
        self._changed.set()
        self._changed = asyncio.Event()

    def wait_for(self, peer: Peer, seconds: float | None) -> None:
        """A peer has not answered for some seconds, or has again."""
        self._waiting.pop(peer.role, None)
        if seconds is not None:
            self._waiting[peer.role] = f"waiting for {peer}, which has not answered for {seconds:.0f} s"
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
            case BeginRound(key=key) if (key.round, key.attempt) != (self._status.round, self._status.attempt):
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
            case JobEnded(loss=float(loss)):  # `end` shows it.
                self._status.detail, self._status.epoch, self._status.loss = message.reason, message.epochs, loss

    def end(self, error: TrilateralError | None) -> None:
        """The job is over."""
        self.error = error
        self._status.seconds = time.monotonic() - self._started
        self.ended.set()
        if error is None:
            self.show(state=JOB_STATE_FINISHED)
        else:
            self.show(state=JOB_STATE_STOPPED if self.stopped else JOB_STATE_FAILED, detail=str(error))


def _described(evaluation: Evaluation, epochs: int) -> str:
    auc = "" if evaluation.auc is None else f", AUC {evaluation.auc:.4f}"
    return f"after epoch {epochs}, on the hold-out rows: log loss {evaluation.log_loss:.5g}{auc}"


class CoordinatorJobs(ProcessJobs):
    """The coordinator's jobs, how to start and stop one, and what became of the last `MOST_ENDED`.

    Args:
        config: of this process.
        audit: takes down each decision.
        peers: the two parties.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer]) -> None:
        super().__init__(config, audit)
        self._peers = peers
        self._jobs: dict[str, Job] = {}

    def start(self, config: JobConfig) -> None:
        """Start a job. Whether both parties take it, its status tells.

        Raises:
            NameTakenError: the job's name is in use.
            PolicyError: too many jobs run.
            ConfigError: the state folder or the audit log cannot be written.
        """
        folder = JobFolder(self.config.state, config.name)
        if config.name in self._running or folder.history.exists():
            raise NameTakenError(f"the coordinator already has a job named {config.name}: choose another name")
        self._check_room()
        key = JobKey.draw(config.name)
        self.audit.allowed(calling(), "StartJob", job=config.name, run=key.run_id.hex(), dataset=config.dataset)
        history = History(folder, self.role)
        self._jobs.pop(config.name, None)  # The new one comes last.
        job = self._jobs[config.name] = Job(config)
        self._forget_oldest()
        runner = MachineRunner(
            self.role,
            config,
            key,
            self._peers,
            limits=self.config.limits,
            history=history,
            observe=job.observe,
            on_wait=job.wait_for,
        )

        async def begin() -> Machine:
            private_key = await runner.in_thread(generate_private_key, config.key_bits)
            job.show(detail="offering the job to both parties")
            return CoordinatorMachine(config, private_key, phase=history.stopwatch.phase)

        log.info("job %s: starts, %s with a %d-bit key", config.name, config.algorithm.name, config.key_bits)
        self._launch(runner, begin, job.end)

    def find(self, name: str) -> Job:
        """The job of that name; UnknownJobError if there is none."""
        if name not in self._jobs:
            raise UnknownJobError(f"the coordinator knows of no job named {name}: it forgets them when it is restarted")
        return self._jobs[name]

    def all(self) -> Iterable[Job]:
        """Every job, in the order in which they were started."""
        return self._jobs.values()

    async def stop(self, name: str) -> None:
        """End a job without a model; returns once the parties have been told."""
        job = self.find(name)
        if job.ended.is_set():
            raise ProtocolError(f"the job {name} has ended already")
        if job.finishing:
            raise ProtocolError(f"the job {name} is finishing: it is too late to stop it")
        self.audit.allowed(calling(), "StopJob", job=name, run=self._running[name].key.run_id.hex())
        job.stopped = True
        self._running[name].fail(PeerError(STOPPED))
        await job.ended.wait()

    def _forget_oldest(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.ended.is_set()]
        for name in ended[:-MOST_ENDED]:
            del self._jobs[name]
