"""Dealing IDs to shards, each of which is one private set intersection.

Both parties use the same hash, keyed with a nonce from each of them. An ID therefore lies in the same shard at both
parties and in a different one in each session, and neither party can choose which. Messages about a shard are padded,
because the other side must not learn how many of its IDs are real.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import isqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.ids import NONCE_BYTES

SHARD_IDS = 10_000
"""Approximate number of IDs in a shard at the larger party. The messages of such a shard take about 0.7 MB."""
_IDS_AT_A_TIME = 65_536
"""IDs whose hashes are in memory at a time as objects of Python."""
TAG_BYTES = 16
"""Length of a tag: a keyed hash that represents an ID to a party that also holds it. The probability that two of 10^8
IDs share a tag is 2^-76."""


def n_points(n_ids: int, n_shards: int) -> int:
    """Return the number of points that a party sends for each shard, including padding, from public sizes only.

    The number of IDs in a shard is binomial. It exceeds its mean by 8 standard deviations plus 16 with probability
    below 1e-12 (Bernstein's inequality). In that case the session fails; a new session with new nonces will succeed.

    Args:
        n_ids: IDs of the party.
        n_shards: shards of the session.
    """
    if n_shards == 1:
        return n_ids
    mean = -(-n_ids // n_shards)
    return min(n_ids, mean + 8 * (isqrt(mean) + 1) + 16)


@dataclass(frozen=True)
class Dealing:
    """The hash of IDs to shards and tags in one session.

    Attributes:
        key: the key of the hash, 32 bytes.
        n_guest: the number of the guest's IDs.
        n_host: the number of the host's IDs.
    """

    key: bytes
    n_guest: int
    n_host: int

    @classmethod
    def of(cls, guest_nonce: bytes, host_nonce: bytes, n_guest: int, n_host: int) -> Self:
        """Derive the hash of a session from the nonces of both parties.

        Args:
            guest_nonce: the guest's nonce, `NONCE_BYTES` long.
            host_nonce: the host's nonce, `NONCE_BYTES` long.
            n_guest: the number of the guest's IDs.
            n_host: the number of the host's IDs.

        Raises:
            ProtocolError: a nonce has a different length.
        """
        if len(guest_nonce) != NONCE_BYTES or len(host_nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of an alignment must have {NONCE_BYTES} bytes")
        return cls(hashlib.sha256(guest_nonce + host_nonce).digest(), n_guest, n_host)

    @cached_property
    def n_shards(self) -> int:
        """The number of shards, such that the larger party has about `SHARD_IDS` IDs in each."""
        return max(1, -(-max(self.n_guest, self.n_host) // SHARD_IDS))

    @property
    def guest_points(self) -> int:
        """Points of the guest in each shard, including padding."""
        return n_points(self.n_guest, self.n_shards)

    @property
    def host_points(self) -> int:
        """Points of the host in each shard, including padding."""
        return n_points(self.n_host, self.n_shards)

    @property
    def guest_room(self) -> int:
        """Points of the guest in all shards. The host cannot tell padding from IDs, so all of them may be IDs."""
        return self.n_shards * self.guest_points

    @property
    def host_room(self) -> int:
        """Points of the host in all shards. The guest cannot tell padding from IDs, so all of them may be IDs."""
        return self.n_shards * self.host_points

    def tags(self, ids: Iterable[str]) -> list[bytes]:
        """Return the tags of IDs in this session, in order. The other party can test guesses of IDs on them."""
        return [digest[:TAG_BYTES] for digest in self._digests(ids)]

    def deal(self, ids: Sequence[str]) -> list[Rows]:
        """Deal IDs to the shards.

        Args:
            ids: the IDs, in the order of their rows.

        Returns:
            For each shard, its row numbers in ascending order.
        """
        shards: NDArray[np.int32] = np.empty(len(ids), np.int32)
        hashes = (digest[TAG_BYTES:] for digest in self._digests(ids))
        for first in range(0, len(ids), _IDS_AT_A_TIME):
            some = np.frombuffer(b"".join(islice(hashes, _IDS_AT_A_TIME)), ">u8")
            shards[first : first + len(some)] = some % self.n_shards
        order = np.argsort(shards, kind="stable")
        return np.split(order, np.cumsum(np.bincount(shards, minlength=self.n_shards))[:-1])

    def _digests(self, ids: Iterable[str]) -> Iterator[bytes]:
        keyed = hashlib.blake2b(key=self.key, digest_size=TAG_BYTES + 8)
        for one in ids:
            digest = keyed.copy()  # Half the time of a new one.
            digest.update(one.encode())
            yield digest.digest()
