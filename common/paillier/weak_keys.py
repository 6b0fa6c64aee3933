"""Finds the factors of a modulus that are cheap to find.

Whoever offers a modulus may have chosen it so that it looks sound and anyone can factor it. It is impossible to see
from n alone that its factors are hard to find. These methods find those for which a fraction of a second is enough:
together 0.16 s of processor time for a modulus of 2048 bits, 0.3 s for 3072 bits and 1.5 s for 8192 bits.
"""

from collections.abc import Iterator
from functools import cache
from math import gcd, prod

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

TRIAL_LIMIT = 1 << 20
"""All prime factors below this are found."""
FERMAT_STEPS = 40_000
"""For p and q of equal length. Primes with |p - q| < 2^(b/4 + 8) are found, where b is the number of bits of n. Two
random primes are that close with a probability of about 2^(11 - b/4)."""
RATIO_STEPS = 2_500
"""For each other ratio of p and q."""
RATIO_TERMS = 16
"""Ratios u/v of p and q with u and v up to this are tried."""
SMOOTH_LIMIT = 1 << 16
"""A factor p is found if all prime powers in p - 1 are at most this."""
RHO_STEPS = 1 << 15
"""Practically all factors of up to 25 bits are found, two of three of 28 bits, and one in ten of 32 bits."""
_SIEVE = (64 * 63, 5 * 11 * 13 * 17, 19 * 23 * 29)
"""Moduli with few squares: one number in 21, 11 and 7."""


def tabulate() -> None:
    """Make the tables of all checks, which takes 20 ms, so that the first check need not."""
    _small_primes()
    _smooth_exponent()
    for modulus in _SIEVE:
        _squares(modulus)


def has_small_factor(n: mpz) -> bool:
    """Return whether a prime below `TRIAL_LIMIT` divides n."""
    return bool(gmpy2.gcd(n, _small_primes()) != 1)


def has_close_factors(n: mpz) -> bool:
    """Return whether n = p q with p/q close to a ratio u/v of small numbers.

    This is Fermat's method with the multipliers of Lehman ("Factoring large integers", 1974). With a = u q + v p, the
    difference a^2 - 4 u v n is the square of u q - v p. If that is small, a is just above the root of 4 u v n. A square
    so close to the root never comes from a trivial factor.
    """
    for u, v in _ratios():
        multiple = 4 * u * v * n
        first = gmpy2.isqrt(multiple - 1) + 1
        steps = FERMAT_STEPS if u == v else RATIO_STEPS
        for step in _possible_squares(first, multiple, steps):
            if gmpy2.is_square((first + step) ** 2 - multiple):
                return True
    return False


def _possible_squares(first: mpz, multiple: mpz, steps: int) -> list[int]:
    """Return the i below `steps` for which (first + i)^2 - multiple is a square modulo each of `_SIEVE`.

    A square is one modulo every number, so no square is lost. About one in 1600 of the other numbers is left.
    """
    left = np.arange(steps)
    for modulus in _SIEVE:
        a = left + int(first % modulus)
        left = left[_squares(modulus)[(a * a - int(multiple % modulus)) % modulus]]
    found: list[int] = left.tolist()
    return found


@cache
def _squares(modulus: int) -> NDArray[np.bool_]:
    """Return for each number below the modulus whether it is a square modulo it."""
    is_square = np.zeros(modulus, dtype=bool)
    is_square[np.arange(modulus) ** 2 % modulus] = True
    return is_square


def has_smooth_factor(n: mpz) -> bool:
    """Return whether n has a prime factor p such that p - 1 has small prime powers only: Pollard's p - 1 method."""
    # This is the longest of the checks. Another can run meanwhile, in another thread.
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        power = gmpy2.powmod(3, _smooth_exponent(), n)
    return bool(gmpy2.gcd(power - 1, n) != 1)


def has_factor_by_rho(n: mpz) -> bool:
    """Return whether Pollard's rho method finds a factor of n in `RHO_STEPS` steps, with the cycles of Brent (1980).

    Brent compares y_i with y_h for h = 1, 2, 4, ... and h < i <= 2h. A factor p shows for an h if the sequence modulo p
    has entered its cycle before y_h and the cycle has at most h steps, so p shows for the last h if it does for any.
    One of the last h/2 differences is then a multiple of p, because one of their distances is a multiple of the length
    of the cycle. These alone are multiplied: a quarter of all.
    """
    last = RHO_STEPS // 2
    y, product = mpz(2), mpz(1)
    for _ in range(last):
        y = (y * y + 1) % n
    saved = y
    for distance in range(1, last + 1):
        y = (y * y + 1) % n
        if distance > last // 2:
            product = product * (saved - y) % n
    return bool(gmpy2.gcd(product, n) != 1)


def _ratios() -> Iterator[tuple[int, int]]:
    """Yield each u/v >= 1 in lowest terms."""
    return ((u, v) for u in range(1, RATIO_TERMS + 1) for v in range(1, u + 1) if gcd(u, v) == 1)


@cache
def _small_primes() -> mpz:
    return gmpy2.primorial(TRIAL_LIMIT)


@cache
def _smooth_exponent() -> mpz:
    """Return the product of the largest power of each prime that is at most `SMOOTH_LIMIT`."""
    powers, prime = [], mpz(2)
    while prime <= SMOOTH_LIMIT:
        power = prime
        while power * prime <= SMOOTH_LIMIT:
            power *= prime
        powers.append(power)
        prime = gmpy2.next_prime(prime)
    return mpz(prod(powers))
