"""Paillier keys with g = 1 + n, and the checks that a party makes before it uses a key or ciphertexts from outside.

Paillier, "Public-key cryptosystems based on composite degree residuosity classes" (1999):

    Enc(m; r) = (1 + n)^m r^n = (1 + m n) r^n   mod n^2

A plaintext is signed, in (-n/2, n/2]. Any implementation with this g reads these ciphertexts.

Timing. The kernel, or `powmod_sec` of gmpy2, computes the two powers of a decryption. Their time and memory accesses do
not depend on the exponent's bits. All other steps are ordinary arithmetic, whose time may depend on its values: the
kernel's preparation for p and q, gmpy2's reductions modulo p^2 and q^2, the divisions by p and q, the recombination,
and the search for the primes. Their sizes are fixed, and no outsider can time one of them alone. The `reference` cipher
decrypts with the phe library, whose powers do not take constant time.

Memory. Python leaves old numbers in memory until the memory is reused, so a key that is dropped is not overwritten.
"""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import gmpy2
from gmpy2 import mpz

from trilateral.common.base.errors import BadCiphertextError, BadKeyError
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.native.path import takes
from trilateral.common.paillier.weak_keys import (
    TRIAL_LIMIT,
    has_close_factors,
    has_factor_by_rho,
    has_small_factor,
    has_smooth_factor,
)

MAX_KEY_BITS = 8192
"""The longest modulus that a process computes with."""


