"""One private set intersection: Diffie-Hellman on Curve25519.

The guest has another key a for each of its IDs x, and sends H(x)^a. The host has one key b. It answers with H(x)^ab for
each of them in the same order, and with H(y)^b for each of its own IDs y, sorted. The guest removes its keys from the
first and looks the results up in the second. There are no false positives: two texts have the same point with a
probability of about 2^-250. Neither party learns anything about an ID that it does not hold, provided that decisional
Diffie-Hellman is hard, in the random oracle model. docs/security.md says why this holds for a party that deviates.

`request`, `answer` and `matches` are each one task for any thread or worker. A task holds secrets of one session and
nothing that lasts longer.
"""

import hmac
from collections.abc import Sequence

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.curve25519.points import (
    POINT_BYTES,
    LowOrderError,
    derive_keys,
    encode_to_curve,
    invert_keys,
    multiply,
    split_points,
)

DOMAIN = b"TRILATERAL-ALIGNMENT-V02-with-curve25519_XMD:SHA-512_ELL2_NU_"
"""Separates the hash H from other uses of the same hash (RFC 9380, section 3.1)."""
LOW_ORDER = "a message of the alignment has a point of low order, which no ID has"


def pad(secret: bytes, shard: int, ids: Sequence[str], n_points: int) -> list[str]:
    """Pad the IDs of a shard with other texts of 128 bits, which practically never equal an ID.

    The padding depends only on the secret and the shard, so that a repeated message is padded in the same way. If the
    padding differed, the points in both messages would be those of IDs.

    Args:
        secret: the party's secret of the session.
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
    own = hmac.digest(secret, b"padding %d" % shard, "sha256")
    padding = (hmac.digest(own, b"%d" % number, "sha256") for number in range(n_points - len(ids)))
    return [*ids, *(digest[:16].hex() for digest in padding)]


def seed_of(secret: bytes, shard: int) -> bytes:
    """Return the seed of the guest's keys for one shard, from its secret of the session."""
    return hmac.digest(secret, b"keys %d" % shard, "sha256")


def request(seed: bytes, texts: Sequence[str]) -> bytes:
    """Compute the guest's request for one shard.

    Args:
        seed: see `seed_of`.
        texts: the guest's padded IDs x.

    Returns:
        The points H(x)^a, in order, `POINT_BYTES` each.
    """
    return blind(derive_keys(seed, len(texts)), texts)


def blind(keys: bytes, texts: Sequence[str]) -> bytes:
    """Return the points H(x)^key of texts x, with one key for all or one for each."""
    return multiply(keys, encode_to_curve((text.encode() for text in texts), DOMAIN))


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


def matches(seed: bytes, setup: bytes, response: bytes) -> list[int]:
    """Find the guest's texts that the host also has.

    Args:
        seed: that of the request.
        setup: the host's points H(y)^b.
        response: the points H(x)^ab, in the order of the guest's request.

    Returns:
        The indices of these texts in the request, ascending.

    Raises:
        ProtocolError: a point of the response has low order.
    """
    inverses = invert_keys(derive_keys(seed, len(response) // POINT_BYTES))
    try:
        points = split_points(multiply(inverses, response))
    except LowOrderError:
        raise ProtocolError(LOW_ORDER) from None
    held = {*split_points(setup)}
    return [place for place, point in enumerate(points) if point in held]
