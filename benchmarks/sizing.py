"""Compare the formulas for the cost of a training in common/checks/estimate.py with measured trainings.

python benchmarks/sizing.py [--rows N --host-columns C --guest-columns C] [--protocol paillier|shares] [--key-bits B]
    [--json]

For each size, three processes on this machine train with `lbfgs` for a few rounds on random tables. The figures are
what one more round needs: processor time, bytes, and memory, as measured and by the formula. Without --rows, the
benchmark tries several sizes. The numbers of columns are those of training columns, without the guest's intercept.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/sizing.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.credit import PROTOCOLS, Protocol
from benchmarks.harness import DATASET, Setup, scratch_folder
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.checks.estimate import paillier_round, shares_round
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.paillier.native.path import obstacle

PROCESS_MB = 170
"""Memory of the interpreter, its libraries, the randomness, and the tables of powers. Measured."""
SIZES: dict[Protocol, tuple[tuple[int, int, int], ...]] = {
    "paillier": ((2_000, 5, 5), (10_000, 12, 11), (10_000, 60, 20), (40_000, 10, 5)),
    "shares": ((40_000, 5, 5), (200_000, 12, 11), (200_000, 60, 20), (400_000, 10, 5)),
}
ROUNDS = (1, 1, 4)
"""Epochs of the trainings. The first training is a warm-up that loads libraries."""


def memory_mb(rows: int, columns: int) -> float:
    """Return the memory of the program, of the table with its IDs and vectors, and of the buckets of each column."""
    return PROCESS_MB + (30 * columns + 400) * rows / 1e6 + 0.4 * columns


def tables(rows: int, host_columns: int, guest_columns: int) -> dict[Role, pd.DataFrame]:
    """Return tables of random numbers, and labels that depend on some of the columns."""
    rng = np.random.default_rng(0)
    ids = [f"row-{number:09}" for number in range(rows)]
    made = {
        role: pd.DataFrame(rng.normal(size=(rows, count)), columns=[f"{role} {each}" for each in range(count)])
        for role, count in ((Role.HOST, host_columns), (Role.GUEST, guest_columns))
    }
    score = sum(table.iloc[:, 0] for table in made.values())
    for table in made.values():
        table.insert(0, "id", ids)
    made[Role.GUEST]["label"] = (score + rng.logistic(size=rows) > 0).astype(int)
    return made


def measure(rows: int, host_columns: int, guest_columns: int, protocol: Protocol, key_bits: int) -> dict[str, Any]:
    """Train with few rounds and with more rounds, and return the difference for each round."""
    basis = JobConfig(
        name="sizing", dataset=DATASET, aligned=True, protocol=protocol, holdout=0, tolerance=0, key_bits=key_bits
    )
    jobs = [
        basis.model_copy(update={"name": f"{number}-of-{rounds}", "epochs": rounds})
        for number, rounds in enumerate(ROUNDS)
    ]
    with scratch_folder() as folder:
        _, few, more = Setup(folder, tables(rows, host_columns, guest_columns)).train(*jobs)
    rounds = len(more.histories[Role.COORDINATOR]) - len(few.histories[Role.COORDINATOR])

    def seconds(role: Role) -> float:
        return round((more.processor_seconds[role] - few.processor_seconds[role]) / rounds, 2)

    def sent(*pairs: str) -> int:
        return sum(more.sent.get(pair, 0) - few.sent.get(pair, 0) for pair in pairs) // rounds

    round_cost = shares_round if protocol == "shares" else paillier_round
    expected = asdict(round_cost(rows, host_columns, guest_columns + 1, basis))
    found = {
        "between_parties": sent("host to guest", "guest to host") // 2,
        "to_coordinator": sent("host to coordinator", "guest to coordinator"),
        "from_coordinator": sent("coordinator to host", "coordinator to guest"),
        **{f"{role}_seconds": seconds(role) for role in Role},
    }
    if protocol == "paillier":
        expected |= {"host_mb": memory_mb(rows, host_columns), "guest_mb": memory_mb(rows, guest_columns + 1)}
        found |= {f"{role}_mb": more.peak_rss_mb[role] for role in PARTIES}
    return {
        "rows": rows,
        "host_columns": host_columns,
        "guest_columns": guest_columns,
        **{
            name: {"formula": round(expected[name], 2), "measured": found[name]}
            for name in sorted(expected, key=list(found).index)
        },
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="training rows; without it, several sizes")
    parser.add_argument("--host-columns", type=int, default=10, help="training columns of the host (default: 10)")
    parser.add_argument("--guest-columns", type=int, default=10, help="training columns of the guest (default: 10)")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paillier", help="default: paillier")
    parser.add_argument("--key-bits", type=int, default=2048, help="size of the key under paillier (default: 2048)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    own = (arguments.rows, arguments.host_columns, arguments.guest_columns)
    sizes = [own] if arguments.rows else SIZES[arguments.protocol]
    path = use_arithmetic()
    if path == "gmpy2":
        print(
            f"warning: measures {path} and not the kernel, {obstacle() or 'as the environment says'}", file=sys.stderr
        )
    figures = {
        "path": path,
        "protocol": arguments.protocol,
        "key_bits": arguments.key_bits,
        "sizes": [measure(rows, host, guest, arguments.protocol, arguments.key_bits) for rows, host, guest in sizes],
    }
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
