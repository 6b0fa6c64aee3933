"""Three real processes for tests in a browser, with tables whose names and values look like markup."""

import asyncio
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import yaml

from tests.support.three_servers import lenient
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.trial.localhost import LocalProcesses, free_addresses, process_settings

T = TypeVar("T")

DATASET = "made"
N_ROWS = 1500
SCRIPT = "<script>window.wasRun = true</script>"
IMAGE = "<img src=x onerror='window.wasRun = true'>"
HOST_COLUMNS = ("income", IMAGE, '"><b>bold</b>', "a&amp;b$x_1^2$")
GUEST_COLUMNS = ("age", f"{SCRIPT}</script>", "javascript:alert(1)", "a_column_with_a_long_name_without_any_space_" * 3)
CATEGORIES = ("red", f"</style>{SCRIPT}", "{{7*7}} <i>x</i>")
"""Values of the host's column of categories."""
CATEGORY_COLUMN = "colour<svg/onload='window.wasRun=true'>"
CONSTANT = "<s>constant</s>"
"""A column with one value, which each party leaves out with a note."""
LABELS = ("<u>yes</u>", f"no{IMAGE}")
"""The positive and the negative value of the label."""
MARKUP = (*HOST_COLUMNS[1:], *GUEST_COLUMNS[1:3], *CATEGORIES[1:], CATEGORY_COLUMN, CONSTANT)
FINISHED = JobConfig(
    name="first-model", dataset=DATASET, protocol="shares", inference=True, tolerance=1e-7, evaluate_every=6
)


class BrowsedTrial(LocalProcesses):
    """Three servers. A test must enter this before it opens a browser, or in another thread: see `aside`.

    Args:
        folder: where to write tables, configurations, logs and state.
        changes: settings for all three, which may depend on the role.
    """

    def __init__(self, folder: Path, changes: Callable[[Role], dict[str, Any]] = lambda role: {}) -> None:
        self.folder = folder
        tables = make_tables()
        addresses = free_addresses()
        paths = {role: folder / f"{role}.yaml" for role in Role}
        for role, path in paths.items():
            settings = process_settings(role, addresses, folder / "state")
            settings["limits"] = {"peer_timeout": 10, "round_timeout": 60}
            if role in PARTIES:
                tables[role].to_csv(folder / f"{role}.csv", index=False)
                preprocessing = {"binning": {"max_bins": 4}} if role is Role.GUEST else {}
                dataset: dict[str, Any] = {"path": str(folder / f"{role}.csv"), "preprocessing": preprocessing}
                if role is Role.GUEST:
                    dataset["label"] = {"positive": LABELS[0], "negative": LABELS[1]}
                else:
                    dataset["categorical"] = [CATEGORY_COLUMN]
                settings["datasets"] = {DATASET: dataset}
                settings["policy"] = lenient(role, min_key_bits=256, share_inference=True)
            else:
                settings["operators"] = {"start": list(map(str, Role)), "stop": list(map(str, Role))}
            path.write_text(yaml.safe_dump(settings | changes(role)))
        self.configs = {role: load_process_config(path, {}) for role, path in paths.items()}
        super().__init__(paths, {role: folder / f"{role}.log" for role in Role})

    def kill(self, role: Role) -> None:
        """Kill a process, as a crash would."""
        self._processes[role].send_signal(signal.SIGKILL)
        self._processes[role].wait()

    def restart(self, role: Role) -> None:
        """Start a process again, and wait until it serves."""
        self._processes[role] = self._start(role)
        asyncio.run(self._wait_for(role))


def make_tables() -> dict[Role, pd.DataFrame]:
    """Return a table of each party, with the same IDs."""
    random = np.random.default_rng(5)
    ids = pd.DataFrame({"id": [f"{number:06d}" for number in range(N_ROWS)], CONSTANT: 1})
    host = ids.assign(**{name: random.normal(size=N_ROWS) for name in HOST_COLUMNS})
    host[CATEGORY_COLUMN] = random.choice(CATEGORIES, N_ROWS)
    guest = ids.assign(**{name: random.normal(size=N_ROWS) for name in GUEST_COLUMNS})
    score = host["income"] - guest["age"] + 0.5 * host[IMAGE] + (host[CATEGORY_COLUMN] == CATEGORIES[0])
    guest["label"] = np.where(random.random(N_ROWS) < 1 / (1 + np.exp(-score)), *LABELS)
    return {Role.HOST: host, Role.GUEST: guest}


def train(config: ProcessConfig, job: JobConfig) -> None:
    """Train, and check that the job has finished."""

    async def follow() -> None:
        async with JobClient(config) as client:
            await client.start(job)
            async for status in client.watch(job.name):
                last = status
        assert last.state == JOB_STATE_FINISHED, last.detail

    asyncio.run(follow())


def aside(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread of its own, because Playwright keeps an event loop in this one."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *arguments).result()
