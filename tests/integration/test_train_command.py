"""`trilateral train` as an operator runs it: a separate process beside three servers."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.support.three_servers import DATASET, Protocol, make_configs, serving, under, write_tables
from tests.support.waiting import interruptible
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_TRAINING

ENDLESS = JobConfig(
    name="endless", dataset=DATASET, key_bits=512, algorithm=Sgd(), batch=30, epochs=100_000, tolerance=0.0
)


async def test_an_interrupted_command_says_how_to_watch_again_and_leaves_the_job_running(tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path)
    job, config = tmp_path / "job.yaml", tmp_path / "guest.yaml"
    job.write_text(ENDLESS.model_dump_json())  # JSON is YAML
    config.write_text(configs[Role.GUEST].model_dump_json(exclude_unset=True))
    command = [sys.executable, "-m", "trilateral.cli.main", "train", str(job), "--config", str(config)]

    async with serving(configs) as client:
        with interruptible():
            train = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert train.stderr is not None
        async for line in train.stderr:
            if line.startswith(b"training"):
                break
        train.send_signal(signal.SIGINT)
        _, told = await train.communicate()
        before = await client.status("endless")
        async for status in client.watch("endless"):
            if status.round > before.round + 2:
                break
        await client.stop("endless")

    assert train.returncode == 130
    assert f"watch endless --config {config}" in told.decode()
    assert told.decode().splitlines()[-1].startswith("the job continues; to watch it again, run: ")
    assert status.state == JOB_STATE_TRAINING


@pytest.mark.parametrize(("protocol", "epochs"), [("paillier", 60), ("shares", 120)])
async def test_a_command_outlives_a_restart_of_the_coordinator(protocol: Protocol, epochs: int, tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path)
    job, config = tmp_path / "job.yaml", tmp_path / "guest.yaml"
    job.write_text(under(protocol, ENDLESS.model_copy(update={"epochs": epochs})).model_dump_json())
    config.write_text(configs[Role.GUEST].model_dump_json(exclude_unset=True))
    command = [sys.executable, "-m", "trilateral.cli.main", "train", str(job), "--config", str(config)]
    coordinator = {Role.COORDINATOR: configs.pop(Role.COORDINATOR)}

    async with serving(configs):
        async with serving(coordinator):
            with interruptible():
                train = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            assert train.stderr is not None
            async for line in train.stderr:
                if line.startswith(b"training"):
                    break
        async for line in train.stderr:
            if b"this command tries again for 10 min" in line:
                break
        async with serving(coordinator):
            _, told = await train.communicate()

    assert train.returncode == 0, told.decode()
    assert "the job continues in another session" in told.decode()
