"""One private set intersection: elliptic-curve Diffie-Hellman on P-256, by openmined-psi.

The guest sends H(x)^a for each of its IDs x. The host answers with H(x)^ab for each of them in the same order, and with
H(y)^b for each of its own IDs y, sorted. The guest removes its key a from the first and looks the result up in the
second. The comparison is exact: openmined-psi's raw structure has no false positives. Neither party learns anything
about an ID that it does not hold, provided that decisional Diffie-Hellman is hard, in the random oracle model.

The library releases the interpreter's lock while it computes. Its objects must not be shared between threads; doing so
crashes the process. Each call therefore makes its own object from the session's key.
"""

import hmac
from collections.abc import Sequence

from private_set_intersection.python import DataStructure, Request, Response, ServerSetup, client, server

from trilateral.common.base.errors import DataError, ProtocolError

POINT_BYTES = 33
"""Length of a compressed point of P-256."""
NO_POINT = "a message of the alignment has points that are not on the curve"


def new_key() -> bytes:
    """Make a key of either side for one session, from the library's cryptographic randomness."""
    key: bytes = server.CreateWithNewKey(True).GetPrivateKeyBytes()
    return key


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
    """Compute the guest's request.

    Args:
        key: the guest's key a.
        texts: the padded IDs x.

    Returns:
        The points H(x)^a, in order, `POINT_BYTES` each.
    """
    return b"".join(client.CreateFromKey(key, True).CreateRequest(list(texts)).encrypted_elements)


def setup(key: bytes, texts: Sequence[str]) -> bytes:
    """Compute the host's own part of the answer.

    Args:
        key: the host's key b.
        texts: the padded IDs y.

    Returns:
        The points H(y)^b, sorted, `POINT_BYTES` each.
    """
    # The raw structure ignores the rate of false positives and the size of the other side.
    made = server.CreateFromKey(key, True).CreateSetupMessage(1e-9, len(texts), list(texts), DataStructure.RAW)
    return b"".join(made.raw.encrypted_elements)


def respond(key: bytes, points: bytes) -> bytes:
    """Compute the host's answer to the guest's points.

    Args:
        key: the host's key b.
        points: the guest's points H(x)^a.

    Returns:
        The points H(x)^ab, in the same order, `POINT_BYTES` each.

    Raises:
        ProtocolError: some points are not on the curve.
    """
    request = Request(reveal_intersection=True, encrypted_elements=_split(points))
    try:
        return b"".join(server.CreateFromKey(key, True).ProcessRequest(request).encrypted_elements)
    except RuntimeError:
        raise ProtocolError(NO_POINT) from None


def matches(key: bytes, setup_points: bytes, response_points: bytes) -> list[int]:
    """Find the guest's texts that the host also has.

    Args:
        key: the guest's key a.
        setup_points: the host's points H(y)^b.
        response_points: the points H(x)^ab, in the order of the guest's request.

    Returns:
        The indices of these texts in the request, ascending.

    Raises:
        ProtocolError: some points are not on the curve.
    """
    own = ServerSetup(raw=ServerSetup.RawInfo(encrypted_elements=_split(setup_points)))
    response = Response(encrypted_elements=_split(response_points))
    try:
        return sorted(client.CreateFromKey(key, True).GetIntersection(own, response))
    except RuntimeError:
        raise ProtocolError(NO_POINT) from None


def has_repeated(points: bytes) -> bool:
    """Return whether a point occurs twice. The points of different texts always differ."""
    split = _split(points)
    return len({*split}) < len(split)


def _split(points: bytes) -> list[bytes]:
    return [points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)]
