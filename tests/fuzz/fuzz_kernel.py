"""Call the kernels with random buffers: every call must give right numbers or a ValueError, and never crash.

python tests/fuzz/fuzz_kernel.py [seconds] [seed]

Run it under the sanitizers with `make sanitize`, where it finds the most.
"""

import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.curve25519.native import _kernel as curve_kernel
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.modulus import FORMS
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.shares.format import Format
from trilateral.common.shares.native import _kernel as shares_kernel
from trilateral.common.shares.reference import wave_table


class Fuzzer:
    """Makes random calls under one random modulus."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        bits = source.choice([8, 15, 64, 190, 400, 1024, 2048, 3072, 4096, source.randrange(8, 4144)])
        self.n = source.getrandbits(bits) | 1 << bits - 1 | 1
        self.numbers = Numbers(mpz(self.n), path=source.choice([path for path in FORMS if path in _kernel.paths]))

    def check_products(self) -> None:
        """Compare products, squares, and plaintexts of random numbers with integer arithmetic."""
        draw, n_squared = self.random, self.n**2
        count = draw.randrange(1, self.numbers.lanes + 3)
        a, b = ([mpz(self._number(n_squared)) for _ in range(count)] for _ in range(2))
        m = [mpz(self._number(self.n)) for _ in range(count)]
        numbers = self.numbers
        product = numbers.multiply(numbers.enter(a), numbers.square(numbers.enter(b), 2))
        expected = [x * y**4 * (1 + z * self.n) % n_squared for x, y, z in zip(a, b, m, strict=True)]
        assert numbers.leave(product, m) == expected, self.n

    def call_anything(self) -> None:
        """Call a function with sizes that may or may not fit each other."""
        c, draw = self.numbers.constants, self.random
        if draw.random() < 0.1:
            place, word = 8 * draw.randrange(4), draw.choice([-1, 0, 1, 4, 8, 1 << 31, 1 << 61, 1 << 62, (1 << 63) - 8])
            wrong_size = c[:place] + word.to_bytes(8, "little", signed=True) + c[place + 8 :]
            c = draw.choice([draw.randbytes(8), c[: draw.randrange(len(c))], wrong_size])
        some, comb = self._elements, self.numbers.empty(draw.choice([0, 1, 12, 16]))
        calls: list[Callable[[], None]] = [
            lambda: _kernel.enter(c, some(), self._bytes(), draw.random() < 0.5),
            lambda: _kernel.leave(c, bytearray(self._bytes()), some(), self._bytes()),
            lambda: _kernel.multiply(c, some(), some(), some()),
            lambda: _kernel.square(c, some(), some(), draw.randrange(-1, 3)),
            lambda: _kernel.power(
                c * draw.randrange(4),
                some(),
                some(),
                draw.randbytes(draw.randrange(3)),
                draw.randrange(-1, 3),
                draw.randrange(-1, 7),
            ),
            lambda: _kernel.add_plaintexts(c, some(), some(), self._bytes()),
            lambda: _kernel.product(c, some(), some()),
            lambda: _kernel.draw(c, some(), comb, draw.randbytes(2 * draw.randrange(17)), draw.randrange(-1, 5)),
            lambda: _kernel.fill_tables(
                c, some(), some(), draw.randrange(0, 4), draw.randrange(-1, 5), draw.randrange(-1, 5)
            ),
            self._buckets,
        ]
        with suppress(ValueError):
            draw.choice(calls)()

    def _buckets(self) -> None:
        """Call a function with sizes that mostly fit each other, and values of any size."""
        draw, c = self.random, self.numbers.constants
        columns, slots, bits, count = (draw.randrange(1, most) for most in (5, 4, 9, 9))
        n_groups = draw.randrange(1, count + 1)
        wrong = draw.random() < 0.3
        if wrong:
            count += draw.randrange(-1, 2)
        buckets = self.numbers.empty(columns * slots * bits)
        tables = self.numbers.enter([mpz(1)] * (n_groups << -(-count // n_groups)))
        n_samples = max(0, count * slots - draw.randrange(slots + wrong))
        most = draw.choice([1 << bits - 1, 1 << 62])
        samples = np.array([draw.randrange(-most, most) for _ in range(n_samples * columns)], np.int64)
        offsets = np.full(columns, draw.choice([1 << bits - 1, most, (1 << 63) - 1]), np.int64)
        first, stop = (draw.randrange(-1, 5), draw.randrange(-1, 16)) if wrong else (0, columns * slots)
        _kernel.fill_buckets(
            c, buckets, tables, samples, offsets, count, n_groups, slots, bits, draw.random() < 0.5, first, stop
        )
        out = self.numbers.empty(columns + wrong)
        _kernel.join_buckets(c, out, buckets, slots, bits, draw.randrange(0, 12), 0, columns)

    def _number(self, end: int) -> int:
        draw = self.random
        return draw.choice([0, 1, end - 1, draw.randrange(end), (1 << draw.randrange(1, end.bit_length() + 1)) % end])

    def _elements(self) -> Elements:
        elements = self.numbers.enter([mpz(1)] * self.random.randrange(self.numbers.lanes + 3))
        return elements if self.random.random() < 0.9 else elements.ravel()[1:].copy()

    def _bytes(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 7, 64, 512, 1024, 3000]))


FORMATS = [Format.of(10_000, max_score, bits) for max_score in (8, 12, 24) for bits in (None, 3)]


class SharesFuzzer:
    """Makes random calls of the kernel for shares. Its own tests compare the results with numpy."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    def call_anything(self) -> None:
        """Call a function with sizes that mostly fit each other."""
        draw, kernel = self.random, shares_kernel
        level = draw.randrange(0, 4) if draw.random() < 0.1 else draw.randrange(1, kernel.level + 1)
        rows, own, other, row = (
            16 * draw.randrange(0, 9),
            draw.randrange(0, 70),
            draw.randrange(0, 4),
            8 * draw.randrange(9),
        )
        fmt, some, key, yes = draw.choice(FORMATS), self._elements, self._bytes(16), draw.random() < 0.5
        numbers, table = self._numbers(fmt), wave_table()
        is_host, gradient, v = draw.random() < 0.5, draw.random() < 0.5, draw.randrange(1, 4)
        n_v = rows if gradient and fmt.weighted else 0
        dealt = fmt.n_odd if is_host else fmt.n_even
        narrow = self._bytes(4 * rows * own)
        calls: list[Callable[[], None]] = [
            lambda: kernel.stream(level, some(rows * own), key, 1, row, own),
            lambda: kernel.mask(level, some(rows * own), narrow if yes else some(rows * own), key, 1, row, own),
            lambda: kernel.score_part(
                level, some(rows), narrow, some(rows * other), some(own), some(own), some(other), key, key, row, yes
            ),
            lambda: kernel.deal(
                level,
                some(rows * fmt.n_odd),
                some(rows * fmt.n_even),
                some(own),
                some(other),
                some(1),
                numbers,
                table,
                self._bytes(64),
                some(own),
                some(other),
                row,
                rows,
                yes,
            ),
            lambda: kernel.residual(
                level,
                some(rows if gradient else 0),
                some(rows),
                some(n_v),
                some(8),
                numbers,
                table,
                key,
                some(rows * dealt),
                some(rows),
                row,
                is_host,
                gradient,
            ),
            lambda: kernel.add_products(level, some(v * own), narrow if yes else some(rows * own), some(v * rows), v),
            lambda: kernel.scale(level, some(rows * own), narrow if yes else some(rows * own), some(rows)),
            lambda: kernel.add_mask_products(level, some(own), key, some(rows), 1, row),
        ]
        with suppress(ValueError):
            draw.choice(calls)()

    def _elements(self, n: int) -> NDArray[np.uint64]:
        n = max(0, n + self.random.choice([-1, 1, 8])) if self.random.random() < 0.03 else n
        return np.frombuffer(bytearray(self.random.randbytes(8 * n)), np.uint64)

    def _bytes(self, n: int) -> bytes:
        return self.random.randbytes(n if self.random.random() < 0.97 else self.random.randrange(2 * n + 1))

    def _numbers(self, fmt: Format) -> NDArray[np.int64]:
        numbers = fmt.kernel_numbers.copy()
        if self.random.random() < 0.1:
            numbers[self.random.randrange(len(numbers))] = self.random.choice([-1, 0, 1, 63, 64, 2**31, 2**62])
        return numbers


def call_curve(draw: random.Random) -> None:
    """Call the kernel for points with sizes that mostly fit each other. Its own tests compare the results."""
    n = 32 * draw.randrange(20)
    points, key = (draw.randbytes(max(0, size + draw.choice([-1, 0, 0, 0, 0, 32]))) for size in (n, 32))
    out = bytearray(n)
    with suppress(ValueError):
        if draw.random() < 0.5:
            curve_kernel.multiply(out, key, points)
        else:
            curve_kernel.map_to_curve(out, points)


def main(seconds: float, seed: int) -> None:
    """Run for some seconds."""
    source, end, rounds = random.Random(seed), time.monotonic() + seconds, 0
    shares = SharesFuzzer(source)
    while time.monotonic() < end:
        fuzzer = Fuzzer(source)
        for _ in range(20):
            fuzzer.check_products()
            for _ in range(5):
                fuzzer.call_anything()
                shares.call_anything()
                call_curve(source)
            rounds += 1
    print(f"{rounds} rounds, seed {seed}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
