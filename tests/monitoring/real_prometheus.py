"""Test configs/monitoring with Prometheus itself, on trainings of three real processes.

Needs `prometheus` and `promtool`, version 2.42 or newer, for example from Debian's package prometheus. Checks the
configuration and the alerts. Then Prometheus scrapes three processes while they train, refuse a call, and wait for a
frozen process. The last training is on shares, of a table whose rounds take seconds, and the guest computes on a
cluster. Finally the script runs every query of the dashboard. The exit code is 1 if a query has no answer.

    python -m tests.monitoring.real_prometheus
    python -m tests.monitoring.real_prometheus --picture docs/pictures/dashboard.png     needs matplotlib too

The picture shows the dashboard of configs/monitoring/grafana/dashboards with the answers from Prometheus.
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

import numpy as np
import pandas as pd
import yaml

from tests.support.waiting import eventually_in_thread
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Lbfgs, Sqn
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.trial.cluster import trial_cluster
from trilateral.common.trial.localhost import LocalProcesses, free_addresses
from trilateral.demo.files import DemoFiles, write_files
from trilateral.demo.tables import DATASET

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "configs/monitoring"
DASHBOARD = MONITORING / "grafana/dashboards/trilateral.json"
KEY_BITS = 2048
SCRAPE_SECONDS = 1
RATE = "8s"
"""A few scrapes, in place of Grafana's $__rate_interval."""
STANDSTILL_SECONDS = 8.0
LARGE = "large"
N_ROWS = 2_000_000
"""Rows of the large table: a round takes more than a second, so that processes tell how many rows are done."""
ON_SHARES = JobConfig(
    name="on-shares", dataset=LARGE, protocol="shares", algorithm=Lbfgs(), epochs=6, l2=0.01, aligned=True
)
JOBS = (
    JobConfig(name="with-sqn", dataset=DATASET, algorithm=Sqn(), batch=150, epochs=30, tolerance=0, l2=0.01),
    JobConfig(name="with-lbfgs", dataset=DATASET, algorithm=Lbfgs(), epochs=30, l2=0.01),
    ON_SHARES,
)


def main() -> None:
    """Run the test."""
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
    """Write the files, start a cluster for the guest, and watch the trainings."""
    files = write_files(folder / "demo", free_addresses(), KEY_BITS, "lbfgs")
    pages, (listen, *_) = free_addresses(), free_addresses().values()
    with trial_cluster(2) as cluster:
        for role, path in files.configs.items():
            settings = yaml.safe_load(path.read_text())
            settings["metrics"] = {"listen": pages[role]}
            if "policy" in settings:
                settings["policy"]["min_rows_per_feature"] = 5  # for several rounds in each epoch
                settings["datasets"][LARGE] = write_large_table(folder / f"{role}.parquet", role)
            if role is Role.GUEST:
                settings["engine"] = cluster.settings
            path.write_text(yaml.safe_dump(settings))
        return watch_trainings(folder, files, pages, listen, picture)


def write_large_table(path: Path, role: Role) -> dict[str, Any]:
    """Write a table of one party, in the order of the other's, and return its settings."""
    random = np.random.default_rng(sorted(Role).index(role))
    columns = {f"{role}_{number}": random.standard_normal(N_ROWS) for number in range(4)}
    table = pd.DataFrame({"row": np.arange(N_ROWS), **columns})
    settings: dict[str, Any] = {"path": str(path), "id": "row"}
    if role is Role.GUEST:
        is_positive = random.random(N_ROWS) < 1 / (1 + np.exp(-table["guest_0"]))
        table["label"] = np.where(is_positive, "yes", "no")
        settings["label"] = {"column": "label", "positive": "yes", "negative": "no"}
    table.to_parquet(path)
    return settings


def watch_trainings(folder: Path, files: DemoFiles, pages: dict[Role, str], listen: str, picture: Path | None) -> bool:
    """Train while Prometheus scrapes; return whether it can answer every query of the dashboard."""
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
    n_answered = n_expressions - len(empty)
    print(f"{n_expressions} expressions in the dashboard, {n_answered} with an answer; {len(rules)} alerts")
    fired = [rule["name"] for rule in rules if rule["state"] != "inactive"]
    print(f"pending or firing alerts: {', '.join(fired) or 'none'}")
    for text in [*(f"no answer: {expression}" for expression in empty), *(f"failing rule: {name}" for name in sick)]:
        print(text)
    if picture is not None:
        from tests.monitoring.picture import draw

        draw(panels, picture)
    return not empty and not sick


async def happen(configs: dict[Role, ProcessConfig], pids: dict[Role, int]) -> None:
    """Train, have a call refused, and freeze a process during a job."""
    async with JobClient(configs[Role.GUEST]) as guest, JobClient(configs[Role.HOST]) as host:
        for number, job in enumerate(JOBS):
            with contextlib.suppress(ProtocolError):  # Only the guest may start jobs.
                await host.start(job)
            await guest.start(job)
            stopped = number > 0  # the second and third jobs have few rounds
            async for status in guest.watch(job.name):
                if not stopped and status.round >= 30:
                    stopped = True
                    os.kill(pids[Role.HOST], signal.SIGSTOP)
                    await asyncio.sleep(STANDSTILL_SECONDS)
                    os.kill(pids[Role.HOST], signal.SIGCONT)
            if status.state != JOB_STATE_FINISHED:
                sys.exit(f"the job {job.name} did not finish: {status.detail}")


@contextlib.contextmanager
def prometheus(folder: Path, pages: dict[Role, str], listen: str) -> Iterator[None]:
    """Run Prometheus with the project's configuration, apart from addresses and the scrape interval."""
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

    def has_scraped_all() -> bool:
        with contextlib.suppress(OSError):
            return len(ask(listen, "query", query='up{job="trilateral"} == 1')["result"]) == len(Role)
        return False

    try:
        eventually_in_thread(has_scraped_all)
    except TimeoutError:
        sys.exit("Prometheus has not scraped all three processes")


def ask(listen: str, path: str, **parameters: Any) -> dict[str, Any]:
    """Call the API of Prometheus."""
    with urlopen(f"http://{listen}/api/v1/{path}?{urlencode(parameters)}") as response:
        data: dict[str, Any] = json.load(response)["data"]
        return data


Series = list[dict[str, Any]]
Panels = list[tuple[dict[str, Any], list[tuple[str, str, Series]]]]
"""The panels of the dashboard, each with the expression, legend, and answer of its targets."""


def answers(listen: str, begun: float, ended: float) -> Panels:
    """Run every query of the dashboard over a period."""
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
