"""A labelled set intersection: a list of masked scores that a guest opens one ID at a time.

The host draws a key b for each list. For each of its IDs y it computes F(y) = BLAKE2b(H(y)^b, y), whose first bytes
are a tag and whose last bytes mask the score of y and its reason codes, a byte each. The list has the tag and the
masked bytes of each ID, sorted by tag. The guest gets the list once. To look up an ID x it sends H(x)^a, with a new
key a, and the host answers H(x)^ab. The guest removes a and computes F(x). If the tag is in the list, the mask gives
the score.

F is an oblivious pseudorandom function (2HashDH of Jarecki, Kiayias and Krawczyk 2014). The host learns how many
points it answers, and nothing else: H(x)^a is a random point of the subgroup, whatever x is, and the guest does not
say whether it has found x. n answers give the guest F of at most n texts, provided that one-more Diffie-Hellman is
hard on the curve, in the random oracle model; the rest of the list looks random. So n answers open at most n scores,
and none of an ID that the guest does not know. Lists with different keys are unrelated. Without b, a list is of no
use.

docs/security.md says why the curve permits this for parties that deviate.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.config.process import MAX_REASONS
from trilateral.common.curve25519.points import (
    KEY_BYTES,
    POINT_BYTES,
    LowOrderError,
    derive_keys,
    encode_to_curve,
    invert_keys,
    multiply,
    split_points,
)
from trilateral.common.data.alignment.intersection import LOW_ORDER

DOMAIN = b"TRILATERAL-ONLINE-V01-with-curve25519_XMD:SHA-512_ELL2_NU_"
"""Separates the hash H from other uses of the same hash (RFC 9380, section 3.1)."""
TAG_BYTES = 16
SCORE_BYTES = 8
ENTRY_BYTES = TAG_BYTES + SCORE_BYTES
"""Bytes of an ID in a list, without its reasons. Two of 10^8 IDs share a tag with a probability of 2^-76."""

Entries = NDArray[np.uint8]
"""Shape (n_ids, ENTRY_BYTES + n_reasons)."""


# --- the host's side


def new_key() -> bytes:
    """Draw the key b of a list."""
    return token_bytes(KEY_BYTES)


def make_entries(
    key: bytes, ids: Sequence[str], scores: FloatVector, codes: NDArray[np.uint8] | None = None
) -> Entries:
    """Return the entries of some IDs, in their order.

    Args:
        key: the key b of the list.
        ids: the host's IDs y.
        scores: the score of each, shape (n_ids,).
        codes: the reason codes of each, shape (n_ids, n_reasons); None without.
    """
    texts = [each.encode() for each in ids]
    points = split_points(multiply(key, encode_to_curve(texts, DOMAIN)))
    digests = b"".join(map(_digest, points, texts))
    n_codes = 0 if codes is None else codes.shape[1]
    entries = np.frombuffer(digests, np.uint8).reshape(len(texts), -1)[:, : ENTRY_BYTES + n_codes].copy()
    entries[:, TAG_BYTES:ENTRY_BYTES] ^= scores.astype("<f8").view(np.uint8).reshape(-1, SCORE_BYTES)
    if codes is not None:
        entries[:, ENTRY_BYTES:] ^= codes
    return entries


def sort_entries(entries: Entries) -> tuple[bytes, int]:
    """Return the list with the entries in the order of their tags, and how many IDs occur more than once in it."""
    high, low = (entries[:, start : start + 8].copy().view(">u8")[:, 0] for start in (0, 8))
    order = np.lexsort((low, high))
    repeated = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    return entries[order].tobytes(), int(np.count_nonzero(repeated))


def answer(key: bytes, points: bytes) -> bytes:
    """Compute the host's answer to a query.

    Args:
        key: the key b of the list.
        points: the guest's points H(x)^a.

    Returns:
        The points H(x)^ab, in the same order.

    Raises:
        ProtocolError: a point of the guest has low order.
    """
    try:
        return multiply(key, points)
    except LowOrderError:
        raise ProtocolError(LOW_ORDER) from None


# --- the guest's side


@dataclass(frozen=True)
class Query:
    """A question about some IDs, with new keys.

    Attributes:
        texts: the guest's IDs x.
        points: H(x)^a of each, concatenated: what the host gets.
    """

    texts: tuple[bytes, ...] = field(repr=False)
    points: bytes
    _keys: bytes = field(repr=False)

    @classmethod
    def of(cls, ids: Sequence[str]) -> Self:
        """Draw a key for each ID, and compute its point."""
        texts = tuple(each.encode() for each in ids)
        keys = derive_keys(token_bytes(32), len(texts))
        return cls(texts, multiply(keys, encode_to_curve(texts, DOMAIN)), keys)

    def read(self, response: bytes) -> list[bytes]:
        """Return F(x) of each ID.

        Args:
            response: the host's answer.

        Raises:
            ProtocolError: the answer has another number of points, or a point of low order.
        """
        if len(response) != len(self.points):
            raise ProtocolError(
                f"the host answers {len(self.texts)} points with {len(response)} bytes, not with {POINT_BYTES} for each"
            )
        try:
            points = multiply(invert_keys(self._keys), response)
        except LowOrderError:
            raise ProtocolError(LOW_ORDER) from None
        return [*map(_digest, split_points(points), self.texts)]


class LabelledList:
    """A list as the guest keeps it.

    Args:
        data: the entries, sorted by tag.
        n_reasons: how many reason codes each ID has.

    Raises:
        ProtocolError: the data are not whole entries, or their tags do not ascend.
    """

    def __init__(self, data: bytes, n_reasons: int = 0) -> None:
        self._entry_bytes = ENTRY_BYTES + n_reasons
        if len(data) % self._entry_bytes:
            raise ProtocolError(
                f"received a list of {len(data)} bytes, which are not entries of {self._entry_bytes} bytes"
            )
        if sort_entries(np.frombuffer(data, np.uint8).reshape(-1, self._entry_bytes)) != (data, 0):
            raise ProtocolError("received a list that is not in order, or has an entry twice")
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // self._entry_bytes

    def open(self, digest: bytes) -> float | None:
        """Return the score of an ID, which may be any float; None if the list does not have the ID.

        Args:
            digest: F(x) of the ID, from `Query.read`.
        """
        opened = self._open(digest)
        return None if opened is None else float(opened[:SCORE_BYTES].view("<f8")[0])

    def codes(self, digest: bytes) -> bytes:
        """Return the reason codes of an ID, one byte for each; empty if the list does not have the ID."""
        opened = self._open(digest)
        return b"" if opened is None else opened[SCORE_BYTES:].tobytes()

    def _open(self, digest: bytes) -> NDArray[np.uint8] | None:
        tag = digest[:TAG_BYTES]
        place = bisect_left(range(len(self)), tag, key=self._tag)
        if place == len(self) or self._tag(place) != tag:
            return None
        entry = self._data[place * self._entry_bytes : (place + 1) * self._entry_bytes]
        masked, mask = (np.frombuffer(each, np.uint8)[TAG_BYTES:] for each in (entry, digest[: self._entry_bytes]))
        opened: NDArray[np.uint8] = masked ^ mask
        return opened

    def _tag(self, place: int) -> bytes:
        return self._data[place * self._entry_bytes : place * self._entry_bytes + TAG_BYTES]


def _digest(point: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(point + text, digest_size=ENTRY_BYTES + MAX_REASONS, person=b"online score").digest()
