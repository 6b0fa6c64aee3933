"""Rows on disk: a training ends in the same model, and nothing is left however it ends."""

import errno
import os
import re
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from tests.support.three_servers import (
    DATASET,
    PROTOCOLS,
    Protocol,
    check_model,
    make_configs,
    serving,
    train_over_localhost,
    write_tables,
)
from tests.support.waiting import eventually
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig, ScratchConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.scratch.folders import SCRATCH

Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    """Parties that keep no row of an array in memory."""
    write_tables(tmp_path)
    return with_scratch(make_configs(tmp_path), ScratchConfig(folder=tmp_path / "rows", memory_mb=0))


def with_scratch(configs: Configs, scratch: ScratchConfig) -> Configs:
    return {
        role: config.model_copy(update={"scratch": scratch}) if role in PARTIES else config
        for role, config in configs.items()
    }


def job_under(protocol: Protocol, **settings: object) -> JobConfig:
    options = {"key_bits": 512} if protocol == "paillier" else {}
    return JobConfig.model_validate(
        {"name": "on-disk", "dataset": DATASET, "protocol": protocol, "holdout": 0.2, **options, **settings}
    )


def n_bytes_on_disk(configs: Configs) -> int:
    """Return the size of all arrays in files, which have no name; fail if a file has one."""
    folder, size = configs[Role.HOST].scratch_folder, 0
    for file in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{file}").startswith(f"{folder}/"):
                size += os.fstat(int(file)).st_size
    return size


async def is_at_work(client: JobClient, configs: Configs, job: JobConfig) -> None:
    """Wait until rounds are computed from rows on disk."""
    await eventually(lambda: n_bytes_on_disk(configs) > 0)
    async for status in client.watch(job.name):
        if status.round > 2:
            return


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_model_is_right_with_all_rows_on_disk_and_nothing_is_left(
    configs: Configs, protocol: Protocol
) -> None:
    job = job_under(protocol)
    async with serving(configs) as client:
        status = await train_over_localhost(client, job)
        assert status.state == JOB_STATE_FINISHED, status.detail
        await eventually(lambda: n_bytes_on_disk(configs) == 0)
    check_model(configs, job)
    assert list((configs[Role.HOST].scratch_folder / SCRATCH).iterdir()) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("end", ["stop", "leave"])
async def test_nothing_is_left_of_a_job_that_is_stopped_or_suspended(
    configs: Configs, protocol: Protocol, end: str
) -> None:
    job = job_under(protocol, epochs=100_000, tolerance=0, algorithm={"name": "sgd"}, batch=50)
    async with serving(configs) as client:
        await client.start(job)
        await is_at_work(client, configs, job)
        if end == "stop":
            await client.stop(job.name)
            await eventually(lambda: n_bytes_on_disk(configs) == 0)
    assert n_bytes_on_disk(configs) == 0


async def test_a_job_without_room_fails_by_the_name_of_the_setting_and_leaves_nothing(configs: Configs) -> None:
    small = ScratchConfig(folder=configs[Role.HOST].scratch.folder, memory_mb=0, max_gb=1e-6)
    async with serving(with_scratch(configs, small)) as client:
        status = await train_over_localhost(client, job_under("shares"))
        assert status.state == JOB_STATE_FAILED
        assert re.match(r"the (host|guest): scratch\.max_gb: ", status.detail)
        assert str(configs[Role.HOST].scratch_folder) not in status.detail
        await eventually(lambda: n_bytes_on_disk(configs) == 0)


@pytest.mark.parametrize(("protocol", "n_writes"), [("paillier", 3), ("shares", 3), ("shares", 18)])
async def test_a_job_fails_if_another_program_fills_the_disk_and_the_next_one_runs(
    configs: Configs,
    protocol: Protocol,
    n_writes: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a table is read, and in the first round, in which the tables of the rounds are written."""
    writes, pwrite = count(), os.pwrite

    def full(file: int, content: bytes, place: int) -> int:
        if next(writes) < n_writes:
            return pwrite(file, content, place)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = str(configs[Role.HOST].scratch_folder)
    async with serving(configs) as client:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            status = await train_over_localhost(client, job_under(protocol))
        assert status.state == JOB_STATE_FAILED
        assert re.fullmatch(
            r"the (host|guest): scratch\.folder: .* No space left on device: free some space.*", status.detail
        )
        assert folder in caplog.text
        await eventually(lambda: n_bytes_on_disk(configs) == 0)
        status = await train_over_localhost(client, job_under(protocol, name="next"))
        assert status.state == JOB_STATE_FINISHED, status.detail
