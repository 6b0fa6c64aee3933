"""The host's side of one prediction: which rows are common, and then, and not before, its scores of them.

All shards are settled before the first score leaves, so that how many will leave is known exactly and they are
counted at once: a prediction gets all of its scores, or is refused with none.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.data.model.spool import ScoredShards
from trilateral.common.protocol.ids import canonical_order, check_id_digest


class Settling(Protocol):
    """Finds which rows of a shard are common, from what the guest tells: a `HostSession`, or `SameIds`."""

    def settle(self, shard: int, told: bytes, /) -> Sequence[int]:
        """Their places among the IDs of the shard, in the order in which the guest expects the scores.

        Raises:
            TrilateralError: what the guest tells is not so.
        """
        ...


class SameIds:
    """Both parties hold the same IDs, which the guest proves shard by shard; nothing is intersected.

    Scores come in canonical order of the IDs.
    """

    def __init__(self, shards: ScoredShards, guest_nonce: bytes, host_nonce: bytes) -> None:
        self._shards = shards
        self._nonces = guest_nonce, host_nonce

    def settle(self, shard: int, told: bytes, /) -> list[int]:
        """See `Settling`; `told` is the guest's digest of the IDs of the shard in canonical order."""
        ids = self._shards.ids(shard)
        order = canonical_order(ids)
        check_id_digest(told, [ids[place] for place in order], *self._nonces, Role.GUEST)
        return order


class HostPrediction:
    """The scores of one prediction, shard by shard. Its methods read and write files, and may run in any thread.

    Args:
        shards: the host's rows with its scores.
        n_shards: how many there are.
        settling: finds the common rows.
        folder: for the scores that are to leave.
    """

    def __init__(self, shards: ScoredShards, n_shards: int, settling: Settling, folder: Path) -> None:
        self._shards = shards
        self.n_shards = n_shards
        self._settling = settling
        self._folder = folder
        self._lock = threading.Lock()
        self._settled: dict[int, int] = {}
        """Shard to how many rows of it are common."""

    @property
    def complete(self) -> bool:
        """Whether every shard is settled."""
        return len(self._settled) == self.n_shards

    @property
    def n_common(self) -> int:
        """Rows that are common, as far as is settled."""
        return sum(self._settled.values())

    def settle(self, shard: int, told: bytes) -> None:
        """Take what the guest tells of a shard; the same again changes nothing.

        Raises:
            TrilateralError: there is no such shard, or what the guest tells is not so.
        """
        self._check(shard)
        with self._lock:
            places = self._settling.settle(shard, told)
            if shard not in self._settled:
                scores = self._shards.read(shard).scores[np.asarray(places, np.int64)]
                # Not as .npy, whose header is parsed as Python: of several threads at a time that fails now and then.
                scores.tofile(self._path(shard))
                self._settled[shard] = len(scores)

    def scores(self, shard: int) -> FloatVector:
        """u_A of the common rows of a shard, in the order that its settling gave; shape (n_common of it,).

        Raises:
            ProtocolError: there is no such shard, or one is not settled yet.
        """
        self._check(shard)
        if not self.complete:
            raise ProtocolError(
                f"the guest asks for scores when {len(self._settled)} of {self.n_shards} shards are settled"
            )
        scores: FloatVector = np.fromfile(self._path(shard), np.float64)
        return scores

    def _check(self, shard: int) -> None:
        if not 0 <= shard < self.n_shards:
            raise ProtocolError(f"there is no shard {shard} in a prediction of {self.n_shards}")

    def _path(self, shard: int) -> Path:
        return self._folder / f"scores-{shard}"
