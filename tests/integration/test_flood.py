"""A training under a flood of a thousand connections, stalled streams, and endless streams."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.three_processes import KnownProcesses
from tests.support.three_servers import (
    DATASET,
    check_model,
    make_configs,
    train_over_localhost,
    write_tables,
)
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient

JOB = JobConfig(
    name="flooded",
    dataset=DATASET,
    algorithm=Sgd(),
    batch=60,
    epochs=20,
    tolerance=0.0,
    key_bits=512,
    holdout=0.0,
)
MAX_MEBIBYTES = 768
"""Bound on the peak memory of a server. The peak is about 150 without a flood, and below 200 in this one.

The bound is four times that, because a busy machine discards refused data more slowly. Senders that sent five times as
often, and four times as much, brought the peak to 612.
"""
ROOT = Path(__file__).parents[2]


@contextmanager
def flooding(configs: Mapping[Role, ProcessConfig]) -> Iterator[subprocess.Popen[str]]:
    addresses = [configs[role].listen for role in (Role.HOST, Role.GUEST, Role.COORDINATOR)]
    command = [sys.executable, "-m", "tests.support.flood", JOB.name, *addresses]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as flood:
        try:
            yield flood
        finally:
            flood.kill()


def peak_mebibytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) // 1024


async def train(configs: Mapping[Role, ProcessConfig]) -> int:
    async with JobClient(configs[Role.GUEST]) as client:
        return (await train_over_localhost(client, JOB)).state


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
def test_a_training_during_a_flood_ends_with_the_right_model(tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path, peer_timeout=30)
    with KnownProcesses(configs, tmp_path, generate_private_key(512)) as processes, flooding(configs) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "1000 connections\n"
        assert asyncio.run(train(configs)) == JOB_STATE_FINISHED
        assert flood.poll() is None
        peaks = {role: peak_mebibytes(pid) for role, pid in processes.pids.items()}
    assert max(peaks.values()) < MAX_MEBIBYTES, peaks
    check_model(configs, JOB)
    for log in processes.logs.values():
        text = log.read_text()
        assert "Traceback" not in text
        assert "unexpected error" not in text
