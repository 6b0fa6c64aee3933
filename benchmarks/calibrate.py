"""Measure the constants of `trilateral estimate` on this machine.

python benchmarks/calibrate.py [--write [FILE]] [--json]

Trainings of several sizes under both protocols, bins jobs and alignments run in three processes that share this
machine's processors. Each constant comes from a least-squares fit of relative errors, with no constant below 0. With
--write, they go to FILE, for `trilateral estimate --constants FILE`, or without FILE to those of the project. It takes
three to five minutes. Run it while the machine does nothing else.
"""

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import nnls

# `python benchmarks/calibrate.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import PROTOCOLS, Protocol
from benchmarks.runs import (
    CountingRun,
    MeasuredAlignment,
    MeasuredCounting,
    MeasuredTraining,
    TrainingRun,
    counting_of,
    measure_alignment,
    measure_counting,
    measure_training,
    work_of,
)
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.cost.arrays import place_arrays, place_table
from trilateral.common.cost.constants import MEASURED, Constants, Count, Terms, total
from trilateral.common.cost.estimate import MEGABYTE, Machines
from trilateral.common.cost.workload import Workload
from trilateral.common.jobs.arithmetic import processors, use_arithmetic

TRAININGS = (
    TrainingRun("shares", 20_000, (5, 5), 7),
    TrainingRun("shares", 50_000, (50, 20), 7),
    TrainingRun("shares", 100_000, (20, 50), 2),
    TrainingRun("shares", 200_000, (30, 5), 5),
    TrainingRun("shares", 400_000, (10, 10), 7),
    TrainingRun("shares", 1_000_000, (5, 10), 4),
    TrainingRun("shares", 5_000_000, (3, 3), 2),
    TrainingRun("shares", 400_000, (10, 10), 3, on_disk=True),
    TrainingRun("shares", 400_000, (5, 30), 3, on_disk=True),
    TrainingRun("shares", 1_000_000, (10, 5), 2, on_disk=True),
    TrainingRun("paillier", 10_000, (5, 5), 3),
    TrainingRun("paillier", 20_000, (40, 20), 2),
    TrainingRun("paillier", 60_000, (10, 30), 1),
    TrainingRun("paillier", 100_000, (5, 5), 5),
    TrainingRun("paillier", 200_000, (10, 5), 3),
    TrainingRun("paillier", 1_000_000, (3, 3), 1),
    TrainingRun("paillier", 100_000, (5, 10), 1, on_disk=True),
    TrainingRun("paillier", 300_000, (5, 5), 1, on_disk=True),
)
COUNTINGS = (
    CountingRun(20_000, (5, 5)),
    CountingRun(100_000, (10, 10)),
    CountingRun(200_000, (20, 5)),
    CountingRun(300_000, (5, 20)),
    CountingRun(1_000_000, (3, 3)),
)
ALIGNMENTS = (20_000, 100_000, 300_000)

PARTY_SETUP: Mapping[Protocol, Sequence[Count]] = {"paillier": ("once",), "shares": ("once", "values")}
PREPARING: Sequence[Count] = ("rows", "own_values", "own_squares")
"""Reading and preparing a table takes the same time under both protocols, so these constants are fitted together."""
PARTY_ROUND: Mapping[Protocol, Sequence[Count]] = {
    "paillier": ("once", "ciphertexts", "products"),
    "shares": ("once", "dealt", "values"),
}
COORDINATOR_ROUND: Mapping[Protocol, Sequence[Count]] = {"paillier": ("once", "sums"), "shares": ("once", "dealt")}
PREPARING_BINS: Sequence[Count] = ("once", "rows", "own_values")
MEMORY: Sequence[Count] = ("rows", "group_values")


def fit(rows: Iterable[tuple[Mapping[str, float], float]], names: Sequence[Any]) -> dict[Any, float]:
    """Return constants that are at least 0, with the least sum of squared relative errors.

    Args:
        rows: for each measurement the counts, and what was measured. What was too small to measure does not count.
        names: the counts to use.
    """
    kept = [(counts, measured) for counts, measured in rows if measured > 0]
    if not kept:
        return {}
    counts, measured = zip(*kept, strict=True)
    matrix = np.array([[each.get(name, 0.0) for name in names] for each in counts]) / np.array(measured)[:, np.newaxis]
    sizes = np.maximum(np.max(matrix, axis=0), 1e-300)
    found, _ = nnls(matrix / sizes, np.ones(len(measured)))
    return {name: float(f"{value:.4g}") for name, value in zip(names, found / sizes, strict=True) if value > 0}


