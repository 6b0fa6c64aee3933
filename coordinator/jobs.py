"""The coordinator's jobs: how an operator starts, stops and resumes them, and the sessions in which they run."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping

from trilateral.common.base.errors import (
    ConfigError,
    PeerError,
    ProtocolError,
    StoppedError,
    SuspendedError,
    TrilateralError,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history import History
from trilateral.common.jobs.process_jobs import MAX_ENDED, ProcessJobs, ended_error
from trilateral.common.jobs.runner import MachineRecord, MachineRunner
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.logs import LogContext
from trilateral.common.paillier.factory import make_decryptor
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.protocol.messages import Began, Machine, Message, ObservationRecord, Waiting
from trilateral.common.protocol.phases import Phase
from trilateral.common.rpc.access import calling
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.errors import NameTakenError, UnknownJobError
from trilateral.coordinator.bins import BinsCoordinator
from trilateral.coordinator.computation import Offer
from trilateral.coordinator.job import Job
from trilateral.coordinator.job_record import JobRecord, missing, status_fact
from trilateral.coordinator.machine import CoordinatorMachine
from trilateral.coordinator.paillier.computation import PaillierOffer
from trilateral.coordinator.shares.computation import SharesOffer

log = logging.getLogger(__name__)

MAX_FRUITLESS = 100
"""A job fails after this many sessions in a row that were shorter than a peer timeout and made no progress."""


class CoordinatorJobs(ProcessJobs):
    """The coordinator's jobs: the running ones, and the last `MAX_ENDED` that have ended.

    Args:
        config: the configuration of this process.
        audit: records each decision.
        peers: the two parties.
    """

    def __init__(self, config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer]) -> None:
        super().__init__(config, audit)
        self._peers = self.metrics.peers = peers
        self._jobs: dict[str, Job] = {}
        self._unfinished: list[JobConfig] = []
        """Jobs of the previous process that had not ended, until `go_on` continues them."""

    def open(self) -> None:
        """Open the journal, and list the jobs of earlier processes; see `ProcessJobs.open`."""
        super().open()
        records = self.journal.all()
        self._jobs |= {record.job.name: Job.from_record(record) for record in records}
        self._unfinished = [record.job for record in records if not self._jobs[record.job.name].ended.is_set()]
        self._forget_oldest()

    async def go_on(self) -> None:
        """Continue the jobs that had not ended when the previous process ended."""
        while self._unfinished:
            config = self._unfinished.pop(0)
            await self._begin_session(self._jobs[config.name], config, "the coordinator was restarted")

    async def close(self) -> None:
        """End all watches, and suspend every job; see `ProcessJobs.close`."""
        for job in self._jobs.values():
            job.leave()
        await super().close()

    async def dispatch(self, sender: Role, key: JobKey, message: Message, n_bytes: int) -> None:
        """Pass a message to its job; see `ProcessJobs.dispatch`.

        A party that was away when a job ended learns that from the answer when it asks whether the job still exists.
        """
        job = self._jobs.get(key.name)
        if isinstance(message, Waiting) and job is not None and job.ended.is_set() and job.error is not None:
            raise ended_error(job.error, self.role)
        await super().dispatch(sender, key, message, n_bytes)

    # --- what an operator asks for

    def find(self, name: str) -> Job:
        """Return the job of that name.

        Raises:
            UnknownJobError: there is no such job.
        """
        if name not in self._jobs:
            raise UnknownJobError(f"the coordinator has no job named {name}: see `trilateral status --config FILE`")
        return self._jobs[name]

    def all(self) -> Iterable[Job]:
        """Return every job, in the order in which they were started."""
        return self._jobs.values()

    async def start(self, config: JobConfig) -> None:
        """Start a job. Its status shows later whether both parties accept it.

        Args:
            config: the job's settings.

        Raises:
            NameTakenError: the job's name is in use.
            PolicyError: too many jobs run.
            ConfigError: the state folder or the audit log cannot be written.
        """
        folder = JobFolder(self.config.state, config.name)
        async with self._beginning:
            self._check_not_closing()
            known = self._jobs.get(config.name)
            if folder.history.exists() or (known is not None and not known.ended.is_set()):
                raise NameTakenError(f"the coordinator already has a job named {config.name}: choose another name")
            self._check_room()
            key = JobKey.draw(config.name)
            self.audit.allowed(calling(), "StartJob", job=config.name, run=key.run_id.hex(), dataset=config.dataset)
            history = History(folder, self.role, on_event=self._observer_of(key))
            await asyncio.to_thread(self.journal.add, key.run_id, config)
            with LogContext(config.name).current():
                log.info("job %s: started, protocol %s, algorithm %s", config.name, *_described(config))
            self._launch_session(self._add(Job(config, key.run_id)), config, key, history)

    async def resume(self, name: str) -> None:
        """Resume a job that was stopped or has failed, in the round that it had reached.

        Args:
            name: the name of the job.

        Raises:
            UnknownJobError: there is no such job.
            ProtocolError: the job runs, or has finished.
            PolicyError: too many jobs run.
            ConfigError: the state folder or the audit log cannot be written.
        """
        async with self._beginning:
            self._check_not_closing()
            ended = self.find(name)
            if not ended.ended.is_set():
                raise ProtocolError(f"the job {name} is still running: wait until it has ended, or stop it")
            if ended.error is None:
                raise ProtocolError(f"the job {name} has finished: start a job with another name")
            record = await asyncio.to_thread(self.journal.find, ended.id)
            if record is None:
                raise UnknownJobError(str(missing(name)))
            self._check_room()
            self.audit.allowed(calling(), "ResumeJob", job=name, run=ended.id.hex())
            await asyncio.to_thread(self.journal.set_running, ended.id)
            job = self._add(Job(record.job, record.id, ended.status()))
            await self._begin_session(job, record.job, "resumed by the operator")

    async def stop(self, name: str) -> None:
        """Stop a job without a model; return once the parties have been told.

        Args:
            name: the name of the job.

        Raises:
            UnknownJobError: there is no such job.
            ProtocolError: the job has ended, or is about to finish.
            ConfigError: the audit log cannot be written.
        """
        job = self.find(name)
        if job.ended.is_set() or name not in self._running:
            raise ProtocolError(f"the job {name} has ended already")
        if job.finishing:
            raise ProtocolError(f"the job {name} is finishing: it is too late to stop it")
        self.audit.allowed(calling(), "StopJob", job=name, run=self._running[name].key.run_id.hex())
        job.stopping = True
        self._running[name].fail(_stopped())
        await job.ended.wait()

    def _add(self, job: Job) -> Job:
        """Put a job at the end of the list, and remove any other job of its name."""
        self._jobs.pop(job.name, None)
        self._jobs[job.name] = job
        self._forget_oldest()
        return job

    def _forget_oldest(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.ended.is_set()]
        for name in ended[:-MAX_ENDED]:
            del self._jobs[name]

    # --- sessions

    async def _begin_session(self, job: Job, config: JobConfig, why: str) -> None:
        """Begin a session that is not the job's first."""
        name = job.name
        job.begin_session(why)
        with LogContext(name).current():
            log.info("job %s: continues in another session: %s", name, why)
        key = JobKey.draw(name)
        try:
            folder = JobFolder(self.config.state, name)
            history = History(folder, self.role, resumed=True, on_event=self._observer_of(key))
        except ConfigError as error:
            await self._end(job, error)
        else:
            self._launch_session(job, config, key, history)

    def _launch_session(self, job: Job, config: JobConfig, key: JobKey, history: History) -> None:
        is_first, begun_at = key.run_id == job.id, time.monotonic()
        record = JobRecord(self.journal, job.id, config.name)

        def on_record(message: MachineRecord) -> None:
            if isinstance(message, Began | ObservationRecord):
                job.fruitless = 0
                # The next question must not leave before: from another observation might follow another question.
                record.write(message, job.status())

        async def on_end(error: TrilateralError | None) -> None:
            if not isinstance(error, SuspendedError):
                await self._end(job, error)
            elif job.stopping:
                await self._end(job, _stopped())
            elif not self._closing:
                is_short = time.monotonic() - begun_at < self.config.limits.peer_timeout
                job.fruitless = job.fruitless + 1 if is_short else 0
                if job.fruitless < MAX_FRUITLESS:
                    await self._begin_session(job, config, str(error))
                else:
                    await self._end(job, PeerError(f"{MAX_FRUITLESS} sessions in a row made no progress: {error}"))

        runner = MachineRunner(
            self.role,
            config,
            key,
            self._peers,
            limits=self.config.limits,
            history=history,
            on_message=job.on_message,
            on_record=on_record,
            on_wait=job.on_wait,
            on_stage=job.on_stage,
        )

        async def begin() -> Machine:
            phase = history.stopwatch.phase
            offer = await runner.in_thread(_make_offer, config, phase)
            past = None if is_first else await runner.in_thread(record.past)
            job.update(detail="offering the job to both parties")
            if config.task == "bins":
                return BinsCoordinator(config, offer, job_id=b"" if is_first else job.id)
            return CoordinatorMachine(config, offer, phase=phase, past=past)

        self._launch(runner, begin, on_end)

    async def _end(self, job: Job, error: TrilateralError | None) -> None:
        await self._set_outcome(job.id, error, status_fact(job.last_status(error)))
        job.end(error)


def _make_offer(config: JobConfig, phase: Phase) -> Offer:
    """Draw what one session of a job needs: the seeds of its streams, or a private key, which takes a while."""
    if config.protocol == "shares":
        return SharesOffer(config, phase=phase)
    private_key = generate_private_key(config.key_bits)
    return PaillierOffer(config, make_decryptor(config.cipher, private_key), phase=phase)


def _described(config: JobConfig) -> tuple[str, str]:
    protocol = f"paillier with a {config.key_bits}-bit key" if config.protocol == "paillier" else config.protocol
    return protocol, config.algorithm.name


def _stopped() -> StoppedError:
    return StoppedError("stopped by the operator")
