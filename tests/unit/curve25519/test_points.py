"""The hash and X25519 give the published values, the kernel gives those of libsodium, and keys undo each other."""

from secrets import token_bytes
from types import ModuleType

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import emulated_kernel
from tests.support.curve import TWIST_ORDER, P, on_curve, times, to_bytes, to_int
from tests.support.emulated_kernel import EMULATED
from tests.support.kernel_copy import CURVE, ROOT
from trilateral.common.curve25519 import native, path, points
from trilateral.common.curve25519.native import _kernel
from trilateral.common.curve25519.points import (
    KEY_BYTES,
    ORDER,
    LowOrderError,
    derive_keys,
    encode_to_curve,
    invert_keys,
    multiply,
    split_points,
)

LOW_ORDER = [
    0,
    1,
    P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
"""All coordinates of points of order 1, 2, 4 and 8, of the curve and of its twist."""


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = emulated_kernel.shared_folder(tmp_path_factory.getbasetemp(), "emulated-curve")
    return emulated_kernel.load(emulated_kernel.build(folder, ROOT / CURVE), _kernel.__name__)


@pytest.fixture(params=["libsodium", EMULATED] if path.obstacle() else ["libsodium", "kernel", EMULATED], autouse=True)
def _arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path._Choice, "kernel", request.param != "libsodium")
    if request.param == EMULATED:
        monkeypatch.setattr(native, "_kernel", request.getfixturevalue("emulated"))


