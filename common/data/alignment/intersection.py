"""One private set intersection: Diffie-Hellman on Curve25519, with the keys a of the guest and b of the host.

The guest sends H(x)^a for each of its IDs x. The host answers with H(x)^ab for each of them in the same order, and with
H(y)^b for each of its own IDs y, sorted. The guest removes its key a from the first and looks the result up in the
second. There are no false positives: two texts have the same point with a probability of about 2^-250. Neither party
learns anything about an ID that it does not hold, provided that decisional Diffie-Hellman is hard, in the random oracle
model. docs/security.md says why points of low order, points of the twist and other spellings of a point do not help a
party that sends them.

Each function is one task for any thread or worker. It holds a key of one session and nothing that lasts longer.
"""

import hmac
from collections.abc import Sequence

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.curve25519.points import LowOrderError, encode_to_curve, multiply, split_points

DOMAIN = b"TRILATERAL-ALIGNMENT-V02-with-curve25519_XMD:SHA-512_ELL2_NU_"
"""Separates the hash H from other uses of the same hash (RFC 9380, section 3.1)."""
LOW_ORDER = "a message of the alignment has a point of low order, which no ID has"


def pad(key: bytes, shard: int, ids: Sequence[str], n_points: int) -> list[str]:
    """Pad the IDs of a shard with other texts of 128 bits, which practically never equal an ID.

    The padding depends only on the session's key and the shard, so that a repeated message is padded in the same way.
    If the padding differed, the points in both messages would be those of IDs.

    Args:
        key: the session's key.
        shard: number of the shard.
        ids: the IDs of the shard.
        n_points: the number of texts to return.

    Returns:
        The IDs, followed by the padding.

    Raises:
        DataError: there are more than `n_points` IDs.
    """
    if len(ids) > n_points:
        raise DataError("a shard of the alignment has more IDs than it has room for: run the alignment again")
    padding = (hmac.digest(key, b"padding %d %d" % (shard, number), "sha256") for number in range(n_points - len(ids)))
    return [*ids, *(digest[:16].hex() for digest in padding)]


def blind(key: bytes, texts: Sequence[str]) -> bytes:
    """Compute the guest's request, or the host's own points.

    Args:
        key: the key a or b.
        texts: the padded IDs x.

    Returns:
        The points H(x)^key, in order, `POINT_BYTES` each.
    """
    return multiply(key, encode_to_curve((text.encode() for text in texts), DOMAIN))


def answer(key: bytes, texts: Sequence[str], points: bytes) -> tuple[bytes, bytes]:
    """Compute the host's answer for one shard.

    Args:
        key: the host's key b.
        texts: the host's padded IDs y.
        points: the guest's points H(x)^a.

    Returns:
        The points H(y)^b, sorted, and the points H(x)^ab, in the order of the request.

    Raises:
        ProtocolError: a point of the guest has low order.
    """
    try:
        response = multiply(key, points)
    except LowOrderError:
        raise ProtocolError(LOW_ORDER) from None
    return b"".join(sorted(split_points(blind(key, texts)))), response


def matches(inverse: bytes, setup: bytes, response: bytes) -> list[int]:
    """Find the guest's texts that the host also has.

    Args:
        inverse: the inverse of the guest's key a.
        setup: the host's points H(y)^b.
        response: the points H(x)^ab, in the order of the guest's request.

    Returns:
        The indices of these texts in the request, ascending.

    Raises:
        ProtocolError: a point has low order, or a point occurs twice. A host that answered every point of the guest
            with one point of its own would make all IDs common.
    """
    try:
        points = split_points(multiply(inverse, response))
    except LowOrderError:
        raise ProtocolError(LOW_ORDER) from None
    # Checked after the multiplication, which spells every point in one way. Whoever receives it can spell it in others.
    own = split_points(setup)
    held = {*own}
    if len({*points}) < len(points) or len(held) < len(own):
        raise ProtocolError("the host's answer for a shard of the alignment repeats a point")
    return [place for place, point in enumerate(points) if point in held]
