"""Train on one of the paper's data sets over a wide-area network, and measure where the time goes.

python benchmarks/wan.py credit1|credit2 [--protocol paillier|shares] [--rtt 40] [--mbit 20] [--align] [--ideal]
    [--data FOLDER] [--json]

FOLDER is as in credit.py. Each organisation has a network namespace with an address of its own, in which it runs the
server of its folder in configs/three-hosts with its own certificate. A network in user space (`tests.support.wan`)
connects them: a packet and its answer take --rtt milliseconds, and each organisation's line carries --mbit Mbit/s in
each direction. `trilateral train` runs at the guest. The benchmark needs root for the namespaces.

seconds                   the whole command, including keys and loading
excess_loss               training loss of the result, minus its minimum on the joined columns
on_the_wire               bytes of whole packets, including TCP, TLS, and acknowledgements
all else on the machine   processor time of other programs, of the network, and of the command; if it is large, the
                          machine was busy, and `seconds` are too long

With --ideal, the benchmark repeats the training without delay, without the limit on bandwidth, and without both, to
show what each of them costs. With --align, the job does not set `aligned: true`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import yaml

# `python benchmarks/wan.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import PROTOCOLS, make_job, read_tables
from benchmarks.harness import processor_seconds, read_lines, scratch_folder
from benchmarks.optimum import Objective
from tests.support.organisations import DATASET, Organisations, serving
from tests.support.wan import Line, Wan, why_not
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.protocol.messages import Kind
from trilateral.common.trial.catalogue import PublishedName


def train(job: JobConfig, data: Path | None, line: Line) -> dict[str, Any]:
    """Train once over one network."""
    with scratch_folder() as folder:
        organisations = Organisations(folder, read_tables(PublishedName(job.name), data))
        job_file = folder / "job.yaml"
        job_file.write_text(yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True)))
        with Wan(dict.fromkeys(Role, line)) as wan, serving(wan, organisations, folder) as (start, servers):
            before = {pair: wan.bytes_between(*pair) for pair in permutations(Role, 2)}
            used, busy, started = processor_seconds(servers), busy_seconds(), time.perf_counter()
            command = start(Role.GUEST, "train", job_file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            output, _ = command.communicate()
            seconds, busy = time.perf_counter() - started, busy_seconds() - busy
            used = {role: count - used[role] for role, count in processor_seconds(servers).items()}
            wire = {pair: wan.bytes_between(*pair) - before[pair] for pair in before}
        if command.returncode:
            raise SystemExit(output + "".join((folder / f"{role}.log").read_text() for role in Role))
        folders = {role: organisations.job_folder(role, job.name) for role in Role}
        histories = {role: read_lines(folders[role].history) for role in Role}
        models = [load_model(folders[role].model) for role in PARTIES]
        joined = organisations.joined(job)
    coef = np.concatenate([model.training_weights for model in models])
    objective = Objective.of(job, joined)
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": {role: round(count, 1) for role, count in used.items()}
        | {"all else on the machine": round(busy - sum(used.values()), 1)},
        "excess_loss": objective.loss(coef) - objective.least,
        "rounds": len(histories[Role.COORDINATOR]),
        "before_the_first_round_ends": _first(histories[Role.COORDINATOR]),
        "a_round_after_it": _later(histories[Role.COORDINATOR]),
        "seconds_by_phase": {role: _phases(histories[role]) for role in Role},
        "bytes_by_kind": _bytes(histories),
        "on_the_wire": {f"{sender} to {receiver}": count for (sender, receiver), count in wire.items()},
    }


def busy_seconds() -> float:
    """Return the processor time that all processes of this machine have used so far."""
    counts = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = counts[3] + counts[4]
    return (sum(counts[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _first(lines: list[dict[str, Any]]) -> float:
    seconds: float = lines[0]["seconds"]["all"]
    return round(seconds, 2)


def _later(lines: list[dict[str, Any]]) -> float | None:
    later = [line["seconds"]["all"] for line in lines[1:]]
    return round(sum(later) / len(later), 2) if later else None


def _phases(lines: list[dict[str, Any]]) -> dict[str, float]:
    phases = sorted({phase for line in lines for phase in line["seconds"]})
    return {phase: round(sum(line["seconds"].get(phase, 0) for line in lines), 2) for phase in phases}


def _bytes(histories: dict[Role, list[dict[str, Any]]]) -> dict[str, int]:
    sent: dict[str, int] = {}
    for role, lines in histories.items():
        for kind in Kind:
            count = sum(line["sent"].get(kind, {}).get("bytes", 0) for line in lines)
            if count:
                sent[f"{role}: {kind}"] = count
    return sent


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train over the requested network and, with --ideal, over better ones."""
    # A packet crosses two lines in each direction.
    delay, bandwidth = arguments.rtt / 4000, arguments.mbit * 1e6
    networks = {f"{arguments.rtt} ms, {arguments.mbit} Mbit/s": Line(delay=delay, bandwidth=bandwidth)}
    if arguments.ideal:
        networks |= {
            f"0 ms, {arguments.mbit} Mbit/s": Line(bandwidth=bandwidth),
            f"{arguments.rtt} ms, no bound": Line(delay=delay),
            "0 ms, no bound": Line(),
        }
    job = make_job(arguments.name, arguments.protocol, dataset=DATASET, aligned=not arguments.align)
    return {
        "path": use_arithmetic(),
        "protocol": job.protocol,
        "cores": len(os.sched_getaffinity(0)),
        **{network: train(job, arguments.data, line) for network, line in networks.items()},
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paillier", help="default: paillier")
    parser.add_argument("--data", type=Path, help="folder with NAME.csv.gz (default: as in credit.py)")
    parser.add_argument("--rtt", type=float, default=40, help="round trip in milliseconds (default: 40)")
    parser.add_argument("--mbit", type=float, default=20, help="bandwidth of each organisation in Mbit/s (default: 20)")
    parser.add_argument("--align", action="store_true", help="find the common rows first")
    parser.add_argument(
        "--ideal", action="store_true", help="also train without delay, without the bandwidth limit, and without both"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if obstacle := why_not():
        raise SystemExit(f"network namespaces are not available: {obstacle}")
    figures = measure(arguments)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
