"""Each path's products against Python's whole numbers, for each size of key and over the ends of every range."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from gmpy2 import mpz
from numpy.typing import NDArray

from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.modulus import (
    DIGIT_BITS,
    MAX_DIGITS,
    MIN_BITS,
    SLACK_BITS,
    KernelPath,
    Modulus,
    digits_for,
)
from trilateral.common.paillier.native.numbers import Elements, Numbers

RANDOM = random.Random(5)
SIZES = [8, 16, 64, 191, 512, 1024, 1536, 2048, 3072, 4096]


def moduli(bits: int) -> list[int]:
    """Odd numbers of so many bits: a random one, the least, and the largest, whose digits are all at their largest."""
    return [RANDOM.getrandbits(bits) | 1 << bits - 1 | 1, 1 << bits - 1 | 1, (1 << bits) - 1]


every_modulus = pytest.mark.parametrize(
    "n", [pytest.param(n, id=f"{bits}-{i}") for bits in SIZES for i, n in enumerate(moduli(bits))]
)


def numbers_below(n_squared: int, n: int) -> list[int]:
    """The ends of the range, and a few within."""
    ends = [0, 1, 2, n - 1, n, n + 1, n_squared - n, n_squared - 1]
    return ends + [RANDOM.randrange(n_squared) for _ in range(5)]


def elements_of(pairs: Sequence[tuple[int, int]], numbers: Numbers) -> Elements:
    """Elements with these lo and hi."""
    digits = numbers.size // 2
    elements = numbers.empty(len(pairs))
    for element, pair in zip(elements, pairs, strict=True):
        element[:] = [x >> DIGIT_BITS * i & (1 << DIGIT_BITS) - 1 for x in pair for i in range(digits)]
    return elements


def halves(element: Elements) -> tuple[int, int]:
    digits = len(element) // 2
    assert np.all((element >= 0) & (element < 2**DIGIT_BITS))
    assert np.all(element == np.rint(element))
    lo, hi = (
        sum(int(d) << DIGIT_BITS * i for i, d in enumerate(half)) for half in (element[:digits], element[digits:])
    )
    return lo, hi


def value(element: Elements, n: int) -> int:
    lo, hi = halves(element)
    return (lo - hi * n) % (n * n)


@every_modulus
def test_numbers_come_out_as_they_went_in(n: int, path: KernelPath) -> None:
    numbers = Numbers(mpz(n), path=path)
    values = [mpz(x) for x in numbers_below(n * n, n)]
    assert numbers.leave(numbers.enter(values)) == values


@every_modulus
def test_numbers_of_the_full_width_are_taken_modulo_the_square(n: int, path: KernelPath) -> None:
    numbers, width = Numbers(mpz(n), path=path), Modulus(n, path).width
    largest = (1 << 8 * width) - 1
    assert numbers.leave(numbers.enter([mpz(largest)])) == [largest % (n * n)]
    wide = Numbers(mpz(n), 3 * width + 1, path)
    for number in (largest**3, n**6, 1 << 24 * width):
        assert wide.leave(wide.enter([mpz(number)])) == [number % (n * n)]


@every_modulus
def test_products_and_squares_are_those_of_whole_numbers(n: int, path: KernelPath) -> None:
    numbers = Numbers(mpz(n), path=path)
    values = [mpz(x) for x in numbers_below(n * n, n)]
    pairs = [(a, b) for a in values for b in values]
    a, b = (numbers.enter([pair[i] for pair in pairs]) for i in (0, 1))
    assert numbers.leave(numbers.multiply(a, b)) == [x * y % n**2 for x, y in pairs]
    assert numbers.leave(numbers.square(numbers.enter(values), 3)) == [x**8 % n**2 for x in values]


def check_products(pairs: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]], numbers: Numbers) -> None:
    """Compare products and squares of pairs with integers, and their lo and hi with the bounds."""
    n = int(numbers.n)
    r_inverse = pow(1 << DIGIT_BITS * (numbers.size // 2), -1, n * n)
    a, b = elements_of(pairs, numbers), elements_of(others, numbers)
    products, squares = numbers.multiply(a, b), numbers.square(a, 1)
    for x, y, product, square in zip(a, b, products, squares, strict=True):
        assert value(product, n) == value(x, n) * value(y, n) * r_inverse % n**2
        assert value(square, n) == value(x, n) ** 2 * r_inverse % n**2
        assert max(halves(product) + halves(square)) < 3 * n


@every_modulus
def test_extreme_inputs_of_a_product_give_outputs_within_the_bounds(n: int, path: KernelPath) -> None:
    """lo and hi below 16 n go in, below 3 n come out: so no product needs a subtraction of n."""
    most = 16 * n - 1
    ends = [(0, 0), (most, most), (most, 0), (0, most), (1, most), (n, n), (n - 1, n), (1, 0)]
    pairs = list(itertools.product(ends, repeat=2))
    check_products([a for a, _ in pairs], [b for _, b in pairs], Numbers(mpz(n), path=path))


@pytest.mark.parametrize("digits", range(4, MAX_DIGITS + 4, 4))
@pytest.mark.parametrize("longest", [True, False])
def test_products_are_right_for_every_number_of_digits(digits: int, longest: bool, path: KernelPath) -> None:
    """Also where runs of ones and zeros end at a digit, a group of four, or a half, of which the products are made."""
    bits = DIGIT_BITS * digits - SLACK_BITS if longest else max(MIN_BITS, DIGIT_BITS * (digits - 4) - SLACK_BITS + 1)
    n = (1 << bits) - 1 if longest else RANDOM.getrandbits(bits) | 1 << bits - 1 | 1
    numbers, most = Numbers(mpz(n), path=path), 16 * n - 1
    assert numbers.size == 2 * digits
    lengths = {DIGIT_BITS * count for count in (1, 4, digits - 4, *parts_of(digits))}
    runs = [(1 << length) - 1 << shift for length in lengths for shift in (0, *lengths)]
    values = [0, 1, n, most, most >> DIGIT_BITS << DIGIT_BITS, *(x for run in runs for x in (run, run + 1, most - run))]
    for part in parts_of(digits):  # whose sums have carries, also into digits of ones
        base = 1 << DIGIT_BITS * part
        values += [low + high * base for low in (1, base - 2, base - 1) for high in (1, base - 1, most // base)]
    values = sorted({x for x in values if 0 <= x <= most})

    def pairs() -> list[tuple[int, int]]:
        return [(RANDOM.choice(values), RANDOM.choice(values)) for _ in range(60)] + [
            (RANDOM.randrange(most), RANDOM.randrange(most)) for _ in range(12)
        ]

    check_products(pairs(), pairs(), numbers)


def parts_of(digits: int) -> set[int]:
    """Lengths of halves, of halves of halves, and so on, in digits."""
    lower = (digits + 7) // 8 * 4
    return set() if digits <= 12 else {lower, digits - lower} | parts_of(lower)


def test_products_stay_right_when_they_are_fed_back(path: KernelPath) -> None:
    """As they are, or added to themselves up to the bounds of what may go in."""
    n = RANDOM.getrandbits(2048) | 1 << 2047 | 1
    numbers, count = Numbers(mpz(n), path=path), 13
    r_inverse = pow(1 << DIGIT_BITS * (numbers.size // 2), -1, n * n)
    x = elements_of([(RANDOM.randrange(16 * n), RANDOM.randrange(16 * n)) for _ in range(count)], numbers)
    y = elements_of([(16 * n - 1 - i, 16 * n - 1) for i in range(count)], numbers)
    expected, factors = ([value(element, n) for element in elements] for elements in (x, y))
    for step in range(60):
        if step % 3:
            x = numbers.multiply(x, y)
            expected = [a * b * r_inverse % n**2 for a, b in zip(expected, factors, strict=True)]
        else:
            x = numbers.square(x, 1)
            expected = [a * a * r_inverse % n**2 for a in expected]
        if step % 7 == 0:
            x = elements_of([(5 * lo, 5 * hi) for lo, hi in map(halves, x)], numbers)
            expected = [5 * a % n**2 for a in expected]
    assert [value(element, n) for element in x] == expected


@every_modulus
def test_a_plaintext_is_added_while_numbers_leave(n: int, path: KernelPath) -> None:
    numbers = Numbers(mpz(n), path=path)
    values = [mpz(x) for x in numbers_below(n * n, n)]
    plaintexts = [mpz(m) for m in (0, 1, -1, n // 2, -(n // 2), n - 1, n, *(RANDOM.randrange(n) for _ in values[7:]))]
    expected = [x * (1 + m * n) % n**2 for x, m in zip(values, plaintexts, strict=True)]
    assert numbers.leave(numbers.enter(values), plaintexts) == expected
    sums = numbers.add_plaintexts(numbers.enter(values), plaintexts)
    assert all(max(halves(element)) < 3 * n for element in sums)
    assert numbers.leave(sums) == expected


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 13])
def test_residues_are_products_from_the_tables_of_a_comb(count: int, path: KernelPath) -> None:
    n, n_tables, steps = (2**61 - 1) * (2**89 - 1), 3, 4
    numbers = Numbers(mpz(n), path=path)
    tables = [[mpz(RANDOM.randrange(n * n)) for _ in range(16)] for _ in range(n_tables)]
    comb, out = numbers.enter([power for table in tables for power in table]), numbers.empty(count)
    indices = np.array([RANDOM.randrange(1 << 16) for _ in range(count * steps * n_tables)], np.uint16)
    _kernel.draw(numbers.constants, out, comb, indices, n_tables)
    expected = []
    for rows in indices.reshape(count, steps, n_tables).tolist():
        residue = mpz(1)
        for row in rows:
            entries = [table[index % 16] for table, index in zip(tables, row, strict=True)]
            residue = residue**2 * math.prod(entries) % n**2
        expected.append(residue)
    assert numbers.leave(out) == expected


@every_modulus
def test_powers_are_those_of_whole_numbers(n: int, path: KernelPath) -> None:
    numbers = Numbers(mpz(n), path=path)
    values = [mpz(x) for x in numbers_below(n * n, n)]
    elements = numbers.enter(values)
    for exponent in (b"", b"\0", b"\1", b"\xff\xff\xff", bytes(range(7))):
        out = numbers.empty(len(values))
        _kernel.power(numbers.constants, out, elements, exponent, 0, len(values))
        assert numbers.leave(out) == [pow(x, int.from_bytes(exponent), n**2) for x in values]


def test_powers_of_two_moduli_share_the_lanes(path: KernelPath) -> None:
    p, q, width = (1 << 191) - 19, (1 << 96) - 17, 96
    both = [Numbers(mpz(n), width, path, digits_for(191)) for n in (p, q)]
    values = [[mpz(RANDOM.getrandbits(8 * width)) for _ in range(7)] for _ in both]
    bases, out = both[0].empty(14), both[0].empty(14)
    np.concatenate([numbers.enter(each) for numbers, each in zip(both, values, strict=True)], out=bases)
    exponents = [RANDOM.randbytes(9) for _ in both]
    moduli = b"".join([numbers.constants for numbers in both])
    for first, stop in ((0, 4), (4, 12), (12, 12), (12, 14)):
        _kernel.power(moduli, out, bases, b"".join(exponents), first, stop)
    for numbers, each, exponent, powers in zip(both, values, exponents, (out[:7], out[7:]), strict=True):
        assert numbers.leave(powers) == [pow(x, int.from_bytes(exponent), int(numbers.n_squared)) for x in each]


@pytest.mark.parametrize("count", [*range(19), 40])
def test_products_of_any_number_of_numbers(count: int, path: KernelPath) -> None:
    n = (2**61 - 1) * (2**89 - 1)
    numbers = Numbers(mpz(n), path=path)
    values = [RANDOM.randrange(1, n * n) for _ in range(count)]
    assert numbers.leave(numbers.product(numbers.enter([mpz(x) for x in values]))) == [math.prod(values) % n**2]


@pytest.mark.parametrize(
    ("count", "n_groups"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 3), (5, 5), (13, 2)]
)
def test_a_table_has_the_products_of_all_subsets_of_its_group(count: int, n_groups: int, path: KernelPath) -> None:
    n = (2**61 - 1) * (2**89 - 1)
    numbers = Numbers(mpz(n), path=path)
    bases = [RANDOM.randrange(1, n * n) for _ in range(count)]
    tables = numbers.empty(n_groups, 1 << -(-count // n_groups))
    for half in range(2 * n_groups):
        _kernel.fill_tables(numbers.constants, tables, numbers.enter([mpz(x) for x in bases]), n_groups, half, half + 1)
    for g, table in enumerate(tables):
        group = bases[count * g // n_groups : count * (g + 1) // n_groups]
        subsets = range(1 << len(group))
        expected = [math.prod(base for i, base in enumerate(group) if e >> i & 1) % n**2 for e in subsets]
        assert numbers.leave(table[: len(subsets)]) == expected


def test_moduli_that_it_has_no_room_for_are_refused(path: KernelPath) -> None:
    for n in (0, 1, 127, -(2**64) + 1, 130, 1 << 2048, (1 << 4145) - 1):
        with pytest.raises(ValueError, match="odd moduli"):
            Modulus(n, path)
    with pytest.raises(ValueError, match="at most 8 times their length"):
        Numbers(mpz(2**127 - 1), 1000, path)
    longest = Numbers((mpz(1) << 4144) - 1, path=path)
    assert longest.leave(longest.enter([mpz(7)])) == [7]


class _Call:
    """A call of the right sizes, of which a test gets one wrong."""

    def __init__(self, path: KernelPath) -> None:
        self.numbers = Numbers(mpz(2**61 - 1), path=path)
        self.constants, self.one = self.numbers.constants, self.numbers.enter([mpz(1)])
        self.two = self.numbers.empty(2)
        self.width = Modulus(2**61 - 1, self.numbers.path).width
        self.buckets, self.tables = self.numbers.empty(2 * 3 * 5), self.numbers.enter([mpz(1)] * 4)
        self.samples, self.offsets = np.ones((4, 2), np.int64), np.zeros(2, np.int64)

    def fill(
        self,
        *,
        buckets: Elements | None = None,
        tables: Elements | None = None,
        samples: NDArray[np.int64] | None = None,
        offsets: NDArray[np.int64] | None = None,
        sizes: tuple[int, int, int, int] = (2, 1, 3, 5),
        part: tuple[int, int] = (0, 6),
    ) -> None:
        """Fill buckets of two columns, three slots and five bits from one group of two ciphertexts."""
        count, n_groups, slots, bits = sizes
        _kernel.fill_buckets(
            self.constants,
            self.buckets if buckets is None else buckets,
            self.tables if tables is None else tables,
            self.samples if samples is None else samples,
            self.offsets if offsets is None else offsets,
            count,
            n_groups,
            slots,
            bits,
            True,
            *part,
        )


WRONG: dict[str, Callable[[_Call], None]] = {
    "constants": lambda c: _kernel.square(c.constants[:-8], c.one, c.one, 1),
    "constants of nothing": lambda c: _kernel.square(b"", c.one, c.one, 1),
    "another path": lambda c: _kernel.square((5).to_bytes(8, "little") + c.constants[8:], c.one, c.one, 1),
    "too many digits": lambda c: _kernel.square(
        c.constants[:8] + (1 << 40).to_bytes(8, "little") + c.constants[16:], c.one, c.one, 1
    ),
    "numbers whose bits are no 64-bit number": lambda c: _kernel.leave(
        c.constants[:24] + (1 << 61).to_bytes(8, "little") + c.constants[32:],
        bytearray(),
        c.numbers.enter([mpz(1)] * 8),
        b"",
    ),
    "no digits": lambda c: _kernel.square(bytes(len(c.constants)), c.one, c.one, 1),
    "enter": lambda c: _kernel.enter(c.constants, c.one, bytes(200), True),
    "enter none": lambda c: _kernel.enter(c.constants, c.one[:0], b"1", True),
    "leave": lambda c: _kernel.leave(c.constants, bytearray(c.width), c.two, b""),
    "leave with plaintexts": lambda c: _kernel.leave(c.constants, bytearray(c.width), c.one, b"12"),
    "part of an element": lambda c: _kernel.multiply(c.constants, c.one, c.one[0, :-1].copy(), c.one),
    "multiply": lambda c: _kernel.multiply(c.constants, c.two, c.two, c.one),
    "square": lambda c: _kernel.square(c.constants, c.two, c.one, 1),
    "negative": lambda c: _kernel.square(c.constants, c.one, c.one, -1),
    "power": lambda c: _kernel.power(c.constants, c.two, c.one, b"1", 0, 1),
    "power beyond the list": lambda c: _kernel.power(c.constants, c.one, c.one, b"1", 0, 2),
    "power before the list": lambda c: _kernel.power(c.constants, c.one, c.one, b"1", -1, 1),
    "powers of too many moduli": lambda c: _kernel.power(c.constants * 3, c.two, c.two, b"123", 0, 1),
    "powers of an odd number of bases": lambda c: _kernel.power(c.constants * 2, c.one, c.one, b"12", 0, 1),
    "powers of moduli of different lengths": lambda c: _kernel.power(
        c.constants + Modulus(2**521 - 1, c.numbers.path).constants, c.two, c.two, b"12", 0, 1
    ),
    "powers of a modulus and a part": lambda c: _kernel.power(c.constants + b"12345678", c.one, c.one, b"1", 0, 1),
    "powers of no modulus": lambda c: _kernel.power(b"", c.one, c.one, b"1", 0, 1),
    "products": lambda c: _kernel.product(c.constants, c.two, c.two),
    "no product": lambda c: _kernel.product(c.constants, c.one[:0], c.two),
    "product of part of an element": lambda c: _kernel.product(c.constants, c.one, c.two[0, 1:].copy()),
    "draw": lambda c: _kernel.draw(c.constants, c.one, c.numbers.empty(8), b"123", 2),
    "draw for one of two": lambda c: _kernel.draw(c.constants, c.two, c.numbers.empty(8), b"12", 1),
    "draw from part of the tables": lambda c: _kernel.draw(c.constants, c.one, c.numbers.empty(8), bytes(6), 2),
    "draw from tables of different lengths": lambda c: _kernel.draw(
        c.constants, c.one, c.numbers.empty(8), bytes(6), 3
    ),
    "draw from tables of six": lambda c: _kernel.draw(c.constants, c.one, c.numbers.empty(12), bytes(4), 2),
    "draw from no table": lambda c: _kernel.draw(c.constants, c.one, c.numbers.empty(8), bytes(4), 0),
    "draw without indices": lambda c: _kernel.draw(c.constants, c.one, c.numbers.empty(8), b"", 2),
    "plaintexts": lambda c: _kernel.add_plaintexts(c.constants, c.two, c.two, bytes(c.width // 2)),
    "no plaintexts": lambda c: _kernel.add_plaintexts(c.constants, c.two, c.two, b""),
    "plaintexts for one of two": lambda c: _kernel.add_plaintexts(c.constants, c.one, c.two, bytes(c.width)),
    "tables": lambda c: _kernel.fill_tables(c.constants, c.tables, c.one, 1, 0, 2),
    "tables of no group": lambda c: _kernel.fill_tables(c.constants, c.tables, c.two, 0, 0, 0),
    "tables of empty groups": lambda c: _kernel.fill_tables(c.constants, c.tables, c.two, 4, 0, 1),
    "tables of nothing": lambda c: _kernel.fill_tables(c.constants, c.tables[:0], c.two[:0], 1, 0, 0),
    "beyond the tables": lambda c: _kernel.fill_tables(c.constants, c.tables, c.two, 1, 0, 3),
    "tables of a huge group": lambda c: c.fill(sizes=(80, 1, 3, 5)),
    "buckets": lambda c: c.fill(buckets=c.buckets[1:]),
    "tables for buckets": lambda c: c.fill(tables=c.tables[1:]),
    "no column": lambda c: c.fill(buckets=c.buckets[:0], part=(0, 0)),
    "part of a row": lambda c: c.fill(samples=np.ones(7, np.int64)),
    "offsets": lambda c: c.fill(offsets=np.zeros(1, np.int64)),
    "samples of fewer ciphertexts": lambda c: c.fill(samples=np.ones((3, 2), np.int64)),
    "samples of more ciphertexts": lambda c: c.fill(samples=np.ones((7, 2), np.int64)),
    "no slots to fill": lambda c: c.fill(sizes=(2, 1, 0, 5)),
    "no bits": lambda c: c.fill(sizes=(2, 1, 3, 0)),
    "too many bits": lambda c: c.fill(buckets=c.numbers.empty(2 * 3 * 64), sizes=(2, 1, 3, 64)),
    "beyond the columns": lambda c: c.fill(part=(0, 7)),
    "before the columns": lambda c: c.fill(part=(-1, 6)),
    "backwards": lambda c: c.fill(part=(3, 2)),
    "a value of too many bits": lambda c: c.fill(samples=c.samples << 5),
    "a negative value": lambda c: c.fill(samples=-c.samples),
    "an offset of too many bits": lambda c: c.fill(offsets=c.offsets + 31),
    "no slots": lambda c: _kernel.join_buckets(c.constants, c.two, c.buckets, 0, 5, 7, 0, 2),
    "no distance": lambda c: _kernel.join_buckets(c.constants, c.two, c.buckets, 3, 5, 0, 0, 2),
    "columns to join": lambda c: _kernel.join_buckets(c.constants, c.two, c.buckets, 3, 5, 7, 0, 3),
    "join": lambda c: _kernel.join_buckets(c.constants, c.one, c.buckets, 3, 5, 7, 0, 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sizes_are_refused_before_anything_is_read(name: str, path: KernelPath) -> None:
    with pytest.raises(ValueError, match=r"sizes|constants|columns|bits"):
        WRONG[name](_Call(path))
