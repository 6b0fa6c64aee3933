"""Measure a private alignment over localhost: the host's server, and `trilateral align` at the guest.

python benchmarks/alignment.py [--ids N] [--portable] [--json]

Each party has a Parquet file with N IDs of twelve digits in an order of its own. Half of the IDs are common.

seconds                the whole of `trilateral align`, with its start and reading the file; and the part after both
                       parties have read their files
cpu_seconds            processor time of that process and of the host's server meanwhile, which hardly depends on other
                       programs
microseconds_an_id     the processor time of both after both have read their files, for each ID of one party
busy                   the share of all processors that both processes used, in the same two spans
cores_busy             the share of each processor that any program used, in the whole
peak_rss_mb            peak memory of the same two processes
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import DATASET, Setup, peak_rss_mb, scratch_folder
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.jobs.arithmetic import VARIABLE


def make_tables(n_ids: int) -> dict[Role, pd.DataFrame]:
    """Return tables with the IDs of both parties, half of them common."""
    rng = np.random.default_rng(0)
    numbers = rng.permutation(3 * n_ids // 2)
    ids = {Role.HOST: numbers[:n_ids], Role.GUEST: numbers[len(numbers) - n_ids :]}
    return {
        role: pd.DataFrame({"id": [f"{number:012d}" for number in rng.permutation(ids[role])], "x": 1.0})
        for role in PARTIES
    }


def measure(n_ids: int, *, portable: bool) -> dict[str, Any]:
    """Align once."""
    with scratch_folder() as folder:
        tables = make_tables(n_ids)
        tables[Role.GUEST]["label"] = 0
        setup = Setup(folder, tables)
        del tables
        if portable:
            os.environ[VARIABLE] = "gmpy2"
        with setup.serving() as processes:
            host = processes.pids[Role.HOST]
            command = [sys.executable, "-m", "trilateral.cli.main", "align", DATASET]
            command += ["--config", str(folder / "guest.yaml")]
            cores = _busy_cores()
            begun = Moment.of(host)
            guest = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert guest.stdout is not None
            assert guest.stderr is not None
            read = begun
            for line in guest.stderr:
                if line.startswith("intersecting") and read is begun:
                    read = Moment.of(host, guest.pid)
            said = guest.stdout.read()
            _, status, usage = os.wait4(guest.pid, 0)
            ended = Moment.of(host)
            if status:
                sys.exit(f"trilateral align failed\n{processes.log_tails()}")
            of_guest = usage.ru_utime + usage.ru_stime
            seconds = {"all": ended.at - begun.at, "intersecting": ended.at - read.at}
            cpu = {
                "all": of_guest + ended.host_cpu - begun.host_cpu,
                "intersecting": of_guest - read.guest_cpu + ended.host_cpu - read.host_cpu,
            }
            n_cores = len(cores)
            return {
                "ids": n_ids,
                "common": int(said.split()[0].replace(",", "")),
                "seconds": {span: round(value, 1) for span, value in seconds.items()},
                "cpu_seconds": {"guest": round(of_guest, 1), "host": round(ended.host_cpu - begun.host_cpu, 1)},
                "microseconds_an_id": round(cpu["intersecting"] / n_ids * 1e6, 1),
                "busy": {span: round(cpu[span] / seconds[span] / n_cores, 3) for span in seconds},
                "cores_busy": [
                    round((busy - busy_before) / (total - total_before), 3)
                    for (busy, total), (busy_before, total_before) in zip(_busy_cores(), cores, strict=True)
                ],
                "peak_rss_mb": {"guest": round(usage.ru_maxrss / 1024, 1), "host": peak_rss_mb(host)},
            }


@dataclass(frozen=True)
class Moment:
    """The clock, and the processor time that both processes have used by then."""

    at: float
    host_cpu: float
    guest_cpu: float

    @classmethod
    def of(cls, host: int, guest: int | None = None) -> Self:
        """Return the present moment."""
        return cls(time.perf_counter(), _cpu_seconds(host), 0 if guest is None else _cpu_seconds(guest))


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and all its threads have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _busy_cores() -> list[tuple[int, int]]:
    """Return for each processor how long it was busy, and how long it was there, in clock ticks."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    ticks = [list(map(int, fields[1:9])) for fields in lines[1:]]
    return [(sum(each) - each[3] - each[4], sum(each)) for each in ticks]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=100_000, help="number of IDs of each party (default: 100000)")
    parser.add_argument("--portable", action="store_true", help="without the kernel")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    figures = measure(arguments.ids, portable=arguments.portable)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
