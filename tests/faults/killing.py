"""A training with three real processes that are killed, stopped, and frozen at random moments."""

import asyncio
import random
import signal
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.support.forked import ForkedProcesses
from tests.support.three_processes import write_configs
from tests.support.three_servers import DATASET, Protocol, check_model, make_configs, under, write_tables
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sqn
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.journal import JOURNAL
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED, JobStatus
from trilateral.common.process.job_client import JobClient

JOB = JobConfig(
    name="killed",
    dataset=DATASET,
    key_bits=512,
    algorithm=Sqn(interval=4),
    batch=24,
    epochs=14,
    tolerance=0.0,
    evaluate_every=4,
)
JOBS = {"paillier": JOB, "shares": under("shares", JOB.model_copy(update={"epochs": 140, "evaluate_every": 40}))}
"""Rounds on shares are so short that a training needs ten times as many of them for all faults to hit it."""
N_FAULTS = 3
LONGEST_WAIT = {"paillier": 15, "shares": 150}
"""Rounds before a fault."""
TRIAL_SECONDS = 150.0
LONGEST_FREEZE = 3.0
"""In seconds; shorter than the time that peers wait."""


class Way(StrEnum):
    """The kind of a fault."""

    KILLED = "SIGKILL"
    STOPPED = "SIGTERM"
    FROZEN = "SIGSTOP, SIGCONT"


@dataclass(frozen=True)
class Fault:
    """A fault that hits some processes at once."""

    round: int
    way: Way
    roles: tuple[Role, ...]

    def __str__(self) -> str:
        return f"{self.way} of {' and '.join(sorted(self.roles))}"


@dataclass
class Trial:
    """The course of one training."""

    faults: list[Fault] = field(default_factory=list)
    status: JobStatus = field(default_factory=JobStatus)
    n_repeated: int = 0
    """How many times a round began again."""

    @property
    def n_recoveries(self) -> int:
        """The number of sessions after the first."""
        return sum("another session" in note for note in self.status.notes)


class Victims(ForkedProcesses):
    """Three servers that faults can hit."""

    def __init__(self, configs: Mapping[Role, ProcessConfig], folder: Path) -> None:
        super().__init__(write_configs(configs, folder), {role: folder / f"{role}.log" for role in configs})

    async def strike(self, fault: Fault, chance: random.Random) -> None:
        """Apply the fault, and restart processes that end."""
        if fault.way is Way.FROZEN:
            self._signal(fault.roles, signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(0.1, LONGEST_FREEZE))
            self._signal(fault.roles, signal.SIGCONT)
            return
        number = signal.SIGKILL if fault.way is Way.KILLED else signal.SIGTERM
        self._signal(fault.roles, number)
        # A process that has just started does not handle SIGTERM yet, so the signal kills it.
        codes = {-number} if fault.way is Way.KILLED else {0, -number}
        for role in fault.roles:
            code = await asyncio.to_thread(self._processes[role].wait, 30)
            assert code in codes, f"the {role} ended with {code}"
            self._processes[role] = self._start(role)

    def _signal(self, roles: Sequence[Role], number: int) -> None:
        for role in roles:
            self._processes[role].send_signal(number)


def run_trial(seed: int, folder: Path, protocol: Protocol = "paillier") -> Trial:
    """Train on synthetic tables with `N_FAULTS` random faults, and check the model at the end.

    Raises:
        AssertionError: The model is wrong, or the job did not end in time.
    """
    write_tables(folder)
    configs = make_configs(folder, peer_timeout=10)
    with Victims(configs, folder) as processes:
        try:
            trial = asyncio.run(_follow(configs[Role.COORDINATOR], processes, random.Random(seed), protocol))
            assert trial.status.state == JOB_STATE_FINISHED, trial.status.detail
        except (AssertionError, TimeoutError, TrilateralError) as error:
            raise AssertionError(f"{error}\n{processes.log_tails()}") from error
    check_model(configs, JOBS[protocol])
    trial.n_repeated = max(_count_repeated(configs[party].state / JOURNAL) for party in PARTIES)
    return trial


async def _follow(config: ProcessConfig, processes: Victims, chance: random.Random, protocol: Protocol) -> Trial:
    trial = Trial()
    deadline = time.monotonic() + TRIAL_SECONDS
    async with JobClient(config) as client:
        await client.start(JOBS[protocol])
        reached = 0
        while len(trial.faults) < N_FAULTS:
            # One fault in five hits at the beginning of a job or session, the others hit in a later round.
            due = reached if chance.random() < 0.2 else reached + chance.randint(1, LONGEST_WAIT[protocol])
            status = await _at_round(client, due, deadline)
            if status.state in ENDED:
                break
            reached = max(reached, status.round)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            roles = tuple(chance.sample(list(Role), chance.choice([1, 1, 2, 3])))
            fault = Fault(status.round, chance.choice(list(Way)), roles)
            trial.faults.append(fault)
            await processes.strike(fault, chance)
        while trial.status.state not in ENDED:
            if time.monotonic() > deadline:
                raise AssertionError(f"still {trial.status.detail!r} in round {trial.status.round}: {trial.faults}")
            await asyncio.sleep(0.1)
            trial.status = await _status(client, deadline)
    return trial


async def _at_round(client: JobClient, due: int, deadline: float) -> JobStatus:
    """Wait until the round begins or the job ends; return the status."""
    while True:
        status = await _status(client, deadline)
        if status.round >= due or status.state in ENDED:
            return status
        if time.monotonic() > deadline:
            raise AssertionError(f"{status.detail!r} in round {status.round}, where {due} was due")
        await asyncio.sleep(0.02)


async def _status(client: JobClient, deadline: float) -> JobStatus:
    """Return the status as soon as the coordinator answers."""
    while True:
        try:
            return await client.status(JOB.name)
        except TrilateralError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _count_repeated(journal: Path) -> int:
    with closing(sqlite3.connect(journal)) as database:
        (count,) = database.execute("SELECT coalesce(sum(begun - 1), 0) FROM round").fetchone()
        return int(count)
