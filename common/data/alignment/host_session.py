"""The host's side of one alignment: what it answers and what it refuses."""

import hashlib
from collections import Counter
from secrets import token_bytes
from threading import Lock

import numpy as np

from trilateral.common.base.arrays import Rows
from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.compute.engine import Engine
from trilateral.common.compute.local import LOCAL
from trilateral.common.curve25519.points import KEY_BYTES, POINT_BYTES
from trilateral.common.data.alignment.dealing import TAG_BYTES, Dealing
from trilateral.common.data.alignment.intersection import answer, pad
from trilateral.common.data.alignment.sources import IdSource

MAX_ANSWERS = 10
"""The maximum number of answers for one shard. The guest repeats a request if an answer is lost, and each answer takes
seconds to compute."""

NOT_COMMON = "the guest reported common IDs that are not common"


class HostSession:
    """Answers one request for each shard, and learns which of its IDs are common.

    The guest may repeat a request, because an answer can be lost. The repeated request must be the same, or else the
    guest could try more IDs than it has announced. `answer` and `settle` may run in any thread, and in several at once,
    after `deal`.

    Args:
        source: the host's IDs.
        dealing: the session's assignment of IDs to shards.
        engine: runs the work on the points.

    Attributes:
        dealing: as above.
        n_common: the number of common IDs that the guest has reported so far.
    """

    def __init__(self, source: IdSource, dealing: Dealing, engine: Engine = LOCAL) -> None:
        self.dealing = dealing
        self._source = source
        self._engine = engine
        self._key = token_bytes(KEY_BYTES)
        self._secret = token_bytes(32)
        """The padding follows from it."""
        self._requests: dict[int, bytes] = {}
        self._settled: dict[int, bytes] = {}
        self._answered: set[int] = set()
        self._n_requests: Counter[int] = Counter()
        self._over: str | None = None
        """Why the session is over; None while it continues."""
        self._lock = Lock()
        self.n_common = 0

    def deal(self) -> None:
        """Deal the host's IDs to the shards. The guest may deal its own at the same time.

        Raises:
            DataError: the IDs repeat.
        """
        self.shards = self._source.deal(self.dealing)

    @property
    def complete(self) -> bool:
        """Whether every shard is settled."""
        return len(self._settled) == self.dealing.n_shards

    @property
    def over(self) -> bool:
        """Whether a violation by the guest has ended the session, so that nothing is answered or settled any more."""
        return self._over is not None

    @property
    def n_answered(self) -> int:
        """The number of answered shards."""
        return len(self._answered)

    @property
    def n_settled(self) -> int:
        """The number of shards whose common IDs the guest has reported."""
        return len(self._settled)

    def check_request(self, shard: int, points: bytes) -> None:
        """Accept or refuse the guest's points for one shard.

        Args:
            shard: number of the shard.
            points: the guest's points.

        Raises:
            ProtocolError: there is no such shard, the number of points is wrong, the points differ from an earlier
                request, or there were too many requests. After too many requests the session is over.
        """
        self._check_shard(shard)
        self._check_goes_on()
        n_bytes = self.dealing.guest_points * POINT_BYTES
        if len(points) != n_bytes:
            raise ProtocolError(f"a request for a shard of the alignment has {len(points)} bytes, expected {n_bytes}")
        _same_again(self._requests, shard, points)
        self._n_requests[shard] += 1
        if self._n_requests[shard] > MAX_ANSWERS:
            self._over = f"the guest requested a shard more than {MAX_ANSWERS} times"
            self._check_goes_on()

    def answer(self, shard: int, points: bytes) -> tuple[bytes, bytes]:
        """Compute the answer to an accepted request.

        Args:
            shard: number of the shard.
            points: the guest's points, as `check_request` accepted them.

        Returns:
            The host's own points, and the guest's points under both keys.

        Raises:
            ProtocolError: the guest sent a point of low order.
            DataError: the shard has more IDs than it has room for; a new session will succeed.
        """
        texts = pad(self._secret, shard, self.shards.ids(shard), self.dealing.host_points)
        answered = self._engine.submit(answer, self._key, texts, points).result()
        self._answered.add(shard)
        return answered

    def settle(self, shard: int, tags: bytes) -> Rows:
        """Accept the guest's report of the common IDs of a shard.

        Later values for common rows, such as scores, are given for exactly these IDs.

        Args:
            shard: number of the shard.
            tags: the tags of the common IDs, concatenated.

        Returns:
            The indices of the common IDs in `shards.ids(shard)`, in the order of the tags, shape (n_tags,).

        Raises:
            ProtocolError: the shard was not answered before, or was settled with other tags.
            DataError: a tag is repeated or belongs to no ID of the host. The session is then over, because every
                further try would tell the guest more about the host's IDs than its requests did.
        """
        self._check_shard(shard)
        with self._lock:  # so that only one of several simultaneous tries is answered
            return self._settle(shard, tags)

    def _settle(self, shard: int, tags: bytes) -> Rows:
        self._check_goes_on()
        if shard not in self._answered:
            raise ProtocolError("the guest reported common IDs of a shard of the alignment before the host answered it")
        most = min(self.dealing.guest_points, self.dealing.host_points)
        if len(tags) % TAG_BYTES or len(tags) > most * TAG_BYTES:
            raise ProtocolError(f"received {len(tags)} bytes, expected at most {most} tags of {TAG_BYTES} bytes")
        if shard in self._settled:
            _same_again(self._settled, shard, tags)  # Check before revealing whether the host holds them.
        told = [tags[start : start + TAG_BYTES] for start in range(0, len(tags), TAG_BYTES)]
        # The errors have no numbers, and repeated tags are checked first, regardless of the host's IDs. So the guest
        # learns no more than that at least one of the reported IDs is not common.
        if len({*told}) < len(told):
            self._over = NOT_COMMON
            raise DataError("the guest reports a common ID twice")
        place = {tag: number for number, tag in enumerate(self.dealing.tags(self.shards.ids(shard)))}
        if not place.keys() >= {*told}:
            self._over = NOT_COMMON
            raise DataError("the guest reports common IDs that the host does not hold")
        if shard not in self._settled:
            self.n_common += len(told)
        _same_again(self._settled, shard, tags)
        return np.array([place[tag] for tag in told], np.int64)

    def _check_goes_on(self) -> None:
        if self._over is not None:
            raise ProtocolError(f"the alignment is over: {self._over}")

    def _check_shard(self, shard: int) -> None:
        if not 0 <= shard < self.dealing.n_shards:
            raise ProtocolError(f"there is no shard {shard} in an alignment of {self.dealing.n_shards}")


def _same_again(seen: dict[int, bytes], shard: int, data: bytes) -> None:
    digest = hashlib.sha256(data).digest()
    if seen.setdefault(shard, digest) != digest:
        raise ProtocolError("a repeated message about a shard of the alignment differs from the first one")
