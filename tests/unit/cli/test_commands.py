"""The commands against a coordinator that plays a script: output, errors, exit codes."""

import errno
import logging
import os
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import NoReturn

import grpc
import pytest
from typer.testing import CliRunner

from trilateral.cli import follow
from trilateral.cli.command import ExitCode
from trilateral.cli.main import app
from trilateral.client.asynchronous import AsyncSession
from trilateral.common.base.errors import ConfigError
from trilateral.common.config.job import JobConfig
from trilateral.common.pb.v1 import jobs_pb2, jobs_pb2_grpc
from trilateral.common.pb.v1.jobs_pb2 import (
    JOB_STATE_FAILED,
    JOB_STATE_FINISHED,
    JOB_STATE_STARTING,
    JOB_STATE_STOPPED,
    JOB_STATE_TRAINING,
    JobState,
    JobStatus,
)
from trilateral.common.process import job_client as client
from trilateral.common.rpc.errors import REASON_KEY
from trilateral.common.rpc.versions import version_metadata
from trilateral.guest_party.prediction import PredictionCounts


@dataclass
class FakeCoordinator(jobs_pb2_grpc.JobServiceServicer):
    """A coordinator that only talks: plays a script of statuses, and remembers what it was asked."""

    script: list[JobStatus] = field(default_factory=list)
    refusal: str | None = None
    cuts_after: int | None = None
    """End a watch early, after so many messages."""
    n_cut: int | None = None
    """How many watches `cuts_after` and `dies` concern; None for all of them."""
    n_watches: int = 0
    holds_after: int | None = None
    """Leave the first watch open after so many messages, until its deadline."""
    dies: bool = False
    """End a watch as a call ends whose server is gone."""
    started: list[JobConfig] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    def _note(self, context: grpc.ServicerContext) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        self.deadlines.append(context.time_remaining())
        context.set_trailing_metadata(version_metadata())
        if self.refusal is not None:
            self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "policy", self.refusal)

    def _refuse(self, context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, text: str) -> NoReturn:
        context.set_trailing_metadata(((REASON_KEY, reason),))
        context.abort(code, text)

    def StartJob(self, request: jobs_pb2.StartJobRequest, context: grpc.ServicerContext) -> jobs_pb2.StartJobResponse:
        self._note(context)
        self.started.append(JobConfig.model_validate_json(request.job_json))
        return jobs_pb2.StartJobResponse()

    def GetJob(self, request: jobs_pb2.GetJobRequest, context: grpc.ServicerContext) -> jobs_pb2.GetJobResponse:
        self._note(context)
        for status in self.script:
            if status.job == request.job:
                return jobs_pb2.GetJobResponse(status=status)
        self._refuse(context, grpc.StatusCode.NOT_FOUND, "unknown_job", f"there is no job {request.job}")

    def ListJobs(self, request: jobs_pb2.ListJobsRequest, context: grpc.ServicerContext) -> jobs_pb2.ListJobsResponse:
        self._note(context)
        return jobs_pb2.ListJobsResponse(statuses=self.script)

    def WatchJob(
        self, request: jobs_pb2.WatchJobRequest, context: grpc.ServicerContext
    ) -> Iterator[jobs_pb2.WatchJobResponse]:
        self._note(context)
        context.send_initial_metadata(version_metadata())
        self.n_watches += 1
        is_cut = self.n_cut is None or self.n_watches <= self.n_cut
        is_held = self.holds_after is not None and self.n_watches == 1
        for status in self.script[: self.holds_after if is_held else self.cuts_after if is_cut else None]:
            yield jobs_pb2.WatchJobResponse(status=status)
        if self.dies and is_cut:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if is_held:
            over = Event()
            context.add_callback(over.set)
            over.wait()

    def ListRounds(
        self, request: jobs_pb2.ListRoundsRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ListRoundsResponse:
        self._note(context)
        return jobs_pb2.ListRoundsResponse()

    def ResumeJob(
        self, request: jobs_pb2.ResumeJobRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ResumeJobResponse:
        self._note(context)
        self.resumed.append(request.job)
        return jobs_pb2.ResumeJobResponse()

    def StopJob(self, request: jobs_pb2.StopJobRequest, context: grpc.ServicerContext) -> jobs_pb2.StopJobResponse:
        self._note(context)
        self.stopped.append(request.job)
        return jobs_pb2.StopJobResponse()


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
def address(coordinator: FakeCoordinator) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    jobs_pb2_grpc.add_JobServiceServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("name: first\ndataset: credit\n")
    return path


@pytest.fixture
def guest_file(tmp_path: Path, address: str) -> Path:
    path = tmp_path / "guest.yaml"
    path.write_text(
        f"""
role: guest
listen: 127.0.0.1:50052
peers: {{host: "127.0.0.1:50051", coordinator: "{address}"}}
state: state
plaintext: true
datasets: {{credit: {{path: credit.csv, label: {{column: label}}}}}}
"""
    )
    return path


@pytest.fixture
def coordinator_file(tmp_path: Path, address: str) -> Path:
    path = tmp_path / "coordinator.yaml"
    path.write_text(
        f"""
role: coordinator
listen: {address}
peers: {{host: "127.0.0.1:50051", guest: "127.0.0.1:50052"}}
state: state
plaintext: true
"""
    )
    return path


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.delenv("TRILATERAL_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner()


# --- what it says


def starting(detail: str = "waiting for the parties") -> JobStatus:
    return JobStatus(job="first", state=JOB_STATE_STARTING, detail=detail)


def training(round: int, *notes: str) -> JobStatus:
    return JobStatus(
        job="first",
        state=JOB_STATE_TRAINING,
        round=round,
        epoch=round,
        n_epochs=30,
        batch=1,
        n_batches=1,
        loss=0.5 / round,
        seconds=2.0 * round,
        notes=notes,
    )


def ended(state: JobState.ValueType, detail: str, *notes: str) -> JobStatus:
    return JobStatus(job="first", state=state, detail=detail, round=3, epoch=3, loss=0.25, seconds=7, notes=notes)


FINISHED = ended(JOB_STATE_FINISHED, "converged")


# --- train and watch


def is_watch_command(command: str, config: Path) -> bool:
    """Whether `command` can be typed in any terminal."""
    program, *arguments = shlex.split(command)
    return os.access(program, os.X_OK) and arguments == ["watch", "first", "--config", str(config)]


def test_train_starts_the_job_and_tells_its_course(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, coordinator_file: Path
) -> None:
    coordinator.script = [starting(), training(1), training(2, "back to the best point"), FINISHED]
    result = runner.invoke(app, ["train", str(job_file), "--config", str(coordinator_file)])
    assert result.exit_code == 0
    assert [job.name for job in coordinator.started] == ["first"]
    assert result.stdout == "finished first: loss 0.250000 after 3 rounds in 7 s; converged\n"
    assert result.stderr.split("\n") == [
        "starting  waiting for the parties",
        "training  epoch 1/30  round 1  loss 0.50000  2 s",
        "note: back to the best point",
        "loss 0.50000 █▁▁ 0.25000",
        "",
    ]


def test_calls_say_who_calls_and_have_a_deadline(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, coordinator_file: Path
) -> None:
    coordinator.script = [FINISHED]
    runner.invoke(app, ["train", str(job_file), "--config", str(coordinator_file)])
    runner.invoke(app, ["status", "--config", str(coordinator_file)])
    runner.invoke(app, ["status", "first", "--config", str(coordinator_file)])
    runner.invoke(app, ["stop", "first", "--config", str(coordinator_file)])
    assert [each["trilateral-role"] for each in coordinator.metadata] == ["coordinator"] * 5  # train starts and watches
    assert all(deadline is not None and deadline < 4000 for deadline in coordinator.deadlines)


def test_train_can_leave_the_job_alone(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, guest_file: Path
) -> None:
    result = runner.invoke(app, ["train", str(job_file), "--config", str(guest_file), "--detach"])
    assert result.exit_code == 0
    assert len(coordinator.started) == 1
    told, command = result.stdout.rstrip().split(": ")
    assert told == "started first; to watch it, run"
    assert is_watch_command(command, guest_file)


def test_watch_does_not_start_anything(runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path) -> None:
    coordinator.script = [training(2), FINISHED]
    result = runner.invoke(app, ["watch", "first", "--config", str(coordinator_file)])
    assert result.exit_code == 0
    assert coordinator.started == []


@pytest.mark.parametrize(
    ("state", "detail", "text"),
    [
        (JOB_STATE_FAILED, "the IDs differ", " failed: the IDs differ"),
        (JOB_STATE_STOPPED, "stopped by the operator", ": stopped by the operator"),
    ],
)
def test_a_job_without_a_model_is_an_error(
    runner: CliRunner,
    coordinator: FakeCoordinator,
    coordinator_file: Path,
    state: JobState.ValueType,
    detail: str,
    text: str,
) -> None:
    coordinator.script = [training(1), ended(state, detail)]
    result = runner.invoke(app, ["watch", "first", "--config", str(coordinator_file)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.endswith(f"error: job first{text}\n")


def test_a_finished_job_is_a_success_even_if_its_model_is_elsewhere(
    runner: CliRunner, coordinator: FakeCoordinator, guest_file: Path
) -> None:
    coordinator.script = [training(1), FINISHED]
    result = runner.invoke(app, ["watch", "first", "--config", str(guest_file)])
    assert result.exit_code == 0
    assert result.stdout.startswith("finished first")
    model = guest_file.parent / "state/jobs/first/model.json"
    assert f"note: there is no model file {model}: name a finished job, and use the configuration of" in result.stderr


def test_an_interrupt_leaves_the_job_running(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, guest_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "progress_view", interrupt)
    result = runner.invoke(app, ["train", str(job_file), "--config", str(guest_file)])
    assert result.exit_code == 130
    assert coordinator.stopped == []
    told, command = result.stderr.rstrip().split(": ")
    assert told == "the job continues; to watch it again, run"
    assert is_watch_command(command, guest_file)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("command", ["watch", "train"])
def test_a_job_is_followed_again_when_the_coordinator_is_back_and_each_note_is_told_once(
    runner: CliRunner,
    coordinator: FakeCoordinator,
    job_file: Path,
    coordinator_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    dies: bool,
) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.01)
    coordinator.script = [training(1, "a note"), ended(JOB_STATE_FINISHED, "converged", "another")]
    coordinator.cuts_after, coordinator.n_cut, coordinator.dies = 1, 3, dies
    what = str(job_file) if command == "train" else "first"
    result = runner.invoke(app, [command, what, "--config", str(coordinator_file)])
    assert result.exit_code == 0
    assert result.stdout.startswith("finished first")
    notes = [line for line in result.stderr.split("\n") if "note" in line]
    assert (notes[0], notes[-1]) == ("note: a note", "note: another")
    lost = notes[1:-1]
    assert len(lost) == 3  # each time anew, because an answer came in between
    assert all("The job continues, and this command tries again for 10 min 00 s" in line for line in lost)


@pytest.mark.parametrize("command", ["watch", "train"])
def test_a_coordinator_that_stays_away_is_given_up_with_an_exit_code_of_its_own(
    runner: CliRunner,
    coordinator: FakeCoordinator,
    job_file: Path,
    coordinator_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(follow, "PATIENCE", 0.1)
    coordinator.script = [training(1)]
    coordinator.cuts_after, coordinator.dies = 0, True
    what = str(job_file) if command == "train" else "first"
    result = runner.invoke(app, [command, what, "--config", str(coordinator_file)])
    assert result.exit_code == ExitCode.LOST_CONTACT
    *_, error, way_on = result.stderr.rstrip().split("\n")
    assert error.startswith("error: lost contact with job first, but the job continues: cannot call the coordinator")
    told, watch_command = way_on.split(": ")
    assert told == "to watch it again, run"
    assert is_watch_command(watch_command, coordinator_file)
    assert len([line for line in result.stderr.split("\n") if "tries again" in line]) == 1
    assert coordinator.n_watches > 2


def test_a_watch_that_outlasts_its_deadline_goes_on_and_tells_each_note_once(
    runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WATCH_SECONDS", 0.5)
    coordinator.script = [training(1, "a note"), ended(JOB_STATE_FINISHED, "converged", "another")]
    coordinator.holds_after = 1
    result = runner.invoke(app, ["watch", "first", "--config", str(coordinator_file)])
    assert result.exit_code == 0
    assert coordinator.n_watches > 1
    assert [line for line in result.stderr.split("\n") if "note" in line] == ["note: a note", "note: another"]


# --- status and stop


LONG = "the host: column 'income' has 7 values that are not numbers: encode it as numbers, or exclude it [red]"


def test_status_lists_the_jobs(runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path) -> None:
    coordinator.script = [training(4), JobStatus(job="second", state=JOB_STATE_FAILED, detail=f"{LONG}\nand so on")]
    result = runner.invoke(app, ["status", "--config", str(coordinator_file)])
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["job", "state", "epoch", "round", "loss", "time", "detail"],
        ["first", "training", "4/30", "4", "0.12500", "8", "s"],
        ["second", "failed", "0", "s", *LONG.split(), "and", "so", "on"],
    ]


def test_on_a_terminal_a_job_takes_one_line_and_the_rest_is_elsewhere(
    runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    coordinator.script = [training(4), JobStatus(job="second", state=JOB_STATE_FAILED, detail=LONG)]
    result = runner.invoke(app, ["status", "--config", str(coordinator_file)])
    *table, way_on = result.stdout.splitlines()
    assert len(table) == 3
    assert all(len(line) <= 80 for line in table)
    assert table[-1].endswith("…")
    assert f"status JOB --config {coordinator_file}" in way_on


def test_status_of_one_job_has_all_of_its_error_and_its_notes(
    runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path
) -> None:
    coordinator.script = [ended(JOB_STATE_FAILED, LONG, "halved the step", "and again")]
    result = runner.invoke(app, ["status", "first", "--config", str(coordinator_file)])
    assert result.exit_code == 0
    assert result.stdout == (
        f"first  failed  epoch 3/0  round 3  loss 0.25000  7 s\n{LONG}\nnote: halved the step\nnote: and again\n"
    )


def test_status_without_jobs(runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path) -> None:
    result = runner.invoke(app, ["status", "--config", str(coordinator_file)])
    assert result.stdout == "the coordinator knows no jobs\n"


def test_an_unknown_job(runner: CliRunner, coordinator: FakeCoordinator, coordinator_file: Path) -> None:
    result = runner.invoke(app, ["status", "other", "--config", str(coordinator_file)])
    assert result.exit_code == 1
    assert result.stderr == "error: there is no job other\n"


def test_stop_asks_the_coordinator(runner: CliRunner, coordinator: FakeCoordinator, guest_file: Path) -> None:
    result = runner.invoke(app, ["stop", "first", "--config", str(guest_file)])
    assert result.exit_code == 0
    assert result.stdout == "stopped first\n"
    assert coordinator.stopped == ["first"]


def test_resume_asks_the_coordinator(runner: CliRunner, coordinator: FakeCoordinator, guest_file: Path) -> None:
    result = runner.invoke(app, ["resume", "first", "--detach", "--config", str(guest_file)])
    assert result.exit_code == 0
    assert result.stdout.startswith("resumed first; to watch it, run: ")
    assert coordinator.resumed == ["first"]


# --- errors


def test_what_the_coordinator_refuses_is_told_in_its_words(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, guest_file: Path
) -> None:
    coordinator.refusal = "host: policy: a key of 1024 bits is too small"
    result = runner.invoke(app, ["train", str(job_file), "--config", str(guest_file)])
    assert result.exit_code == 1
    assert result.stderr == "error: host: policy: a key of 1024 bits is too small\n"


@pytest.fixture
def unreachable(tmp_path: Path) -> Path:
    path = tmp_path / "lonely.yaml"
    path.write_text(
        "role: coordinator\nlisten: 127.0.0.1:1\npeers: {host: 'localhost:2', guest: 'localhost:3'}\n"
        "state: s\nplaintext: true\n"
    )
    return path


def test_a_coordinator_that_is_not_there(runner: CliRunner, job_file: Path, unreachable: Path) -> None:
    result = runner.invoke(app, ["train", str(job_file), "--config", str(unreachable)])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: cannot reach the coordinator at 127.0.0.1:1: start it with `trilateral serve coordinator "
        "--config FILE`, or correct its address in your configuration\n"
    )


def test_a_bad_job_is_a_configuration_error(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, guest_file: Path
) -> None:
    job_file.write_text("name: first\nepoch: 3\n")
    result = runner.invoke(app, ["train", str(job_file), "--config", str(guest_file)])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {job_file}: dataset: is missing\n"
        f"error: {job_file}: epoch: unknown key; did you mean epochs? (line 2)\n"
    )
    assert coordinator.started == []


def test_bins_are_counted_with_the_settings_of_any_job_on_shares(
    runner: CliRunner, coordinator: FakeCoordinator, job_file: Path, guest_file: Path
) -> None:
    command = ["bins", str(job_file), "--config", str(guest_file)]
    refused = runner.invoke(app, command)
    assert refused.exit_code == 2
    assert refused.stderr == f"error: {job_file}: `task: bins` counts on secret shares: set `protocol: shares`\n"
    assert coordinator.started == []

    job_file.write_text("name: first\ndataset: credit\nprotocol: shares\ntask: train\n")
    coordinator.script = [FINISHED]
    assert runner.invoke(app, command).exit_code == 0
    assert [job.task for job in coordinator.started] == ["bins"]


@pytest.mark.parametrize(
    "command", [["train", "JOB"], ["watch", "first"], ["status"], ["stop", "first"], ["serve", "host"]]
)
def test_a_missing_configuration(runner: CliRunner, tmp_path: Path, job_file: Path, command: list[str]) -> None:
    missing = tmp_path / "missing.yaml"
    arguments = [str(job_file) if each == "JOB" else each for each in command]
    result = runner.invoke(app, [*arguments, "--config", str(missing)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {missing}: no such file\n"


def test_the_role_must_be_that_of_the_file(runner: CliRunner, guest_file: Path) -> None:
    result = runner.invoke(app, ["serve", "host", "--config", str(guest_file)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {guest_file}: role: is guest, not host: use the configuration of the host\n"


def predict_command(config: Path, out: Path) -> list[str]:
    return ["predict", "credit", "--dataset", "march", "--config", str(config), "--out", str(out)]


def test_scores_are_asked_for_with_the_guests_file(runner: CliRunner, coordinator_file: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, predict_command(coordinator_file, tmp_path / "scores.csv"))
    assert result.exit_code == 2
    assert "role: is coordinator, but only the guest can predict: use the guest's configuration" in result.stderr


def test_a_prediction_on_a_dataset_that_is_none_ends_before_anyone_is_asked(
    runner: CliRunner, guest_file: Path, tmp_path: Path
) -> None:
    result = runner.invoke(app, predict_command(guest_file, tmp_path / "scores.csv"))
    assert result.exit_code == 1
    assert "the guest has no dataset named march" in result.stderr


def test_a_file_for_missing_ids_is_refused_where_no_id_can_be_missing(
    runner: CliRunner, guest_file: Path, tmp_path: Path
) -> None:
    words = predict_command(guest_file, tmp_path / "scores.csv")
    result = runner.invoke(app, [*words, "--aligned", "--missing", str(tmp_path / "missing.csv")])
    assert result.exit_code == 2
    assert "leave out --missing or --aligned" in result.stderr


@pytest.mark.parametrize(("n_scored", "code"), [(5, ExitCode.SUCCESS), (0, ExitCode.NOTHING_SCORED)])
def test_a_prediction_says_how_far_to_trust_it_and_an_empty_one_has_a_warning_and_a_code(
    runner: CliRunner, guest_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_scored: int, code: int
) -> None:
    async def predict(*_: object, **__: object) -> PredictionCounts:
        return PredictionCounts(n_scored, 7, 8, notes=("left out column 'k'",), calibration="calibrated by hand")

    monkeypatch.setattr(AsyncSession, "predict_to_file", predict)
    result = runner.invoke(app, predict_command(guest_file, tmp_path / "scores.csv"))
    assert result.exit_code == code
    assert "probabilities: calibrated by hand\n" in result.stdout
    assert result.stdout.startswith("left out column 'k'\n")
    assert ("warning: no row was scored" in result.stderr) == (n_scored == 0)


def test_an_open_port_is_no_address_of_a_coordinator(runner: CliRunner, unreachable: Path) -> None:
    unreachable.write_text(unreachable.read_text().replace("127.0.0.1:1", "127.0.0.1:0"))
    result = runner.invoke(app, ["status", "--config", str(unreachable)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: listen: 127.0.0.1:0 has no fixed port")


def test_what_keeps_a_server_from_starting_is_told_with_its_file(
    runner: CliRunner, coordinator_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ConfigError("listen: is in use")

    monkeypatch.setattr("trilateral.coordinator.server.serve", refuse)
    result = runner.invoke(app, ["serve", "coordinator", "--config", str(coordinator_file)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {coordinator_file}: listen: is in use\n"


def test_debugging_a_server_leaves_the_libraries_silent(
    runner: CliRunner, coordinator_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = {}

    async def look(*_: object, **__: object) -> None:
        levels.update({name: logging.getLogger(name).getEffectiveLevel() for name in ("asyncio", "grpc._cython")})

    monkeypatch.setattr("trilateral.coordinator.server.serve", look)
    runner.invoke(app, ["serve", "coordinator", "--config", str(coordinator_file), "--log-level", "debug"])
    assert set(levels.values()) == {logging.WARNING}


@pytest.mark.parametrize(
    ("key_bits", "problem"), [("100", "at least 256, not 100"), ("1023", "a multiple of 2, not 1023")]
)
def test_a_demo_whose_key_cannot_be_has_written_nothing(
    runner: CliRunner, tmp_path: Path, key_bits: str, problem: str
) -> None:
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "demo"), "--key-bits", key_bits])
    assert result.exit_code == 2
    assert result.stderr == f"error: demo: key_bits: expected {problem}\n"
    assert not (tmp_path / "demo").exists()


def test_the_version_is_that_of_the_package(runner: CliRunner) -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"trilateral {version('trilateral')}\n"


@pytest.mark.parametrize(
    "arguments", [["serve", "boss", "--config", "x"], ["train"], ["demo", "--algorithm", "adam"], ["fly"]]
)
def test_wrong_usage(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_bug_is_told_without_a_traceback_unless_asked(
    runner: CliRunner, coordinator_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("trilateral.cli.follow.follow_job", bug)
    arguments = ["watch", "first", "--config", str(coordinator_file)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: internal error: ZeroDivisionError: a bug; for details, run: trilateral --debug ...\n"
    )
    monkeypatch.setenv("TRILATERAL_DEBUG", "1")
    assert "Traceback" in runner.invoke(app, arguments).stderr


def test_a_file_that_may_not_be_read_is_told_as_such_and_not_as_a_bug(
    runner: CliRunner, coordinator_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/secret/file")

    monkeypatch.setattr("trilateral.cli.follow.follow_job", refuse)
    result = runner.invoke(app, ["watch", "first", "--config", str(coordinator_file)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: /secret/file: Permission denied: this process runs as ")


def test_the_exit_codes_are_the_ones_that_are_described() -> None:
    text = (Path(__file__).parents[3] / "docs/commands.md").read_text()
    table = text.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(ExitCode)


@pytest.mark.parametrize("command", ["serve", "train", "watch", "status", "stop", "demo"])
def test_every_command_explains_itself(runner: CliRunner, command: str) -> None:
    result = runner.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in runner.invoke(app, ["--help"]).stdout
