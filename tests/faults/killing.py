"""A real training with three processes, some of which are killed at drawn moments and started again."""

import asyncio
import random
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.cli.client import JobClient
from common.config.job import JobConfig, Sqn
from common.config.process import ProcessConfig
from common.errors import TrilateralError
from common.jobs.states import ENDED
from common.localhost import LocalProcesses
from common.pb.v1.jobs_pb2 import JobStatus
from common.roles import Role
from tests.support.three_processes import write_configs
from tests.support.three_servers import DATASET

JOB = JobConfig(
    name="killed",
    dataset=DATASET,
    key_bits=512,
    algorithm=Sqn(interval=4),
    batch=24,
    epochs=40,
    tolerance=0.0,
    evaluate_every=15,
)
TRIAL_SECONDS = 240.0


class Killable(LocalProcesses):
    """Three servers, any of which can be killed and started again."""

    def __init__(self, configs: Mapping[Role, ProcessConfig], folder: Path) -> None:
        super().__init__(write_configs(configs, folder), {role: folder / f"{role}.log" for role in configs})

    def kill(self, roles: Collection[Role]) -> None:
        """SIGKILL all of them at once, and start them again."""
        for role in roles:
            self._processes[role].send_signal(signal.SIGKILL)
        for role in roles:
            self._processes[role].wait()
            self._processes[role] = self._start(role)


@dataclass
class Trial:
    """What became of one training."""

    status: JobStatus
    faults: list[tuple[int, tuple[Role, ...]]] = field(default_factory=list)
    """The round in which processes were killed, and which."""


def run_trial(
    configs: Mapping[Role, ProcessConfig], folder: Path, job: JobConfig, chance: random.Random, n_faults: int
) -> Trial:
    """Train; kill what `chance` draws, `n_faults` times, and wait for the end.

    Raises:
        AssertionError: the job has not ended in time, or has failed.
    """
    with Killable(configs, folder) as processes:
        try:
            return asyncio.run(_follow(configs[Role.COORDINATOR], processes, job, chance, n_faults))
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{processes.log_tails()}") from error


async def _follow(
    config: ProcessConfig, processes: Killable, job: JobConfig, chance: random.Random, n_faults: int
) -> Trial:
    trial = Trial(JobStatus())
    deadline = time.monotonic() + TRIAL_SECONDS
    async with JobClient(config) as client:
        await client.start(job)
        reached = 0
        while len(trial.faults) < n_faults:
            # One fault in five strikes while the job begins, the others somewhere in a round that is further on.
            due = reached if chance.random() < 0.2 else reached + chance.randint(1, 30)
            status = await _at_round(client, job.name, due, deadline)
            if status.state in ENDED:
                break
            reached = max(reached, status.round)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            roles = tuple(chance.sample(list(Role), chance.choice([1, 1, 2, 3])))
            processes.kill(roles)
            trial.faults.append((status.round, roles))
            await _status(client, job.name, deadline)
        while trial.status.state not in ENDED:
            if time.monotonic() > deadline:
                raise AssertionError(f"still {trial.status.detail!r} in round {trial.status.round}: {trial.faults}")
            await asyncio.sleep(0.1)
            trial.status = await _status(client, job.name, deadline)
    return trial


async def _at_round(client: JobClient, job: str, due: int, deadline: float) -> JobStatus:
    """As soon as that round has begun, or the job has ended."""
    while True:
        status = await _status(client, job, deadline)
        if status.round >= due or status.state in ENDED:
            return status
        if time.monotonic() > deadline:
            raise AssertionError(f"{status.detail!r} in round {status.round}, where {due} was due")
        await asyncio.sleep(0.02)


async def _status(client: JobClient, job: str, deadline: float) -> JobStatus:
    """As soon as the coordinator answers."""
    while True:
        try:
            return await client.status(job)
        except TrilateralError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
