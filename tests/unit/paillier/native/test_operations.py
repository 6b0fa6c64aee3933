"""The kernel's path through encryption, products and decryption against gmpy2's, bit for bit, and against phe."""

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import PaillierPrivateKey, PaillierPublicKey

from common.errors import ConfigError
from common.paillier.cipher import PackedCipher, make_cipher
from common.paillier.keys import PrivateKey, generate_private_key
from common.paillier.native import path
from common.paillier.native.cipher import NativeCipher
from common.paillier.native.numbers import Numbers
from common.paillier.native.product import NativeProduct
from common.paillier.native.threads import in_parallel, set_threads, thread_count
from common.paillier.packing import SlotLayout
from common.paillier.product import PackedProduct

KEY = generate_private_key(512)
PUBLIC = KEY.public_key
NUMBERS = Numbers(PUBLIC.n)


@contextmanager
def same_randomness(seed: int = 0) -> Iterator[None]:
    """What is drawn from the operating system is the same each time."""
    source = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", source.randbytes)
        patch.setattr(secrets, "randbelow", source.randrange)
        yield


@contextmanager
def forced(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(path.VARIABLE, name)
        path.arithmetic_path.cache_clear()
        yield
    path.arithmetic_path.cache_clear()


@contextmanager
def threads(count: int) -> Iterator[None]:
    set_threads(count)
    yield
    set_threads(0)


def by_gmpy2(key: PrivateKey) -> PrivateKey:
    """The same key, whose powers are gmpy2's."""
    with forced("gmpy2"):
        return PrivateKey(key.p, key.q)


def both_ciphers(key: PrivateKey) -> tuple[PackedCipher, NativeCipher]:
    with same_randomness():
        packed = PackedCipher(key.public_key)
    with same_randomness():
        native = NativeCipher(key.public_key)
    return packed, native


@pytest.mark.parametrize("bits", [256, 1024, 2048])
def test_both_paths_give_the_same_ciphertexts_given_the_same_randomness(bits: int) -> None:
    key = generate_private_key(bits)
    n = key.public_key.n
    plaintexts = [mpz(m) for m in (0, 1, -1, n // 2, -(n // 2), 12345, -(1 << 100))]
    found = []
    for cipher in both_ciphers(key):
        with same_randomness(1):
            encrypted = cipher.encrypt(plaintexts)
            sums = cipher.add_plaintexts(encrypted, plaintexts[::-1])
            while cipher.prepare(3):
                pass
            found.append((encrypted, sums, cipher.add(encrypted, sums), cipher.rerandomise(sums)))
    assert found[0] == found[1]
    assert key.decrypt_all(found[1][0]) == plaintexts


def test_phe_opens_what_the_kernel_encrypts_and_the_kernel_opens_what_phe_encrypts() -> None:
    phe_public = PaillierPublicKey(int(PUBLIC.n))
    phe_private = PaillierPrivateKey(phe_public, int(KEY.p), int(KEY.q))
    values = [0, 1, 2**100, int(PUBLIC.n) // 3]
    encrypted = NativeCipher(PUBLIC).encrypt([mpz(m) for m in values])
    assert [phe_private.raw_decrypt(int(c)) for c in encrypted] == values
    assert KEY.decrypt_all([mpz(phe_public.raw_encrypt(m)) for m in values]) == values


@pytest.mark.parametrize("bits", [16, 250, 512, 2048, 3072])
def test_both_paths_open_alike(bits: int) -> None:
    key = generate_private_key(bits)
    n, n_squared = key.public_key.n, key.public_key.n_squared
    units = [
        mpz(1),
        n + 1,
        n_squared - 1,
        n_squared - n - 1,
        *(mpz(secrets.randbelow(int(n_squared))) for _ in range(4)),
    ]
    assert by_gmpy2(key).decrypt_all(units) == key.decrypt_all(units)
    assert key.decrypt_all([]) == []


@st.composite
def tables(draw: st.DrawFn) -> tuple[SlotLayout, np.ndarray, int]:
    """A layout that need not suit the numbers, a table of numbers of any size, and how it is cut into pieces."""
    layout = SlotLayout(draw(st.integers(3, 40)), draw(st.integers(1, 5)))
    n_samples, n_columns = draw(st.integers(1, 23)), draw(st.integers(1, 9))
    bits = draw(st.sampled_from([0, 1, 5, 21, 61]))
    x = st.integers(-(1 << bits), 1 << bits) | st.sampled_from([0, 1 << bits, -(1 << bits), (1 << bits) - 1])
    values = draw(st.lists(x, min_size=n_samples * n_columns, max_size=n_samples * n_columns))
    return layout, np.array(values, np.int64).reshape(n_samples, n_columns), draw(st.integers(1, 6))


CIPHERTEXTS = PackedCipher(PUBLIC).encrypt([mpz(m) for m in range(23)])


@settings(deadline=None, max_examples=40)
@given(tables(), st.sampled_from([1, 2, 5]))
def test_both_paths_give_the_same_products(table: tuple[SlotLayout, np.ndarray, int], count: int) -> None:
    layout, columns, piece = table
    ciphertexts = CIPHERTEXTS[: layout.n_groups(len(columns))]
    results = []
    with threads(count):
        for product in (PackedProduct(PUBLIC, layout, columns), NativeProduct(NUMBERS, layout, columns)):
            for start in range(0, len(ciphertexts), piece):
                product.update(ciphertexts[start : start + piece])
            results.append(product.result())
    assert results[0] == results[1]


def test_a_table_of_more_than_one_block_is_the_same_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.paillier.native.product._TABLE_BYTES", 1)
    layout, columns = SlotLayout(30, 2), np.arange(-60, 60).reshape(40, 3)
    product = NativeProduct(NUMBERS, layout, columns)
    expected = PackedProduct(PUBLIC, layout, columns)
    for each in (product, expected):
        each.update(CIPHERTEXTS[:20])
    assert product.result() == expected.result()


def test_the_environment_chooses_the_path_and_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with forced("gmpy2"):
        assert isinstance(make_cipher("packed", PUBLIC), PackedCipher)
    with forced("avx2"):
        assert isinstance(make_cipher("packed", PUBLIC), NativeCipher)
    with forced("cuda"), pytest.raises(ConfigError, match="expected avx2 or gmpy2"):
        path.arithmetic_path()
    assert ["gmpy2" in caplog.messages[0], "kernel" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2


def test_a_machine_without_the_vectors_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("common.paillier.native._kernel.supported", 0)
    with forced(""):
        assert [isinstance(make_cipher("packed", PUBLIC), PackedCipher) for _ in range(2)] == [True, True]
        assert ["because the processor has no AVX2" in message for message in caplog.messages] == [True]
    with forced("avx2"), pytest.raises(ConfigError, match="asks for avx2, but the processor has no AVX2"):
        path.arithmetic_path()


def test_a_package_without_the_kernel_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "common.paillier.native._kernel", None)
    monkeypatch.delattr("common.paillier.native._kernel")
    with forced(""):
        assert isinstance(make_cipher("packed", PUBLIC), PackedCipher)
    assert "was not built" in caplog.messages[0]


def test_keys_that_the_kernel_has_no_room_for_are_gmpy2s() -> None:
    with forced("avx2"):
        assert path.takes(PUBLIC.n)
        assert not path.takes(PUBLIC.n - 1)
        assert not path.takes(mpz(1) << 8191 | 1)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 4, 5, 29])
def test_every_part_of_a_list_is_worked_on_once(count: int, length: int) -> None:
    done: list[int] = []
    with threads(count):
        assert thread_count() == count
        in_parallel(lambda start, stop: done.extend(range(start, stop)), length)
    assert sorted(done) == list(range(length))


def test_an_error_in_any_thread_is_the_callers() -> None:
    def work(start: int, stop: int) -> None:
        if start:
            raise ValueError("here")

    with threads(2), pytest.raises(ValueError, match="here"):
        in_parallel(work, 8)
