"""Run docker-compose.yml on a container engine: build the image, train, and check the result.

    make compose-test
    make compose-test DOCKER="sudo docker"

Needs a running Docker Engine with Compose, and nothing of Python but the standard library. The containers, networks
and volumes belong to a Compose project of their own, which is removed at the end; another project of docker-compose.yml
keeps its state. The files in compose-result are replaced.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "compose-result"
PROJECT = "trilateral-test"
ROLES = ("host", "guest", "coordinator")


def main() -> None:
    """Train in containers.

    Raises:
        SystemExit: no engine answers, or a step fails.
    """
    docker = shlex.split(sys.argv[1])
    compose = [*docker, "compose", "--project-name", PROJECT, "--profile", "demo"]
    for command, missing in (
        ([*docker, "info"], "no Docker Engine answers"),
        ([*compose, "version"], "the Compose plugin is not installed"),
    ):
        if not _succeeds(command):
            raise SystemExit(f"{missing}: `{shlex.join(command)}` fails")
    for role in ROLES:
        shutil.rmtree(RESULT / role, ignore_errors=True)
    try:
        # Without attaching: this returns when the last service, `result`, has started, hence after the training.
        _run([*compose, "up", "--build", "--detach"])
        container = subprocess.check_output([*compose, "ps", "--all", "--quiet", "result"], cwd=ROOT, text=True)
        if subprocess.check_output([*docker, "wait", container.strip()], text=True).strip() != "0":
            raise SystemExit("the service `result` failed")
        check_result()
    except BaseException:
        _succeeds([*compose, "logs", "--tail", "40"], show=True)
        raise
    finally:
        _run([*compose, "down", "--volumes"])


def check_result() -> None:
    """Check that compose-result has a model part of each party and all three histories."""
    features = {}
    for role in ("host", "guest"):
        model = json.loads((RESULT / role / "model.json").read_text())
        features[role] = set(model["weights"])
    if not all(features.values()) or features["host"] & features["guest"]:
        raise SystemExit("the two models are not two parts of one")
    rounds = {role: len((RESULT / role / "history.jsonl").read_text().splitlines()) for role in ROLES}
    if len(set(rounds.values())) != 1 or not all(rounds.values()):
        raise SystemExit(f"the histories differ in their numbers of rounds: {rounds}")
    n_host, n_guest = (len(features[role]) for role in ("host", "guest"))
    print(f"trained in {rounds['guest']} rounds: {n_host} features at the host, {n_guest} at the guest")


def _run(command: list[str]) -> None:
    print(shlex.join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit(f"failed: {shlex.join(command)}")


def _succeeds(command: list[str], *, show: bool = False) -> bool:
    output = None if show else subprocess.DEVNULL
    try:
        return subprocess.run(command, cwd=ROOT, check=False, stdout=output, stderr=output).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
