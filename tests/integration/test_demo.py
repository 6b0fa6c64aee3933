"""`trilateral demo` as a new user runs it, with four real processes."""

import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.waiting import eventually_in_thread, interruptible
from trilateral.cli.main import app
from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_process_config
from trilateral.common.data.model.model_file import load_model
from trilateral.common.trial.ports import lock_address
from trilateral.demo.files import write_files


def demo_command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "trilateral.cli.main", "demo", "--out", str(folder), "--key-bits", "1024", *options]


def listens(folder: Path, role: Role) -> bool:
    host, port = load_process_config(folder / f"{role}.yaml", {}).listen.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def anyone_listens(folder: Path) -> bool:
    return any(listens(folder, role) for role in Role)


@pytest.mark.slow
def test_the_demo_trains_the_same_model_as_plain_numpy_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    # The demo ignores settings in the environment, which are for other processes.
    environment = {"TRILATERAL_LISTEN": "127.0.0.1:1"}
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]

    done = CliRunner(env=environment).invoke(app, ["demo", "--out", str(folder), "--key-bits", "1024"])

    assert done.exit_code == 0, done.stderr
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    for reference, most in (("plain numpy", 1e-5), ("scikit-learn", 5e-5)):
        difference = re.search(rf"that of {reference}:\s+(\S+)", done.stdout)
        assert difference is not None
        assert float(difference[1]) < most
    assert "training  epoch" in done.stderr
    models = {role: load_model(folder / f"state/{role}/jobs/demo/model.json") for role in (Role.HOST, Role.GUEST)}
    assert models[Role.HOST].metrics is None
    metrics = models[Role.GUEST].metrics
    assert metrics is not None
    assert metrics.auc is not None
    assert metrics.auc > 0.99
    assert not set(models[Role.HOST].weights) & set(models[Role.GUEST].weights)
    assert not anyone_listens(folder)
    by_hand(done.stdout, folder, cwd=tmp_path)


def by_hand(demo_output: str, folder: Path, cwd: Path) -> None:
    """Run the commands that the demo printed, in another folder."""
    # The demo has ended and released its ports. Reserve them, so that no other test takes them.
    assert all(lock_address(load_process_config(folder / f"{role}.yaml", {}).listen) for role in Role)
    report, *serves, train = (shlex.split(line) for line in demo_output.splitlines() if line.startswith("  /"))
    assert len(serves) == len(Role)
    reported = CliRunner().invoke(app, report[report.index("report") :])
    assert reported.exit_code == 0, reported.output
    page = (folder / "report.html").read_text()
    assert all(f'<title id="holdout-{name}-title' in page for name in ("roc", "scores", "calibration"))
    with ExitStack() as servers:
        for command in serves:
            server = servers.enter_context(subprocess.Popen(command, cwd=cwd, stderr=subprocess.DEVNULL))
            servers.callback(server.terminate)
        eventually_in_thread(lambda: all(listens(folder, role) for role in Role))
        trained = subprocess.run(train, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert trained.returncode == 0, trained.stderr
    assert (folder / "state/guest/jobs/by-hand/model.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    with interruptible():
        demo = subprocess.Popen(demo_command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("training"):
            break
    assert anyone_listens(folder)

    demo.send_signal(number)

    _, stderr = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number
    assert "Traceback" not in stderr
    assert not anyone_listens(folder)


@pytest.mark.slow
def test_a_killed_demo_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(demo_command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("training"):
            break
    assert anyone_listens(folder)

    demo.kill()
    demo.communicate()

    eventually_in_thread(lambda: not anyone_listens(folder))


def test_a_demo_whose_training_fails_shows_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "demo"

    def write_a_bad_table(*arguments: Any) -> object:
        files = write_files(*arguments)
        files.table(Role.HOST).write_text("patient,worst_radius\nP1,a word\n")
        return files

    monkeypatch.setattr("trilateral.demo.write_files", write_a_bad_table)
    result = CliRunner().invoke(app, ["demo", "--out", str(folder), "--key-bits", "1024"])

    assert result.exit_code == 1
    assert re.search(r"^error: .*the host: column 'worst_radius'", result.stderr, re.MULTILINE)
    for role in Role:
        assert f"error: {folder}/logs/{role}.log:\n  " in result.stderr
    assert not anyone_listens(folder)
