import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from phe import EncryptedNumber, PaillierPublicKey

from tests.support.ciphertexts import numbers_in
from trilateral.common.paillier.cipher import EncryptedVector, PartyCipher
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.factory import CipherName, make_cipher
from trilateral.common.paillier.keys import check_ciphertexts, generate_private_key
from trilateral.common.paillier.packed import PackedCipher
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.reference import ReferenceCipher, ReferenceDecryptor

KEY = generate_private_key(256)
N = KEY.public_key.n
CIPHERS: dict[str, PartyCipher] = {
    "packed": PackedCipher(KEY.public_key),
    "reference": ReferenceCipher(KEY.public_key),
}
# A third of n, not half: phe keeps the middle third to detect overflow.
THIRD = int(N) // 3 - 1
plaintexts = st.integers(-THIRD, THIRD).map(mpz)


def encrypted(cipher: PartyCipher, plaintexts: Sequence[int]) -> EncryptedVector:
    return cipher.open(cipher.encrypt([mpz(m) for m in plaintexts]))


every_cipher = pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS.keys())


def decrypt_by_phe(ciphertext: mpz) -> mpz:
    return ReferenceDecryptor(KEY).decrypt_all(Ciphertexts.of([ciphertext], KEY.public_key.ciphertext_bytes))[0]


every_decrypt = pytest.mark.parametrize("decrypt", [KEY.decrypt, decrypt_by_phe])


@every_cipher
@every_decrypt
@given(st.lists(plaintexts, max_size=4))
def test_decryption_gives_the_plaintexts_in_order(
    cipher: PartyCipher, decrypt: Callable[[mpz], mpz], values: list[mpz]
) -> None:
    ciphertexts = cipher.encrypt(values)
    check_ciphertexts(KEY.public_key, ciphertexts)
    assert [decrypt(c) for c in ciphertexts] == values


