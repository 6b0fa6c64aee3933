"""The kernel's path through encryption, products and decryption against gmpy2's, bit for bit, and against phe."""

import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import PaillierPrivateKey, PaillierPublicKey

from tests.support.ciphertexts import numbers_in
from tests.support.emulated_kernel import EMULATED, PATHS
from trilateral.common.base.errors import ConfigError
from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import PrivateKey, PublicKey, generate_private_key
from trilateral.common.paillier.native import _kernel, path
from trilateral.common.paillier.native import threads as native_threads
from trilateral.common.paillier.native.cipher import NativeCipher
from trilateral.common.paillier.native.decryption import SecretPowers
from trilateral.common.paillier.native.modulus import FORMS, KernelPath
from trilateral.common.paillier.native.numbers import Elements, Numbers
from trilateral.common.paillier.native.product import NativeProduct, group_size
from trilateral.common.paillier.native.randomness import NativeResidues
from trilateral.common.paillier.native.threads import in_parallel, set_threads, thread_count
from trilateral.common.paillier.packed import PackedCipher
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.product import PackedProduct
from trilateral.common.paillier.randomness import RandomnessPool

KEY = generate_private_key(512)
# Primes that are 3 mod 4 with gcd(p - 1, q - 1) = 2: to find others of this length takes a second or ten.
LONG_KEYS = {
    3072: PrivateKey((mpz(3) << 1534) + 3979, (mpz(3) << 1534) + 14567),
    4096: PrivateKey((mpz(3) << 2046) + 439, (mpz(3) << 2046) + 1907),
}
PUBLIC = KEY.public_key
NUMBERS = Numbers(PUBLIC.n)
EVERY_PATH = [Numbers(PUBLIC.n, path=path) for path in FORMS if path in _kernel.paths]


@contextmanager
def same_randomness(seed: int = 0) -> Iterator[None]:
    """Make the operating system's randomness the same each time."""
    source = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", source.randbytes)
        patch.setattr(secrets, "randbelow", source.randrange)
        yield


@contextmanager
def forced(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path._Choice, "path", None)
        path.choose_arithmetic(name)
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    set_threads(count)
    yield
    set_threads(1)


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


def encrypt_with_r(public_key: PublicKey, m: int | mpz, r: int) -> mpz:
    return (1 + m * public_key.n) * pow(r, public_key.n, public_key.n_squared) % public_key.n_squared


def on_every_path(sizes: Sequence[int], longest_emulated: int) -> pytest.MarkDecorator:
    """Each length of key on each path; in plain C, which is slow, the short ones."""
    each = [(bits, path) for path in PATHS for bits in sizes if path != EMULATED or bits <= longest_emulated]
    return pytest.mark.parametrize(("bits", "path"), each, indirect=["path"])


@cache
def key_of(bits: int) -> PrivateKey:
    return LONG_KEYS.get(bits) or generate_private_key(bits)


def on_the_path_in_use(key: PrivateKey) -> PrivateKey:
    """The same key, whose powers are those of the path in use."""
    return PrivateKey(key.p, key.q)


class Encrypted(NamedTuple):
    """What a cipher makes of some plaintexts."""

    ciphertexts: Ciphertexts
    sums: list[list[mpz]]
    """With plaintexts, and with each other."""
    masked: list[Ciphertexts]


def encrypt_in_every_way(cipher: PackedCipher | NativeCipher, plaintexts: list[mpz]) -> Encrypted:
    with same_randomness(1):
        encrypted = cipher.encrypt(plaintexts)
        vector = cipher.open(encrypted)
        sums = cipher.add_plaintexts(vector, plaintexts[::-1])
        while cipher.prepare(3):
            pass
        kept = [numbers_in(cipher, each) for each in (sums, cipher.add(vector, sums))]
        again = [cipher.rerandomise(sums), cipher.rerandomise(vector, plaintexts[::-1])]
    return Encrypted(encrypted, kept, again)


