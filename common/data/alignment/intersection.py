"""One private set intersection: elliptic-curve Diffie-Hellman on P-256, by openmined-psi.

The guest sends H(x)^a of each of its IDs. The host answers with H(x)^ab of each, in the same order, and with H(y)^b of
each of its own, sorted. The guest takes its key out of the first and looks for it in the second. That is exact:
the raw structure has no false positives. Nobody learns anything of an ID that the other does not hold, as long as
discrete logarithms are hard (decisional Diffie-Hellman in the random oracle model).

The library leaves the interpreter's lock to others while it computes, and its objects must not be shared by threads
(one that two threads use ends the process), so each call here makes its own from the session's key.
"""

import hmac
from collections.abc import Sequence

from private_set_intersection.python import DataStructure, Request, Response, ServerSetup, client, server

from trilateral.common.base.errors import DataError, ProtocolError

POINT_BYTES = 33
"""A compressed point of P-256."""
NO_POINT = "an alignment's message has points that are none of the curve"


def new_key() -> bytes:
    """A fresh key of either side, for one session; from the library's own cryptographic randomness."""
    key: bytes = server.CreateWithNewKey(True).GetPrivateKeyBytes()
    return key


def pad(key: bytes, shard: int, ids: Sequence[str], n_points: int) -> list[str]:
    """The IDs of a shard and so many other texts that there are `n_points`; their 128 bits never meet an ID.

    They follow from the session's key, so that a shard that is asked for again is padded alike: of two messages with
    other padding, the points in both would be those of IDs.

    Raises:
        DataError: there are more IDs already.
    """
    if len(ids) > n_points:
        raise DataError("a shard of the alignment has more IDs than it has room for: try again")
    padding = (hmac.digest(key, b"padding %d %d" % (shard, number), "sha256") for number in range(n_points - len(ids)))
    return [*ids, *(digest[:16].hex() for digest in padding)]


def blind(key: bytes, texts: Sequence[str]) -> bytes:
    """The guest's request: H(x)^a of each text, in order."""
    return b"".join(client.CreateFromKey(key, True).CreateRequest(list(texts)).encrypted_elements)


def setup(key: bytes, texts: Sequence[str]) -> bytes:
    """The host's own part of the answer: H(y)^b of each text, sorted."""
    # The rate of false positives and the other side's size mean nothing for the raw structure.
    made = server.CreateFromKey(key, True).CreateSetupMessage(1e-9, len(texts), list(texts), DataStructure.RAW)
    return b"".join(made.raw.encrypted_elements)


def respond(key: bytes, points: bytes) -> bytes:
    """The host's answer to the guest's points: each under the host's key too, in their order.

    Raises:
        ProtocolError: some are no points of the curve.
    """
    request = Request(reveal_intersection=True, encrypted_elements=_split(points))
    try:
        return b"".join(server.CreateFromKey(key, True).ProcessRequest(request).encrypted_elements)
    except RuntimeError:
        raise ProtocolError(NO_POINT) from None


def matches(key: bytes, setup_points: bytes, response_points: bytes) -> list[int]:
    """Which of the guest's texts the host has, by their place in the request, ascending.

    Raises:
        ProtocolError: some are no points of the curve.
    """
    own = ServerSetup(raw=ServerSetup.RawInfo(encrypted_elements=_split(setup_points)))
    response = Response(encrypted_elements=_split(response_points))
    try:
        return sorted(client.CreateFromKey(key, True).GetIntersection(own, response))
    except RuntimeError:
        raise ProtocolError(NO_POINT) from None


def has_repeated(points: bytes) -> bool:
    """Whether a point comes twice. Of different texts none does."""
    split = _split(points)
    return len({*split}) < len(split)


def _split(points: bytes) -> list[bytes]:
    return [points[start : start + POINT_BYTES] for start in range(0, len(points), POINT_BYTES)]
