"""Measure how the encrypted work of a round grows with rows and with columns.

python benchmarks/growth.py [--json] [--rows N ...] [--columns N ...]

The work of one party under a 2048-bit key: encrypt a vector, and multiply it by every column. The number of rows varies
at 13 columns, and the number of columns at 1000 rows.

slope_*     slope on logarithmic axes: 1 if the cost is proportional, less if a part of the cost is constant
extra_mb    peak memory of the process, minus its memory with the table loaded; includes the ciphertexts
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.fixed_point import encode
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.paillier.native.path import arithmetic_path
from trilateral.common.protocol.scales import VALUE_BITS, round_scale

ROWS = (1_000, 3_000, 10_000, 30_000, 100_000)
COLUMNS = (5, 13, 50, 150, 500)
PIECE = 512
"""Number of ciphertexts in one message between the parties."""


def memory_mb(name: str) -> float:
    """Return this process's memory: `VmRSS` for now, `VmHWM` for the peak."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measure_one(n_rows: int, n_columns: int) -> dict[str, Any]:
    """Encrypt and multiply once."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_columns))
    scale = round_scale(JobConfig(name="growth", dataset="growth"), n_rows, n_rows)
    columns = scale.encode_columns(X / np.sqrt(np.mean(X**2, axis=0)))
    values = encode(rng.normal(size=n_rows), scale.value_fraction_bits, VALUE_BITS)
    del X
    cipher = make_cipher("packed", generate_private_key(2048).public_key)
    loaded = memory_mb("VmRSS")
    started = time.perf_counter()
    ciphertexts = cipher.encrypt(scale.layout.pack(values))
    encrypted = time.perf_counter()
    product = cipher.start_product(scale.layout, columns)
    for start in range(0, len(ciphertexts), PIECE):
        product.update(cipher.open(ciphertexts[start : start + PIECE]))
    product.result()
    ended = time.perf_counter()
    return {
        "rows": n_rows,
        "columns": n_columns,
        "slots": scale.layout.slots,
        "encrypt_seconds": round(encrypted - started, 3),
        "product_seconds": round(ended - encrypted, 3),
        "extra_mb": round(memory_mb("VmHWM") - loaded, 1),
    }


def in_a_process_of_its_own(n_rows: int, n_columns: int) -> dict[str, Any]:
    """Encrypt and multiply once in a new process, so that the peak of memory belongs to this size alone."""
    command = [sys.executable, __file__, "--one", str(n_rows), str(n_columns)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def slope(figures: list[dict[str, Any]], of: str, what: str) -> float:
    """Return the slope of log(what) over log(of), by least squares."""
    x, y = (np.log([max(figure[name], 1e-3) for figure in figures]) for name in (of, what))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def measure(rows: list[int], columns: list[int]) -> dict[str, Any]:
    """Return the figures for every number of rows and of columns."""
    by_rows = [in_a_process_of_its_own(n, 13) for n in rows]
    by_columns = [in_a_process_of_its_own(1000, n) for n in columns]
    return {
        "path": arithmetic_path(),
        "by_rows": by_rows,
        "by_columns": by_columns,
        "slope_encrypt_rows": slope(by_rows, "rows", "encrypt_seconds"),
        "slope_product_rows": slope(by_rows, "rows", "product_seconds"),
        "slope_product_columns": slope(by_columns, "columns", "product_seconds"),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="numbers of rows to try")
    parser.add_argument("--columns", type=int, nargs="+", default=list(COLUMNS), help="numbers of columns to try")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    use_arithmetic()
    if arguments.one:
        print(json.dumps(measure_one(*arguments.one)))
        return
    figures = measure(arguments.rows, arguments.columns)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