@pytest.mark.parametrize(
    ("key", "u", "product"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_products_are_those_of_rfc_7748(key: str, u: str, product: str) -> None:
    assert multiply(bytes.fromhex(key), bytes.fromhex(u)).hex() == product


def test_a_thousand_products_one_after_the_other_give_the_number_of_rfc_7748() -> None:
    key = u = to_bytes(9)
    for _ in range(1000):
        key, u = multiply(key, u), key
    assert key.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@pytest.mark.parametrize(
    ("text", "u"),
    [
        (b"", 0x51125222DA5E763D97F3C10FCC92EA6860B9CCBBD2EB1285728F566721C1E65B),
        (b"abc", 0x7D56D1E08CB0CCB92BAF069C18C49BB5A0DCD927EFF8DCF75CA921EF7F3E6EEB),
        (b"abcdef0123456789", 0x3FBE66B9C9883D79E8407150E7C2A1C8680BEE496C62FABE4619A72B3CABE90F),
        (b"q128_" + b"q" * 128, 0x227E0BB89DE700385D19EC40E857DB6E6A3E634B1C32962F370D26F84FF19683),
        (b"a512_" + b"a" * 512, 0x3BCD651EE54D5F7B6013898AAB251EE8ECC0688166FCE6E9548D38472F6BD196),
    ],
)
def test_hashes_are_those_of_rfc_9380(text: bytes, u: int) -> None:
    """Appendix J.4.2, before the cofactor."""
    assert encode_to_curve([text], b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_") == to_bytes(u)


def edges() -> list[int]:
    """Coordinates at the ends of limbs and around the order of the field."""
    near = [2**bit + step for bit in (51, 52, 102, 153, 204, 255) for step in (-20, -19, -18, -1, 0, 1, 19)]
    full = [2**51 - 1 << 51 * limb for limb in range(5)]
    return [u for u in near + full + [2**256 - 1, 2**256 - 2**51] if u % 2**255 % P not in LOW_ORDER]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 203])
def test_products_are_those_of_openssl(n: int) -> None:
    some, key = (b"".join(map(to_bytes, edges())) + token_bytes(32 * 203))[: 32 * n], token_bytes(32)
    other = X25519PrivateKey.from_private_bytes(key)
    expected = [other.exchange(X25519PublicKey.from_public_bytes(one)) for one in split_points(some)]
    assert multiply(key, some) == b"".join(expected)


@settings(max_examples=50, deadline=None)
@given(ts=st.lists(st.integers(0, P - 1), max_size=20))
def test_the_map_is_that_of_plain_integers(ts: list[int]) -> None:
    expected = []
    for t in ts:
        u = -486662 * pow(1 + 2 * t * t, -1, P) % P
        expected.append(u if on_curve(u) else (-486662 - u) % P)
    found = points._map_to_curve(b"".join(map(to_bytes, ts)))
    assert found == b"".join(map(to_bytes, expected))


@pytest.mark.parametrize("t", [0, 1, 2, P - 2, P - 1, (P - 1) // 2, 2**51 - 1, 2**204, 2**255 - 20])
def test_the_map_is_right_at_the_edges(t: int) -> None:
    u = -486662 * pow(1 + 2 * t * t, -1, P) % P
    assert points._map_to_curve(to_bytes(t)) == to_bytes(u if on_curve(u) else (-486662 - u) % P)


def test_every_hash_is_on_the_curve_and_none_on_the_twist() -> None:
    hashed = encode_to_curve((b"%d" % number for number in range(300)), b"test")
    assert all(on_curve(int.from_bytes(one, "little")) for one in split_points(hashed))


def test_every_product_lies_in_a_subgroup_of_prime_order_whatever_the_point() -> None:
    """So no key shows its remainder by 8, nor a point its part outside the subgroup."""
    some, key = token_bytes(32 * 40), token_bytes(KEY_BYTES)
    for point, product in zip(split_points(some), split_points(multiply(key, some)), strict=True):
        order = ORDER if on_curve(to_int(point)) else TWIST_ORDER
        assert times(order, to_int(product)) is None
        assert on_curve(to_int(product)) is on_curve(to_int(point))


def test_the_domain_separates() -> None:
    assert encode_to_curve([b"a"], b"one") != encode_to_curve([b"a"], b"two")


@pytest.mark.parametrize("n", [1, 8, 11])
def test_each_point_can_have_its_own_key(n: int) -> None:
    keys, some = token_bytes(KEY_BYTES * n), token_bytes(32 * n)
    expected = [multiply(key, one) for key, one in zip(split_points(keys), split_points(some), strict=True)]
    assert multiply(keys, some) == b"".join(expected)


def test_keys_commute_and_an_inverse_undoes_its_key() -> None:
    hashed, other = encode_to_curve((b"%d" % number for number in range(100)), b"test"), token_bytes(KEY_BYTES)
    keys = derive_keys(token_bytes(32), 100)
    both = multiply(other, multiply(keys, hashed))
    assert both == multiply(keys, multiply(other, hashed))
    assert multiply(invert_keys(keys), both) == multiply(other, hashed)


@pytest.mark.parametrize("key", [bytes(32), b"\xff" * 32, to_bytes(2**254), to_bytes(ORDER), to_bytes(8)])
def test_the_keys_at_the_ends_have_an_inverse(key: bytes) -> None:
    point = multiply(token_bytes(KEY_BYTES), encode_to_curve([b"a"], b"test"))
    assert multiply(invert_keys(key), multiply(key, point)) == point


def test_every_inverse_is_a_key_as_x25519_reads_it() -> None:
    for inverse in split_points(invert_keys(derive_keys(token_bytes(32), 100))):
        number = int.from_bytes(inverse, "little")
        assert number % 8 == 0
        assert number >> 254 == 1


def test_keys_follow_from_their_seed_alone() -> None:
    keys = derive_keys(bytes(32), 100)
    assert keys == derive_keys(bytes(32), 101)[: 100 * KEY_BYTES]
    assert len({*split_points(keys), *split_points(derive_keys(b"\1" * 32, 100))}) == 200


@pytest.mark.parametrize("u", [*LOW_ORDER, *(u + P for u in LOW_ORDER[:2]), *(u + 2**255 for u in LOW_ORDER)])
@pytest.mark.parametrize("place", [0, 11])
def test_a_point_of_low_order_is_refused_wherever_it_stands(u: int, place: int) -> None:
    some = [to_bytes(9)] * 12
    some[place] = to_bytes(u)
    with pytest.raises(LowOrderError):
        multiply(token_bytes(KEY_BYTES), b"".join(some))
