"""Jobs when organisations refuse, fail, stop, start late, or disappear."""

import asyncio
import gc
import logging
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import trilateral.coordinator.jobs
from tests.support.three_servers import (
    DATASET,
    LENIENT,
    PROTOCOLS,
    Protocol,
    check_model,
    lenient,
    make_configs,
    serving,
    train_over_localhost,
    under,
    write_tables,
)
from tests.support.waiting import SECONDS, eventually, interruptible
from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.config.process import Policy, ProcessConfig
from trilateral.common.data.model.model_file import PartyModel, save_model
from trilateral.common.jobs import party_jobs, runner
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobStatus,
)
from trilateral.common.process.job_client import JobClient
from trilateral.common.rpc.channel import open_channel
from trilateral.common.rpc.errors import NameTakenError, UnknownJobError

QUICK = JobConfig(name="quick", dataset=DATASET, key_bits=512)
ENDLESS = QUICK.model_copy(
    update={"name": "endless", "algorithm": Sgd(), "batch": 30, "epochs": 100_000, "tolerance": 0.0}
)
Configs = dict[Role, ProcessConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    write_tables(tmp_path)
    return make_configs(tmp_path)


async def until(client: JobClient, job: str, condition: Callable[[JobStatus], bool]) -> JobStatus:
    async with asyncio.timeout(SECONDS):
        async for status in client.watch(job):
            if condition(status):
                return status
    raise AssertionError("the job ended before")


def is_training(status: JobStatus) -> bool:
    return status.state == JOB_STATE_TRAINING and status.round >= 3


async def test_simultaneous_jobs_under_both_protocols_train_the_models_of_plain_numpy(configs: Configs) -> None:
    named: dict[str, Protocol] = {"one": "paillier", "two": "paillier", "three": "shares", "four": "shares"}
    jobs = [under(protocol, QUICK.model_copy(update={"name": name})) for name, protocol in named.items()]
    async with serving(configs) as client:
        statuses = await asyncio.gather(*(train_over_localhost(client, job) for job in jobs))
        assert [status.state for status in statuses] == [JOB_STATE_FINISHED] * len(jobs)
        assert {status.job for status in await client.statuses()} == {job.name for job in jobs}
    for job in jobs:
        check_model(configs, job)


async def test_a_stopped_job_leaves_no_model_and_frees_its_name(
    configs: Configs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(configs) as client:
        await client.start(ENDLESS)
        await until(client, "endless", is_training)
        await client.stop("endless")
        status = await client.status("endless")
        assert status.state == JOB_STATE_STOPPED
        assert status.detail == "stopped by the operator"
        with pytest.raises(ProtocolError, match="has ended already"):
            await client.stop("endless")
        again = await train_over_localhost(client, QUICK.model_copy(update={"name": "endless"}))
        assert again.state == JOB_STATE_FINISHED
    for config in configs.values():
        assert not list(config.state.rglob("*.partial"))
    assert caplog.text.count("job endless: stopped by the operator") == len(Role)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_late_stop_is_refused_and_every_party_has_its_model(
    configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = threading.Event()

    def save_late(path: Path, model: PartyModel) -> None:
        keep.wait(SECONDS)
        save_model(path, model)

    monkeypatch.setattr(party_jobs, "save_model", save_late)
    async with serving(configs) as client:
        await client.start(QUICK)
        await until(client, "quick", lambda status: status.detail == "the parties are writing their parts of the model")
        with pytest.raises(ProtocolError, match="the job quick is finishing: it is too late to stop it"):
            await client.stop("quick")
        keep.set()
        await until(client, "quick", lambda status: status.state == JOB_STATE_FINISHED)
    for role in PARTIES:
        assert JobFolder(configs[role].state, "quick").model.exists()


@pytest.mark.parametrize("role", list(Role))
async def test_a_job_whose_folder_disappears_fails_with_the_name_of_its_owner(role: Role, configs: Configs) -> None:
    async with serving(configs) as client:
        await client.start(ENDLESS)
        await until(client, "endless", is_training)
        shutil.rmtree(configs[role].state / "jobs/endless")
        status = await until(client, "endless", lambda status: status.state == JOB_STATE_FAILED)
    assert status.detail == f"the state folder of the {role} cannot be written: No such file or directory"


async def test_a_refused_job_has_a_reason_and_affects_no_other_job(configs: Configs) -> None:
    policy = Policy(**lenient(Role.GUEST, min_key_bits=512))
    configs[Role.GUEST] = configs[Role.GUEST].model_copy(update={"policy": policy})
    configs[Role.HOST] = configs[Role.HOST].model_copy(
        update={"policy": Policy(min_key_bits=256, share_holdout_scores=False, **LENIENT)}
    )
    job = QUICK.model_copy(update={"holdout": 0.0})
    refusals: dict[str, dict[str, Any]] = {
        "the host has no dataset named other": {"dataset": "other"},
        "the guest refuses the job under policy.min_key_bits: the minimum is 512; the job has 256": {"key_bits": 256},
        "set `holdout: 0` in the job": {"holdout": 0.2},
    }
    async with serving(configs) as client:
        for text, settings in refusals.items():
            status = await train_over_localhost(client, job.model_copy(update=settings))
            assert status.state == JOB_STATE_FAILED
            assert text in status.detail
        assert (await train_over_localhost(client, job)).state == JOB_STATE_FINISHED
        with pytest.raises(NameTakenError, match="the coordinator already has a job named quick"):
            await client.start(job)
        with pytest.raises(UnknownJobError, match="no job named none"):
            await client.status("none")


async def test_a_coordinator_that_swaps_the_parties_is_refused(tmp_path: Path) -> None:
    # With the intercept, both have the same number of columns, so the lengths of vectors do not reveal the swap.
    write_tables(tmp_path, n_host=3, n_guest=2)
    configs = make_configs(tmp_path)
    peers = configs[Role.COORDINATOR].peers
    swapped = {Role.HOST: peers[Role.GUEST], Role.GUEST: peers[Role.HOST]}
    configs[Role.COORDINATOR] = configs[Role.COORDINATOR].model_copy(update={"peers": swapped})
    async with serving(configs) as client:
        status = await train_over_localhost(client, QUICK.model_copy(update={"aligned": True}))
    assert status.state == JOB_STATE_FAILED
    assert status.detail == (
        "the coordinator called the guest as the host: correct `peers.host` in the coordinator's configuration"
    )


async def test_the_oldest_ended_job_is_forgotten_and_running_jobs_are_not(
    configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trilateral.coordinator.jobs, "MAX_ENDED", 2)
    async with serving(configs) as client:
        await client.start(ENDLESS)
        for name in ("a", "b", "a", "c", "d"):
            status = await train_over_localhost(client, QUICK.model_copy(update={"name": name, "dataset": "other"}))
            assert "no dataset named other" in status.detail
        assert [status.job for status in await client.statuses()] == ["endless", "a", "c", "d"]
        await client.start(QUICK)
        assert [status.job for status in await client.statuses()] == ["endless", "c", "d", "quick"]


async def test_a_party_with_a_model_refuses_its_name_after_the_coordinator_forgot_the_job(configs: Configs) -> None:
    async with serving(configs) as client:
        await train_over_localhost(client, QUICK)
        (configs[Role.COORDINATOR].state / "jobs/quick/history.jsonl").unlink()
        status = await train_over_localhost(client, QUICK)
        assert status.state == JOB_STATE_FAILED
        assert "the host already has a job named quick" in status.detail


async def test_an_unusable_table_fails_the_job_with_the_owners_message(configs: Configs, tmp_path: Path) -> None:
    (tmp_path / "guest.csv").write_text("id,x,label\n1,0.5,maybe\n")
    async with serving(configs) as client:
        status = await train_over_localhost(client, QUICK)
        assert status.state == JOB_STATE_FAILED
        assert status.detail.startswith("the guest: column 'label'")


async def test_different_ids_fail_the_job_and_the_error_contains_no_id(configs: Configs, tmp_path: Path) -> None:
    table = (tmp_path / "guest.csv").read_text().splitlines()
    table[1] = table[1].replace(table[1].split(",")[0], "999999")
    (tmp_path / "guest.csv").write_text("\n".join(table) + "\n")
    async with serving(configs) as client:
        status = await train_over_localhost(client, QUICK.model_copy(update={"aligned": True}))
    assert status.state == JOB_STATE_FAILED
    assert "the same IDs" in status.detail
    assert "999999" not in status.detail


async def test_the_coordinator_waits_for_a_late_party_and_says_so(configs: Configs) -> None:
    first = {role: configs[role] for role in (Role.COORDINATOR, Role.GUEST)}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(serving(first))
        training = asyncio.create_task(train_over_localhost(client, QUICK))

        async def is_there() -> bool:
            return "quick" in [status.job for status in await client.statuses()]

        await eventually(is_there)
        waiting = await until(client, "quick", lambda status: "waiting" in status.detail)
        assert f"for the host at {configs[Role.HOST].listen}, silent since" in waiting.detail
        await stack.enter_async_context(serving({Role.HOST: configs[Role.HOST]}))
        assert (await training).state == JOB_STATE_FINISHED


async def test_a_job_without_room_for_its_files_is_refused_and_leaves_no_trace(configs: Configs) -> None:
    async with serving(configs) as client:
        (configs[Role.COORDINATOR].state / "jobs").touch()
        with pytest.raises(ConfigError, match="cannot be written"):
            await client.start(QUICK)
        assert await client.statuses() == []


async def test_no_private_key_outlives_its_job(configs: Configs) -> None:
    async with serving(configs) as client:
        for name, settings in (("done", {}), ("refused", {"dataset": "other"})):
            job = QUICK.model_copy(update={"name": name, "key_bits": 520, **settings})
            await train_over_localhost(client, job)
        await client.statuses()

        def is_gone() -> bool:
            gc.collect()
            return not any(isinstance(one, PrivateKey) and one.public_key.bits == 520 for one in gc.get_objects())

        await eventually(is_gone)  # The session ends a moment after its operator hears of it.


async def test_a_watcher_gets_every_note_once_and_the_end(configs: Configs) -> None:
    async def watch(client: JobClient) -> list[JobStatus]:
        return [status async for status in client.watch("diverging")]

    # The first step is too long and is halved a few times; each time adds a note.
    diverging = {"name": "diverging", "algorithm": Sgd(learning_rate=20.0), "batch": 30, "epochs": 10}
    async with serving(configs) as client:
        await client.start(QUICK.model_copy(update=diverging))
        watches = [*await asyncio.gather(watch(client), watch(client)), await watch(client)]
        notes = list((await client.status("diverging")).notes)
        (listed,) = await client.statuses()
    assert len(notes) >= 3
    assert notes[0] == "the host has 120 rows, the guest 120; they have 120 in common"
    assert all("learning rate halved" in note for note in notes[1:])
    assert not listed.notes
    for statuses in watches:
        assert [note for status in statuses for note in status.notes] == notes
        assert statuses[-1].state == JOB_STATE_FINISHED
        assert statuses[-1].seconds > 0
        assert statuses[-1].HasField("loss")


# --- processes of their own

SERVE = """
import asyncio, sys
from pathlib import Path
from typing import Any
from trilateral.common.config.load import load_process_config
from {role}{suffix}.server import serve

{before}
asyncio.run(serve(load_process_config(Path(sys.argv[1])), on_ready=lambda address: print(address, flush=True)))
"""


@contextmanager
def process(config: ProcessConfig, folder: Path, before: str = "") -> "Iterator[subprocess.Popen[str]]":
    """Run a server as a process that first runs the line `before`; kill it at the end."""
    path = folder / f"{config.role}.yaml"
    path.write_text(config.model_dump_json(exclude_unset=True))  # JSON is YAML
    suffix = "" if config.role is Role.COORDINATOR else "_party"
    code = SERVE.format(role=config.role, suffix=suffix, before=before)
    with interruptible():
        started = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    with started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline().strip() == config.listen
            yield started
        finally:
            started.kill()


LONG_LIMITS: dict[str, Any] = {"peer_timeout": 600, "round_timeout": 6000}
"""Longer than a test may take: no test here may wait until they end."""


async def goes_on(client: JobClient, after: int) -> None:
    """Wait until the training is two rounds further, then stop it."""
    await until(client, "endless", lambda status: status.state == JOB_STATE_TRAINING and status.round > after + 2)
    await client.stop("endless")


@pytest.mark.parametrize(
    ("number", "protocol"),
    [
        (signal.SIGTERM, "paillier"),
        (signal.SIGINT, "paillier"),
        (signal.SIGKILL, "paillier"),
        (signal.SIGKILL, "shares"),
    ],
)
async def test_a_party_that_was_ended_by_a_signal_resumes_its_jobs_when_it_restarts(
    number: signal.Signals, protocol: Protocol, tmp_path: Path
) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path, peer_timeout=30, round_timeout=6000)
    others = {role: configs[role] for role in (Role.COORDINATOR, Role.HOST)}
    async with serving(others) as client:
        with process(configs[Role.GUEST], tmp_path) as guest:
            await client.start(under(protocol, ENDLESS))
            before = await until(client, "endless", is_training)
            guest.send_signal(number)
            assert await asyncio.to_thread(guest.wait, 15) == (-number if number is signal.SIGKILL else 0)
        async with serving({Role.GUEST: configs[Role.GUEST]}):
            await goes_on(client, before.round)
            notes = (await client.status("endless")).notes
    assert any("continues in another session: the guest at" in note for note in notes)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_restarted_coordinator_resumes_its_jobs(protocol: Protocol, tmp_path: Path) -> None:
    job = under(protocol, ENDLESS)
    write_tables(tmp_path)
    configs = make_configs(tmp_path, **LONG_LIMITS)
    leader = {Role.COORDINATOR: configs[Role.COORDINATOR]}
    async with serving({role: configs[role] for role in PARTIES}):
        async with serving(leader) as client:
            await client.start(job)
            before = await until(client, "endless", is_training)
        async with serving(leader) as client:
            with pytest.raises(NameTakenError):
                await client.start(job)
            await goes_on(client, before.round)
            assert (await client.status("endless")).state == JOB_STATE_STOPPED
        async with serving(leader) as client:
            status = await client.status("endless")
            assert (status.state, status.detail) == (JOB_STATE_STOPPED, "stopped by the operator")


async def test_the_parties_end_a_session_that_the_coordinator_no_longer_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_tables(tmp_path)
    configs = make_configs(tmp_path, peer_timeout=10, round_timeout=6000)
    async with serving({role: configs[role] for role in PARTIES}):
        with process(configs[Role.COORDINATOR], tmp_path) as killed:
            async with JobClient(configs[Role.COORDINATOR]) as client:
                await client.start(ENDLESS)
                await until(client, "endless", is_training)
            killed.kill()
            killed.wait()
        shutil.rmtree(configs[Role.COORDINATOR].state)
        async with serving({Role.COORDINATOR: configs[Role.COORDINATOR]}):
            await eventually(lambda: caplog.text.count("job endless: this session has ended") == len(PARTIES))
    assert "has lost the job (was it restarted?)" in caplog.text


@pytest.mark.parametrize("role", PARTIES)
async def test_a_party_that_dies_and_stays_away_ends_the_job_after_the_peer_timeout(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FAREWELL", 1.0)
    write_tables(tmp_path)
    configs = make_configs(tmp_path, peer_timeout=2, round_timeout=6000)
    others = {other: configs[other] for other in Role if other is not role}
    async with serving(others) as client:
        with process(configs[role], tmp_path) as party:
            await client.start(ENDLESS)
            await until(client, "endless", is_training)
            party.kill()
            status = await until(client, "endless", lambda status: status.state == JOB_STATE_FAILED)
    assert status.detail == (
        f"the {role} at {configs[role].listen} has not answered for 2 s: check that it runs and can be reached"
    )


async def test_a_host_that_dies_when_its_holdout_scores_are_due_ends_the_job_after_the_peer_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FAREWELL", 1.0)
    write_tables(tmp_path)
    # Longer than the pause of up to two seconds between two attempts to connect, for the second job.
    configs = make_configs(tmp_path, peer_timeout=4, round_timeout=6000)
    others = {role: configs[role] for role in (Role.COORDINATOR, Role.GUEST)}
    die = (
        "import trilateral.host_party.machine, os; trilateral.host_party.machine.HoldoutScores = lambda *_: os._exit(1)"
    )
    async with serving(others) as client:
        with process(configs[Role.HOST], tmp_path, before=die):
            status = await train_over_localhost(client, QUICK)
        assert status.state == JOB_STATE_FAILED
        assert status.detail.startswith(f"the host at {configs[Role.HOST].listen} has not answered for 4 s")
        async with serving({Role.HOST: configs[Role.HOST]}):
            # The guest no longer waits for the scores.
            assert (await train_over_localhost(client, QUICK)).state == JOB_STATE_FINISHED


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_late_answers_of_a_party_do_no_harm(protocol: Protocol, tmp_path: Path) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path, round_timeout=8)  # a busy machine needs a second or two to start
    epochs = {"paillier": 20, "shares": 60}
    job = under(protocol, ENDLESS.model_copy(update={"name": "late", "epochs": epochs[protocol]}))
    others = {role: configs[role] for role in (Role.COORDINATOR, Role.HOST)}
    async with serving(others) as client:
        with process(configs[Role.GUEST], tmp_path) as guest:
            await client.start(job)
            await until(client, "late", is_training)
            guest.send_signal(signal.SIGSTOP)
            begun_again = await until(client, "late", lambda status: status.attempt > 1)
            guest.send_signal(signal.SIGCONT)
            await until(client, "late", lambda status: status.state == JOB_STATE_FINISHED)
            notes = (await client.status("late")).notes
    assert f"round {begun_again.round} was begun again, attempt 2" in notes
    check_model(configs, job)


async def test_an_oversized_message_is_refused_unread(configs: Configs) -> None:
    async with serving(configs), open_channel(configs[Role.HOST].listen, None) as channel:
        method: Any = channel.unary_unary("/trilateral.v1.PartyService/OpenJob")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(bytes(5 * 2**20), metadata=(("trilateral-role", "coordinator"),), timeout=5)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
