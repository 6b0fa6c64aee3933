"""A coordinator, or an impostor in its place, offers a modulus that anyone can factor."""

import re
import secrets
from dataclasses import dataclass
from math import lcm, log2, prod
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz

from tests.attacks.wire import Recording, record_training
from tests.support.three_servers import DATASET
from trilateral.common.base.errors import BadKeyError
from trilateral.common.config.job import JobConfig, Sgd
from trilateral.common.jobs.party_jobs import PartyJobs
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.keys import PrivateKey, PublicKey, check_public_key
from trilateral.common.paillier.weak_keys import SMOOTH_LIMIT
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED
from trilateral.common.protocol.messages import Kind

KEY_BITS = 512
SHORT_BITS = 256
JOB = JobConfig(
    name="attacked",
    dataset=DATASET,
    algorithm=Sgd(),
    epochs=2,
    key_bits=KEY_BITS,
    holdout=0.0,
    slots=1,
)


def prime_of(bits: int, residue: int = 3) -> mpz:
    """A prime of exactly that many bits, with both top bits set, that is `residue` modulo 4."""
    while True:
        candidate = gmpy2.next_prime(mpz(secrets.randbits(bits)) | mpz(3) << (bits - 2))
        if candidate.bit_length() == bits and candidate % 4 == residue:
            return candidate


def close_primes() -> dict[mpz, int]:
    """Primes that agree in their upper half."""
    p = prime_of(KEY_BITS // 2)
    q = p + (mpz(1) << KEY_BITS // 4)
    while not (gmpy2.is_prime(q) and q % 4 == 3):
        q += 1
    return {p: 1, q: 1}


def smooth_prime() -> dict[mpz, int]:
    """A prime p such that p - 1 has different small factors only, and a sound one."""
    while True:
        factors = [mpz(2)]
        while prod(factors).bit_length() < KEY_BITS // 2 - 16:
            factors.append(gmpy2.next_prime(2 + secrets.randbelow(60_000)))
        factors.append(gmpy2.next_prime((mpz(3) << KEY_BITS // 2 - 2) // prod(factors)))
        p = prod(factors) + 1
        small = len(set(factors)) == len(factors) and max(factors) <= SMOOTH_LIMIT
        if small and p < mpz(1) << KEY_BITS // 2 and gmpy2.is_prime(p):
            return {p: 1, prime_of(KEY_BITS // 2): 1}


def product_of(small: int) -> dict[mpz, int]:
    """The factors of a modulus of KEY_BITS bits that `small` divides."""
    while True:
        large = prime_of(KEY_BITS - round(log2(small)))
        if (large * small).bit_length() == KEY_BITS:
            return {mpz(small): 1, large: 1}


BAD: dict[str, tuple[dict[mpz, int], str]] = {
    # Known factors stand in for the minutes that it takes to find those of so short a number.
    "short": (
        {prime_of(SHORT_BITS // 2): 1, prime_of(SHORT_BITS // 2): 1},
        f"{SHORT_BITS} bits",
    ),
    "even": (product_of(2), "even"),
    "small factor": (product_of(65_521), "a factor below 1048576"),
    "close primes": (close_primes(), "in nearly the ratio of two small numbers"),
    "smooth p - 1": (smooth_prime(), "only small primes in p - 1"),
    "factor of 23 bits": (product_of(7_340_071), "a factor of about 30 bits"),
    "3 modulo 4": ({prime_of(KEY_BITS // 2, 1): 1, prime_of(KEY_BITS // 2): 1}, "3 modulo 4"),
    "perfect power": ({prime_of(KEY_BITS // 2): 2}, "perfect power"),
    "prime": ({prime_of(KEY_BITS): 1}, "is a prime"),
}
"""The factors, with their exponents, and what the refusal says."""


def modulus_of(factors: dict[mpz, int]) -> mpz:
    return mpz(prod(prime**exponent for prime, exponent in factors.items()))


@dataclass
class Offer:
    """In the place of a private key: a bad modulus, which the coordinator itself need not be able to open."""

    public_key: PublicKey

    def decrypt_all(self, ciphertexts: Ciphertexts) -> list[mpz]:
        return [mpz(0)] * len(ciphertexts)


async def record_offer(
    factors: dict[mpz, int], folder: Path, patch: pytest.MonkeyPatch, job: JobConfig = JOB
) -> Recording:
    offer: Any = Offer(PublicKey(modulus_of(factors)))
    return await record_training(job, folder, patch, offer)


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_key_is_refused_before_anything_is_encrypted(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    factors, reason = BAD[name]
    recorded = await record_offer(factors, tmp_path, monkeypatch)
    assert recorded.status.state == JOB_STATE_FAILED
    # Both parties check the key, at the same time.
    assert re.match("the (host|guest): the public key", recorded.status.detail)
    assert reason in recorded.status.detail
    assert list(recorded.pieces()) == []


async def test_a_key_whose_length_differs_from_the_job_is_refused(
    private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slots are laid out for the job's bits: under a shorter key what they hold would wrap around."""
    job = JOB.model_copy(update={"key_bits": KEY_BITS + 64})
    recorded = await record_training(job, tmp_path, monkeypatch, private_key)
    assert "the public key has 512 bits, but the job has 576" in recorded.status.detail
    assert list(recorded.pieces()) == []


def test_each_party_sets_its_own_minimum_key_length() -> None:
    with pytest.raises(BadKeyError, match="2048"):
        check_public_key(modulus_of(product_of(65_537)), 2048)


# --- without the check


def open_with(factors: dict[mpz, int], ciphertext: mpz) -> mpz:
    """Open a ciphertext by the factors of n: to lambda, the exponent of the units modulo n, it is 1 + lambda m n.

    Where lambda shares a divisor with n, m comes out modulo what is left of n, which small numbers survive.
    """
    n = modulus_of(factors)
    exponent = mpz(lcm(*(int(prime ** (power - 1) * (prime - 1)) for prime, power in factors.items())))
    multiple = (gmpy2.powmod(ciphertext, exponent, n * n) - 1) // n
    shared = gmpy2.gcd(exponent, n)
    modulus = n // shared
    m = multiple // shared * gmpy2.invert(exponent // shared, modulus) % modulus
    return m - modulus if 2 * m > modulus else m


@pytest.mark.parametrize("name", BAD)
async def test_without_the_check_the_host_reads_the_labels(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In round 1, where w = 0, what the guest sends it is -2y."""
    factors, _ = BAD[name]
    monkeypatch.setattr(PartyJobs, "_check_key", lambda self, offer: PublicKey(offer.modulus))
    # An even base of randomness shows in the ciphertexts, and then the coordinator would offer another key.
    draw = secrets.randbelow
    monkeypatch.setattr("trilateral.common.paillier.randomness.secrets.randbelow", lambda below: draw(below) & ~1)
    # Ciphertexts have the width of the job's keys.
    job = JOB.model_copy(update={"key_bits": modulus_of(factors).bit_length()})
    recorded = await record_offer(factors, tmp_path, monkeypatch, job)
    opened = [open_with(factors, ciphertext) for ciphertext in recorded.vector(Kind.RESIDUAL)]
    np.testing.assert_array_equal([-1 if m > 0 else 1 for m in opened], recorded.truth.joined.labels)
