"""Compare the formula for the cost of a training in docs/deployment.md with measured trainings.

python benchmarks/sizing.py [--rows N --host-columns C --guest-columns C] [--key-bits B] [--json]

For each size, three processes on this machine train with `lbfgs` for a few rounds on random tables. The figures are
what one more round needs: processor time, bytes, and memory, as measured and by the formula. Without --rows, the
benchmark tries several sizes. The numbers of columns are those of training columns, without the guest's intercept.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/sizing.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import BETWEEN_PARTIES, DATASET, TO_COORDINATOR, Setup, Training, scratch_folder
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.paillier.native.path import obstacle
from trilateral.common.protocol.scales import round_scale

PRODUCT_MICROSECONDS = {2048: 1.2, 3072: 2.4, 4096: 4.1}
"""Time of one product modulo n^2 in the kernel on one thread (docs/kernel.md), by key size."""
OVERHEAD = 1.9
"""Factor for the work beyond products: memory, packing, checks, messages. Measured on a busy machine. A core with the
architecture Zen 5 needs about 0.4 of the resulting seconds (docs/deployment.md)."""
DECRYPTION_SECONDS = {2048: 0.0017, 3072: 0.0050, 4096: 0.011}
PROCESS_MB = 330
"""Memory of the interpreter, its libraries, the randomness, and the tables of powers. Measured."""
SIZES = ((2_000, 5, 5), (10_000, 12, 11), (10_000, 60, 20), (40_000, 10, 5))
ROUNDS = (1, 1, 4)
"""Epochs of the trainings. The first training is a warm-up that loads libraries."""


@dataclass(frozen=True)
class Estimate:
    """The cost of one round on all training rows. With curvature, bytes and processor time double."""

    between_parties: int
    """Bytes in each direction."""
    to_coordinator: int
    """Bytes from both parties together."""
    host_seconds: float
    """Processor time; divide by the number of processors for the duration."""
    guest_seconds: float
    coordinator_seconds: float
    host_mb: float
    """Peak of the whole training."""
    guest_mb: float


def estimate(rows: int, host_columns: int, guest_columns: int, key_bits: int) -> Estimate:
    """Evaluate the formula for `rows` rows in a round; `guest_columns` includes the intercept."""
    layout = round_scale(JobConfig(name="sizing", dataset="sizing", key_bits=key_bits), rows, rows)
    k, slot_bits, e = layout.layout.slots, layout.layout.slot_bits, layout.column_fraction_bits
    ciphertexts = math.ceil(rows / k)
    width = key_bits // 4
    own_products = 160 * ciphertexts  # to encrypt or re-randomise, and to convert bytes to elements

    def products(columns: int) -> float:
        digits: int = min(range(2, 11), key=lambda w: (1 << w - 1) + k * columns * (e + 1) / (w + 1))
        of_a_ciphertext = 5 + (1 << digits - 1) + k * columns * (e + 1) / (digits + 1)
        at_the_end = columns * (0.74 * (slot_bits * (k - 1) + e) + k * e)
        return ciphertexts * of_a_ciphertext + at_the_end

    second = OVERHEAD * PRODUCT_MICROSECONDS[key_bits] / 1e6
    # The guest multiplies by one column more, for the loss.
    return Estimate(
        between_parties=width * ciphertexts,
        to_coordinator=width * (host_columns + guest_columns + 1),
        host_seconds=second * (own_products + products(host_columns)),
        guest_seconds=second * (own_products + products(guest_columns + 1)),
        coordinator_seconds=DECRYPTION_SECONDS[key_bits] * (host_columns + guest_columns + 1),
        host_mb=memory_mb(rows, host_columns),
        guest_mb=memory_mb(rows, guest_columns),
    )


def memory_mb(rows: int, columns: int) -> float:
    """Return the memory of the program, of the table with its IDs and vectors, and of the buckets of each column."""
    return PROCESS_MB + (150 * columns + 600) * rows / 1e6 + 0.25 * columns


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


def measure(rows: int, host_columns: int, guest_columns: int, key_bits: int) -> dict[str, Any]:
    """Train with few rounds and with more rounds, and return the difference for each round."""
    basis = JobConfig(name="sizing", dataset=DATASET, aligned=True, holdout=0, tolerance=0, key_bits=key_bits)
    jobs = [
        basis.model_copy(update={"name": f"{number}-of-{rounds}", "epochs": rounds})
        for number, rounds in enumerate(ROUNDS)
    ]
    with scratch_folder() as folder:
        _, few, more = Setup(folder, tables(rows, host_columns, guest_columns)).train(*jobs)
    rounds = len(more.histories[Role.COORDINATOR]) - len(few.histories[Role.COORDINATOR])

    def of_a_round(name: str) -> float:
        return round((more.processor_seconds[name] - few.processor_seconds[name]) / rounds, 2)

    def bytes_of_a_round(training: Training, kinds: Any) -> int:
        return training.traffic(kinds, "bytes", {1})

    expected = asdict(estimate(rows, host_columns, guest_columns + 1, key_bits))
    found = {
        "between_parties": bytes_of_a_round(more, BETWEEN_PARTIES) // 2,
        "to_coordinator": bytes_of_a_round(more, TO_COORDINATOR),
        **{f"{role}_seconds": of_a_round(role) for role in Role},
        "host_mb": more.peak_rss_mb["host"],
        "guest_mb": more.peak_rss_mb["guest"],
    }
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
    parser.add_argument("--key-bits", type=int, default=2048, choices=sorted(PRODUCT_MICROSECONDS), help="key size")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    own = (arguments.rows, arguments.host_columns, arguments.guest_columns)
    sizes = [own] if arguments.rows else SIZES
    path = use_arithmetic()
    if path != "avx2":
        print(
            f"warning: measures {path} and not the kernel, {obstacle() or 'as the environment says'}", file=sys.stderr
        )
    figures = {
        "path": path,
        "key_bits": arguments.key_bits,
        "sizes": [measure(rows, host, guest, arguments.key_bits) for rows, host, guest in sizes],
    }
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
