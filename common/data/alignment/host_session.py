"""The host's side of one alignment: what it answers, and what it refuses."""

import hashlib
from collections import Counter
from threading import Lock

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.data.alignment.dealing import TAG_BYTES, Dealing
from trilateral.common.data.alignment.intersection import POINT_BYTES, new_key, pad, respond, setup
from trilateral.common.data.alignment.sources import IdSource

MAX_ANSWERS = 10
"""To one shard. An answer that is lost is asked for again; each takes seconds."""


class HostSession:
    """Answers each shard once, whatever happens on the way, and learns which of its IDs are common.

    A request may come again, since an answer may be lost; it must then be the same, or the guest would try more IDs
    than it has announced. `answer` computes, for seconds; it and `settle` may run in any threads, several at a time.

    Args:
        source: of the host's IDs.
        dealing: of the session.
    """

    def __init__(self, source: IdSource, dealing: Dealing) -> None:
        self.dealing = dealing
        self.shards = source.deal(dealing)
        self._key = new_key()
        self._requests: dict[int, bytes] = {}
        self._settled: dict[int, bytes] = {}
        self._answered: set[int] = set()
        self._n_requests: Counter[int] = Counter()
        self._over: str | None = None
        """Why nothing is answered or settled any more."""
        self._lock = Lock()
        self.n_common = 0
        """So far, as the guest has told."""

    @property
    def complete(self) -> bool:
        """Whether every shard is settled."""
        return len(self._settled) == self.dealing.n_shards

    @property
    def over(self) -> bool:
        """Whether the guest has done what ends an alignment: nothing is answered or settled any more."""
        return self._over is not None

    @property
    def n_answered(self) -> int:
        """Shards that were intersected."""
        return len(self._answered)

    @property
    def n_settled(self) -> int:
        """Shards of which the guest has told what is common."""
        return len(self._settled)

    def check_request(self, shard: int, points: bytes) -> None:
        """Accept the guest's points for one shard.

        Raises:
            ProtocolError: there is no such shard, their number is not the announced one, others came for it before, or
                they came too often. Nothing is answered any more then.
        """
        self._check_shard(shard)
        self._check_goes_on()
        n_bytes = self.dealing.guest_points * POINT_BYTES
        if len(points) != n_bytes:
            raise ProtocolError(f"a shard of the alignment came with {len(points)} bytes where {n_bytes} are due")
        _same_again(self._requests, shard, points)
        self._n_requests[shard] += 1
        if self._n_requests[shard] > MAX_ANSWERS:
            self._over = f"the guest asked for a shard more than {MAX_ANSWERS} times"
            self._check_goes_on()

    def answer(self, shard: int, points: bytes) -> tuple[bytes, bytes]:
        """The host's own points and the guest's under both keys, for a request that was accepted.

        Raises:
            ProtocolError: some are no points of the curve.
        """
        response = respond(self._key, points)
        own = setup(self._key, pad(self._key, shard, self.shards.ids(shard), self.dealing.host_points))
        self._answered.add(shard)
        return own, response

    def settle(self, shard: int, tags: bytes) -> list[int]:
        """Take which IDs of a shard are common: their places in `shards.ids(shard)`, in the order of the tags.

        What the host gives for common rows, such as scores, it gives for these.

        Raises:
            ProtocolError: the shard was not intersected, or was settled otherwise.
            DataError: a tag is of no ID that the host holds, or comes twice. Nothing is settled any more then: each try
            would tell the guest a little more of the host's IDs than it has announced to ask.
        """
        self._check_shard(shard)
        with self._lock:  # Of several tries at a time, too, only one is answered.
            return self._settle(shard, tags)

    def _settle(self, shard: int, tags: bytes) -> list[int]:
        self._check_goes_on()
        if shard not in self._answered:
            raise ProtocolError("the guest told what is common in a shard of the alignment before it was intersected")
        most = min(self.dealing.guest_points, self.dealing.host_points)
        if len(tags) % TAG_BYTES or len(tags) > most * TAG_BYTES:
            raise ProtocolError(f"{len(tags)} bytes came as tags of {TAG_BYTES} bytes, {most} at the most")
        if shard in self._settled:
            _same_again(self._settled, shard, tags)  # Before it shows whether the host holds them.
        told = [tags[start : start + TAG_BYTES] for start in range(0, len(tags), TAG_BYTES)]
        # The texts have no numbers, and what comes twice is seen first, whatever the host holds: the guest is told no
        # more of the host's IDs than that one of those that it took for common is none.
        if len({*told}) < len(told):
            self._over = "the guest took IDs for common that are not"
            raise DataError("the guest names common IDs twice")
        place = {self.dealing.tag(one): number for number, one in enumerate(self.shards.ids(shard))}
        if not place.keys() >= {*told}:
            self._over = "the guest took IDs for common that are not"
            raise DataError("the guest takes IDs for common that the host does not hold")
        if shard not in self._settled:
            self.n_common += len(told)
        _same_again(self._settled, shard, tags)
        return [place[tag] for tag in told]

    def _check_goes_on(self) -> None:
        if self._over is not None:
            raise ProtocolError(f"the alignment is over: {self._over}")

    def _check_shard(self, shard: int) -> None:
        if not 0 <= shard < self.dealing.n_shards:
            raise ProtocolError(f"there is no shard {shard} in an alignment of {self.dealing.n_shards}")


def _same_again(seen: dict[int, bytes], shard: int, data: bytes) -> None:
    digest = hashlib.sha256(data).digest()
    if seen.setdefault(shard, digest) != digest:
        raise ProtocolError("a shard of the alignment came again, and not the same")
