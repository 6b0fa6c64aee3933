"""Run many jobs in the same three processes, which must not grow.

python -m tests.faults.soak JOBS [--protocol paillier|shares]
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.three_processes import write_configs
from tests.support.three_servers import DATASET, PROTOCOLS, Protocol, make_configs, under, write_tables
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sgd, Sqn
from trilateral.common.config.process import MetricsConfig, ProcessConfig
from trilateral.common.jobs.states import ENDED
from trilateral.common.pb.v1.jobs_pb2 import JobState, JobStatus
from trilateral.common.process.job_client import JobClient
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.localhost import LocalProcesses, free_addresses

MAX_GROWTH = 0.04
"""Accepted growth from the first tenth of the jobs to the end, as a share."""
TENTHS = 10
STOPPED_IN_ROUND = 3
JOB_SECONDS = 120.0

JOB = JobConfig(name="any", dataset=DATASET, key_bits=512, algorithm=Sqn(interval=4), batch=24, epochs=3, tolerance=0.0)
KINDS = (
    JOB,
    JOB.model_copy(update={"algorithm": Lbfgs(), "batch": "all", "epochs": 8}),
    JOB.model_copy(update={"name": "stopped"}),
    JOB.model_copy(update={"evaluate_every": 1}),
    JOB.model_copy(update={"dataset": "absent"}),  # fails: both parties refuse it
    JOB.model_copy(update={"algorithm": Sgd()}),
    JOB.model_copy(update={"epochs": 20}),
    JOB.model_copy(update={"algorithm": Sgd(learning_rate=1e6)}),  # fails: the training diverges
    JOB.model_copy(update={"aligned": True}),
    JOB.model_copy(update={"slots": 1}),
)


@dataclass(frozen=True)
class Size:
    """The resources that a process uses."""

    resident: int
    """In bytes."""
    descriptors: int

    @classmethod
    def of(cls, address: str) -> "Size":
        """Ask a running process at the address of its metrics: no other user may look at its open files."""
        with urllib.request.urlopen(f"http://{address}/metrics") as page:
            lines = (line.decode().split() for line in page)
            figures = {words[0]: float(words[1]) for words in lines if words[0].startswith("process_")}
        return cls(int(figures["process_resident_memory_bytes"]), int(figures["process_open_fds"]))

    def grown_since(self, before: "Size") -> float:
        """Return the growth of memory or of descriptors, whichever is larger, as a share."""
        return max(self.resident / before.resident, self.descriptors / before.descriptors) - 1


async def run_job(config: ProcessConfig, job: JobConfig, *, stop: bool) -> JobStatus:
    """Run a job to its end, or stop it midway. Each job has its own client, as a command has."""
    async with asyncio.timeout(JOB_SECONDS), JobClient(config) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            if stop and status.round >= STOPPED_IN_ROUND and status.state not in ENDED:
                await client.stop(job.name)
                stop = False
        return status


async def soak(
    config: ProcessConfig, metrics: Mapping[Role, str], n_jobs: int, protocol: Protocol
) -> dict[Role, list[Size]]:
    """Run jobs; return the size of each process after each tenth of the jobs."""
    ends: Counter[str] = Counter()
    n_rounds = 0
    sizes: dict[Role, list[Size]] = {role: [] for role in Role}
    print(" jobs  rounds" + "".join(f"  {role:>11} MiB files" for role in Role))
    for number in range(n_jobs):
        kind = KINDS[number % len(KINDS)]
        job = under(protocol, kind.model_copy(update={"name": f"{kind.name}-{number}"}))
        status = await run_job(config, job, stop=kind.name == "stopped")
        ends[JobState.Name(status.state).removeprefix("JOB_STATE_").lower()] += 1
        n_rounds += status.round
        if (number + 1) % (n_jobs // TENTHS) == 0:
            gc.collect()  # gRPC closes the connections of this program's clients when their objects go.
            for role, address in metrics.items():
                sizes[role].append(await asyncio.to_thread(Size.of, address))
            row = "".join(f"  {each[-1].resident / 2**20:15.1f} {each[-1].descriptors:5}" for each in sizes.values())
            print(f"{number + 1:5} {n_rounds:7}{row}", flush=True)
    print(f"{n_jobs} jobs, {n_rounds} rounds: {dict(ends)}")
    return sizes


def main(n_jobs: int, protocol: Protocol) -> int:
    """Return how many of the three processes grew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder)
        certificates = write_development_files(folder / "certificates").folder
        configs = make_configs(folder, certificates=certificates, peer_timeout=60)
        metrics = free_addresses()
        configs = {
            role: config.model_copy(update={"metrics": MetricsConfig(listen=metrics[role])})
            for role, config in configs.items()
        }
        logs = {role: folder / f"{role}.log" for role in configs}
        with LocalProcesses(write_configs(configs, folder), logs) as processes:
            try:
                sizes = asyncio.run(soak(configs[Role.GUEST], metrics, n_jobs, protocol))
            except (TrilateralError, TimeoutError):
                print(processes.log_tails())
                raise
    growth = {role: each[-1].grown_since(each[0]) for role, each in sizes.items()}
    for role, share in growth.items():
        print(f"{role}: {share:+.1%} since the first tenth, {'too much' if share > MAX_GROWTH else 'flat'}")
    return sum(share > MAX_GROWTH for share in growth.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=int)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paillier", help="default: paillier")
    arguments = parser.parse_args()
    sys.exit(main(arguments.jobs, arguments.protocol) > 0)