@every_cipher
@given(st.lists(st.tuples(plaintexts, plaintexts), max_size=4))
def test_sums_of_plaintexts(cipher: PartyCipher, pairs: list[tuple[mpz, mpz]]) -> None:
    pairs = [(a, b // 2) for a, b in pairs]
    first = encrypted(cipher, [a for a, _ in pairs])
    total = cipher.add_plaintexts(first, [b for _, b in pairs])
    for sums in (numbers_in(cipher, total), cipher.rerandomise(first, [b for _, b in pairs])):
        assert [KEY.decrypt(c) for c in sums] == [a + b for a, b in pairs]


@every_cipher
@given(st.lists(st.tuples(plaintexts, plaintexts), max_size=4))
def test_sums_of_ciphertexts(cipher: PartyCipher, pairs: list[tuple[mpz, mpz]]) -> None:
    pairs = [(a, b // 2) for a, b in pairs]
    total = cipher.add(encrypted(cipher, [a for a, _ in pairs]), encrypted(cipher, [b for _, b in pairs]))
    assert [KEY.decrypt(c) for c in numbers_in(cipher, total)] == [a + b for a, b in pairs]


@given(plaintexts, plaintexts)
def test_both_ciphers_add_the_same_factor(a: mpz, b: mpz) -> None:
    start = CIPHERS["packed"].encrypt([a])
    packed, reference = (numbers_in(c, c.add_plaintexts(c.open(start), [b])) for c in CIPHERS.values())
    assert packed == reference


@every_cipher
def test_adding_alone_hides_nothing(cipher: PartyCipher) -> None:
    # Why `rerandomise` exists: with the old ciphertext at hand, the new one shows the plaintext.
    old = cipher.encrypt([mpz(1234)])
    (new,) = numbers_in(cipher, cipher.add_plaintexts(cipher.open(old), [mpz(-77)]))
    ratio = new * pow(old[0], -1, N * N) % (N * N)
    assert ratio == (1 - 77 * N) % (N * N)


@every_cipher
@given(st.lists(plaintexts, max_size=4))
def test_rerandomised_ciphertexts_differ_and_decrypt_alike(cipher: PartyCipher, values: list[mpz]) -> None:
    old = cipher.encrypt(values)
    vector = cipher.open(old)
    first, second = cipher.rerandomise(vector), cipher.rerandomise(vector)
    assert len({*old, *first, *second}) == 3 * len(values)
    assert [KEY.decrypt(c) for c in first] == [KEY.decrypt(c) for c in second] == values


@every_cipher
def test_equal_plaintexts_have_different_ciphertexts(cipher: PartyCipher) -> None:
    assert len(set(cipher.encrypt([mpz(3)] * 50))) == 50


@settings(deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.tuples(*[st.integers(-1000, 1000)] * 3), min_size=n, max_size=n)  # (d, x_1, x_2)
    )
)
def test_products_of_both_ciphers_open_to_the_inner_products(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64)
    layout = SlotLayout(30, 1)
    exact = (table[:, 0] @ table[:, 1:]).tolist()
    for cipher in CIPHERS.values():
        ciphertexts = cipher.open(cipher.encrypt(layout.pack(table[:, 0])))
        product = cipher.start_product(layout, table[:, 1:])
        product.update(ciphertexts[:2])
        product.update(ciphertexts[2:])
        result = numbers_in(cipher, product.result())
        assert [layout.read(KEY.decrypt(c)) for c in result] == exact
        assert [layout.read(decrypt_by_phe(c)) for c in result] == exact


@every_cipher
def test_products_count_their_ciphertexts(cipher: PartyCipher) -> None:
    ciphertexts = encrypted(cipher, [1] * 3)
    product = cipher.start_product(SlotLayout(30, 1), np.array([[1], [2], [3]]))
    product.update(ciphertexts[:2])
    with pytest.raises(ValueError, match="missing"):
        product.result()
    with pytest.raises(ValueError, match="more were given"):
        product.update(ciphertexts[1:])


@every_cipher
def test_products_refuse_a_layout_that_the_key_cannot_hold(cipher: PartyCipher) -> None:
    with pytest.raises(ValueError, match="need a key"):
        cipher.start_product(SlotLayout(250, 1), np.array([[1]]))


def test_the_reference_holds_one_sample_per_ciphertext() -> None:
    with pytest.raises(ValueError, match="one slot"):
        CIPHERS["reference"].start_product(SlotLayout(30, 2), np.array([[1]]))


def test_the_homomorphism_of_the_scheme_in_the_hands_of_phe() -> None:
    phe_key = PaillierPublicKey(int(N))
    a, b = (EncryptedNumber(phe_key, int(c)) for c in CIPHERS["packed"].encrypt([mpz(20), mpz(-3)]))
    assert KEY.decrypt(mpz((a + b * 7).ciphertext())) == -1


@pytest.mark.parametrize("name", ["packed", "reference"])
def test_a_pickled_cipher_is_its_key_alone(name: CipherName) -> None:
    cipher = make_cipher(name, KEY.public_key)
    cipher.prepare(50)
    content = pickle.dumps(cipher)
    assert len(content) < 500  # 50 residues would have 3200 bytes.
    other = pickle.loads(content)
    assert other is pickle.loads(content)
    assert other is not cipher
    assert KEY.decrypt_all(other.encrypt([mpz(7)])) == [7]
    assert pickle.loads(pickle.dumps(cipher.encrypt([mpz(7), mpz(8)])[1:])) is not None


def test_plaintexts_that_would_wrap_are_refused() -> None:
    cipher = CIPHERS["packed"]
    assert KEY.decrypt(cipher.encrypt([N // 2])[0]) == N // 2
    for m in (N // 2 + 1, -(N // 2) - 1, N):
        with pytest.raises(ValueError, match="outside"):
            cipher.encrypt([m])
        with pytest.raises(ValueError, match="outside"):
            cipher.add_plaintexts(encrypted(cipher, [1]), [m])
        with pytest.raises(ValueError, match="outside"):
            cipher.rerandomise(encrypted(cipher, [1]), [m])


def test_lists_of_unequal_length_are_refused() -> None:
    for cipher in CIPHERS.values():
        two = encrypted(cipher, [1, 1])
        with pytest.raises(ValueError, match="zip"):
            cipher.add_plaintexts(two, [mpz(1)])
        with pytest.raises(ValueError, match="zip"):
            cipher.add(two, two[:1])


def test_only_the_packed_cipher_prepares() -> None:
    packed = PackedCipher(KEY.public_key)
    while packed.prepare(20):
        pass
    assert not packed.prepare(20)
    assert len(set(packed.encrypt([mpz(0)] * 30))) == 30
    assert packed.prepare(20)
    assert not CIPHERS["reference"].prepare(20)
