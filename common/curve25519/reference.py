"""The arithmetic without the kernel: X25519 by libsodium, the map to the curve by gmpy2."""

from itertools import repeat

from gmpy2 import invert, legendre
from nacl.bindings import crypto_scalarmult

P = 2**255 - 19
"""The order of the field."""
_A = 486662
_BYTES = 32


def map_to_curve(elements: bytes) -> bytes:
    """Map elements of the field to points of the curve v^2 = u^3 + A u^2 + u: Elligator 2, RFC 9380, section 6.7.1.

    Args:
        elements: numbers t below p, 32 bytes each, the lowest byte first.

    Returns:
        The coordinates u, in the same order and form. None is of a point of the twist.
    """
    points = []
    for element in split(elements):
        t = int.from_bytes(element, "little")
        # 2 t^2 is never -1, which is a square modulo p while 2 is none.
        u = -_A * invert(1 + 2 * t * t, P) % P
        if legendre(u * (u * (u + _A) + 1) % P, P) < 0:
            u = (-_A - u) % P
        points.append(int(u).to_bytes(_BYTES, "little"))
    return b"".join(points)


def multiply(keys: bytes, points: bytes) -> bytes | None:
    """Return X25519(key, u) for each coordinate u, 32 bytes each; None if a point has low order.

    Args:
        keys: one key for all coordinates, or one for each.
        points: the coordinates.
    """
    own = repeat(keys) if len(keys) == _BYTES else split(keys)
    try:
        return b"".join(map(crypto_scalarmult, own, split(points)))
    except RuntimeError:  # libsodium refuses a result that is zero.
        return None


def split(concatenated: bytes) -> list[bytes]:
    """Split concatenated coordinates, elements or keys."""
    return [concatenated[start : start + _BYTES] for start in range(0, len(concatenated), _BYTES)]
