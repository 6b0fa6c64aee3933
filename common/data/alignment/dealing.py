"""How IDs are dealt to shards, each of which is one private set intersection.

Both parties deal by the same hash, whose key is made of a nonce of each, so that an ID lies in the same shard at
both, in another one in each session, and neither party can choose which. A shard travels padded: how many IDs of it
are real would be one more thing that the other side learns.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.ids import NONCE_BYTES

SHARD_IDS = 10_000
"""About how many IDs of the larger side a shard has: its messages come to some 0.7 MB."""
TAG_BYTES = 16
"""Of a keyed hash that stands for an ID towards who holds it too. Two of 10^8 IDs share one with odds of 2^-76."""


def n_points(n_ids: int, n_shards: int) -> int:
    """Points that a party of `n_ids` sends for each shard, padding included; from public sizes alone.

    A shard has a binomial number of IDs. It exceeds its mean by 8 deviations and 16 with odds below 1e-12
    (Bernstein's inequality); then the session fails and another one, with other nonces, will not.
    """
    if n_shards == 1:
        return n_ids
    mean = -(-n_ids // n_shards)
    return min(n_ids, mean + 8 * (isqrt(mean) + 1) + 16)


@dataclass(frozen=True)
class Dealing:
    """One session's hash of IDs to shards and tags.

    Attributes:
        key: of the hash, 32 bytes.
        n_guest: IDs of the guest in all.
        n_host: IDs of the host in all.
    """

    key: bytes
    n_guest: int
    n_host: int

    @classmethod
    def of(cls, guest_nonce: bytes, host_nonce: bytes, n_guest: int, n_host: int) -> Self:
        """Deal by both nonces.

        Raises:
            ProtocolError: a nonce is not `NONCE_BYTES` long.
        """
        if len(guest_nonce) != NONCE_BYTES or len(host_nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of an alignment must have {NONCE_BYTES} bytes")
        return cls(hashlib.sha256(guest_nonce + host_nonce).digest(), n_guest, n_host)

    @cached_property
    def n_shards(self) -> int:
        """So many that the larger side has about `SHARD_IDS` in each."""
        return max(1, -(-max(self.n_guest, self.n_host) // SHARD_IDS))

    @property
    def guest_points(self) -> int:
        """Points of the guest in each shard."""
        return n_points(self.n_guest, self.n_shards)

    @property
    def host_points(self) -> int:
        """Points of the host in each shard."""
        return n_points(self.n_host, self.n_shards)

    @property
    def guest_room(self) -> int:
        """Points of the guest in all shards. The host cannot tell padding from IDs, so all may be IDs."""
        return self.n_shards * self.guest_points

    @property
    def host_room(self) -> int:
        """Points of the host in all shards, of which the guest cannot tell either."""
        return self.n_shards * self.host_points

    def shard(self, one: str) -> int:
        """Which shard an ID belongs to."""
        return int.from_bytes(self._digest(one)[TAG_BYTES:], "big") % self.n_shards

    def tag(self, one: str) -> bytes:
        """What stands for an ID in this session, `TAG_BYTES` long; who does not know the ID can still guess it."""
        return self._digest(one)[:TAG_BYTES]

    def tags(self, ids: Iterable[str]) -> bytes:
        """The tags of several IDs, one after the other."""
        return b"".join(map(self.tag, ids))

    def deal(self, ids: Sequence[str]) -> list[Rows]:
        """Row numbers of each shard, in ascending order."""
        shards: NDArray[np.int64] = np.fromiter(map(self.shard, ids), np.int64, len(ids))
        order = np.argsort(shards, kind="stable")
        return np.split(order, np.cumsum(np.bincount(shards, minlength=self.n_shards))[:-1])

    def _digest(self, one: str) -> bytes:
        return hashlib.blake2b(one.encode(), key=self.key, digest_size=TAG_BYTES + 8).digest()
