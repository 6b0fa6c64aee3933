"""Ask for online scores over localhost, one row at a time, and measure how long the answers take.

python benchmarks/online.py [ROWS] [--requests N] [--json]

Host and guest run as two processes. Each has a Parquet file with ROWS rows of ten features. The program measures the
time until the host's list is ready, the first request, and the 50th and 99th percentile of N further requests over
gRPC, over HTTP, over HTTP with the guest's features in the request, and over HTTP from eight callers at a time.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import yaml

# `python benchmarks/online.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import peak_rss_mb, scratch_folder
from benchmarks.prediction import JOB, N_FEATURES, NEW, set_up
from trilateral.client.asynchronous import AsyncSession
from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.load import load_process_config
from trilateral.common.trial.localhost import LocalProcesses
from trilateral.common.trial.ports import free_address
from trilateral.guest_party.online_http import TOKEN

CALLERS = 8
MADE_SECONDS = 3_600.0
Ask = Callable[[int], Awaitable[None]]


@contextmanager
def servers(folder: Path, n_rows: int) -> Iterator[tuple[LocalProcesses, Path, str]]:
    """Run host and guest; yield the processes, the guest's configuration and the address for HTTP."""
    paths, address = set_up(folder, n_rows, aligned=True), free_address()
    own: dict[Role, dict[str, Any]] = {
        Role.HOST: {"precompute": [{"job": JOB.name, "dataset": NEW}]},
        Role.GUEST: {"listen": address, "max_per_second": 1e6},
    }
    for role, online in own.items():
        config = yaml.safe_load(paths[role].read_text())
        config["online"] = online
        paths[role].write_text(yaml.safe_dump(config))
    with LocalProcesses(paths, {role: folder / f"{role}.log" for role in Role}) as processes:
        yield processes, paths[Role.GUEST], address


async def measure(guest: Path, address: str, n_rows: int, n_requests: int) -> dict[str, Any]:
    """Measure each way of asking."""
    config = load_process_config(guest, {})
    rng = np.random.default_rng(1)
    token = (config.state / TOKEN).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    features = {f"x{j}": 0.1 * j for j in range(N_FEATURES)}

    def one() -> str:
        return f"customer-{rng.integers(n_rows):09d}"

    async with AsyncSession(config) as session, aiohttp.ClientSession(headers=headers) as http:

        async def over_grpc(_: int) -> None:
            (row,) = await session.score(JOB.name, NEW, [one()])
            assert row.score is not None

        async def over_http(_: int, row: Any = None) -> None:
            body = {"job": JOB.name, "dataset": NEW, "rows": [row or one()]}
            async with http.post(f"http://{address}/score", json=body) as answer:
                (scored,) = (await answer.json())["scores"]
                assert scored["score"] is not None

        async def with_features(number: int) -> None:
            await over_http(number, {"id": one(), "features": features})

        begun = time.perf_counter()
        while True:
            try:
                await over_grpc(0)
                break
            except PeerError:
                if time.perf_counter() > begun + MADE_SECONDS:
                    raise
            await asyncio.sleep(0.1)
        figures: dict[str, Any] = {"seconds until the first score": round(time.perf_counter() - begun, 1)}
        ways: dict[str, tuple[Ask, int]] = {
            "grpc": (over_grpc, 1),
            "http": (over_http, 1),
            "http, features in the request": (with_features, 1),
            f"http, {CALLERS} callers": (over_http, CALLERS),
        }
        for name, (ask, n_callers) in ways.items():
            await ask(0)
            figures[name] = await percentiles(ask, n_requests, n_callers)
    return figures


async def percentiles(ask: Ask, n_requests: int, n_callers: int) -> dict[str, float]:
    """Return milliseconds for a request, and requests a second of all callers together."""
    seconds: list[float] = []
    numbers = iter(range(n_requests))

    async def call() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await ask(number)
            seconds.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(n_callers)))
    rate = n_requests / (time.perf_counter() - begun)
    p50, p99 = np.percentile(seconds, [50, 99])
    return {"p50_ms": round(1e3 * p50, 2), "p99_ms": round(1e3 * p99, 2), "requests_a_second": round(rate, 1)}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="?", default=100_000, help="number of rows of each party")
    parser.add_argument("--requests", type=int, default=1000, help="number of requests for each way of asking")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    with scratch_folder() as folder, servers(folder, arguments.rows) as (processes, guest, address):
        try:
            figures = asyncio.run(measure(guest, address, arguments.rows, arguments.requests))
        except Exception:
            print(processes.log_tails(), file=sys.stderr)
            raise
        memory = {role.value: peak_rss_mb(processes.pids[role]) for role in PARTIES}
    load = round(os.getloadavg()[0], 1)
    figures = {"rows": arguments.rows, "requests": arguments.requests, **figures, "peak_rss_mb": memory, "load": load}
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
