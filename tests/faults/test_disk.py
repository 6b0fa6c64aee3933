"""A full or read-only disk ends a job with the reason; the job resumes when the disk works again."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.networks import end_of
from tests.support.three_servers import (
    DATASET,
    SERVE,
    check_model,
    make_configs,
    serving,
    write_tables,
)
from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.journal import NO_FACTS, Journal
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED

JOB = JobConfig(name="disk", dataset=DATASET, key_bits=512, algorithm=Sgd(), batch=24, epochs=20, tolerance=0.0)
Configs = dict[Role, ProcessConfig]
MakeSmall = Callable[[Path, str], None]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    return make_configs(tmp_path)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@pytest.fixture
def make_small() -> Iterator[MakeSmall]:
    """Give a folder its own file system."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    made: list[Path] = []

    def make(folder: Path, options: str) -> None:
        folder.mkdir(mode=0o700, parents=True)
        try:
            mount("-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {error}")
        made.append(folder)

    yield make
    for folder in made:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("role", Role)
async def test_a_full_disk_ends_the_job_for_all_and_the_job_resumes_once_there_is_room(
    role: Role, configs: Configs, make_small: MakeSmall
) -> None:
    state = configs[role].state
    make_small(state, "size=400k")
    async with serving(configs) as client:
        await client.start(JOB)
        failed = await end_of(client, JOB.name)
        assert failed.state == JOB_STATE_FAILED
        assert f"of the {role} cannot be" in failed.detail
        assert "full" in failed.detail or "No space" in failed.detail
        assert failed.round >= 5
        assert not any(JobFolder(configs[party].state, JOB.name).model.exists() for party in PARTIES)
        mount("-o", "remount,size=64m", str(state))
        await client.resume(JOB.name)
        finished = await end_of(client, JOB.name)
    assert finished.state == JOB_STATE_FINISHED, finished.detail
    check_model(configs, JOB)


@pytest.mark.parametrize("role", Role)
async def test_a_read_only_disk_ends_the_job_for_all_and_a_new_process_resumes_it(
    role: Role, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_round = Journal.write_round

    def fail_at_ten(
        journal: Journal, job_id: bytes, number: int, content: bytes, facts: Mapping[str, bytes] = NO_FACTS
    ) -> int:
        if journal._role is role and number == 10:
            journal._database.execute("PRAGMA query_only = ON")  # as for a file system that was mounted anew
        return write_round(journal, job_id, number, content, facts)

    monkeypatch.setattr(Journal, "write_round", fail_at_ten)
    async with serving(configs) as client:
        await client.start(JOB)
        failed = await end_of(client, JOB.name)
    assert failed.state == JOB_STATE_FAILED
    assert f"the journal of the {role} cannot be read or written: attempt to write a readonly database" in failed.detail
    monkeypatch.undo()
    async with serving(configs) as client:
        # The coordinator could not record the end of the job, so it resumes the job without being asked.
        if role is not Role.COORDINATOR:
            await client.resume(JOB.name)
        finished = await end_of(client, JOB.name)
    assert finished.state == JOB_STATE_FINISHED, finished.detail
    check_model(configs, JOB)


@pytest.mark.parametrize("role", Role)
async def test_no_process_starts_on_a_read_only_state_folder(
    role: Role, configs: Configs, make_small: MakeSmall
) -> None:
    make_small(configs[role].state, "ro")
    with pytest.raises(ConfigError, match="Read-only file system"):
        await SERVE[role](configs[role], stop=asyncio.Event())


@pytest.mark.parametrize("role", PARTIES)
async def test_a_model_is_written_whole_or_not_at_all(
    role: Role, configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the model is written; a later session finishes the job."""
    folder = JobFolder(configs[role].state, JOB.name)
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target) == folder.model:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(Path, "replace", fail)
    async with serving(configs) as client:
        await client.start(JOB)
        failed = await end_of(client, JOB.name)
        assert failed.state == JOB_STATE_FAILED
        assert failed.detail == f"the state folder of the {role} cannot be written: No space left on device"
        assert {path.name for path in folder.path.iterdir()} == {folder.unfinished_history.name}
        monkeypatch.undo()
        await client.resume(JOB.name)
        finished = await end_of(client, JOB.name)
    assert finished.state == JOB_STATE_FINISHED, finished.detail
    check_model(configs, JOB)
