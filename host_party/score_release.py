"""The scores that leave the host in one prediction. First the common rows are settled, then their scores leave.

All shards are settled before the first score leaves. The host then knows exactly how many scores will leave and counts
them at once, so that a prediction gets either all of its scores or none.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from trilateral.common.base.arrays import FloatVector, Rows
from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.data.model.reasons import encode_places
from trilateral.common.data.model.spool import ScoredShards
from trilateral.common.protocol.evaluation import round_scores
from trilateral.common.protocol.ids import check_id_digest


class Settling(Protocol):
    """Finds the common rows of a shard from the guest's proof: a `HostSession`, or `SameIds`."""

    def settle(self, shard: int, proof: bytes, /) -> Rows:
        """Return the places of the common rows within the shard, in the order in which the guest expects the scores.

        Raises:
            TrilateralError: the proof is wrong.
        """
        ...


class SameIds:
    """Both parties hold the same IDs. The guest proves it for each shard, and there is no intersection.

    Scores leave in the canonical order of the IDs.
    """

    def __init__(self, shards: ScoredShards, guest_nonce: bytes, host_nonce: bytes) -> None:
        self._shards = shards
        self._nonces = guest_nonce, host_nonce

    def settle(self, shard: int, proof: bytes, /) -> Rows:
        """See `Settling`. The proof is the guest's digest of the IDs of the shard in canonical order."""
        ids = self._shards.read(shard).ids
        order = ids.order()
        check_id_digest(proof, ids.take(order).digest(), *self._nonces, Role.GUEST)
        return order


@dataclass(frozen=True)
class ReleasedScores:
    """What leaves the host for the common rows of a shard, in the order of its settling.

    Attributes:
        scores: u_A, rounded; see `round_scores`. In a model of classes, the scores of a row for all classes come one
            after the other.
        reasons: the reason codes of the rows, one after the other; see `encode_places`.
    """

    scores: FloatVector
    reasons: bytes


class ScoreRelease:
    """The host's scores of one prediction, shard by shard. Methods read and write files and may run in any thread.

    Args:
        shards: the host's rows with its scores.
        n_shards: number of shards.
        settling: finds the common rows.
        folder: folder for the scores that will leave.
    """

    def __init__(self, shards: ScoredShards, n_shards: int, settling: Settling, folder: Path) -> None:
        self._shards = shards
        self.n_shards = n_shards
        self._settling = settling
        self._folder = folder
        self._lock = threading.Lock()
        self._settled: dict[int, int] = {}
        """Number of common rows of each settled shard."""

    @property
    def complete(self) -> bool:
        """Whether every shard is settled."""
        return len(self._settled) == self.n_shards

    @property
    def n_common(self) -> int:
        """Number of common rows in the shards settled so far."""
        return sum(self._settled.values())

    def settle(self, shard: int, proof: bytes) -> None:
        """Settle the common rows of a shard. Repeating the call changes nothing.

        Raises:
            TrilateralError: there is no such shard, or the proof is wrong.
        """
        self._check(shard)
        with self._lock:
            places = self._settling.settle(shard, proof)
            if shard not in self._settled:
                rows = self._shards.read(shard)
                scores = round_scores(rows.scores[places])
                encode_places(rows.reasons[places]).tofile(self._path(shard, "reasons"))
                # Not as .npy: its header is parsed as Python, which sometimes fails when several threads do it at once.
                scores.tofile(self._path(shard, "scores"))
                self._settled[shard] = len(scores)

    def scores(self, shard: int) -> ReleasedScores:
        """Return what leaves for the common rows of a shard.

        Raises:
            ProtocolError: there is no such shard, or a shard is not settled yet.
        """
        self._check(shard)
        if not self.complete:
            raise ProtocolError(
                f"the guest asks for scores, but only {len(self._settled)} of {self.n_shards} shards are settled"
            )
        return ReleasedScores(
            np.fromfile(self._path(shard, "scores"), np.float64), self._path(shard, "reasons").read_bytes()
        )

    def _check(self, shard: int) -> None:
        if not 0 <= shard < self.n_shards:
            raise ProtocolError(f"there is no shard {shard} in a prediction of {self.n_shards} shards")

    def _path(self, shard: int, what: str) -> Path:
        return self._folder / f"{what}-{shard}"
