"""Curve25519 for many points at a time: a hash to the curve (RFC 9380) and X25519 (RFC 7748).

A point is its coordinate u, `POINT_BYTES` long, the lowest byte first. A key is any `KEY_BYTES`, which X25519 reads as
a multiple of 8 between 2^254 and 2^255. Multiplications commute: with one key after the other, the result is the same
in both orders. The curve has 8 q points and its twist 4 q', for two primes q and q', and every text of 32 bytes is a
point of one of them. So each product is in a subgroup of order q or q', whatever the point was. The logarithm is hard
in both, so that nothing follows for a key from its products with points that another party has made.

The kernel and libsodium release the interpreter's lock, so several threads can compute at the same time.
"""

from collections.abc import Iterable
from hashlib import sha512, shake_256

from gmpy2 import mpz

from trilateral.common.curve25519 import reference
from trilateral.common.curve25519.path import uses_kernel

POINT_BYTES = 32
KEY_BYTES = 32
ORDER = 2**252 + 27742317777372353535851937790883648493
"""The order q of the subgroup."""
_FIELD_BYTES = 48
"""Bytes of a hash that are reduced modulo p: 16 more than p has, so that the result is uniform up to 2^-128."""


class LowOrderError(ValueError):
    """A point has an order of at most 8: its product with any key is zero."""


def derive_keys(seed: bytes, n: int) -> bytes:
    """Derive n independent keys from a secret seed of at least 32 bytes."""
    return shake_256(seed).digest(KEY_BYTES * n)


def invert_keys(keys: bytes) -> bytes:
    """Return the key that undoes each key.

    X25519(inverse, X25519(key, u)) is u for each point of the subgroup of order q. A key is k = 8 m, and its inverse is
    8 r for r = 1 / (8 k) modulo q. To be a key, r must be between 2^251 and 2^252. If r is not, q - r is, except with a
    probability of 2^-127, and does the same, because a point and its negative have the same u.

    Args:
        keys: the keys, concatenated.

    Returns:
        The inverses, in order, as secret as the keys.
    """
    order = mpz(ORDER)
    factors = [8 * _read_key(key) for key in reference.split(keys)]
    products, product = [], mpz(1)
    for factor in factors:
        products.append(product)
        product = product * factor % order
    # One division, for the product of all keys, gives the inverse of each.
    rest, inverses = pow(product, -1, order), []
    for factor, before in zip(reversed(factors), reversed(products), strict=True):
        r = rest * before % order
        rest = rest * factor % order
        inverses.append(int(8 * (r if r >> 251 else order - r)).to_bytes(KEY_BYTES, "little"))
    return b"".join(reversed(inverses))


def encode_to_curve(texts: Iterable[bytes], domain: bytes) -> bytes:
    """Hash texts to points: curve25519_XMD:SHA-512_ELL2_NU_ of RFC 9380, but for the cofactor, which every key has.

    No logarithm of a result is known, neither to base 9 nor to that of another text's point.

    Args:
        texts: what to hash.
        domain: the domain separation tag, at most 255 bytes. It separates this use of the hash from all others.

    Returns:
        The points, in order.
    """
    return _map_to_curve(_hash_to_field(texts, domain))


def multiply(keys: bytes, points: bytes) -> bytes:
    """Compute X25519 for many points.

    Args:
        keys: one key for all points, or one for each.
        points: a whole number of points, each of any 32 bytes; the topmost bit of a point is ignored.

    Returns:
        The products, in the same order, each below p.

    Raises:
        LowOrderError: a point has low order.
    """
    if uses_kernel():
        from trilateral.common.curve25519.native import _kernel

        out = bytearray(len(points))
        products = None if _kernel.multiply(out, keys, points) else bytes(out)
    else:
        products = reference.multiply(keys, points)
    if products is None:
        raise LowOrderError("a point has low order")
    return products


def split_points(points: bytes) -> list[bytes]:
    """Split concatenated points."""
    return reference.split(points)


def _read_key(key: bytes) -> int:
    """Read a key as X25519 does."""
    return int.from_bytes(key, "little") & (1 << 254) - 8 | 1 << 254


def _hash_to_field(texts: Iterable[bytes], domain: bytes) -> bytes:
    """hash_to_field of RFC 9380, section 5.2, with expand_message_xmd and SHA-512. Returns numbers below p."""
    tag = domain + bytes([len(domain)])
    after_text, before_tag = _FIELD_BYTES.to_bytes(2, "big") + b"\0" + tag, b"\1" + tag
    block = sha512(bytes(sha512().block_size))
    elements = []
    for text in texts:
        first = block.copy()
        first.update(text + after_text)
        hashed = sha512(first.digest() + before_tag).digest()[:_FIELD_BYTES]
        elements.append((int.from_bytes(hashed, "big") % reference.P).to_bytes(32, "little"))
    return b"".join(elements)


def _map_to_curve(elements: bytes) -> bytes:
    if not uses_kernel():
        return reference.map_to_curve(elements)
    from trilateral.common.curve25519.native import _kernel

    out = bytearray(len(elements))
    _kernel.map_to_curve(out, elements)
    return bytes(out)
