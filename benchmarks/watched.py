"""Measure what metrics and traces add to the cost of a round.

python benchmarks/watched.py [--repeats 8] [--json]

Four groups of three processes train in turn, with a 2048-bit key and 1000 rows as in `benchmarks/round.py`:

    silent     count nothing, which only this benchmark can do
    counted    count, and publish nothing: the default
    scraped    also publish the metrics at `metrics.listen`, which this program reads every second
    traced     also send traces to `traces.endpoint`, which this program collects

round_seconds             median round at the coordinator, median over the repeats
processor_seconds         processor time of all three processes for a round, median over the repeats
*_more                    quartiles of the ratio to `silent`, minus 1, over the repeats
events_per_round          number of events that the three processes report in a round
microseconds_per_event    processor time for an event, counted, and counted and traced

The last two are there because the noise of a busy machine is larger than the effect on a round.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

# `python benchmarks/watched.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATASET, Setup, processor_seconds, read_lines, scratch_folder
from benchmarks.round import WARM_UP, make_tables
from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.observe.events import Delivered, Event, Handled, Handling, Moved, PhaseOver, Prepared
from trilateral.common.observe.metrics import Metrics
from trilateral.common.observe.traces import Traces
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.rpc.codec import JobKey
from trilateral.common.trial.localhost import LocalProcesses, free_addresses

N_ROUNDS = 16
SILENT = """
import atexit, itertools
from trilateral.common.observe.metrics import Metrics
count = itertools.count()
Metrics.session = lambda self, name: lambda event: next(count)
atexit.register(lambda: print("events:", next(count)))
from trilateral.cli.main import main
main()
"""
N_EVENTS = 20_000
SCRAPE_SECONDS = 1.0


class SilentProcesses(LocalProcesses):
    """Three servers that count nothing."""

    def _start(self, role: Role) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", SILENT, "serve", role, "--config", str(self._configs[role])]
        with self._logs[role].open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


class Variant:
    """Three processes that are watched in one of the four ways."""

    def __init__(self, folder: Path, name: str, settings: Callable[[Role], dict[str, Any]]) -> None:
        folder.mkdir()
        self.name = name
        self._setup = Setup(folder, make_tables())
        self._configs = {role: folder / f"{role}.yaml" for role in Role}
        for role, path in self._configs.items():
            path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | settings(role)))
        kind = SilentProcesses if name == "silent" else LocalProcesses
        self.logs = {role: folder / f"{role}.log" for role in Role}
        self.processes = kind(self._configs, self.logs)

    def train(self, number: int) -> tuple[float, float]:
        """Return the seconds of the median round, and the processor time for a round."""
        name = f"job-{number}"
        job = JobConfig(
            name=name, dataset=DATASET, aligned=True, algorithm=Sgd(), epochs=N_ROUNDS, holdout=0, tolerance=0
        )
        before = processor_seconds(self.processes.pids)
        asyncio.run(self._run(job))
        after = processor_seconds(self.processes.pids)
        state = self._setup.config(Role.COORDINATOR).state
        lines = read_lines(JobFolder(state, name).history)[WARM_UP:]
        seconds = statistics.median(line["seconds"]["all"] for line in lines)
        return seconds, sum(after[role] - before[role] for role in Role) / N_ROUNDS

    async def _run(self, job: JobConfig) -> None:
        async with JobClient(self._setup.config(Role.GUEST)) as client:
            await client.start(job)
            async for status in client.watch(job.name):
                last = status
        if last.state != JOB_STATE_FINISHED:
            raise TrilateralError(f"job {job.name}: {last.detail}")


@contextmanager
def collector() -> Iterator[str]:
    """Yield the address of a collector that discards the traces it receives."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()


def scrape_for_ever(addresses: list[str]) -> None:
    """Read the metrics of all processes every second."""
    while True:
        for address in addresses:
            try:
                with urlopen(f"http://{address}/metrics") as page:
                    page.read()
            except OSError:
                return  # The processes have ended.
        time.sleep(SCRAPE_SECONDS)


def measure(repeats: int) -> dict[str, Any]:
    """Train with each variant in turn, so that other work on the machine affects all alike."""
    with ExitStack() as stack:
        folder, endpoint = stack.enter_context(scratch_folder()), stack.enter_context(collector())
        pages = {name: free_addresses() for name in ("scraped", "traced")}
        variants = [
            Variant(folder / "silent", "silent", lambda _: {}),
            Variant(folder / "counted", "counted", lambda _: {}),
            Variant(folder / "scraped", "scraped", lambda role: {"metrics": {"listen": pages["scraped"][role]}}),
            Variant(
                folder / "traced",
                "traced",
                lambda role: {"metrics": {"listen": pages["traced"][role]}, "traces": {"endpoint": endpoint}},
            ),
        ]
        with ExitStack() as running:
            for variant in variants:
                running.enter_context(variant.processes)
            addresses = [address for each in pages.values() for address in each.values()]
            threading.Thread(target=scrape_for_ever, args=[addresses], daemon=True).start()
            for variant in variants:  # a warm-up
                variant.train(0)
            found: dict[str, list[tuple[float, float]]] = {variant.name: [] for variant in variants}
            for number in range(1, repeats + 1):
                turn = number % len(variants)
                for variant in variants[turn:] + variants[:turn]:
                    found[variant.name].append(variant.train(number))
        told = sum(int(re.findall(r"^events: (\d+)$", log.read_text(), re.M)[0]) for log in variants[0].logs.values())
    return {
        **{name: figures(each, found["silent"]) for name, each in found.items()},
        "events_per_round": round(told / (repeats + 1) / N_ROUNDS),
        "microseconds_per_event": microseconds_per_event(),
    }


def microseconds_per_event() -> dict[str, float]:
    """Return the processor time for each of the usual events of a round."""
    key = RoundKey(1, 1)
    events: list[Event] = [
        Handling(Role.GUEST, "residual", key),
        PhaseOver("check", 0.001),
        PhaseOver("product", 0.001),
        Handled(),
        Moved("sent", Role.COORDINATOR, "gradient", 520, 1),
        Delivered(Role.COORDINATOR, "gradient", key, 0.001),
        Prepared(100),
        PhaseOver("prepare", 0.001),
    ]
    processor = BatchSpanProcessor(InMemorySpanExporter())
    counted = Metrics(Role.HOST, Path()).session("job")
    traced = Traces(Role.HOST, processor).session(JobKey.draw("job"))
    found = {}
    for name, tells in (("counted", [counted]), ("traced", [counted, traced])):
        begun = time.process_time()
        for event in events * (N_EVENTS // len(events)):
            for tell in tells:
                tell(event)
        found[name] = round((time.process_time() - begun) / N_EVENTS * 1e6, 1)
    processor.shutdown()  # type: ignore[no-untyped-call]
    return found


def figures(each: list[tuple[float, float]], silent: list[tuple[float, float]]) -> dict[str, Any]:
    """Return medians, and how much they exceed those of `silent`."""
    described: dict[str, Any] = {}
    for index, name in enumerate(("round_seconds", "processor_seconds")):
        described[name] = round(statistics.median(one[index] for one in each), 4)
        more = [one[index] / other[index] - 1 for one, other in zip(each, silent, strict=True)]
        described[f"{name}_more"] = [round(value, 4) for value in statistics.quantiles(more)]
    return described


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8, help="trainings of each variant (default: 8)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    described = measure(arguments.repeats)
    print(json.dumps(described) if arguments.json else json.dumps(described, indent=2))


if __name__ == "__main__":
    main()
