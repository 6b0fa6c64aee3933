"""The constants of a modulus that a path of the kernel needs, computed with Python integers; see the path's C file."""

from array import array
from collections.abc import Iterable
from typing import Literal, NamedTuple

from gmpy2 import mpz

KernelPath = Literal["ifma", "avx2"]
"""A path of the kernel."""

DIGIT_BITS = 52
MAX_DIGITS = 80
MAX_CHUNKS = 8
"""Maximum number of pieces of a number from outside. Each piece has as many digits as n."""
SLACK_BITS = 16
"""R is at least this many bits longer than n, so that subtractions of n are unnecessary."""
MIN_BITS, MAX_BITS = 8, MAX_DIGITS * DIGIT_BITS - SLACK_BITS
"""Minimum and maximum bits of n. The bounds of both paths hold for every n above 2."""


class Form(NamedTuple):
    """How a path computes."""

    lanes: int
    """Numbers that it works on at a time."""
    typecode: str
    """Of a digit at rest, for `array` and numpy: "d" for doubles, "Q" for whole numbers of 64 bits."""
    k_digits: int
    """Digits of k, which a reduction clears at a time."""


FORMS: dict[KernelPath, Form] = {"ifma": Form(8, "Q", 4), "avx2": Form(4, "d", 2)}
_WORD = 1 << 64
_LOW_EXPONENT, _HIGH_EXPONENT = 0x433 << 52, 0x467 << 52
"""2^52 and 2^104 as the bits of doubles: each half of a product adds one of them to its column."""
_LEVEL = 1 << 62
"""Added to columns that result from differences, so that they stay above zero."""
_SPLIT_FROM = 32
"""From this number of digits on, products are made from halves."""


def digits_for(bits: int) -> int:
    """Return the number of digits for a modulus n of `bits` bits, a multiple of four."""
    return 4 * -(-(bits + SLACK_BITS) // (4 * DIGIT_BITS))


def fits(n: int | mpz, number_bits: int = 0) -> bool:
    """Return whether the kernel accepts n, for numbers from outside of up to `number_bits` bits or the bits of n^2."""
    return (
        n > 0
        and n % 2 == 1
        and MIN_BITS <= n.bit_length() <= MAX_BITS
        and _chunks(n.bit_length(), number_bits) <= MAX_CHUNKS
    )


def _chunks(bits: int, number_bits: int, digits: int = 0) -> int:
    """Return how many pieces a number from outside has, each of as many digits as n."""
    return max(2, -(-max(number_bits, 16 * -(-bits // 8)) // (DIGIT_BITS * (digits or digits_for(bits)))))


class Modulus:
    """An odd n, for products modulo n^2.

    Args:
        n: the modulus, of 8 to 4144 bits.
        path: the path that computes.
        number_bits: the length in bits of the longest numbers that come from outside, at least as many as n^2 has.
        digits: the number of digits of n, if it is to have more than it needs.
    """

    def __init__(self, n: int | mpz, path: KernelPath, number_bits: int = 0, digits: int = 0) -> None:
        n = int(n)
        if not fits(n, number_bits):
            raise ValueError(
                f"the kernel accepts odd moduli of {MIN_BITS} to {MAX_BITS} bits, and numbers of at most {MAX_CHUNKS}"
                " times their length"
            )
        form = FORMS[path]
        digits = max(digits, digits_for(n.bit_length()))
        r = 1 << DIGIT_BITS * digits
        self.width = 2 * -(-n.bit_length() // 8)
        """Bytes of a number modulo n^2."""
        self.element_size = 2 * digits
        """Digits in an element."""
        chunks = _chunks(n.bit_length(), number_bits, digits)
        cleared = 1 << form.k_digits * DIGIT_BITS
        k = -pow(n, -1, cleared) % cleared
        h = (k * n + 1) // cleared
        numbers = _digits(n, digits) + _digits(h, digits) + _digits(k, form.k_digits)
        for power in range(1, chunks + 2):
            hi, lo = divmod(pow(r, power, n * n), n)
            numbers += _digits(lo, digits) + _digits(-hi % n, digits)
        limbs = -(-DIGIT_BITS * digits // 64)
        self.constants = (
            array("q", [form.lanes, digits, chunks, self.width]).tobytes()
            + array(form.typecode, numbers).tobytes()
            + array("Q", [x % _WORD for x in (_avx2_columns(digits) if path == "avx2" else ())]).tobytes()
            + array("Q", [n >> 64 * i & _WORD - 1 for i in range(limbs)]).tobytes()
        )


def _avx2_columns(digits: int) -> list[int]:
    """Return what avx2.c adds to each column: of lo lo', of lo lo, and of lo hi' + hi lo'."""
    squares, product = _product_constants(digits), _split_constants(digits)
    reduction = _add(
        _constants(digits, range(2, digits), range(digits)),
        # What the last row adds to the columns from which it is read is subtracted later.
        [0] * digits + _constants(digits, range(digits - 2, digits), range(digits))[digits:],
    )
    m = _constants(digits, range(2), range(digits))
    # Zero as a whole: 2^62 in each column is subtracted from the next one as 2^10.
    level = [_LEVEL] + [_LEVEL - (_LEVEL >> DIGIT_BITS)] * (2 * digits - 2) + [-(_LEVEL >> DIGIT_BITS)]
    lo = [x - p - q for x, p, q in zip(level, product, reduction, strict=True)]
    square = [x - p - q for x, p, q in zip(level, squares, reduction, strict=True)]
    hi = [x - a - 2 * p - q for x, a, p, q in zip(level, m, product, reduction, strict=True)]
    return lo + square + hi


def _digits(x: int, count: int) -> list[int]:
    return [x >> DIGIT_BITS * i & (1 << DIGIT_BITS) - 1 for i in range(count)]


def _constants(digits: int, rows: Iterable[int], columns: range) -> list[int]:
    """Sum the exponents: row i times column j adds a lower half to column i + j and an upper half to the next."""
    constants = [0] * (2 * digits + 1)
    for i in rows:
        for j in columns:
            constants[i + j] += _LOW_EXPONENT
            constants[i + j + 1] += _HIGH_EXPONENT
    return constants[: 2 * digits]


def _product_constants(digits: int) -> list[int]:
    """Return the constants of a product of two numbers of `digits` digits."""
    return _constants(digits, range(digits), range(digits))


def _split_constants(digits: int) -> list[int]:
    """Return the constants of a product from halves.

    From the middle product only the constants of the upper product remain, subtracted. What the carries of the sums add
    has two constants of its own.
    """
    if digits < _SPLIT_FROM:
        return _product_constants(digits)
    lower = (digits + 7) // 8 * 4
    constants = _product_constants(lower) + _product_constants(digits - lower)
    for t, constant in enumerate(_product_constants(digits - lower)):
        constants[lower + t] -= constant
    for t in range(2 * lower, 3 * lower):
        constants[t] += 2 * _LOW_EXPONENT
    return constants


def _add(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]
