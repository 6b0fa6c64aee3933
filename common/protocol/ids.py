"""The order of the rows, and the proof that both parties hold the same rows.

The parties train on row numbers, so both need the same IDs in the same order. Each sorts its own IDs, and a keyed
digest of the whole list shows whether the lists agree. A digest tells the other party nothing else, unless that party
can guess the *whole list*. Fresh nonces from both parties prevent a comparison with the digest of another job.
"""

import hmac
from collections.abc import Sequence

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role

NONCE_BYTES = 32
_IDS_AT_A_TIME = 4096
"""So that the digest of many IDs takes no memory."""


def canonical_order(ids: Sequence[str]) -> list[int]:
    """Return row numbers sorted by the UTF-8 bytes of their IDs, which is the same in every language and locale."""
    # UTF-8 keeps the order of the code points, by which Python compares texts.
    return sorted(range(len(ids)), key=ids.__getitem__)


def id_digest(ids: Sequence[str], guest_nonce: bytes, host_nonce: bytes, role: Role) -> bytes:
    """Compute the HMAC-SHA256 of the IDs.

    The key consists of both nonces. The text begins with the role, so that a party cannot return a received digest as
    its own. The length precedes each ID, so that no two lists give the same text.

    Args:
        ids: in canonical order.
        guest_nonce: the guest's nonce, `NONCE_BYTES` bytes.
        host_nonce: the host's nonce, `NONCE_BYTES` bytes.
        role: the party that makes the digest.

    Returns:
        32 bytes.

    Raises:
        ProtocolError: a nonce has another length.
    """
    if len(guest_nonce) != NONCE_BYTES or len(host_nonce) != NONCE_BYTES:
        raise ProtocolError(f"a nonce for comparing IDs must have {NONCE_BYTES} bytes")
    digest = hmac.new(guest_nonce + host_nonce, _framed([role.value]), "sha256")
    for first in range(0, len(ids), _IDS_AT_A_TIME):
        digest.update(_framed(ids[first : first + _IDS_AT_A_TIME]))
    return digest.digest()


def _framed(texts: Sequence[str]) -> bytes:
    """Return texts with the length before each."""
    encoded = list(map(str.encode, texts))
    lengths = {length: length.to_bytes(8, "big") for length in set(map(len, encoded))}
    return b"".join([lengths[len(text)] + text for text in encoded])


def check_id_digest(digest: bytes, ids: Sequence[str], guest_nonce: bytes, host_nonce: bytes, role: Role) -> None:
    """Compare the digest that the party `role` has sent with the same digest of this party's IDs.

    Raises:
        DataError: the parties do not hold the same IDs.
    """
    if not hmac.compare_digest(digest, id_digest(ids, guest_nonce, host_nonce, role)):
        raise DataError(
            "the two tables do not hold the same IDs: bring both to the rows they have in common, each ID once; "
            "IDs are compared as text, so leading zeros, blanks and letter case count"
        )
