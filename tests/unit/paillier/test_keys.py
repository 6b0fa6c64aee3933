import copy
import pickle
from functools import partial

import gmpy2
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from trilateral.common.base.errors import BadCiphertextError, BadKeyError
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import (
    PrivateKey,
    PublicKey,
    check_ciphertexts,
    check_public_key,
    generate_private_key,
)
from trilateral.common.paillier.packed import PackedCipher

KEY = generate_private_key(256)
N = KEY.public_key.n
CIPHER = PackedCipher(KEY.public_key)
BIG_PRIME = gmpy2.next_prime(mpz(1) << 255)


def plaintexts() -> st.SearchStrategy[int]:
    half = int(N) // 2
    return st.integers(-half, half) | st.sampled_from([-half, -1, 0, 1, half])


@given(plaintexts())
def test_decrypt_returns_the_signed_plaintext(m: int) -> None:
    assert KEY.decrypt(CIPHER.encrypt([mpz(m)])[0]) == m


@given(st.integers(-(int(N) // 3) + 1, int(N) // 3 - 1))
def test_phe_decrypts_our_ciphertexts(m: int) -> None:
    phe_public = PaillierPublicKey(int(N))
    phe_private = PaillierPrivateKey(phe_public, int(KEY.p), int(KEY.q))
    assert phe_private.decrypt(EncryptedNumber(phe_public, int(CIPHER.encrypt([mpz(m)])[0]))) == m


@given(plaintexts())
def test_we_decrypt_the_ciphertexts_of_phe(m: int) -> None:
    assert KEY.decrypt(mpz(PaillierPublicKey(int(N)).raw_encrypt(m % int(N)))) == m


@pytest.mark.parametrize("bits", [16, 18, 64, 256, 1024])
def test_generated_keys_have_the_exact_length_and_the_form_that_short_exponents_need(bits: int) -> None:
    for _ in range(3):
        key = generate_private_key(bits)
        assert key.public_key.bits == key.public_key.n.bit_length() == bits
        assert key.p.bit_length() == key.q.bit_length() == bits // 2
        assert gmpy2.is_prime(key.p)
        assert gmpy2.is_prime(key.q)
        assert key.p % 4 == key.q % 4 == 3
        assert gmpy2.gcd(key.p - 1, key.q - 1) == 2


def test_generated_keys_differ() -> None:
    assert len({int(generate_private_key(128).public_key.n) for _ in range(10)}) == 10


@pytest.mark.parametrize("bits", [14, 255, 0, -2])
def test_impossible_key_lengths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="even number of bits"):
        generate_private_key(bits)


@pytest.mark.parametrize(("p", "q"), [(7, 7), (3, 7)])
def test_primes_that_do_not_make_a_paillier_key_are_refused(p: int, q: int) -> None:
    with pytest.raises(ValueError, match="distinct primes"):
        PrivateKey(mpz(p), mpz(q))


def test_ciphertext_width_counts_whole_bytes() -> None:
    assert PublicKey(mpz(1) << 2047).ciphertext_bytes == 512
    assert PublicKey(mpz(1) << 2048).ciphertext_bytes == 514


def test_a_private_key_shows_nothing_and_cannot_be_stored() -> None:
    shown = repr(KEY) + str(KEY)
    for secret in (KEY.p, KEY.q, (KEY.p - 1) * (KEY.q - 1)):
        assert str(secret) not in shown
        assert format(secret, "x") not in shown
    for store in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never serialised"):
            store(KEY)
    with pytest.raises(TypeError):
        vars(KEY)


def test_a_sound_public_key_is_accepted() -> None:
    assert check_public_key(N, 256) == KEY.public_key
    assert check_public_key(int(N), 200).n_squared == N * N


@pytest.mark.parametrize(
    ("n", "fault"),
    [
        (N, "has 256 bits: at least 2048 are required; raise `key_bits` in the job, or lower `policy.min_key_bits`"),
        (-N, "has 0 bits"),
        (mpz(0), "has 0 bits"),
        (N << 2000, "is even"),
        (N * 65521 * BIG_PRIME**8, "factor below 1048576"),
        ((KEY.p * KEY.q) ** 9, "perfect power"),
        (BIG_PRIME**9, "perfect power"),
        (gmpy2.next_prime(mpz(1) << 2048), "is a prime"),
    ],
)
def test_an_unsound_public_key_is_refused_by_name(n: mpz, fault: str) -> None:
    with pytest.raises(BadKeyError, match=fault) as refusal:
        check_public_key(n, 2048)
    assert n < 2**200 or str(n)[:20] not in str(refusal.value)


CHECKS = (partial(check_ciphertexts, KEY.public_key), CIPHER.open, make_cipher("packed", KEY.public_key).open)


def test_ciphertexts_of_the_key_are_accepted() -> None:
    width = KEY.public_key.ciphertext_bytes
    check_ciphertexts(KEY.public_key, Ciphertexts(b"", width))
    check_ciphertexts(KEY.public_key, Ciphertexts.of([1, N * N - 1, *CIPHER.encrypt([mpz(0), mpz(-5)])], width))


@pytest.mark.parametrize(
    "bad",
    [mpz(0), N * N, N * N + 1, mpz(256) ** KEY.public_key.ciphertext_bytes - 1, KEY.p, 5 * KEY.q, N, KEY.p * KEY.p],
    ids=["zero", "n2", "n2+1", "largest", "p", "5q", "n", "p2"],
)
def test_numbers_that_are_not_ciphertexts_are_refused_at_any_position(bad: mpz) -> None:
    good = CIPHER.encrypt([mpz(1), mpz(2)])
    for numbers in ([bad], [bad, *good], [*good, bad]):
        ciphertexts = Ciphertexts.of(numbers, good.width)
        for check in (
            partial(check_ciphertexts, KEY.public_key),
            CIPHER.open,
            make_cipher("packed", KEY.public_key).open,
        ):
            with pytest.raises(BadCiphertextError):
                check(ciphertexts)


def test_ciphertexts_of_another_width_are_refused() -> None:
    width = KEY.public_key.ciphertext_bytes
    for other in (width - 2, width + 2):
        for check in (
            partial(check_ciphertexts, KEY.public_key),
            CIPHER.open,
            make_cipher("packed", KEY.public_key).open,
        ):
            with pytest.raises(BadCiphertextError):
                check(Ciphertexts.of([1, 2], other))
