"""Training with three processes on this machine, and measuring what it costs."""

import asyncio
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.data.model.model_file import PartyModel, load_model
from trilateral.common.data.party_data import make_block
from trilateral.common.data.tables.table import read_table
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.party_record import read_start
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.messages import Kind
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.localhost import LocalProcesses, free_addresses, process_settings
from trilateral.coordinator.numpy_training import JoinedTable, join

DATASET = "benchmark"
BETWEEN_PARTIES = (Kind.SCORES, Kind.SQUARES, Kind.RESIDUAL, Kind.SCORE_CHANGE, Kind.TOTAL_CHANGE)
TO_COORDINATOR = (Kind.GRADIENT, Kind.LOSS, Kind.CURVATURE)
END_SECONDS = 10.0
"""How long the processes may take to log the end of a job that has finished."""


@dataclass(frozen=True)
class Run:
    """What a finished job has cost."""

    seconds: float
    """From the request to the end of the job, including key generation, loading, and the proof of the IDs."""
    span: tuple[int, int]
    """The same as the times of its beginning and end, by `time.monotonic_ns`."""
    peak_rss_mb: dict[str, float]
    processor_seconds: dict[str, float]
    """Of each process, from the request to the end of the job."""
    sent: dict[str, int]
    """Bytes of all vectors that the processes have sent, those before the first round included, as
    `{"host to guest": n, ...}`."""


@dataclass(frozen=True)
class Training(Run):
    """A finished training: the history of each process, the models of the parties, and the cost."""

    histories: dict[Role, list[dict[str, Any]]]
    models: dict[Role, PartyModel]
    start: FloatVector | None
    """The guest's first weights."""

    @property
    def seconds_rounds(self) -> float:
        """The time in which rounds ran at the coordinator."""
        return math.fsum(
            line["seconds"]["all"] - line["seconds"].get("setup", 0) for line in self.histories[Role.COORDINATOR]
        )

    @property
    def coef(self) -> FloatVector:
        """Weights in training units, those of the host first, shape (n_columns,)."""
        return np.concatenate([self.models[role].training_weights for role in PARTIES])

    def traffic(self, kinds: tuple[Kind, ...], unit: str, rounds: set[int] | None = None) -> int:
        """Return the sum of what both parties sent; `unit` is 'bytes' or 'ciphertexts'."""
        return sum(
            line["sent"].get(kind, {}).get(unit, 0)
            for role in PARTIES
            for line in self.histories[role]
            if rounds is None or line["round"] in rounds
            for kind in kinds
        )