@dataclass(frozen=True)
class PublicKey:
    """The modulus n. A modulus from outside must pass `check_public_key`."""

    n: mpz

    @cached_property
    def n_squared(self) -> mpz:
        """The modulus of ciphertexts."""
        return self.n * self.n

    @cached_property
    def bits(self) -> int:
        """Bits of n."""
        return int(self.n.bit_length())

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of a ciphertext, the same for all ciphertexts under this key."""
        return ciphertext_width(self.bits)


def ciphertext_width(key_bits: int) -> int:
    """Return the bytes of a ciphertext, a number modulo n^2, under a key of `key_bits` bits."""
    return 2 * -(-key_bits // 8)


class PrivateKey:
    """The primes p and q of n. A private key never leaves the memory of its process."""

    __slots__ = ("_inverse_p", "_inverse_q", "_powers", "_q_inverse_mod_p", "p", "public_key", "q")

    def __init__(self, p: mpz, q: mpz) -> None:
        p, q = mpz(p), mpz(q)
        if p == q or gmpy2.gcd(p * q, (p - 1) * (q - 1)) != 1:
            raise ValueError("p and q must be distinct primes with n coprime to (p - 1)(q - 1)")
        self.p, self.q = p, q
        self.public_key = PublicKey(p * q)
        # c^(p-1) = (1 + n)^(m (p-1)) = 1 - m n  mod p^2, because r^n to the power p - 1 is 1 modulo p^2.
        # So (c^(p-1) - 1) / p = -m q  mod p.
        self._inverse_p = gmpy2.invert(-q, p)
        self._inverse_q = gmpy2.invert(-p, q)
        self._q_inverse_mod_p = gmpy2.invert(q, p)
        self._powers = _secret_powers(p, q, self.public_key.ciphertext_bytes)

    def __repr__(self) -> str:
        return f"PrivateKey({self.public_key.bits} bits)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is never serialised")

    def decrypt(self, ciphertext: mpz) -> mpz:
        """Decrypt a ciphertext that `check_ciphertexts` accepts; the plaintext is in (-n/2, n/2]."""
        return self.decrypt_all(Ciphertexts.of([ciphertext], self.public_key.ciphertext_bytes))[0]

    def decrypt_all(self, ciphertexts: Ciphertexts) -> list[mpz]:
        """Decrypt ciphertexts that `check_ciphertexts` accepts.

        This works modulo p^2 and q^2 (Paillier, section 7), which takes a quarter of the work modulo n^2. The exponents
        are secret, so the time of the powers does not depend on their bits.
        """
        return [self._plaintext(*powers) for powers in zip(*self._powers(ciphertexts), strict=True)]

    def _plaintext(self, power_p: mpz, power_q: mpz) -> mpz:
        """Compute the plaintext from c^(p-1) mod p^2 and c^(q-1) mod q^2."""
        p, q, n = self.p, self.q, self.public_key.n
        mod_p = (power_p - 1) // p * self._inverse_p % p
        mod_q = (power_q - 1) // q * self._inverse_q % q
        plaintext = mod_q + q * ((mod_p - mod_q) * self._q_inverse_mod_p % p)
        return plaintext - n if 2 * plaintext > n else plaintext


_Powers = Callable[[Ciphertexts], tuple[list[mpz], list[mpz]]]


def _secret_powers(p: mpz, q: mpz, ciphertext_bytes: int) -> _Powers:
    """Return a function that raises ciphertexts to p - 1 modulo p^2, and to q - 1 modulo q^2, in constant time."""
    if all(takes(prime, 8 * ciphertext_bytes) for prime in (p, q)):
        # Import it here, because the kernel cannot be loaded everywhere.
        from trilateral.common.paillier.native.decryption import SecretPowers

        return SecretPowers(p, q, ciphertext_bytes)
    return lambda ciphertexts: (_powers_by_gmpy2(p, ciphertexts), _powers_by_gmpy2(q, ciphertexts))


def _powers_by_gmpy2(prime: mpz, ciphertexts: Ciphertexts) -> list[mpz]:
    square = prime * prime
    return [gmpy2.powmod_sec(c % square, prime - 1, square) for c in ciphertexts]


def generate_private_key(bits: int) -> PrivateKey:
    """Draw a key whose n has exactly `bits` bits, an even number of at least 16.

    `randomness.NthResidues` needs p = q = 3 mod 4 and gcd(p - 1, q - 1) = 2. If a pair does not meet the second
    condition, both primes are drawn again, so that all pairs that meet it are equally likely.
    """
    if bits < 16 or bits % 2:
        raise ValueError(f"a key has an even number of bits, at least 16, not {bits}")
    with ThreadPoolExecutor(2, thread_name_prefix="primes") as threads:
        while True:
            p, q = threads.map(_random_prime, [bits // 2] * 2)
            if gmpy2.gcd(p - 1, q - 1) == 2:
                return PrivateKey(p, q)


def _random_prime(bits: int) -> mpz:
    """Draw uniformly among primes of `bits` bits that are 3 mod 4 and have both top bits set.

    Each such prime is above 3/4 2^bits, so that the product of two is above 2^(2 bits - 1).
    """
    shape = 3 << (bits - 2) | 3
    # The tests of two candidates in two threads run at the same time if each releases the interpreter's lock.
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        while True:
            candidate = mpz(secrets.randbits(bits) | shape)
            if gmpy2.is_prime(candidate):
                return candidate


def check_public_key(n: mpz, min_bits: int) -> PublicKey:
    """Check a modulus from outside.

    It is impossible to see from n alone that n is a product of two large primes. The checks find the defects that are
    cheap to find; `weak_keys` says which, and what they cost. Each key of `generate_private_key` passes them, except
    with a negligible probability: of primes of 256 bits, fewer than one in 10^19 has a p - 1 that is smooth.

    Args:
        n: the modulus. Its length is checked before anything is computed with it.
        min_bits: the minimum bits that the party's policy accepts.

    Raises:
        BadKeyError: n cannot be a sound Paillier modulus.
    """
    n = mpz(n)
    bits = n.bit_length() if n > 0 else 0
    if bits < min_bits:
        raise BadKeyError(
            f"the public key has {bits} bits: at least {min_bits} are required; raise `key_bits` in the job,"
            " or lower `policy.min_key_bits` at this party"
        )
    if bits > MAX_KEY_BITS:
        raise BadKeyError(f"the public key has {bits} bits: at most {MAX_KEY_BITS} are allowed; lower `key_bits`")
    if n % 2 == 0:
        raise BadKeyError("the public key is even: a product of two large primes is required")
    if has_small_factor(n):
        raise BadKeyError(f"the public key has a factor below {TRIAL_LIMIT}: two large primes are required")
    if gmpy2.is_power(n):
        raise BadKeyError("the public key is a perfect power: a product of two distinct primes is required")
    if gmpy2.is_prime(n):
        raise BadKeyError("the public key is a prime: a product of two distinct primes is required")
    if n % 4 != 1:
        raise BadKeyError("the public key is 3 modulo 4: a product of two primes that are 3 modulo 4 is required")
    if has_close_factors(n):
        raise BadKeyError("the public key has factors in nearly the ratio of two small numbers: anyone can find them")
    with ThreadPoolExecutor(1, thread_name_prefix="check") as thread:
        by_rho = thread.submit(has_factor_by_rho, n)
        is_smooth = has_smooth_factor(n)
    if is_smooth:
        raise BadKeyError("the public key has a factor p with only small primes in p - 1: anyone can find it")
    if by_rho.result():
        raise BadKeyError("the public key has a factor of about 30 bits: two large primes are required")
    return PublicKey(n)


def check_ciphertexts(public_key: PublicKey, ciphertexts: Ciphertexts) -> None:
    """Check that each ciphertext is a number in [1, n^2) that is coprime to n.

    Raises:
        BadCiphertextError: a ciphertext is not.
    """
    check_range(public_key, ciphertexts)
    product = mpz(1)
    for ciphertext in ciphertexts:
        product = product * ciphertext % public_key.n
    check_coprime(public_key, product)


def check_range(public_key: PublicKey, ciphertexts: Ciphertexts) -> None:
    """Check that each ciphertext has the width of the key and is below n^2.

    Raises:
        BadCiphertextError: a ciphertext is not.
    """
    data, width = bytes(ciphertexts.data), ciphertexts.width
    # Big-endian numbers of equal width compare as their bytes do.
    limit = public_key.n_squared.to_bytes(public_key.ciphertext_bytes, "big")
    if width != len(limit) or any(data[start : start + width] >= limit for start in range(0, len(data), width)):
        raise BadCiphertextError("a ciphertext is not an integer in [1, n^2): was it made under this job's key?")


def check_coprime(public_key: PublicKey, product: mpz) -> None:
    """Check that ciphertexts are coprime to n, from the product of all of them modulo n or n^2.

    If a ciphertext shares a factor with n, or is zero, so does the product: one gcd is enough.

    Raises:
        BadCiphertextError: a ciphertext is not.
    """
    if gmpy2.gcd(product, public_key.n) != 1:
        raise BadCiphertextError("a ciphertext is 0 or shares a factor with the public key: it is not an encryption")
