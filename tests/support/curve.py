"""Curve25519 in plain integers, for tests that look at points as an attacker would."""

from trilateral.common.curve25519.points import ORDER

P = 2**255 - 19
A = 486662
TWIST_ORDER = (2 * P + 2 - 8 * ORDER) // 4
"""The prime order of the large subgroup of the twist."""


def to_bytes(u: int) -> bytes:
    return u.to_bytes(32, "little")


def to_int(point: bytes) -> int:
    return int.from_bytes(point, "little") % 2**255 % P


def on_curve(u: int) -> bool:
    """Whether a coordinate is of a point of the curve, and not of its twist."""
    return pow(u * (u * (u + A) + 1), (P - 1) // 2, P) in {0, 1}


def times(scalar: int, u: int) -> int | None:
    """The coordinate of a multiple of a point, by any scalar; None for the point at infinity. RFC 7748, section 5."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in f"{scalar:b}":
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        s, d = (x2 + z2) ** 2, (x2 - z2) ** 2
        da, cb = (x3 - z3) * (x2 + z2), (x3 + z3) * (x2 - z2)
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = s * d % P, (s - d) * (s + (A - 2) // 4 * (s - d)) % P
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return None if z2 == 0 else x2 * pow(z2, -1, P) % P
