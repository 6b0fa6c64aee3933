"""The guest's side of one alignment."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trilateral.common.base.errors import ProtocolError
from trilateral.common.data.alignment.dealing import Dealing
from trilateral.common.data.alignment.intersection import POINT_BYTES, blind, has_repeated, matches, new_key, pad
from trilateral.common.data.alignment.sources import IdSource


@dataclass(frozen=True)
class CommonShard:
    """What is common in one shard.

    Attributes:
        shard: which.
        ids: all IDs that the guest has in it.
        places: of the common ones among them, ascending.
        tags: what stands for the common ones towards the host, in the same order.
    """

    shard: int
    ids: Sequence[str] = field(repr=False)
    places: Sequence[int] = field(repr=False)
    tags: bytes = field(repr=False)


class GuestSession:
    """Asks for each shard and reads the answer. Both compute, for seconds, and may run in any thread.

    Args:
        source: of the guest's IDs.
        dealing: of the session.
    """

    def __init__(self, source: IdSource, dealing: Dealing) -> None:
        self.dealing = dealing
        self.shards = source.deal(dealing)
        self._key = new_key()

    def request(self, shard: int) -> bytes:
        """The guest's points for one shard."""
        return blind(self._key, pad(self._key, shard, self.shards.ids(shard), self.dealing.guest_points))

    def read(self, shard: int, setup: bytes, response: bytes) -> CommonShard:
        """Find the common IDs in the host's answer.

        Raises:
            ProtocolError: the answer has not the size that is due, has a point twice, or is none.
        """
        due = self.dealing.host_points * POINT_BYTES, self.dealing.guest_points * POINT_BYTES
        if (len(setup), len(response)) != due:
            raise ProtocolError(f"the host's answer to a shard of the alignment has not the {sum(due)} bytes due")
        if has_repeated(setup) or has_repeated(response):
            # One point of an ID that the host holds, as the answer to each of the guest's, would make all common.
            raise ProtocolError("the host's answer to a shard of the alignment has a point twice")
        ids = self.shards.ids(shard)
        places = matches(self._key, setup, response)
        if places and places[-1] >= len(ids):
            raise ProtocolError("the host's answer to a shard of the alignment has padding in common")
        return CommonShard(shard, ids, places, self.dealing.tags(ids[place] for place in places))
