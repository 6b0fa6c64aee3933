"""Compare the encrypted arithmetic with gmpy2 and phe, and time that of shares, in one process.

python benchmarks/kernel.py [--json] [--threads N]

Every ratio is the median of the ratios of neighbouring measurements, so a busy machine slows both sides down alike.

product_ratio_B         time of `a * b % N` in gmpy2 over one product modulo N = n^2 of a B-bit n, one thread each
square_ratio_B          the same for one squaring
product_us_B            microseconds of one product
bound_share_B           share of the bound of the method: the cycles that the vector units need for the instructions of
                        all products of digits, over those of a product modulo N
encrypt_ratio_packed    time of phe over encrypting 1000 values, packed as in a job, randomness drawn in the call
encrypt_ratio_unpacked  the same with one value in each ciphertext
matvec_ratio            time of phe's operators over X^T [d] of 1000 rows and 13 columns
decrypt_ratio           time of phe over decrypting 25 ciphertexts
paths                   the figures of products and squarings for each path of this machine; those above are of the
                        path in use
threads_ratio           time on one thread over time on all threads, for the product X^T [d]
seconds_T_threads       encryption of 1000 packed values, and the product, on T threads, for each T
groups                  milliseconds of processor time on one thread for a ciphertext in the product, for 13, 100 and
                        300 columns, by the size r of the groups; `chosen` is the r that the kernel chooses itself
shares                  nanoseconds a row and round of each role under `protocol: shares`, on one thread, with 10 + 10
                        columns and 16 terms, for each path of this machine
shares_columns          the same for the path in use and other numbers of columns of each party

phe encrypts 10 values and multiplies 10 rows, and its time is scaled up to 1000: the cost of each does not depend on
their number.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import randbelow
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

sys.path.insert(0, str(Path(__file__).parents[1]))

from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.paillier.cipher import PartyCipher
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.fixed_point import encode
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.paillier.native.modulus import KernelPath
from trilateral.common.paillier.native.path import arithmetic_path, obstacle
from trilateral.common.paillier.native.threads import set_threads, thread_count
from trilateral.common.protocol.scales import VALUE_BITS, round_scale
from trilateral.common.shares import kernels
from trilateral.common.shares import path as shares_path
from trilateral.common.shares.format import Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import BLOCK_ROWS

N_ROWS, N_COLUMNS, N_DECRYPTED = 1000, 13, 25
SHARES_COLUMNS, MORE_SHARES_COLUMNS = 10, (50, 100, 200, 500)
"""Columns of each party."""
GROUPS, GROUP_COLUMNS, N_GROUPS = range(6, 14), (13, 100, 300), 4
FEW = 10
"""Number of values or rows that phe handles, out of a thousand."""


class Bound(NamedTuple):
    """What a path needs at least for one product of digits in each lane."""

    instructions: int
    pipes: int
    """Instructions of this kind that the vector units take in a cycle."""
    split_from: int
    """Products of this many digits or more are made from halves (docs/kernel.md)."""
    levels: int
    """How often a product is cut into halves, and they again."""


BOUNDS: dict[KernelPath, Bound] = {"ifma": Bound(2, 2, 24, 2), "avx2": Bound(5, 4, 32, 1)}


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio(slow: Callable[[], object], fast: Callable[[], object], times: int, scale: float = 1) -> float:
    """Return `scale` times the median ratio of the two durations, over `times` pairs."""
    return statistics.median(scale * seconds(slow) / seconds(fast) for _ in range(times))


def products_of_digits(digits: int, bound: Bound, levels: int) -> int:
    """Return the number of digit products in a product of two numbers, without its reduction."""
    if digits < bound.split_from or not levels:
        return digits**2
    lower = (digits + 7) // 8 * 4
    return 2 * products_of_digits(lower, bound, levels - 1) + products_of_digits(digits - lower, bound, levels - 1)


def product_figures(path: KernelPath, bits: int) -> dict[str, float]:
    """Measure products and squarings on one thread."""
    from trilateral.common.paillier.native import _kernel
    from trilateral.common.paillier.native.numbers import Numbers

    n = mpz(randbelow(1 << bits) | 1 << bits - 1 | 1)
    numbers, n_squared, count = Numbers(n, path=path), n * n, 40
    x, y = mpz(randbelow(int(n_squared))), mpz(randbelow(int(n_squared)))
    a, b = numbers.enter([x] * count), numbers.enter([y] * count)
    out = numbers.empty(count)
    steps = 1_000_000

    def gmpy2() -> None:
        for _ in range(count):
            x * y % n_squared

    def multiply() -> None:
        _kernel.multiply(numbers.constants, out, a, b)

    def square() -> None:
        _kernel.square(numbers.constants, out, a, 1)

    least = min(seconds(multiply) for _ in range(1000)) / count
    cycle = min(seconds(lambda: _kernel.cycles(steps // 100)) for _ in range(1000)) / (steps // 100)
    digits, bound = numbers.size // 2, BOUNDS[path]
    # Three products of D digits by D, and two reductions (docs/kernel.md).
    products = 3 * products_of_digits(digits, bound, bound.levels) + 2 * digits**2
    least_possible = products * bound.instructions / bound.pipes / numbers.lanes * cycle
    return {
        f"product_ratio_{bits}": ratio(gmpy2, multiply, 1000),
        f"square_ratio_{bits}": ratio(gmpy2, square, 1000),
        f"product_us_{bits}": least * 1e6,
        f"bound_share_{bits}": least_possible / least,
    }


def operation_figures() -> dict[str, float]:
    """Compare whole operations with those of phe, under one 2048-bit key."""
    key = generate_private_key(2048)
    cipher = make_cipher("packed", key.public_key)
    phe_public = PaillierPublicKey(int(key.public_key.n))
    phe_private = PaillierPrivateKey(phe_public, int(key.p), int(key.q))
    rng = np.random.default_rng(0)
    scale = round_scale(JobConfig(name="kernel", dataset="kernel"), N_ROWS, N_ROWS)
    d, X = rng.normal(size=N_ROWS), rng.normal(size=(N_ROWS, N_COLUMNS))
    values = encode(d, scale.value_fraction_bits, VALUE_BITS)
    columns = scale.encode_columns(X / np.sqrt(np.mean(X**2, axis=0)))
    packed = scale.layout.pack(values)
    single = [mpz(int(value)) for value in values]
    few, few_rows = [int(value) for value in values[:FEW]], columns[:FEW].tolist()
    encrypted = [phe_public.encrypt(value) for value in few]
    ciphertexts = cipher.encrypt(packed)
    opened = [int(c) for c in ciphertexts[:N_DECRYPTED]]

    def phe_encrypt() -> None:
        for value in few:
            phe_public.encrypt(value)

    def phe_product() -> None:
        sums: list[EncryptedNumber] = [0] * N_COLUMNS
        for number, row in zip(encrypted, few_rows, strict=True):
            sums = [total + number * x for total, x in zip(sums, row, strict=True)]

    def phe_decrypt() -> None:
        for ciphertext in opened:
            phe_private.raw_decrypt(ciphertext)

    def product() -> None:
        multiply_all(cipher, ciphertexts)

    def multiply_all(cipher: PartyCipher, ciphertexts: Ciphertexts) -> None:
        product = cipher.start_product(scale.layout, columns)
        product.update(cipher.open(ciphertexts))
        product.result()

    more = N_ROWS / FEW
    threads = thread_count()
    figures = {
        "encrypt_ratio_packed": ratio(phe_encrypt, lambda: cipher.encrypt(packed), 9, more),
        "encrypt_ratio_unpacked": ratio(phe_encrypt, lambda: cipher.encrypt(single), 5, more),
        "matvec_ratio": ratio(phe_product, product, 9, more),
        "decrypt_ratio": ratio(phe_decrypt, lambda: key.decrypt_all(ciphertexts[:N_DECRYPTED]), 15),
        "slots": scale.layout.slots,
    }
    one: list[float] = []
    every: list[float] = []
    for _ in range(9):
        for count, times in ((1, one), (threads, every)):
            set_threads(count)
            times.append(seconds(product))
    for count in range(1, threads + 1):
        set_threads(count)
        figures[f"seconds_{count}_threads"] = min(
            seconds(lambda: multiply_all(cipher, cipher.encrypt(packed))) for _ in range(5)
        )
    figures["matvec_seconds"] = min(every)
    figures["threads_ratio"] = statistics.median(a / b for a, b in zip(one, every, strict=True))
    return figures


def group_figures() -> dict[str, dict[str, float]]:
    """Measure one ciphertext for every size of the groups, on one thread, without joining the buckets."""
    from trilateral.common.paillier.native.numbers import Numbers
    from trilateral.common.paillier.native.product import NativeProduct

    public_key = generate_private_key(2048).public_key
    cipher, numbers = make_cipher("packed", public_key), Numbers(public_key.n)
    scale = round_scale(JobConfig(name="kernel", dataset="kernel"), N_ROWS, N_ROWS)
    layout = scale.layout
    ciphertexts = cipher.open(cipher.encrypt([mpz(i) for i in range(N_GROUPS * max(GROUPS))]))
    rng, n_rows = np.random.default_rng(0), layout.slots * len(ciphertexts)
    threads = thread_count()
    set_threads(1)

    def milliseconds(columns: NDArray[np.int64], size: int) -> float:
        with mock.patch("trilateral.common.paillier.native.product.group_size", return_value=size):
            product = NativeProduct(numbers, layout, columns)
        started = time.thread_time()
        product.update(ciphertexts[: N_GROUPS * size])
        return 1000 * (time.thread_time() - started) / (N_GROUPS * size)

    figures: dict[str, dict[str, float]] = {}
    for n_columns in GROUP_COLUMNS:
        columns = scale.encode_columns(rng.normal(size=(n_rows, n_columns)))
        rounds = [[milliseconds(columns, size) for size in GROUPS] for _ in range(5)]
        least = {str(size): round(min(times), 2) for size, times in zip(GROUPS, zip(*rounds, strict=True), strict=True)}
        figures[f"{n_columns} columns"] = least | {"chosen": NativeProduct(numbers, layout, columns).group}
    set_threads(threads)
    return figures


def shares_figures() -> dict[str, dict[str, float]]:
    """Measure a block of a round of each role, for each path, in a thread as in a server."""
    figures: dict[str, dict[str, float]] = {}
    with ThreadPoolExecutor(1) as thread:
        for level in range(shares_path.best_level()[0], -1, -1):
            shares_path.use_level(level)
            figures[("numpy", "avx2", "avx512")[level]] = thread.submit(
                shares_nanoseconds, 100 if level else 5
            ).result()
    shares_path.choose_shares_arithmetic()
    return figures


def shares_column_figures() -> dict[str, dict[str, float]]:
    """Measure the same for some numbers of columns."""
    with ThreadPoolExecutor(1) as thread:
        return {str(n): thread.submit(shares_nanoseconds, 10, n).result() for n in MORE_SHARES_COLUMNS}


def shares_nanoseconds(times: int, n: int = SHARES_COLUMNS) -> dict[str, float]:
    """Return the least time of each role, in nanoseconds a row.

    Args:
        times: How often to measure.
        n: Columns of each party.
    """
    n_rows = BLOCK_ROWS
    fmt, rng = Format.of(1_000_000, 12), np.random.default_rng(0)
    keys = kernels.DealerKeys(*(rng.bytes(16) for _ in range(4)))

    def elements(columns: int) -> NDArray[np.uint64]:
        return kernels.stream(rng.bytes(16), Purpose.SHARES, 0, n_rows, columns)

    masks, sums = (elements(1)[:n], elements(1)[:n]), kernels.DealerSums.zeros(n, n)
    weights = kernels.Weights(elements(1)[:n], elements(1)[:n], elements(1)[:n])
    columns, other, z, peer = (
        rng.integers(-4096, 4096, n_rows * n).astype(np.int32),
        elements(n),
        elements(1),
        elements(1),
    )
    own, others = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    for_host, for_guest = kernels.deal(fmt, keys, masks, 0, n_rows, sums)

    def party(role: Role) -> None:
        is_host = role is Role.HOST
        session, key = (keys.host_session, keys.host_round) if is_host else (keys.guest_session, keys.guest_round)
        kernels.score_part(columns, other, weights, (session, key), 0, offset=is_host)
        shares = kernels.residual(fmt, role, key, for_host if is_host else for_guest, z + peer, 0, gradient=True)
        kernels.mask(shares.d, key, Purpose.OPENED, 0, 1)
        kernels.add_products(columns, shares.d, own)
        kernels.add_mask_products(session, Purpose.COLUMNS, 0, n, peer, own)
        kernels.add_products(other, shares.d, others)

    work: dict[str, Callable[[], object]] = {
        "host": lambda: party(Role.HOST),
        "guest": lambda: party(Role.GUEST),
        "coordinator": lambda: kernels.deal(fmt, keys, masks, 0, n_rows, sums),
    }
    return {name: round(min(seconds(each) for _ in range(times)) / n_rows * 1e9, 1) for name, each in work.items()}


def measure() -> dict[str, Any]:
    """Return all figures; without the kernel, only those of whole operations."""
    gc.disable()
    path = arithmetic_path()
    of_paths: dict[str, dict[str, float]] = {}
    for each in BOUNDS:
        if not obstacle(each):
            of_paths[each] = {}
            for bits in (2048, 3072, 4096):
                of_paths[each] |= product_figures(each, bits)
    figures = dict(of_paths.get(path, {}))
    figures |= operation_figures()
    rounded = {name: round(value, 3) for name, value in figures.items()}
    rounded_paths = {each: {name: round(value, 3) for name, value in found.items()} for each, found in of_paths.items()}
    groups = {"groups": group_figures()} if of_paths.get(path) else {}
    return (
        {"path": path, "threads": thread_count()}
        | rounded
        | {"paths": rounded_paths}
        | groups
        | {"shares": shares_figures(), "shares_columns": shares_column_figures()}
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--threads", type=int, default=0, help="threads for whole operations (default: one a processor)"
    )
    arguments = parser.parse_args()
    use_arithmetic(arguments.threads)
    figures = measure()
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
