"""The arithmetic without the kernel: X25519 by libsodium, the map to the curve by gmpy2."""

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
    for start in range(0, len(elements), _BYTES):
        t = int.from_bytes(elements[start : start + _BYTES], "little")
        # 2 t^2 is never -1, which is a square modulo p while 2 is none.
        u = -_A * invert(1 + 2 * t * t, P) % P
        if legendre(u * (u * (u + _A) + 1) % P, P) < 0:
            u = (-_A - u) % P
        points.append(int(u).to_bytes(_BYTES, "little"))
    return b"".join(points)


def multiply(key: bytes, points: bytes) -> bytes | None:
    """Return X25519(key, u) for each coordinate u, 32 bytes each; None if a point has low order."""
    each = (points[start : start + _BYTES] for start in range(0, len(points), _BYTES))
    try:
        return b"".join(crypto_scalarmult(key, one) for one in each)
    except RuntimeError:  # libsodium refuses a result that is zero.
        return None
