"""Curve25519 for many points at a time: a hash to the curve (RFC 9380) and X25519 (RFC 7748).

A point is its coordinate u, `POINT_BYTES` long, the lowest byte first. Multiplications commute: with one key after the
other, the result is the same in both orders. Every key is a multiple of 8, the cofactor, so that each result is in the
subgroup of prime order q, whatever the point was. Every text of 32 bytes is a point of the curve or of its twist. The
logarithm is hard on both, so that nothing follows for a key from its products with points that another party has made.

The kernel and libsodium release the interpreter's lock, so several threads can compute at the same time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha512
from secrets import token_bytes

from trilateral.common.curve25519 import reference
from trilateral.common.curve25519.path import uses_kernel

POINT_BYTES = 32
ORDER = 2**252 + 27742317777372353535851937790883648493
"""The order q of the subgroup."""
_FIELD_BYTES = 48
"""Bytes of a hash that are reduced modulo p: 16 more than p has, so that the result is uniform up to 2^-128."""


class LowOrderError(ValueError):
    """A point has an order of at most 8: its product with any key is zero."""


@dataclass(frozen=True)
class KeyPair:
    """A key and its inverse: X25519(inverse, X25519(key, X25519(other, u))) is X25519(other, u).

    Attributes:
        key: 32 bytes.
        inverse: 32 bytes, as secret as the key.
    """

    key: bytes = field(repr=False)
    inverse: bytes = field(repr=False)


def new_key() -> bytes:
    """Draw a key for X25519: a multiple of 8 between 2^254 and 2^255."""
    return _clamp(token_bytes(32)).to_bytes(32, "little")


def new_key_pair() -> KeyPair:
    """Draw a key whose inverse modulo q is a key too. Half of all keys have one, so this takes two tries on average."""
    while True:
        key = _clamp(token_bytes(32))
        inverse = 8 * pow(8 * key, -1, ORDER)
        if inverse >> 254 == 1:
            return KeyPair(key.to_bytes(32, "little"), inverse.to_bytes(32, "little"))


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


def multiply(key: bytes, points: bytes) -> bytes:
    """Compute X25519 with one key for many points.

    Args:
        key: from `new_key` or `new_key_pair`.
        points: a whole number of points, each of any 32 bytes; the topmost bit of a point is ignored.

    Returns:
        The products, in the same order, each below p.

    Raises:
        LowOrderError: a point has low order.
    """
    if uses_kernel():
        from trilateral.common.curve25519.native import _kernel

        out = bytearray(len(points))
        products = None if _kernel.multiply(out, key, points) else bytes(out)
    else:
        products = reference.multiply(key, points)
    if products is None:
        raise LowOrderError("a point has low order")
    return products


def split_points(points: bytes) -> list[bytes]:
    """Split concatenated points."""
    return [points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)]


def _clamp(random: bytes) -> int:
    """Make a key of 32 random bytes, as X25519 does itself."""
    return int.from_bytes(random, "little") & (1 << 254) - 8 | 1 << 254


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
