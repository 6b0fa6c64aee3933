"""Three real processes on an unreliable network: on separate hosts, or behind proxies that cut connections."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.forked import ForkedProcesses
from tests.support.tcp_proxy import Cut, DrawCut, TcpProxy, connect_to
from tests.support.three_hosts import ProcessesOnWan, addresses_on
from tests.support.three_processes import write_configs
from tests.support.three_servers import make_configs, write_tables
from tests.support.wan import Line, Wan
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED, JobStatus
from trilateral.common.process.job_client import JobClient
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.localhost import LocalProcesses

GOOD_LINE = Line(delay=0.01)
"""Gives a round trip of 40 ms between any two hosts."""
TRIAL_SECONDS = 170.0

Action = Callable[[], Awaitable[None]]


@dataclass
class Network:
    """Three running processes, and their configurations."""

    configs: dict[Role, ProcessConfig]
    operator: ProcessConfig
    """Configuration with which this process calls the coordinator, outside the unreliable network."""
    processes: LocalProcesses

    def train(self, job: JobConfig, actions: Sequence[tuple[int, Action]] = ()) -> JobStatus:
        """Train to the end, and run each action in turn when its round begins.

        Raises:
            AssertionError: The job did not finish in time.
        """
        status = asyncio.run(self._train(job, actions))
        assert status.state == JOB_STATE_FINISHED, f"{status.detail}\n{self.processes.log_tails()}"
        return status

    async def _train(self, job: JobConfig, actions: Sequence[tuple[int, Action]]) -> JobStatus:
        async with asyncio.timeout(TRIAL_SECONDS), JobClient(self.operator) as client:
            await client.start(job)
            for due, act in actions:
                status = await reach(client, job.name, due)
                assert status.state not in ENDED, f"round {due} was due: {status.detail}"
                await act()
            return await end_of(client, job.name)

    def ends(self, job: str) -> dict[Role, dict[str, Any]]:
        """Return the last entry about the end of a job in each audit log that has one."""
        ends = {}
        for role, config in self.configs.items():
            for line in (config.state / "audit.jsonl").read_text().splitlines():
                event = json.loads(line)
                if event["decision"] == "ended" and event["job"] == job:
                    ends[role] = event
        return ends


async def reach(client: JobClient, job: str, due: int) -> JobStatus:
    """Wait until the round begins or the job ends; return the status."""
    async for status in client.watch(job):
        if status.round >= due:
            break
    return status


async def end_of(client: JobClient, job: str) -> JobStatus:
    """Wait until a job ends; return its last status, with all notes."""
    async for _ in client.watch(job):
        pass
    return await client.status(job)


@contextmanager
def on_wan(wan: Wan, folder: Path, *, peer_timeout: float) -> Iterator[Network]:
    """Run the three processes on their hosts, with certificates and tables in `folder`."""
    write_tables(folder)
    certificates = write_development_files(folder / "certificates").folder
    configs = make_configs(folder, addresses=addresses_on(wan), certificates=certificates, peer_timeout=peer_timeout)
    with ProcessesOnWan(wan, configs, folder) as processes:
        yield Network(configs, processes.operator(), processes)


@contextmanager
def behind_proxies(
    folder: Path, draw_cut: DrawCut, *, peer_timeout: float
) -> Iterator[tuple[Network, dict[Role, TcpProxy]]]:
    """Run the three processes on this machine, connected through proxies."""
    write_tables(folder)
    configs = make_configs(folder, peer_timeout=peer_timeout)
    with ExitStack() as stack:
        proxies = {
            role: stack.enter_context(TcpProxy(connect_to(config.listen), draw_cut)) for role, config in configs.items()
        }
        paths = write_configs(_reached_by(configs, proxies), folder)
        logs = {role: folder / f"{role}.log" for role in configs}
        processes = stack.enter_context(ForkedProcesses(paths, logs))
        yield Network(configs, configs[Role.COORDINATOR], processes), proxies


def _reached_by(configs: Mapping[Role, ProcessConfig], proxies: Mapping[Role, TcpProxy]) -> dict[Role, ProcessConfig]:
    """Return the configurations with the addresses of the proxies as those of the peers."""
    return {
        role: config.model_copy(
            update={
                "peers": {
                    other: peer.model_copy(update={"address": proxies[other].address})
                    for other, peer in config.peers.items()
                }
            }
        )
        for role, config in configs.items()
    }


def partition(wan: Wan, seconds: float, *hosts: str) -> Action:
    """Return an action that disconnects these hosts, or all hosts, from each other for some seconds."""

    async def act() -> None:
        await asyncio.to_thread(wan.cut, *hosts)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(wan.heal)

    return act


def deck_of_cuts(chance: random.Random, cuts: Sequence[Cut], mean_bytes: float) -> DrawCut:
    """Return cuts for new connections: each of `cuts` once, in random order, and then none."""
    left = list(cuts)
    chance.shuffle(left)
    return lambda: (left.pop(), int(chance.expovariate(1 / mean_bytes))) if left else None
