"""Finds the factors of a modulus that are cheap to find.

Whoever offers a modulus may have chosen it so that it looks sound and anyone can factor it. It is impossible to see
from n alone that its factors are hard to find. These methods find those for which a fraction of a second is enough:
together 0.3 s for a modulus of 2048 bits, 0.6 s for 3072 bits and 4 s for 8192 bits.
"""

from collections.abc import Iterator
from functools import cache
from math import gcd, prod

import gmpy2
from gmpy2 import mpz

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
_GCD_STEPS = 256
"""Steps of the rho method for each gcd."""


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
        a = gmpy2.isqrt(multiple - 1) + 1
        difference = a * a - multiple
        for _ in range(FERMAT_STEPS if u == v else RATIO_STEPS):
            if gmpy2.is_square(difference):
                return True
            difference += 2 * a + 1
            a += 1
    return False


def has_smooth_factor(n: mpz) -> bool:
    """Return whether n has a prime factor p such that p - 1 has small prime powers only: Pollard's p - 1 method."""
    return bool(gmpy2.gcd(gmpy2.powmod(3, _smooth_exponent(), n) - 1, n) != 1)


def has_factor_by_rho(n: mpz) -> bool:
    """Return whether Pollard's rho method finds a factor of n in `RHO_STEPS` steps, with the cycles of Brent (1980)."""
    y, saved, product, power = mpz(2), mpz(2), mpz(1), 1
    for step in range(1, RHO_STEPS + 1):
        y = (y * y + 1) % n
        product = product * (saved - y) % n
        if step % _GCD_STEPS == 0 and gmpy2.gcd(product, n) != 1:
            return True
        if step == 2 * power:
            saved, power = y, step
    return False


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