def some_plaintexts(n: mpz) -> list[mpz]:
    return [mpz(m) for m in (0, 1, -1, n // 2, -(n // 2), 12345, -(1 << 100))]


@cache
def encrypted_by_gmpy2(bits: int) -> Encrypted:
    public_key = key_of(bits).public_key
    with same_randomness():
        cipher = PackedCipher(public_key)
    return encrypt_in_every_way(cipher, some_plaintexts(public_key.n))


@on_every_path([256, 1024, 2048, 3072, 4096], 1024)
def test_all_paths_give_the_same_ciphertexts_given_the_same_randomness(bits: int, path: KernelPath) -> None:
    key = on_the_path_in_use(key_of(bits))
    n, plaintexts = key.public_key.n, some_plaintexts(key.public_key.n)
    assert key.public_key.bits == bits
    with same_randomness():
        cipher = NativeCipher(key.public_key)
    found = encrypt_in_every_way(cipher, plaintexts)
    assert found == encrypted_by_gmpy2(bits)
    totals = [a + b for a, b in zip(plaintexts, plaintexts[::-1], strict=True)]
    assert key.decrypt_all(found.ciphertexts) == plaintexts
    for each in (Ciphertexts.of(found.sums[0], found.ciphertexts.width), *found.masked):
        assert [(m - total) % n for m, total in zip(key.decrypt_all(each), totals, strict=True)] == [0] * len(totals)


@on_every_path([3072, 4096], 0)
def test_all_paths_give_the_same_products_under_long_keys(bits: int, path: KernelPath) -> None:
    key = on_the_path_in_use(LONG_KEYS[bits])
    layout, rng = SlotLayout(60, 20), np.random.default_rng(0)
    columns = rng.integers(-(1 << 20), 1 << 20, (100, 3))
    d = rng.integers(-(1 << 20), 1 << 20, 100)
    ciphertexts = [encrypt_with_r(key.public_key, m, r) for m, r in zip(layout.pack(d), range(2, 7), strict=True)]
    numbers = Numbers(key.public_key.n)
    native = NativeProduct(numbers, layout, columns)
    packed = PackedProduct(key.public_key, layout, columns)
    native.update(EncryptedVector(numbers.enter(ciphertexts)))
    packed.update(EncryptedVector(ciphertexts))
    result = numbers.leave(native.result().elements)
    assert result == packed.result().elements
    inner = [layout.read(key.decrypt(c)) for c in result]
    assert np.abs(inner - columns.T @ d).max() <= 1


def test_phe_opens_what_the_kernel_encrypts_and_the_kernel_opens_what_phe_encrypts(path: KernelPath) -> None:
    key = on_the_path_in_use(KEY)
    phe_public = PaillierPublicKey(int(PUBLIC.n))
    phe_private = PaillierPrivateKey(phe_public, int(KEY.p), int(KEY.q))
    values = [0, 1, 2**100, int(PUBLIC.n) // 3]
    encrypted = NativeCipher(PUBLIC).encrypt([mpz(m) for m in values])
    assert [phe_private.raw_decrypt(int(c)) for c in encrypted] == values
    assert [key.decrypt(mpz(phe_public.raw_encrypt(m))) for m in values] == values


def test_lists_of_different_lengths_are_not_added() -> None:
    for cipher in both_ciphers(KEY):
        vector = cipher.open(CIPHERTEXTS)
        for others in (vector[:1], vector[:9]):
            with pytest.raises(ValueError, match=r"argument 2|one by one"):
                cipher.add(vector[:5], others)


@on_every_path([16, 250, 512, 2048, 3072, 4096], 2048)
def test_all_paths_open_alike(bits: int, path: KernelPath) -> None:
    key = on_the_path_in_use(key_of(bits))
    n, n_squared = key.public_key.n, key.public_key.n_squared
    units = [
        mpz(1),
        n + 1,
        n_squared - 1,
        n_squared - n - 1,
        *(mpz(secrets.randbelow(int(n_squared))) for _ in range(4)),
    ]
    width = key.public_key.ciphertext_bytes
    ciphertexts = Ciphertexts.of(units, width)
    assert by_gmpy2(key).decrypt_all(ciphertexts) == key.decrypt_all(ciphertexts)
    assert key.decrypt_all(Ciphertexts(b"", width)) == []


@st.composite
def tables(draw: st.DrawFn) -> tuple[SlotLayout, np.ndarray, int]:
    """A layout that need not suit the numbers, a table of numbers of any size, and how it is cut into pieces."""
    layout = SlotLayout(draw(st.integers(3, 40)), draw(st.integers(1, 5)))
    n_samples, n_columns = draw(st.integers(1, 23)), draw(st.integers(1, 19))
    bits = draw(st.sampled_from([0, 1, 5, 21, 61]))
    x = st.integers(-(1 << bits), 1 << bits) | st.sampled_from([0, 1 << bits, -(1 << bits), (1 << bits) - 1])
    values = draw(st.lists(x, min_size=n_samples * n_columns, max_size=n_samples * n_columns))
    return layout, np.array(values, np.int64).reshape(n_samples, n_columns), draw(st.integers(1, 6))


CIPHERTEXTS = PackedCipher(PUBLIC).encrypt([mpz(m) for m in range(23)])


def every_product(
    layout: SlotLayout, columns: np.ndarray, ciphertexts: Ciphertexts
) -> Iterator[tuple[PackedProduct | NativeProduct, EncryptedVector]]:
    """The product on each path, and the ciphertexts in its form."""
    yield PackedProduct(PUBLIC, layout, columns), EncryptedVector(list(ciphertexts))
    for numbers in EVERY_PATH:
        yield NativeProduct(numbers, layout, columns), EncryptedVector(numbers.enter_bytes(ciphertexts.data))


def numbers_of(product: PackedProduct | NativeProduct) -> list[mpz]:
    result = product.result().elements
    return product.numbers.leave(result) if isinstance(product, NativeProduct) else result


@settings(deadline=None, max_examples=40)
@given(tables(), st.sampled_from([1, 2, 5]))
def test_all_paths_give_the_same_products(table: tuple[SlotLayout, np.ndarray, int], count: int) -> None:
    layout, columns, piece = table
    ciphertexts = CIPHERTEXTS[: layout.n_groups(len(columns))]
    results = []
    with threads(count):
        for product, vector in every_product(layout, columns, ciphertexts):
            for start in range(0, len(ciphertexts), piece):
                product.update(vector[start : start + piece])
            results.append(numbers_of(product))
    assert all(result == results[0] for result in results)


def test_a_table_of_more_than_one_block_is_the_same_product(monkeypatch: pytest.MonkeyPatch, path: KernelPath) -> None:
    monkeypatch.setattr("trilateral.common.paillier.native.product._TABLE_BYTES", 1)
    layout, columns = SlotLayout(30, 2), np.arange(-60, 60).reshape(40, 3)
    (expected, packed), *_ = every_product(layout, columns, CIPHERTEXTS[:20])
    expected.update(packed)
    numbers = Numbers(PUBLIC.n, path=path)
    product = NativeProduct(numbers, layout, columns)
    product.update(EncryptedVector(numbers.enter_bytes(CIPHERTEXTS[:20].data)))
    assert numbers_of(product) == numbers_of(expected)


def test_a_process_chooses_its_arithmetic_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with forced("gmpy2"):
        assert isinstance(make_cipher("packed", PUBLIC), PackedCipher)
    with forced("avx2"):
        assert isinstance(make_cipher("packed", PUBLIC), NativeCipher)
    with pytest.raises(ConfigError, match="set (ifma, )?avx2 or gmpy2"):
        path.choose_arithmetic("cuda")
    assert ["gmpy2" in caplog.messages[0], "kernel" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2


def test_a_machine_without_the_vectors_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trilateral.common.paillier.native._kernel.paths", ())
    with forced(""):
        assert [isinstance(make_cipher("packed", PUBLIC), PackedCipher) for _ in range(2)] == [True, True]
        assert ["because the processor has no AVX2" in message for message in caplog.messages] == [True]
    with pytest.raises(ConfigError, match="avx2 was chosen, but the processor has no AVX2"):
        path.choose_arithmetic("avx2")


def test_a_package_without_the_kernel_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "trilateral.common.paillier.native._kernel", None)
    monkeypatch.delattr("trilateral.common.paillier.native._kernel")
    with forced(""):
        assert isinstance(make_cipher("packed", PUBLIC), PackedCipher)
    assert "was not built" in caplog.messages[0]


def test_gmpy2_takes_keys_that_do_not_fit_the_kernel() -> None:
    with forced("avx2"):
        assert path.takes(PUBLIC.n)
        for n in (PUBLIC.n - 1, mpz(1) << 8191 | 1, mpz(1) << 4144 | 1, mpz(127), mpz(1), mpz(-129)):
            assert not path.takes(n)
        assert path.takes(mpz(1) << 4143 | 1)
        assert path.takes(mpz(129))


def test_an_arithmetic_that_falls_back_for_a_key_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    long_key = PublicKey((mpz(1) << 4145) + 1)
    with forced("avx2"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("trilateral.common.paillier.factory.PackedCipher", lambda key: key)
        assert make_cipher("packed", long_key) is long_key  # type: ignore[comparison-overlap]
    assert ["a modulus of 4146 bits: gmpy2" in message for message in caplog.messages] == [False, True]


def test_gmpy2_takes_primes_that_do_not_fit_the_kernel(caplog: pytest.LogCaptureFixture) -> None:
    """Those too short, and those whose ciphertexts are too long for them."""
    for p, q in ((103, 107), (1019, 2**1279 - 1)):
        with forced("avx2"):
            caplog.clear()
            key = PrivateKey(mpz(p), mpz(q))
        assert sum("gmpy2, 5 to 15 times slower" in message for message in caplog.messages) == 1
        assert [key.decrypt(encrypt_with_r(key.public_key, m, 2)) for m in (0, 5, -7)] == [0, 5, -7]


def test_a_key_too_long_for_the_kernel_has_primes_that_fit_it() -> None:
    with forced("avx2"):
        key = PrivateKey((mpz(3) << 2078) + 511, (mpz(3) << 2078) + 1231)
        assert not path.takes(key.public_key.n)
    assert isinstance(key._powers, SecretPowers)
    ciphertext = encrypt_with_r(key.public_key, 5, 2)
    assert key.decrypt(ciphertext) == by_gmpy2(key).decrypt(ciphertext) == 5


@pytest.mark.parametrize("limit", [1 << 20, 1 << 17, 1 << 12, 1])
def test_tables_stay_within_their_size_limit(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one group of one ciphertext, which needs two products, is larger."""
    made: list[int] = []
    empty = Numbers.empty

    def measured(self: Numbers, *shape: int) -> Elements:
        out = empty(self, *shape)
        if len(shape) == 2:
            made.append(out.nbytes)
        return out

    monkeypatch.setattr("trilateral.common.paillier.native.product._TABLE_BYTES", limit)
    layout, columns = SlotLayout(30, 2), np.full((23 * 2, 40), 1 << 20)
    (expected, packed), *others = every_product(layout, columns, CIPHERTEXTS)
    expected.update(packed)
    monkeypatch.setattr(Numbers, "empty", measured)
    for product, vector in others:
        product.update(vector)
        assert numbers_of(product) == numbers_of(expected)
    assert 0 < max(made) <= max(limit, 2 * 8 * NUMBERS.size)


def test_a_group_is_larger_if_more_buckets_use_its_table() -> None:
    sizes = [group_size(n_buckets, 12) for n_buckets in (1, 100, 1000, 5000, 100_000)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1], group_size(10**6, 7)) == (1, 12, 7)


def test_a_result_can_be_asked_for_again() -> None:
    product = NativeProduct(NUMBERS, SlotLayout(30, 2), np.arange(-6, 6).reshape(4, 3))
    product.update(EncryptedVector(NUMBERS.enter_bytes(CIPHERTEXTS[:2].data)))
    assert numbers_of(product) == numbers_of(product)


def test_threads_share_the_columns_to_join_if_one_cannot_join_all_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    join, lanes = _kernel.join_buckets, NUMBERS.lanes

    def measured(*args: Any) -> None:
        parts.append(args[-1] - args[-2])
        join(*args)

    monkeypatch.setattr(_kernel, "join_buckets", measured)
    for shares in ([1], [lanes], [lanes - 3, lanes], [lanes + 1, lanes + 2]):
        columns = np.ones((2, sum(shares)), np.int64)
        product = NativeProduct(NUMBERS, SlotLayout(30, 2), columns)
        product.update(EncryptedVector(NUMBERS.enter_bytes(CIPHERTEXTS[:1].data)))
        parts.clear()
        with threads(2):
            product.result()
        assert sorted(parts) == shares


@pytest.mark.parametrize("count", [1, 3])
def test_each_thread_draws_one_for_each_lane_at_a_time(count: int) -> None:
    with threads(count):
        residues = NativeResidues(PUBLIC, NUMBERS)
        pool = RandomnessPool(residues)
        calls = 0
        while pool.prepare(48):
            calls += 1
    assert calls == 48 // (NUMBERS.lanes * count)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 4, 5, 29])
def test_every_part_of_a_list_is_worked_on_once(count: int, length: int) -> None:
    done: list[int] = []
    with threads(count):
        assert thread_count() == count
        for least in (1, 3):
            done.clear()
            in_parallel(lambda start, stop: done.extend(range(start, stop)), length, 4, least)
            assert sorted(done) == list(range(length))


def test_a_fast_thread_takes_the_parts_that_a_slow_one_has_not_begun() -> None:
    parts: dict[int, int] = {}
    slow = threading.Event()

    def work(start: int, stop: int) -> None:
        assert start % 4 == 0
        parts[threading.get_ident()] = parts.get(threading.get_ident(), 0) + stop - start
        if start == 0:
            slow.wait(10)
        if stop == 400:
            slow.set()

    with threads(2):
        in_parallel(work, 400, 4)
    assert sorted(parts.values()) == [100, 300]


def test_a_caller_does_not_wait_for_threads_that_others_use() -> None:
    with threads(2):
        busy = threading.Event()
        other = native_threads._threads._pool.submit(busy.wait, 10)
        done: list[int] = []
        in_parallel(lambda start, stop: done.append(start), 8, 4)
        busy.set()
        assert other.result()
    assert done == [0, 4]


def test_an_error_in_any_thread_reaches_the_caller_and_no_other_part_begins() -> None:
    begun: list[int] = []
    wrong = threading.Event()

    def work(start: int, stop: int) -> None:
        begun.append(start)
        if threading.current_thread() is threading.main_thread():
            wrong.wait(10)
            time.sleep(0.05)
        else:
            wrong.set()
            raise ValueError("here")

    with threads(2), pytest.raises(ValueError, match="here"):
        in_parallel(work, 80, 4)
    assert len(begun) <= 2


def test_work_that_has_begun_ends_before_an_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        time.sleep(0.05)
        done.append(start)

    with threads(3):
        pool = native_threads._threads._pool
        submit = pool.submit
        given: list[Any] = []

        def submit_once(*args: Any) -> Future[None]:
            if given:
                raise RuntimeError("no more threads")
            given.append(args)
            return submit(*args)

        monkeypatch.setattr(pool, "submit", submit_once)
        with pytest.raises(RuntimeError, match="no more threads"):
            in_parallel(work, 12, 4)
        assert 0 in done


def test_a_forked_process_has_threads_of_its_own() -> None:
    program = """
import os
from trilateral.common.paillier.native.threads import in_parallel, set_threads, thread_count
set_threads(3)
in_parallel(lambda start, stop: None, 12, 4)
child = os.fork()
done = []
in_parallel(lambda start, stop: done.append(start), 12, 4)
assert sorted(done) == [0, 4, 8] and thread_count() == 3
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=50)
