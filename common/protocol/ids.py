"""The proof that both parties hold the same rows in the same order.

The parties train on row numbers, so both need the same IDs in the same order. Each sorts its own IDs, and a keyed
digest of the whole list shows whether the lists agree. A digest tells the other party nothing else, unless that party
can guess the *whole list*. Fresh nonces from both parties prevent a comparison with the digest of another job. What
depends on the nonces is short: each party digests its list before they are known.
"""

import hmac

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role

NONCE_BYTES = 32


def id_digest(of_list: bytes, guest_nonce: bytes, host_nonce: bytes, role: Role) -> bytes:
    """Compute the HMAC-SHA256 that shows the other party which IDs a party holds, if it holds the same.

    The key consists of both nonces. The text begins with the role, so that a party cannot return a received digest as
    its own.

    Args:
        of_list: the digest of the list of IDs, 32 bytes.
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
    return hmac.digest(guest_nonce + host_nonce, role.value.encode() + of_list, "sha256")


def check_id_digest(digest: bytes, of_list: bytes, guest_nonce: bytes, host_nonce: bytes, role: Role) -> None:
    """Compare the digest that the party `role` has sent with that of this party's IDs.

    `of_list` is the digest of the list of this party's IDs.

    Raises:
        DataError: the parties do not hold the same IDs.
    """
    if not hmac.compare_digest(digest, id_digest(of_list, guest_nonce, host_nonce, role)):
        raise DataError(
            "the two tables do not hold the same IDs: bring both to the rows they have in common, each ID once; "
            "IDs are compared as text, so leading zeros, blanks and letter case count"
        )
