"""The guest's side of one alignment: its requests, and what it learns from the answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_bytes

import numpy as np

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import ProtocolError
from trilateral.common.compute.engine import Engine
from trilateral.common.compute.local import LOCAL
from trilateral.common.curve25519.points import POINT_BYTES
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.intersection import matches, pad, request, seed_of
from trilateral.common.data.alignment.sources import IdSource


@dataclass(frozen=True)
class CommonShard:
    """The common IDs of one shard.

    Attributes:
        shard: number of the shard.
        ids: all IDs of the guest in the shard.
        places: indices of the common ones in `ids`, ascending, shape (n_common,).
        tags: the tags of the common ones, concatenated in the same order, which the guest sends to the host.
    """

    shard: int
    ids: Sequence[str] = field(repr=False)
    places: Rows = field(repr=False)
    tags: bytes = field(repr=False)


class GuestSession:
    """Requests each shard and reads the answer. Both may run in any thread, and in several at once.

    Args:
        source: the guest's IDs.
        dealing: the session's assignment of IDs to shards.
        engine: runs the work on the points.
    """

    def __init__(self, source: IdSource, dealing: Dealing, engine: Engine = LOCAL) -> None:
        self.dealing = dealing
        self._engine = engine
        self.shards = source.deal(dealing)
        self._secret = token_bytes(32)
        """The keys of all points and the padding follow from it."""

    def request(self, shard: int) -> bytes:
        """Return the guest's points for one shard, including padding.

        Raises:
            DataError: the shard has more IDs than it has room for; a new session will succeed.
        """
        texts = pad(self._secret, shard, self.shards.ids(shard), self.dealing.guest_points)
        return self._engine.submit(request, seed_of(self._secret, shard), texts).result()

    def read(self, shard: int, setup: bytes, response: bytes) -> CommonShard:
        """Find the common IDs in the host's answer.

        Args:
            shard: number of the shard.
            setup: the host's own points.
            response: the guest's points under both keys, in the order of the request.

        Raises:
            ProtocolError: the answer has the wrong size or is invalid.
        """
        due = self.dealing.host_points * POINT_BYTES, self.dealing.guest_points * POINT_BYTES
        if (len(setup), len(response)) != due:
            raise ProtocolError(f"the host's answer for a shard of the alignment does not have {sum(due)} bytes")
        ids = self.shards.ids(shard)
        places = self._engine.submit(matches, seed_of(self._secret, shard), setup, response).result()
        if places and places[-1] >= len(ids):
            raise ProtocolError("the host's answer for a shard of the alignment claims that padding is common")
        tags = b"".join(self.dealing.tags(ids[place] for place in places))
        return CommonShard(shard, ids, np.array(places, np.int64), tags)
