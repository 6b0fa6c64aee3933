"""The keys of a session's streams.

Two ends of a stream each draw a part of its seed for the session. A *session* is one run of the three state machines: a
restart of any process begins another one, with other seeds. No seed is stored, so no mask is ever used for two values,
whatever crashes and whatever is put back from a copy. Within a session, each attempt at each round has a key of its
own, and what belongs to no round has the key of round 0, attempt 0.

The coordinator deals to the host from the stream that those two have in common, and to the guest likewise. The third
stream is the parties' own: the coordinator never sees its seed, and everything that reaches the coordinator is masked
by it. The seeds travel over connections that are encrypted and authenticated.
"""

import secrets
from dataclasses import dataclass, field
from typing import Self

from trilateral.common.base.errors import ProtocolError
from trilateral.common.protocol.messages import RoundKey
from trilateral.common.shares.keys import SEED_BYTES, pair_seed, stream_key

SESSION = RoundKey(0, 0)
"""The key of everything that belongs to a session and not to a round."""


def draw_seed() -> bytes:
    """Return one end's part of a seed, from the operating system."""
    return secrets.token_bytes(SEED_BYTES)


@dataclass(frozen=True)
class StreamKeys:
    """The keys of the streams that the holders of one seed have in common in one session."""

    seed: bytes = field(repr=False)

    @classmethod
    def agreed(cls, first: bytes, second: bytes) -> Self:
        """Return the keys of a pair.

        They are uniform to everybody else if either part is, so neither end depends on the other's generator.

        Args:
            first: the part of the end that spoke first: the coordinator, or the guest to the host.
            second: the part of the other end.

        Raises:
            ProtocolError: a part does not have `SEED_BYTES` bytes.
        """
        try:
            return cls(pair_seed(first, second))
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    @classmethod
    def alone(cls) -> Self:
        """Return the keys of streams that only this process has."""
        return cls(draw_seed())

    @property
    def session(self) -> bytes:
        """The key of what belongs to no round, 16 bytes."""
        return self.of(SESSION)

    def of(self, key: RoundKey) -> bytes:
        """Return the key of an attempt at a round, 16 bytes."""
        return stream_key(self.seed, key.round, key.attempt)
