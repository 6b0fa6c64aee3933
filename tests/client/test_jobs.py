"""Jobs by the Python API, at three real servers."""

import asyncio
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import trilateral
from tests.client.conftest import DATASET, TRAINED, World, job, long_job
from trilateral import JobState, aio
from trilateral.common.base.roles import Role


def test_a_job_from_a_dict_trains_and_reports_its_progress(session: trilateral.Session) -> None:
    run = session.train(job("from-a-dict"))
    seen = list(run)
    assert run.name == "from-a-dict"
    assert {progress.job for progress in seen} == {"from-a-dict"}
    final = seen[-1]
    assert final.state is JobState.FINISHED
    assert not any(progress.state.is_final for progress in seen[:-1])
    assert final.loss is not None
    assert final.epoch >= 1
    assert final.seconds > 0
    assert final.rounds_done <= final.max_rounds
    assert run.model().loss == pytest.approx(final.loss)


def test_a_job_as_an_object_or_a_file_trains_too(session: trilateral.Session, tmp_path: Path) -> None:
    settings = trilateral.Job(name="from-an-object", dataset=DATASET, key_bits=256, epochs=2)
    assert session.train(settings).wait().state is JobState.FINISHED
    file = tmp_path / "job.yaml"
    file.write_text(f"name: from-a-file\ndataset: {DATASET}\nkey_bits: 256\nepochs: 2\n")
    assert session.train(file).wait().state is JobState.FINISHED


def test_jobs_are_listed_and_found(session: trilateral.Session) -> None:
    assert TRAINED in [each.job for each in session.jobs()]
    assert session.find(TRAINED).progress().state is JobState.FINISHED
    with pytest.raises(trilateral.UnknownJobError):
        session.find("unheard-of")


def test_a_job_is_stopped_and_resumed(session: trilateral.Session) -> None:
    run = session.train(long_job("stopped"))
    for progress in run:
        if progress.round >= 2:
            break
    run.stop()
    with pytest.raises(trilateral.JobStoppedError, match="job stopped: stopped by the operator") as caught:
        run.wait()
    assert caught.value.progress.state is JobState.STOPPED

    run.resume()
    for progress in run:
        if progress.state is JobState.TRAINING:
            break
    assert not run.progress().state.is_final
    run.stop()


def test_a_finished_job_can_neither_be_stopped_nor_resumed(session: trilateral.Session) -> None:
    run = session.find(TRAINED)
    with pytest.raises(trilateral.ProtocolError, match="has ended already"):
        run.stop()
    with pytest.raises(trilateral.ProtocolError, match="has finished"):
        run.resume()


def collect(run: trilateral.Run, seen: list[trilateral.Progress]) -> None:
    for progress in run:
        seen.append(progress)


def test_a_job_that_fails_raises_after_its_last_progress(session: trilateral.Session) -> None:
    seen: list[trilateral.Progress] = []
    run = session.train(job("failing") | {"dataset": "unknown"})
    with pytest.raises(trilateral.JobFailedError, match="no dataset named unknown") as caught:
        collect(run, seen)
    assert isinstance(caught.value, trilateral.TrilateralError)
    assert seen[-1] == caught.value.progress
    assert seen[-1].state is JobState.FAILED


def test_a_wrong_option_is_named(session: trilateral.Session) -> None:
    with pytest.raises(trilateral.ConfigError, match="job: epoch: unknown key; did you mean epochs"):
        session.train({"name": "wrong", "dataset": DATASET, "epoch": 3})


def test_a_name_that_is_taken_is_refused_by_its_own_class(session: trilateral.Session) -> None:
    with pytest.raises(trilateral.NameTakenError):
        session.train(job(TRAINED))


def test_another_organisation_watches_the_same_job(world: World) -> None:
    with trilateral.connect(world.files[Role.GUEST]) as guest, trilateral.connect(world.files[Role.HOST]) as host:
        guest.train(job("watched"))
        by_guest, by_host = guest.find("watched").wait(), host.find("watched").wait()
        losses = host.find("watched").losses()
        assert losses == guest.find("watched").losses()
        assert list(losses) == list(range(1, by_guest.round + 1))
        assert (by_host.state, by_host.loss) == (JobState.FINISHED, by_guest.loss)
        assert host.model("watched").role is trilateral.Role.HOST


