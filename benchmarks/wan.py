"""A training on one of the paper's data sets by three organisations far apart, and where its time goes.

python benchmarks/wan.py credit1|credit2 --data FOLDER [--rtt 40] [--mbit 20] [--align] [--ideal] [--json]

FOLDER as for benchmarks/credit.py. Three network namespaces with an address each, in each the server of one folder of
configs/three-hosts with certificates of its own, and between them a network in user space (`tests.support.wan`): a
packet and its answer take `rtt` milliseconds, and each organisation's line has `mbit` Mbit/s in either direction.
`trilateral train` runs at the guest, as it would. It needs root, for the namespaces.

`seconds` is from typing the command to its end, keys and loading included; `excess_loss` the training loss of the
result above its optimum on the joined columns. `on_the_wire` counts whole packets, TCP and TLS and acknowledgements
included. With --ideal the same is done without delay, without the bound on bandwidth, and without both, for what each
of them costs. `all else on the machine` is other programs, the network itself and the command: where it is not small,
`seconds` are those of a busy machine. --align leaves `aligned: true` out of the job.
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

import yaml

# `python benchmarks/wan.py` looks for modules in its own folder, and `python -m benchmarks.wan` in this one.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import KEY_BITS, TOLERANCE, optimum, read_tables
from benchmarks.harness import BETWEEN_PARTIES, TO_COORDINATOR, processor_seconds, read_lines, scratch_folder
from tests.support.organisations import DATASET, Organisations, serving
from tests.support.wan import Line, Wan, why_not
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.model_file import load_model
from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.protocol.taylor import taylor_loss
from trilateral.common.trial.catalogue import PublishedName


def train(name: PublishedName, data: Path, line: Line, *, aligned: bool) -> dict[str, Any]:
    """Train once over one network."""
    job = JobConfig(name=name, dataset=DATASET, aligned=aligned, tolerance=TOLERANCE, key_bits=KEY_BITS)
    with scratch_folder() as folder:
        organisations = Organisations(folder, read_tables(name, data))
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
    coef = [weight for model in models for weight in model.training_weights]
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": {role: round(count, 1) for role, count in used.items()}
        | {"all else on the machine": round(busy - sum(used.values()), 1)},
        "excess_loss": taylor_loss(joined.columns @ coef, joined.labels) - optimum(joined),
        "rounds": len(histories[Role.COORDINATOR]),
        "before_the_first_round_ends": _first(histories[Role.COORDINATOR]),
        "a_round_after_it": _later(histories[Role.COORDINATOR]),
        "seconds_by_phase": {role: _phases(histories[role]) for role in Role},
        "bytes_by_kind": _bytes({role: histories[role] for role in PARTIES}),
        "on_the_wire": {f"{sender} to {receiver}": count for (sender, receiver), count in wire.items()},
    }


def busy_seconds() -> float:
    """What all processes of this machine have."""
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
        for kind in (*BETWEEN_PARTIES, *TO_COORDINATOR):
            count = sum(line["sent"].get(kind, {}).get("bytes", 0) for line in lines)
            if count:
                sent[f"{role}: {kind}"] = count
    return sent


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train over the network that was asked for, and over better ones."""
    # A packet crosses two lines on its way, and two on its way back.
    delay, bandwidth = arguments.rtt / 4000, arguments.mbit * 1e6
    networks = {f"{arguments.rtt} ms, {arguments.mbit} Mbit/s": Line(delay=delay, bandwidth=bandwidth)}
    if arguments.ideal:
        networks |= {
            f"0 ms, {arguments.mbit} Mbit/s": Line(bandwidth=bandwidth),
            f"{arguments.rtt} ms, no bound": Line(delay=delay),
            "0 ms, no bound": Line(),
        }
    name = PublishedName(arguments.name)
    return {
        "path": arithmetic_path(),
        "cores": len(os.sched_getaffinity(0)),
        **{
            network: train(name, arguments.data, line, aligned=not arguments.align)
            for network, line in networks.items()
        },
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[name.value for name in PublishedName])
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.csv.gz")
    parser.add_argument("--rtt", type=float, default=40, help="milliseconds of a round trip")
    parser.add_argument("--mbit", type=float, default=20, help="Mbit/s of each organisation's line")
    parser.add_argument("--align", action="store_true", help="find the common rows first")
    parser.add_argument("--ideal", action="store_true", help="also without delay, without bound, without both")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    if obstacle := why_not():
        raise SystemExit(f"no network namespaces here: {obstacle}")
    figures = measure(arguments)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
