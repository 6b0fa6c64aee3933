"""Train on tables of any size, from Parquet files, in three local processes.

python benchmarks/scale.py [--rows 10000000] [--columns 10 10] [--protocol shares|paillier] [--rounds N]
    [--data FOLDER] [--write] [--json]

--columns are those of the host and of the guest, to which the intercept is added. All rows are training rows, and the
tables hold the same IDs in two orders (`aligned: true`). FOLDER holds `host.parquet` and `guest.parquet`; --write
makes them there, of --rows and --columns, and does not train. Without --data, the benchmark makes tables for one run.

seconds            from the request until both parties have written their part of the model
seconds_setup      the part of these seconds before the first round
seconds_round      median of the rounds, without the first, which has no scores under `shares`
peak_rss_mb        peak memory of each process
scratch_mb         peak size of each party's scratch folder
bytes              all vectors that any process has sent
excess_loss        training loss of the result, minus the minimum, which numpy finds on the joined rows by blocks
"""

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# `python benchmarks/scale.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import PROTOCOLS, TOLERANCE, Protocol
from benchmarks.harness import Setup, Training, scratch_folder
from benchmarks.made_tables import DATASET, table_path, write_tables
from benchmarks.optimum import Objective
from benchmarks.stored_rows import StoredRows
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.scratch.folders import SCRATCH

POLL_SECONDS = 0.1


class PeakScratch:
    """A context manager that records the peak size of each party's scratch space: of open files, which have no name.

    Args:
        pids: The processes.
        folders: Their scratch folders.
    """

    def __init__(self, pids: Mapping[Role, int], folders: Mapping[Role, Path]) -> None:
        self._pids = pids
        self._folders = folders
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.mb = dict.fromkeys(map(str, folders), 0.0)
        """The peak of each process so far."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            for role, folder in self._folders.items():
                self.mb[role] = max(self.mb[role], round(_open_bytes(self._pids[role], folder) / 1e6, 1))


def _open_bytes(pid: int, folder: Path) -> int:
    """Return the bytes on the disk of the files below a folder that a process has open."""
    sizes = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed since it was listed
            if path.readlink().is_relative_to(folder):
                file = path.stat()
                sizes[file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def job_of(protocol: Protocol, rounds: int | None, tolerance: float) -> JobConfig:
    """Return a job on all rows; with `rounds` None, of as many rounds as a job has by default at most."""
    epochs = {} if rounds is None else {"epochs": rounds}
    return JobConfig(
        name="scale", dataset=DATASET, aligned=True, protocol=protocol, holdout=0, tolerance=tolerance, **epochs
    )


def train(
    folder: Path,
    tables: Mapping[Role, Path],
    protocol: Protocol,
    rounds: int | None,
    *,
    tolerance: float = TOLERANCE,
    party: Mapping[str, Any] | None = None,
) -> tuple[JobConfig, Training, dict[str, float]]:
    """Train once in new processes.

    Args:
        folder: Where the processes have their files.
        tables: The tables of both parties.
        protocol: The protocol of the job.
        rounds: The most rounds; None for the default of a job.
        tolerance: The tolerance of the job.
        party: Further settings of both parties' processes.

    Returns:
        The job, its figures, and the peak size of each party's scratch space in megabytes.
    """
    job = job_of(protocol, rounds, tolerance)
    setup = Setup(folder, tables, party=party)
    folders = {role: setup.config(role).state / SCRATCH for role in PARTIES}
    with setup.serving() as processes, PeakScratch(processes.pids, folders) as scratch:
        training = setup.train_in(processes, job)
    return job, training, scratch.mb


def measure(rows: int, columns: tuple[int, int], protocol: Protocol, rounds: int | None, data: Path | None) -> Any:
    """Train once, and compare the result with the minimum."""
    with scratch_folder() as folder:
        if data is None:
            data = folder / "tables"
            write_tables(data, rows, columns)
        tables = {role: table_path(data, role) for role in PARTIES}
        job, training, scratch_mb = train(folder, tables, protocol, rounds)
        steps = {role: training.models[role].steps for role in PARTIES}
        stored = StoredRows(folder, tables, steps)
        objective = Objective(job, stored, stored.penalty, training.coef)
        excess_loss = objective.loss(training.coef) - objective.least
    lines = training.histories[Role.COORDINATOR]
    return {
        "path": use_arithmetic(),
        "protocol": protocol,
        "rows": training.models[Role.GUEST].data.n_train,
        "columns": [len(steps[role].features) for role in PARTIES],
        "rounds": len(lines),
        "seconds": round(training.seconds, 2),
        "seconds_setup": round(lines[0]["seconds"]["setup"], 2),
        "seconds_round": round(statistics.median(line["seconds"]["all"] for line in lines[1:] or lines), 3),
        "processor_seconds": training.processor_seconds,
        "peak_rss_mb": training.peak_rss_mb,
        "scratch_mb": scratch_mb,
        "bytes": sum(training.sent.values()),
        "excess_loss": excess_loss,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="training rows (default: 10000000)")
    parser.add_argument(
        "--columns", type=int, nargs=2, default=(10, 10), metavar=("HOST", "GUEST"), help="columns (default: 10 10)"
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, default="shares", help="default: shares")
    parser.add_argument("--rounds", type=int, help="end after this many rounds")
    parser.add_argument("--data", type=Path, help="folder with host.parquet and guest.parquet; see --write")
    parser.add_argument("--write", action="store_true", help="only write the tables to the folder of --data")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if arguments.write:
        if arguments.data is None:
            parser.error("--write needs --data")
        write_tables(arguments.data, arguments.rows, tuple(arguments.columns))
        return
    figures = measure(arguments.rows, tuple(arguments.columns), arguments.protocol, arguments.rounds, arguments.data)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