def test_two_sessions_follow_two_jobs_at_once(world: World) -> None:
    def train(name: str) -> None:
        with trilateral.connect(world.files[Role.GUEST]) as session:
            finals[name] = session.train(job(name)).wait()

    finals: dict[str, trilateral.Progress] = {}
    threads = [threading.Thread(target=train, args=(name,)) for name in ("at-once-1", "at-once-2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {final.state for final in finals.values()} == {JobState.FINISHED}
    assert len(finals) == 2


async def test_a_session_works_inside_a_running_loop(world: World) -> None:
    with trilateral.connect(world.files[Role.GUEST]) as session:
        assert session.train(job("in-a-loop")).wait().state is JobState.FINISHED


def test_the_asynchronous_api_does_the_same(world: World) -> None:
    async def train() -> list[trilateral.Progress]:
        async with aio.connect(world.files[Role.GUEST]) as session:
            run = await session.train(job("asynchronous"))
            return [progress async for progress in run]

    assert asyncio.run(train())[-1].state is JobState.FINISHED


def interrupt_after_a_round(run: trilateral.Run) -> None:
    for progress in run:
        if progress.round >= 1:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_leaves_the_job_running(session: trilateral.Session) -> None:
    run = session.train(long_job("interrupted"))
    main = threading.main_thread()
    assert threading.current_thread() is main
    with pytest.raises(KeyboardInterrupt):
        interrupt_after_a_round(run)
    assert not run.progress().state.is_final

    def interrupt() -> None:
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    timer.join()
    assert not run.progress().state.is_final
    run.stop()


@pytest.mark.parametrize("is_last", [True, False])
def test_a_session_that_is_closed_during_a_call_ends_the_call(world: World, is_last: bool) -> None:
    errors: list[BaseException] = []
    watching = threading.Event()

    def watch(run: trilateral.Run) -> None:
        try:
            for _ in run:
                watching.set()
        except BaseException as error:
            errors.append(error)

    with trilateral.connect(world.files[Role.GUEST]) as operator:
        session = trilateral.connect(world.files[Role.GUEST])
        run = operator.train(long_job(f"closed-meanwhile-{is_last}"))
        watcher = threading.Thread(target=watch, args=(session.find(run.name),))
        watcher.start()
        assert watching.wait(30)
        if is_last:
            operator.close()
        session.close()
        watcher.join(30)
        assert not watcher.is_alive()
    assert [type(error) for error in errors] == [RuntimeError]
    assert "closed during the call" in str(errors[0])
    with trilateral.connect(world.files[Role.GUEST]) as session:
        session.find(run.name).stop()


def test_no_thread_outlives_the_last_session(world: World) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "trilateral"]

    first, second = (trilateral.connect(world.files[Role.GUEST]) for _ in range(2))
    assert len(names()) == 1
    first.close()
    assert len(second.jobs()) >= 1
    second.close()
    second.close()
    assert names() == []
    with pytest.raises(RuntimeError, match="the session is closed"):
        first.jobs()


def test_a_session_and_a_run_say_whose_they_are_and_end_once(world: World) -> None:
    session = trilateral.connect(world.files[Role.GUEST])
    run = session.find(TRAINED)
    assert (repr(session), repr(run)) == ("<Session of the guest>", f"<Run {TRAINED}>")
    session.close()
    session.close()
    uses: list[Callable[[], object]] = [session.jobs, run.progress, run.wait, lambda: list(run)]
    for use in uses:
        with pytest.raises(RuntimeError, match="the session is closed"):
            use()


async def test_an_asynchronous_session_that_is_not_open_says_so(world: World) -> None:
    session = aio.connect(world.files[Role.GUEST])
    assert repr(session) == "<AsyncSession of the guest>"
    with pytest.raises(RuntimeError, match="the session is not open"):
        await session.jobs()


def test_a_session_is_not_used_inside_its_own_callbacks(session: trilateral.Session) -> None:
    refusals: list[str] = []

    async def call_back() -> None:
        with pytest.raises(RuntimeError) as refused:
            session.jobs()
        refusals.append(str(refused.value))

    session._loop.call(call_back)
    assert "inside its own callbacks" in refusals[0]


def test_progress_counts_rounds_and_with_cross_validation_fits() -> None:
    progress = trilateral.Progress("a", JobState.TRAINING, epoch=3, n_epochs=5, batch=1, n_batches=4)
    assert (progress.rounds_done, progress.max_rounds, progress.round_done) == (9, 20, 0.0)
    assert replace(progress, rows_done=30, n_rows=40).round_done == 0.75
    assert replace(progress, rows_done=50, n_rows=40).round_done == 1.0
    fits = replace(progress, fits_done=2, n_fits=6)
    assert (fits.rounds_done, fits.max_rounds) == (2, 6)


def test_a_wrong_configuration_is_an_error_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "guest.yaml"
    with pytest.raises(trilateral.ConfigError, match=r"guest\.yaml: no such file"):
        trilateral.connect(path)
    path.write_text("rolle: guest\n")
    with pytest.raises(trilateral.ConfigError, match="rolle: unknown key; did you mean role"):
        trilateral.connect(path)


def test_a_coordinator_that_is_away_is_named_with_the_way_out(world: World) -> None:
    config = trilateral.load_config(world.files[Role.GUEST])
    peers = config.peers | {
        Role.COORDINATOR: config.peers[Role.COORDINATOR].model_copy(update={"address": "127.0.0.1:1"})
    }
    way_out = r"127\.0\.0\.1:1: start it with `trilateral serve coordinator"
    with (
        trilateral.connect(config.model_copy(update={"peers": peers})) as session,
        pytest.raises(trilateral.PeerError, match=way_out),
    ):
        session.jobs()
