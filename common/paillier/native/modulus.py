"""The constants that the kernel needs for a modulus, computed once with Python integers; arithmetic.c explains each."""

from array import array
from collections.abc import Iterable

from gmpy2 import mpz

DIGIT_BITS = 52
MAX_DIGITS = 80
MAX_CHUNKS = 8
"""Maximum number of pieces of a number from outside. Each piece has as many digits as n."""
SLACK_BITS = 16
"""R is at least this many bits longer than n, so that subtractions of n are unnecessary."""
MIN_BITS, MAX_BITS = 8, MAX_DIGITS * DIGIT_BITS - SLACK_BITS
"""Minimum and maximum bits of n. A shorter n could leave hi above 3 n."""
_WORD = 1 << 64
_LOW_EXPONENT, _HIGH_EXPONENT = 0x433 << 52, 0x467 << 52
"""2^52 and 2^104 as the bits of doubles: each half of a product adds one of them to its column."""
_LEVEL = 1 << 62
"""Added to columns that result from differences, so that they stay above zero."""
_SPLIT_FROM = 60
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


def _chunks(bits: int, number_bits: int) -> int:
    """Return how many pieces a number from outside has, each of as many digits as n."""
    return max(2, -(-max(number_bits, 16 * -(-bits // 8)) // (DIGIT_BITS * digits_for(bits))))


class Modulus:
    """An odd n, for products modulo n^2.

    Args:
        n: the modulus, of 8 to 4144 bits.
        number_bits: the length in bits of the longest numbers that come from outside, at least as many as n^2 has.
    """

    def __init__(self, n: int | mpz, number_bits: int = 0) -> None:
        n = int(n)
        if not fits(n, number_bits):
            raise ValueError(
                f"the kernel accepts odd moduli of {MIN_BITS} to {MAX_BITS} bits, and numbers of at most {MAX_CHUNKS}"
                " times their length"
            )
        digits = digits_for(n.bit_length())
        r = 1 << DIGIT_BITS * digits
        self.width = 2 * -(-n.bit_length() // 8)
        """Bytes of a number modulo n^2."""
        self.element_size = 2 * digits
        """Doubles in an element."""
        chunks = _chunks(n.bit_length(), number_bits)
        pair = 1 << 2 * DIGIT_BITS
        k = -pow(n, -1, pair) % pair
        h = (k * n + 1) // pair
        squares, product = _product_constants(digits), _split_constants(digits)
        reduction = _add(
            _constants(digits, range(2, digits), range(digits)),
            # What the last row adds to the columns from which it is read is subtracted later.
            [0] * digits + _constants(digits, range(digits - 2, digits), range(digits))[digits:],
        )
        added_m = _constants(digits, range(2), range(digits))
        # Zero as a whole: 2^62 in each column is subtracted from the next one as 2^10.
        level = [_LEVEL] + [_LEVEL - (_LEVEL >> DIGIT_BITS)] * (2 * digits - 2) + [-(_LEVEL >> DIGIT_BITS)]
        constant_lo = [x - p - q for x, p, q in zip(level, product, reduction, strict=True)]
        constant_square = [x - p - q for x, p, q in zip(level, squares, reduction, strict=True)]
        constant_hi = [x - m - 2 * p - q for x, m, p, q in zip(level, added_m, product, reduction, strict=True)]
        doubles = _digits(n, digits) + _digits(h, digits) + _digits(k, 2)
        for power in range(1, chunks + 2):
            hi, lo = divmod(pow(r, power, n * n), n)
            doubles += _digits(lo, digits) + _digits(-hi % n, digits)
        limbs = -(-DIGIT_BITS * digits // 64)
        self.constants = (
            array("q", [digits, chunks, self.width]).tobytes()
            + array("d", doubles).tobytes()
            + array("Q", [x % _WORD for x in constant_lo + constant_square + constant_hi]).tobytes()
            + array("Q", [n >> 64 * i & _WORD - 1 for i in range(limbs)]).tobytes()
        )


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

    From the middle product only the constants of the upper product remain, subtracted.
    """
    if digits < _SPLIT_FROM:
        return _product_constants(digits)
    lower = (digits + 7) // 8 * 4
    constants = _product_constants(lower) + _product_constants(digits - lower)
    for t, constant in enumerate(_product_constants(digits - lower)):
        constants[lower + t] -= constant
    return constants


def _add(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]