def fit_protocol(
    trainings: Sequence[MeasuredTraining], protocol: Protocol, of_parties: tuple[Terms, Terms], memory: Terms
) -> dict[str, Any]:
    """Return the constants of one protocol, as `ProtocolConstants` has them.

    Args:
        trainings: those of the protocol.
        protocol: the protocol.
        of_parties: the seconds of a party for the setup and for a round.
        memory: the memory of a party.
    """
    of_coordinator = _fit_coordinator(trainings, COORDINATOR_ROUND[protocol])
    setup_rows, round_rows = [], []
    for each in trainings:
        work = work_of(each.run, each.rounds)
        setup, rounds = (
            {role: total(terms[role is Role.COORDINATOR], counts(work, role)) for role in Role}
            for terms, counts in (
                ((of_parties[0], of_coordinator[0]), lambda work, role: work.whole.counts(role)),
                ((of_parties[1], of_coordinator[1]), _counts_of_rounds),
            )
        )
        alone = max(sum(setup.values()) / processors(), *setup.values())
        setup_rows.append(({"wait": 1, "overlap": alone}, each.setup_seconds))
        together = sum(rounds.values()) / processors()
        round_rows.append(({"wait": 1, "overlap": together / each.rounds}, each.round_seconds))
    setup_wait, setup_overlap = _fit_overlap(setup_rows)
    round_wait, round_overlap = _fit_overlap(round_rows)
    return {
        "party_setup": of_parties[0],
        "party_round": of_parties[1],
        "coordinator_setup": of_coordinator[0],
        "coordinator_round": of_coordinator[1],
        "party_memory": memory,
        "coordinator_memory": fit(
            [(work_of(each.run).counts(Role.COORDINATOR), each.memory_mb[Role.COORDINATOR]) for each in trainings],
            ("once", "dealt_ahead"),
        ),
        "setup_wait": setup_wait,
        "round_wait": round_wait,
        "setup_overlap": setup_overlap,
        "round_overlap": round_overlap,
    }


def fit_memory(trainings: Sequence[MeasuredTraining]) -> dict[Protocol, Terms]:
    """Return the memory of a party besides its arrays. Only what the program itself takes depends on the protocol."""
    rows = []
    for each in trainings:
        for role in PARTIES:
            work = work_of(each.run)
            in_memory = place_arrays(work, role, each.run.memory_mb * MEGABYTE).in_memory / MEGABYTE
            rows.append(({**work.whole.counts(role), each.run.protocol: 1}, each.memory_mb[role] - in_memory))
    found = fit(rows, (*PROTOCOLS, *MEMORY))
    common = {name: found[name] for name in MEMORY if name in found}
    return {protocol: {"once": found.get(protocol, 0.0), **common} for protocol in PROTOCOLS}


def fit_parties(trainings: Sequence[MeasuredTraining]) -> dict[Protocol, tuple[Terms, Terms]]:
    """Return the seconds of a party for the setup and for a round, from the processor time of whole trainings."""
    rows: list[tuple[dict[str, float], float]] = []
    names: list[str] = []
    for each in trainings:
        protocol = each.run.protocol
        for role in PARTIES:
            work = work_of(each.run, each.rounds)
            counts, of_rounds = work.whole.counts(role), _counts_of_rounds(work, role)
            row: dict[str, float] = {name: counts[name] for name in PREPARING}
            row |= {f"{protocol} setup {name}": counts[name] for name in PARTY_SETUP[protocol]}
            row |= {f"{protocol} round {name}": of_rounds[name] for name in PARTY_ROUND[protocol]}
            names += [name for name in row if name not in names]
            rows.append((row, each.processor_seconds[role]))
    found = fit(rows, names)
    preparing = {name: found[name] for name in PREPARING if name in found}
    return {
        protocol: (
            _of_phase(found, f"{protocol} setup ", PARTY_SETUP[protocol]) | preparing,
            _of_phase(found, f"{protocol} round ", PARTY_ROUND[protocol]),
        )
        for protocol in PROTOCOLS
    }


def _fit_coordinator(trainings: Sequence[MeasuredTraining], round_: Sequence[Count]) -> tuple[Terms, Terms]:
    """Return the seconds of the coordinator for the setup and for a round."""
    rows = []
    for each in trainings:
        of_rounds = _counts_of_rounds(work_of(each.run, each.rounds), Role.COORDINATOR)
        row = {"setup once": 1.0, **{f"round {name}": of_rounds[name] for name in round_}}
        rows.append((row, each.processor_seconds[Role.COORDINATOR]))
    found = fit(rows, ["setup once", *(f"round {name}" for name in round_)])
    return _of_phase(found, "setup ", ("once",)), _of_phase(found, "round ", round_)


def _of_phase(found: Mapping[str, float], prefix: str, names: Sequence[Count]) -> Terms:
    return {name: found[prefix + name] for name in names if prefix + name in found}


def _counts_of_rounds(work: Workload, role: Role) -> dict[str, float]:
    """Return the counts of all rounds together."""
    first, later = work.counts(role, is_first=True), work.counts(role)
    return {name: count + (work.rounds - 1) * later[name] for name, count in first.items()}


def _fit_overlap(rows: Sequence[tuple[Mapping[str, float], float]]) -> tuple[float, float]:
    """Return the constants `wait` and `overlap`, of which the latter is at least 1."""
    found = fit(rows, ("wait", "overlap"))
    if found.get("overlap", 0) < 1:
        shares = [(measured - counts["overlap"]) for counts, measured in rows]
        return round(max(0.0, float(np.median(shares))), 4), 1.0
    return round(found.get("wait", 0.0), 4), round(found["overlap"], 4)