class Setup:
    """Tables and configurations of three processes in one folder, which speak TLS with each other.

    Args:
        folder: Where all files go.
        tables: Tables of both parties, or their files, each with an ID column. The guest's has a column "label" with 0
            and 1.
        preprocessing: Preprocessing settings of both parties.
        processes: Starts the three processes, from their configuration files and the files for their logs.
        party: Further settings of both parties' processes.
    """

    def __init__(
        self,
        folder: Path,
        tables: Mapping[Role, pd.DataFrame | Path],
        preprocessing: dict[str, Any] | None = None,
        processes: Callable[[dict[Role, Path], dict[Role, Path]], LocalProcesses] = LocalProcesses,
        party: Mapping[str, Any] | None = None,
    ) -> None:
        self._make_processes = processes
        addresses = free_addresses()
        certificates = write_development_files(folder / "certificates").folder
        self._configs = {role: folder / f"{role}.yaml" for role in Role}
        self._logs = {role: folder / f"{role}.log" for role in Role}
        for role in Role:
            config = process_settings(role, addresses, certificates=certificates)
            if role in tables:
                table = tables[role]
                if isinstance(table, pd.DataFrame):
                    path = folder / f"{role}.parquet"
                    table.to_parquet(path, index=False)
                else:
                    path = table.absolute()
                config["datasets"] = {DATASET: {"path": str(path), "preprocessing": preprocessing or {}}}
            if role is Role.HOST:
                # Public tables: a benchmark may train on them as often as it likes.
                config["policy"] = {
                    "min_rows_per_equation": 0.001,
                    "min_columns_per_point": 0.001,
                    "share_fold_scores": True,
                    "max_scores_a_day": 10**9,
                    "share_bins": "guest",
                }
            if role is Role.GUEST:
                config["datasets"][DATASET]["label"] = {"column": "label", "positive": "1", "negative": "0"}
                # The labels are made up or published, and the paper's batches are small for this rule.
                config["policy"] = {"min_label_bits": 0, "share_bin_counts": "host"}
            if role in PARTIES:
                config["policy"]["share_inference"] = True
                config |= party or {}
            self._configs[role].write_text(yaml.safe_dump(config))

    def config(self, role: Role) -> ProcessConfig:
        """Return the configuration of a process."""
        return load_process_config(self._configs[role], {})

    @contextmanager
    def serving(self) -> Iterator[LocalProcesses]:
        """Run the three processes until the block ends."""
        with self._make_processes(self._configs, self._logs) as processes:
            yield processes

    def joined(self, job: JobConfig, *, whiten: bool = True) -> JoinedTable:
        """Return the training columns of both parties side by side. In a real job, no process has them."""
        blocks = []
        for role in PARTIES:
            dataset = self.config(role).datasets[job.dataset]
            preprocessing = dataset.preprocessing.model_copy(update={"whiten": whiten})
            blocks.append(make_block(read_table(dataset), preprocessing, job))
        return join(*blocks)

    def train(self, *jobs: JobConfig) -> list[Training]:
        """Run jobs in sequence in the same three processes.

        Raises:
            TrilateralError: A job failed. The text ends with the last lines of the logs.
        """
        with self.serving() as processes:
            return [self.train_in(processes, job) for job in jobs]

    def train_in(self, processes: LocalProcesses, job: JobConfig) -> Training:
        """Train once in processes that `serving` has started.

        Raises:
            TrilateralError: The job failed. The text ends with the last lines of the logs.
        """
        run = self.run_in(processes, job)
        folders = {role: JobFolder(self.config(role).state, job.name) for role in Role}
        return Training(
            histories={role: read_lines(folder.history) for role, folder in folders.items()},
            models={role: load_model(folders[role].model) for role in PARTIES},
            start=read_start(self.config(Role.GUEST).state, job.name),
            **vars(run),
        )

    def run_in(self, processes: LocalProcesses, job: JobConfig) -> Run:
        """Run one job, of any task, in processes that `serving` has started.

        Raises:
            TrilateralError: The job failed. The text ends with the last lines of the logs.
        """
        before = processor_seconds(processes.pids)
        try:
            began, ended = asyncio.run(_run(self.config(Role.GUEST), job))
        except TrilateralError as error:
            raise TrilateralError(f"{error}\n{processes.log_tails()}") from error
        after = processor_seconds(processes.pids)
        return Run(
            seconds=(ended - began) / 1e9,
            span=(began, ended),
            peak_rss_mb={str(role): peak_rss_mb(pid) for role, pid in processes.pids.items()},
            processor_seconds={str(role): round(after[role] - before[role], 2) for role in Role},
            sent={
                f"{role} to {peer}": sum(counts.get("bytes", 0) for counts in kinds.values())
                for role in Role
                for peer, kinds in self._end(role, job.name)["sent"].items()
            },
        )

    def _end(self, role: Role, job: str) -> dict[str, Any]:
        """Return the audit log's line about the end of a job, which a process writes after it has told its peers."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            lines = read_lines(self.config(role).state / "audit.jsonl")
            ends = [line for line in lines if line["decision"] == "ended" and line["job"] == job]
            if ends:
                return ends[-1]
            time.sleep(0.01)
        raise TrilateralError(f"the {role} has not logged the end of the job {job}")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="trilateral-benchmark-") as name:
        yield Path(name)


async def _run(config: ProcessConfig, job: JobConfig) -> tuple[int, int]:
    began = time.monotonic_ns()
    async with JobClient(config) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            last = status
    if last.state != JOB_STATE_FINISHED:
        raise TrilateralError(f"job {job.name}: {last.detail}")
    return began, time.monotonic_ns()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def memory_mb(status: str, name: str) -> float:
    """Return a figure from the text of a process's `/proc/PID/status`."""
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    if found is None:
        raise TrilateralError(f"this system does not report {name}, a figure of the memory of a process")
    return round(int(found[1]) / 1024, 1)


def peak_rss_mb(pid: int) -> float:
    """Return the peak memory of a process so far."""
    return memory_mb(read_status(pid), "VmHWM")


def read_status(pid: int) -> str:
    """Return what the system says about a process."""
    return Path(f"/proc/{pid}/status").read_text()


def processor_seconds(pids: Mapping[Role, int]) -> dict[Role, float]:
    """Return the processor time that each process has used so far."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = {role: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for role, pid in pids.items()}
    return {role: (int(each[11]) + int(each[12])) / tick for role, each in fields.items()}
