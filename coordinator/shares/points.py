"""How a point w reaches the parties: as shares, so that neither learns a weight, a step or a gradient."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.protocol.messages import WeightShares
from trilateral.common.shares import kernels
from trilateral.common.shares.format import MAX_MEAN_SCORE, MODEL_FRACTION_BITS, SCORE_LIMIT, Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import pad
from trilateral.common.shares.ring import encode
from trilateral.coordinator.plan import split

MAX_WEIGHT = 2.0**20
"""Every weight must be smaller, so that it fits the encodings of weights."""


@dataclass(frozen=True, eq=False)
class ScoreMasks:
    """What masks the products of one party's columns with the other party's share of their weights.

    They belong to one point in one attempt: two points under the same masks would show a party their difference. If
    the same rows are dealt for twice under one key, the masks must be the same ones, since the streams of that key are.
    """

    host: ElementVector = field(repr=False)
    """a: masks the guest's share of the host's weights, shape (n_host,)."""
    guest: ElementVector = field(repr=False)
    """b: masks the host's share of the guest's weights, shape (n_guest,)."""

    @classmethod
    def draw(cls, key: bytes, n_columns: Mapping[Role, int]) -> tuple[Self, Self]:
        """Return the masks of the two points of an attempt: w, and the point to evaluate on the hold-out rows.

        Args:
            key: of an attempt, of streams that only the coordinator has.
            n_columns: columns of each party.
        """
        n_host, n = n_columns[Role.HOST], sum(n_columns.values())
        elements = kernels.stream(key, Purpose.SHARES, 0, pad(2 * n), 1)
        return cls(elements[:n_host], elements[n_host:n]), cls(elements[n : n + n_host], elements[n + n_host : 2 * n])


def share_point(
    fmt: Format, point: FloatVector, masks: ScoreMasks, n_columns: Mapping[Role, int]
) -> Mapping[Role, WeightShares]:
    """Return each party's shares of a point at which it computes.

    Args:
        fmt: the job's format.
        point: w, in range, shape (n_host + n_guest,).
        masks: of this point in this attempt alone.
        n_columns: columns of each party.
    """
    score = _share(fmt.encode_score_weights(point))
    loss = _share(fmt.encode_loss_weights(point))
    n_host = n_columns[Role.HOST]
    return {
        Role.HOST: WeightShares(score[Role.HOST], score[Role.GUEST][:n_host] - masks.host, loss[Role.HOST]),
        Role.GUEST: WeightShares(score[Role.GUEST], score[Role.HOST][n_host:] - masks.guest, loss[Role.GUEST]),
    }


def share_result(point: FloatVector) -> Mapping[Role, ElementVector]:
    """Return each party's shares of the final weights, shape (n_host + n_guest,) each."""
    return _share(encode(point, MODEL_FRACTION_BITS))


@dataclass(frozen=True)
class Range:
    """Where the parties can compute, from what they have published about the sizes of their values.

    Outside, a score leaves the ring's range. The residual is then off by 2^15, and from such errors the coordinator
    could find rows; see docs/security.md.
    """

    norm_bits: Mapping[Role, int]
    """R: ceiling of log2 of the largest Euclidean norm of a row, of each party."""
    spread_bits: Mapping[Role, int]
    """S: `SharesReady.spread_bits` of each party."""
    period: float
    """P of the series."""
    n_columns: Mapping[Role, int]

    def contains(self, point: FloatVector) -> bool:
        """Return whether the parties can compute at w.

        The scores are bounded by Cauchy's inequality: |u| <= 2^R_host |w_host| + 2^R_guest |w_guest|. Their root mean
        square is at most 2^S_host |w_host| + 2^S_guest |w_guest|. `format` says why it is bounded, too: it keeps the
        sums of gradient and loss in the ring's range.
        """
        if not bool((np.abs(point) < MAX_WEIGHT).all()):
            return False
        norms = {party: float(np.linalg.norm(part)) for party, part in split(point, self.n_columns).items()}
        largest = self.largest_score(point)
        mean = sum(2.0 ** self.spread_bits[party] * norm for party, norm in norms.items())
        return largest * 32 / self.period < SCORE_LIMIT and mean < MAX_MEAN_SCORE * self.period

    def largest_score(self, point: FloatVector) -> float:
        """Return the bound of |u| at w."""
        parts = split(point, self.n_columns).items()
        return sum(2.0 ** self.norm_bits[party] * float(np.linalg.norm(part)) for party, part in parts)


def _share(elements: ElementVector) -> Mapping[Role, ElementVector]:
    """Split elements into two shares, under a mask from the operating system."""
    mask = np.frombuffer(secrets.token_bytes(8 * len(elements)), np.uint64)
    return {Role.HOST: mask, Role.GUEST: elements - mask}