def fit_alignment(alignments: Sequence[MeasuredAlignment]) -> dict[str, Any]:
    """Return the constants of alignments, as `AlignmentConstants` has them."""
    rows = [(each, {"once": 1, "ids": 2 * each.ids}) for each in alignments]
    party = fit([(counts, each.processor_seconds[role]) for each, counts in rows for role in PARTIES], ("once", "ids"))
    busy = [({"wait": 1, "overlap": 2 * total(party, counts) / processors()}, each.seconds) for each, counts in rows]
    wait, overlap = _fit_overlap(busy)
    return {
        "party": party,
        "party_memory": fit(
            [(counts, each.memory_mb[role]) for each, counts in rows for role in PARTIES], ("once", "ids")
        ),
        "wait": wait,
        "overlap": overlap,
    }


def fit_counting(countings: Sequence[MeasuredCounting]) -> dict[str, Any]:
    """Return the constants of bins jobs, as `CountingConstants` has them."""
    rows, of_coordinator, memory = [], [], []
    for each in countings:
        work = counting_of(each.run)
        for role in PARTIES:
            counts = work.counts(role)
            row = {name: counts[name] for name in PREPARING_BINS} | {f"{role} counts": counts["fine_values"]}
            rows.append((row, each.processor_seconds[role]))
            in_memory = place_table(work, role, Machines.memory_mb * MEGABYTE).in_memory / MEGABYTE
            memory.append((counts, each.memory_mb[role] - in_memory))
        of_coordinator.append((work.counts(Role.COORDINATOR), each.processor_seconds[Role.COORDINATOR]))
    found = fit(rows, (*PREPARING_BINS, *(f"{role} counts" for role in PARTIES)))
    coordinator = fit(of_coordinator, ("once", "fine_values"))
    terms: dict[str, Terms] = {
        "party_setup": {name: found[name] for name in PREPARING_BINS if name in found},
        **{f"{role}_count": {"fine_values": found.get(f"{role} counts", 0.0)} for role in PARTIES},
        "coordinator_setup": {"once": coordinator.get("once", 0.0)},
        "coordinator_count": {"fine_values": coordinator.get("fine_values", 0.0)},
    }
    busy = []
    for each in countings:
        work = counting_of(each.run)
        seconds = {
            role: [
                total(terms[f"{'coordinator' if role is Role.COORDINATOR else 'party'}_setup"], work.counts(role)),
                total(terms[f"{role}_count"], work.counts(role)),
            ]
            for role in Role
        }
        phases = [[seconds[role][phase] for role in Role] for phase in range(2)]
        alone = sum(max(sum(parts) / processors(), *parts) for parts in phases)
        busy.append(({"wait": 1, "overlap": alone}, each.seconds))
    wait, overlap = _fit_overlap(busy)
    return terms | {
        "party_memory": fit(memory, ("once", "rows", "own_values")),
        "coordinator_memory": fit(
            [(counting_of(each.run).counts(Role.COORDINATOR), each.memory_mb[Role.COORDINATOR]) for each in countings],
            ("once",),
        ),
        "wait": wait,
        "overlap": overlap,
    }


def processor_name() -> str:
    """Return the name of this machine's processor and how many of them the measurements used."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return f"{names[0] if names else platform.machine()}, {processors()} processors"


def measure() -> Constants:
    """Measure everything, and say on stderr what is under way."""
    trainings, countings, alignments = [], [], []
    for run in TRAININGS:
        print(run, file=sys.stderr)
        trainings.append(measure_training(run))
    for counting in COUNTINGS:
        print(counting, file=sys.stderr)
        countings.append(measure_counting(counting))
    for ids in ALIGNMENTS:
        print(f"alignment, {ids:,} IDs on each side", file=sys.stderr)
        alignments.append(measure_alignment(ids))
    return constants_of(trainings, countings, alignments)


def constants_of(
    trainings: Sequence[MeasuredTraining],
    countings: Sequence[MeasuredCounting],
    alignments: Sequence[MeasuredAlignment],
) -> Constants:
    """Return the constants that fit measurements."""
    own = {each: [training for training in trainings if training.run.protocol == each] for each in PROTOCOLS}
    of_parties, memory = fit_parties(trainings), fit_memory(trainings)
    return Constants.model_validate(
        {
            "machine": processor_name(),
            "measured": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "arithmetic": use_arithmetic(),
            **{
                protocol: fit_protocol(own[protocol], protocol, of_parties[protocol], memory[protocol])
                for protocol in PROTOCOLS
            },
            "counting": fit_counting(countings),
            "alignment": fit_alignment(alignments),
        }
    )


HEADER = "# Written by benchmarks/calibrate.py. Seconds are those of one processor, memory is in megabytes.\n"


def main() -> None:
    """Print or write the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, nargs="?", const=MEASURED, metavar="FILE", help="write to a file")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    constants = measure().model_dump(mode="json")
    text = HEADER + yaml.safe_dump(constants, sort_keys=False)
    if arguments.write is not None:
        write_whole(arguments.write, text, mode=0o644)
    print(json.dumps(constants) if arguments.json else text)


if __name__ == "__main__":
    main()
