"""``trilateral demo`` as a new user runs it: four real processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.config.load import load_process_config
from common.data.model_file import load_model
from common.roles import Role


def demo_command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "common.cli.main", "demo", "--out", str(folder), "--key-bits", "1024", *options]


def anyone_listens(folder: Path) -> bool:
    for role in Role:
        host, port = load_process_config(folder / f"{role}.yaml", {}).listen.split(":")
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return True
    return False


def test_the_demo_trains_the_same_model_as_plain_numpy_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    # Settings of the caller's own processes are none of the demo's.
    environment = os.environ | {"TRILATERAL_LISTEN": "127.0.0.1:1"}

    done = subprocess.run(
        demo_command(folder), capture_output=True, text=True, timeout=150, env=environment, check=False
    )

    assert done.returncode == 0, done.stderr
    difference = re.search(r"plain numpy:\s+(\S+)", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-5
    assert "scikit-learn" in done.stdout
    assert "training  epoch" in done.stderr
    models = {role: load_model(folder / f"state/{role}/demo/model.json") for role in (Role.HOST, Role.GUEST)}
    assert models[Role.HOST].metrics is None
    metrics = models[Role.GUEST].metrics
    assert metrics is not None
    assert metrics.auc is not None
    assert metrics.auc > 0.99
    assert not set(models[Role.HOST].weights) & set(models[Role.GUEST].weights)
    assert not anyone_listens(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
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


def test_a_demo_whose_training_fails_shows_the_logs(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(demo_command(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = folder / "logs/host.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder / "job.yaml").exists():
        time.sleep(0.01)
    (folder / "host.csv").write_text("patient,worst_radius\nP1,a word\n")

    _, stderr = demo.communicate(timeout=150)

    assert demo.returncode == 1
    assert stderr.count("\nerror: ") > 3
    assert f"{log}:" in stderr
    assert not anyone_listens(folder)
