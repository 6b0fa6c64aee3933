"""Tries configs/monitoring out with Prometheus itself, fed by trainings of three real processes.

Needs `prometheus` and `promtool`, of Debian's package prometheus 2.42 or newer. Checks the configuration and the
alerts, lets Prometheus scrape three processes that train, refuse a call and wait for one that stands still, and asks it
everything that the dashboard asks. Ends with 1 if anything has no answer.

    python -m tests.monitoring.real_prometheus
    python -m tests.monitoring.real_prometheus --picture docs/pictures/dashboard.png     needs matplotlib too

The picture is the dashboard as configs/monitoring/grafana/dashboards lays it out, drawn from Prometheus's answers.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from trilateral.client.job_client import JobClient
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sqn
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.trial.localhost import LocalProcesses, free_addresses
from trilateral.demo.files import write_files
from trilateral.demo.tables import DATASET

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "configs/monitoring"
DASHBOARD = MONITORING / "grafana/dashboards/trilateral.json"
KEY_BITS = 2048
SCRAPE_SECONDS = 1
RATE = "8s"
"""In the place of Grafana's $__rate_interval, of a few scrapes."""
STANDSTILL_SECONDS = 8.0
JOBS = (
    JobConfig(name="with-sqn", dataset=DATASET, algorithm=Sqn(), batch=150, epochs=30, tolerance=0, l2=0.01),
    JobConfig(name="with-lbfgs", dataset=DATASET, algorithm=Lbfgs(), epochs=30, l2=0.01),
)


def main() -> None:
    """See above."""
    parser = ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--picture", type=Path)
    picture = parser.parse_args().picture
    missing = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
    if missing:
        sys.exit(f"{' and '.join(missing)} must be in the PATH: on Debian, apt install prometheus")
    for words in (
        ["check", "config", str(MONITORING / "prometheus.yml")],
        ["test", "rules", str(ROOT / "tests/monitoring/alerts.yml")],
    ):
        subprocess.run(["promtool", *words], check=True)
    with tempfile.TemporaryDirectory() as folder:
        if not try_out(Path(folder), picture):
            sys.exit(1)


def try_out(folder: Path, picture: Path | None) -> bool:
    """Train under Prometheus's eyes; tell whether it has an answer to everything that the dashboard asks."""
    files = write_files(folder / "demo", free_addresses(), KEY_BITS, "lbfgs")
    pages, (listen, *_) = free_addresses(), free_addresses().values()
    for role, path in files.configs.items():
        settings = yaml.safe_load(path.read_text())
        settings["metrics"] = {"listen": pages[role]}
        if "policy" in settings:
            settings["policy"]["min_rows_per_feature"] = 5  # for several rounds an epoch
        path.write_text(yaml.safe_dump(settings))
    configs = {role: load_process_config(path, {}) for role, path in files.configs.items()}
    with LocalProcesses(files.configs, files.log_files) as processes, prometheus(folder, pages, listen):
        begun = time.time()
        asyncio.run(happen(configs, processes.pids))
        time.sleep(3 * SCRAPE_SECONDS)
        ended = time.time()
        panels = answers(listen, begun, ended)
        rules = ask(listen, "rules")["groups"][0]["rules"]
    empty = [
        expression
        for panel, series in panels
        for expression, _, found in series
        if not found and panel["type"] != "row"
    ]
    sick = [rule["name"] for rule in rules if rule["health"] != "ok"]
    n_expressions = sum(len(series) for _, series in panels)
    print(f"{n_expressions} expressions of the dashboard, {n_expressions - len(empty)} answered; {len(rules)} alerts")
    fired = [rule["name"] for rule in rules if rule["state"] != "inactive"]
    print(f"alerts that are pending or firing: {', '.join(fired) or 'none'}")
    for text in [*(f"no answer: {expression}" for expression in empty), *(f"in error: {name}" for name in sick)]:
        print(text)
    if picture is not None:
        from tests.monitoring.picture import draw

        draw(panels, picture)
    return not empty and not sick


async def happen(configs: dict[Role, ProcessConfig], pids: dict[Role, int]) -> None:
    """Train, be refused, and have a process stand still in the midst of a job."""
    async with JobClient(configs[Role.GUEST]) as guest, JobClient(configs[Role.HOST]) as host:
        for number, job in enumerate(JOBS):
            with contextlib.suppress(ProtocolError):  # The guest starts jobs, and nobody else.
                await host.start(job)
            await guest.start(job)
            stopped = number > 0
            async for status in guest.watch(job.name):
                if not stopped and status.round >= 30:
                    stopped = True
                    os.kill(pids[Role.HOST], signal.SIGSTOP)
                    await asyncio.sleep(STANDSTILL_SECONDS)
                    os.kill(pids[Role.HOST], signal.SIGCONT)
            if status.state != JOB_STATE_FINISHED:
                sys.exit(f"the job {job.name} has not finished: {status.detail}")


@contextlib.contextmanager
def prometheus(folder: Path, pages: dict[Role, str], listen: str) -> Iterator[None]:
    """Run Prometheus with the project's configuration, but for where the processes are and how often it looks."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"}
    for entry in config["scrape_configs"][0]["static_configs"]:
        entry["targets"] = [pages[Role(entry["labels"]["instance"])]]
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={listen}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until_scraped(listen)
        yield
    finally:
        process.terminate()
        process.wait()


def until_scraped(listen: str) -> None:
    """Wait until all three processes have been scraped."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            up = ask(listen, "query", query='up{job="trilateral"} == 1')["result"]
            if len(up) == len(Role):
                return
        time.sleep(0.2)
    sys.exit("Prometheus has not scraped all three processes within 30 s")


def ask(listen: str, path: str, **parameters: Any) -> dict[str, Any]:
    """Ask Prometheus's API."""
    with urlopen(f"http://{listen}/api/v1/{path}?{urlencode(parameters)}") as response:
        data: dict[str, Any] = json.load(response)["data"]
        return data


Series = list[dict[str, Any]]
Panels = list[tuple[dict[str, Any], list[tuple[str, str, Series]]]]
"""Each panel of the dashboard, with expression, legend and answer for each of its targets."""


def answers(listen: str, begun: float, ended: float) -> Panels:
    """Ask everything that the dashboard asks, over the time between."""
    panels: Panels = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        series = []
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", RATE).replace("$instance", ".*")
            found = ask(listen, "query_range", query=expression, start=begun, end=ended, step=SCRAPE_SECONDS)["result"]
            series.append((expression, target["legendFormat"], found))
        panels.append((panel, series))
    return panels


if __name__ == "__main__":
    main()
