"""One training by three real processes on this machine, and what it cost."""

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from trilateral.client.job_client import JobClient
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
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.messages import Kind
from trilateral.common.trial.localhost import LocalProcesses, free_addresses, process_settings
from trilateral.coordinator.plain import JoinedTable, join

DATASET = "benchmark"
BETWEEN_PARTIES = (Kind.SCORES, Kind.SQUARES, Kind.RESIDUAL, Kind.SCORE_CHANGE, Kind.TOTAL_CHANGE)
TO_COORDINATOR = (Kind.GRADIENT, Kind.LOSS, Kind.CURVATURE)


@dataclass(frozen=True)
class Training:
    """A finished job: every process's history, and the parties' models."""

    histories: dict[Role, list[dict[str, Any]]]
    models: dict[Role, PartyModel]
    seconds: float
    """From asking for the job to its end: keys, loading and the proof of the IDs included."""
    peak_rss_mb: dict[str, float]
    processor_seconds: dict[str, float]
    """Of each process, from asking for the job to its end."""

    @property
    def coef(self) -> FloatVector:
        """Training weights, the host's first."""
        return np.concatenate([self.models[role].training_weights for role in PARTIES])

    def traffic(self, kinds: tuple[Kind, ...], unit: str, rounds: set[int] | None = None) -> int:
        """Sum over both parties of what they sent; `unit` is 'bytes' or 'ciphertexts'."""
        return sum(
            line["sent"].get(kind, {}).get(unit, 0)
            for role in PARTIES
            for line in self.histories[role]
            if rounds is None or line["round"] in rounds
            for kind in kinds
        )


class Setup:
    """Tables and configurations of three processes in one folder.

    Args:
        folder: for all files.
        tables: of both parties, each with its ID column; the guest's with a column "label" of 0 and 1.
        preprocessing: of both.
    """

    def __init__(
        self, folder: Path, tables: dict[Role, pd.DataFrame], preprocessing: dict[str, Any] | None = None
    ) -> None:
        addresses = free_addresses()
        self._configs = {role: folder / f"{role}.yaml" for role in Role}
        self._logs = {role: folder / f"{role}.log" for role in Role}
        for role in Role:
            config = process_settings(role, addresses)
            if role in tables:
                tables[role].to_parquet(folder / f"{role}.parquet", index=False)
                config["datasets"] = {DATASET: {"path": f"{role}.parquet", "preprocessing": preprocessing or {}}}
            if role is Role.GUEST:
                config["datasets"][DATASET]["label"] = {"column": "label", "positive": "1", "negative": "0"}
            self._configs[role].write_text(yaml.safe_dump(config))

    def config(self, role: Role) -> ProcessConfig:
        """One process's configuration."""
        return load_process_config(self._configs[role], {})

    @contextmanager
    def serving(self) -> Iterator[LocalProcesses]:
        """The three processes, while the block lasts."""
        with LocalProcesses(self._configs, self._logs) as processes:
            yield processes

    def joined(self, job: JobConfig, *, whiten: bool = True) -> JoinedTable:
        """Both parties' training columns side by side, which nobody has in a real job."""
        blocks = []
        for role in PARTIES:
            dataset = self.config(role).datasets[job.dataset]
            preprocessing = dataset.preprocessing.model_copy(update={"whiten": whiten})
            blocks.append(make_block(read_table(dataset), preprocessing, job))
        return join(*blocks)

    def train(self, *jobs: JobConfig) -> list[Training]:
        """Run jobs one after the other in the same three processes.

        Raises:
            TrilateralError: one failed; the text ends with the logs' last lines.
        """
        processes = LocalProcesses(self._configs, self._logs)
        try:
            with processes:
                return [self._train(job, processes) for job in jobs]
        except TrilateralError as error:
            raise TrilateralError(f"{error}\n{processes.log_tails()}") from error

    def _train(self, job: JobConfig, processes: LocalProcesses) -> Training:
        before = processor_seconds(processes.pids)
        seconds = asyncio.run(_run(self.config(Role.GUEST), job))
        after = processor_seconds(processes.pids)
        folders = {role: JobFolder(self.config(role).state, job.name) for role in Role}
        return Training(
            histories={role: read_lines(folder.history) for role, folder in folders.items()},
            models={role: load_model(folders[role].model) for role in PARTIES},
            seconds=seconds,
            peak_rss_mb={str(role): peak_rss_mb(pid) for role, pid in processes.pids.items()},
            processor_seconds={str(role): round(after[role] - before[role], 2) for role in Role},
        )


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the time of a benchmark."""
    with tempfile.TemporaryDirectory(prefix="trilateral-benchmark-") as name:
        yield Path(name)


async def _run(config: ProcessConfig, job: JobConfig) -> float:
    started = time.perf_counter()
    async with JobClient(config) as client:
        await client.start(job)
        async for status in client.watch(job.name):
            last = status
    if last.state != JOB_STATE_FINISHED:
        raise TrilateralError(f"job {job.name}: {last.detail}")
    return time.perf_counter() - started


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A history, line by line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def peak_rss_mb(pid: int) -> float:
    """The most memory that a process has had so far, as Linux counts it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise TrilateralError("this system does not tell a process's peak memory")
    return round(int(found[1]) / 1024, 1)


def processor_seconds(pids: Mapping[Role, int]) -> dict[Role, float]:
    """What each process has taken of the processors so far."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = {role: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for role, pid in pids.items()}
    return {role: (int(each[11]) + int(each[12])) / tick for role, each in fields.items()}
