"""The keys of the streams: who shares a stream, and what makes the key of a stream new.

A stream gives elements that are uniform to everyone without its key. Each pair of roles has a seed, made from a part of
each, drawn for one session of a job. A key belongs to a seed, a round and an attempt. So no element of a
stream is ever used for two values: another session has other seeds, and another attempt has another key.
"""

from enum import IntEnum
from hashlib import blake2b

SEED_BYTES = 32
KEY_BYTES = 16


class Purpose(IntEnum):
    """What the elements of a stream are used for: the upper half of the counter, so purposes have none in common.

    The columns of a stream belong to its purpose: a purpose has one number of columns in all its uses under a key.
    """

    COLUMNS = 1
    """U: masks of a party's columns. Session, party and coordinator."""
    LABELS = 2
    """Masks of the label products c q. Session, guest and coordinator."""
    WEIGHTS = 3
    """U_c: masks of the sample weights. Session, guest and coordinator."""
    WEIGHTED = 4
    """U_Y: masks of the guest's columns times the sample weights. Session, guest and coordinator."""
    SCORES = 5
    """s: a party's share of the mask of the scores. Round, party and coordinator."""
    OPENED = 6
    """e: what masks a share of the residual, and the host's share of the loss of a weighted row. Round."""
    DEALT = 7
    """A party's shares of half of the dealt values. Round, party and coordinator."""
    SUMS = 8
    """What masks the parties' shares of the sums. Round, host and guest."""
    LINEAR = 9
    """What masks the shares of the products of columns and labels. Session, host and guest."""
    SHARES = 10
    """The host's shares of the weights, and the masks a and b. Round, coordinator alone."""
    COUNTS = 16
    """m: what masks the parts of the counts of labels in bins. Session, host and coordinator."""
    SLOPES = 11
    """e and g, and at the host e_c: what masks the slopes in the step of inference. Round, party and coordinator."""
    DEALT_SLOPES = 12
    """A party's shares of half of the values that are dealt for that step. Round, party and coordinator."""
    SLOPE_COLUMNS = 13
    """M: masks of the products of slopes and columns, of the party that opens them. Round, party and coordinator."""
    INFORMATION_COLUMNS = 14
    """U for the information, if its columns are not those of the rounds. Round, party and coordinator."""


def pair_seed(first: bytes, second: bytes) -> bytes:
    """Return the seed that two roles have in common.

    Args:
        first: the part of one role, SEED_BYTES bytes from the operating system.
        second: the part of the other. Both agree on which of them is first.

    Raises:
        ValueError: a part does not have SEED_BYTES bytes.
    """
    if len(first) != SEED_BYTES or len(second) != SEED_BYTES:
        raise ValueError(f"a part of a seed does not have {SEED_BYTES} bytes")
    return blake2b(first + second, digest_size=SEED_BYTES, person=b"trilateral-pair").digest()


def stream_key(seed: bytes, round_number: int = 0, attempt: int = 0) -> bytes:
    """Return the key of the streams of a session or of a round.

    Args:
        seed: what `pair_seed` made, or SEED_BYTES bytes of one role's own.
        round_number: 0 for the streams of the session.
        attempt: 0 for the streams of the session.

    Returns:
        KEY_BYTES bytes, a key of AES-128.

    Raises:
        ValueError: the seed does not have SEED_BYTES bytes.
    """
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed does not have {SEED_BYTES} bytes")
    where = round_number.to_bytes(8, "big") + attempt.to_bytes(8, "big")
    return blake2b(where, key=seed, digest_size=KEY_BYTES, person=b"trilateral-key").digest()
