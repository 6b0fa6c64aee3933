"""Factors of a modulus that are cheap to find are found, and honest moduli have none."""

import secrets
from math import prod

import gmpy2
import pytest
from gmpy2 import mpz

from tests.vectors.generate import KEYS
from trilateral.common.base.errors import BadKeyError
from trilateral.common.paillier import weak_keys
from trilateral.common.paillier.keys import MAX_KEY_BITS, check_public_key, generate_private_key


def prime_from(start: mpz, residue: int = 3) -> mpz:
    """The first prime from `start` on that is `residue` modulo 4."""
    prime = gmpy2.next_prime(start)
    while prime % 4 != residue:
        prime = gmpy2.next_prime(prime)
    return prime


def random_prime(bits: int, residue: int = 3) -> mpz:
    return prime_from(mpz(secrets.randbits(bits - 2)) | mpz(3) << bits - 2, residue)


def smooth_prime(bits: int) -> mpz:
    """A prime of about that many bits, one more than the product of 2 and different odd primes below the limit."""
    while True:
        factors = {mpz(2)}
        while prod(factors).bit_length() < bits:
            factors.add(gmpy2.next_prime(2 + secrets.randbelow(weak_keys.SMOOTH_LIMIT - 1000)))
        if gmpy2.is_prime(prod(factors) + 1):
            return prod(factors) + 1


@pytest.mark.parametrize("bits", [256, 384, 512, 1024, 2048])
def test_no_key_that_the_coordinator_makes_is_refused(bits: int) -> None:
    for _ in range(5 if bits < 1024 else 1):
        n = generate_private_key(bits).public_key.n
        assert n % 4 == 1
        assert check_public_key(n, bits).n == n


@pytest.mark.parametrize("name", KEYS)
def test_the_keys_of_the_golden_vectors_are_accepted(name: str) -> None:
    n = prod(mpz(text, 16) for text in KEYS[name])
    assert check_public_key(n, 256).n == n


def refused(n: mpz) -> str:
    with pytest.raises(BadKeyError) as refusal:
        check_public_key(n, 256)
    assert str(n)[:20] not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("bits", [512, 1024, 2048])
def test_close_primes_are_found(bits: int) -> None:
    p = random_prime(bits // 2)
    q = prime_from(p + (mpz(1) << bits // 4 + 7))
    assert "in nearly the ratio of two small numbers" in refused(p * q)


@pytest.mark.parametrize(("u", "v"), [(3, 2), (4, 3), (5, 4), (16, 15), (16, 1)])
def test_primes_in_a_simple_ratio_are_found(u: int, v: int) -> None:
    p = random_prime(256)
    q = prime_from(p * u // v)
    assert "in nearly the ratio of two small numbers" in refused(p * q)
    assert weak_keys.has_close_factors(p * q)


def test_primes_at_another_distance_are_not_close() -> None:
    p = random_prime(256)
    q = prime_from(p + (mpz(1) << 200))
    assert not weak_keys.has_close_factors(p * q)


@pytest.mark.parametrize("bits", [2, 5, 17, 19])
def test_small_primes_are_found(bits: int) -> None:
    small = prime_from(mpz(1) << bits - 1)
    assert small < weak_keys.TRIAL_LIMIT
    assert "a factor below 1048576" in refused(small * random_prime(512))


@pytest.mark.parametrize("bits", [21, 23, 25])
def test_primes_of_medium_size_are_found(bits: int) -> None:
    n = random_prime(bits) * random_prime(512)
    assert weak_keys.has_factor_by_rho(n)
    assert refused(n)  # p - 1 of so short a prime is often smooth


def test_a_prime_that_is_one_more_than_a_smooth_number_is_found() -> None:
    n = smooth_prime(256) * random_prime(256)
    assert "only small primes in p - 1" in refused(n)


def test_a_modulus_of_another_residue_is_refused() -> None:
    """Encryption randomness needs p = q = 3 mod 4, so n is 1 mod 4."""
    assert "is 3 modulo 4" in refused(random_prime(256, 1) * random_prime(256, 3))


def test_a_modulus_that_is_too_long_is_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(n: mpz) -> bool:
        raise AssertionError("computed")

    monkeypatch.setattr("trilateral.common.paillier.keys.has_small_factor", compute)
    n = mpz(1) << 1_000_000 | 1
    assert f"has 1000001 bits: at most {MAX_KEY_BITS} are allowed" in refused(n)
