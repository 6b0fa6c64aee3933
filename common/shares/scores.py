"""Shares of single scores, for rows whose scores are opened to the guest: a fold of a cross-validation by AUC.

In a round both parties know z = u' + r + OFFSET, and have dealt shares of R, which is r without its low bits, and of W,
its top bit; see `kernels`. So each has a share of u' without its low bits: z - OFFSET - R + (W if the top bit of z is
clear). The host sends the upper bits of its share, and the guest adds those of its own.

Only OPENED_BITS bits travel, whatever the other party has sent as its part of z. The lowest of them is off by one in
half of the rows, because each share is cut by itself.
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.roles import Role
from trilateral.common.shares import kernels
from trilateral.common.shares.format import Format
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import GROUP, grouped

FRACTION_BITS = 11
"""Fraction bits of an opened u', which is u 32 / P, at most."""
OPENED_BITS = 18
"""Bits of an opened score, its sign among them: |u'| is below 64, which is two periods of the series."""


def score_share(
    fmt: Format, role: Role, key: bytes, dealt: ElementVector, z: ElementVector, first_row: int
) -> ElementVector:
    """Return a party's share of the score u' of some rows, modulo 2^OPENED_BITS.

    Args:
        fmt: the numbers of the job.
        role: host or guest.
        key: of the streams of the round that the party has in common with the coordinator.
        dealt: what the coordinator has sent of these rows, shape (n_rows * n_columns,).
        z: both parties' shares together, shape (n_rows,).
        first_row: the first of the rows.

    Returns:
        Shape (n_rows,).
    """
    is_host = role is Role.HOST
    own = kernels.stream(key, Purpose.DEALT, first_row, len(z), fmt.n_even if is_host else fmt.n_odd)
    even, odd = (own, dealt) if is_host else (dealt, own)
    at = 2 * fmt.n_terms
    wrap, r = grouped(odd, fmt.n_odd)[:, at // 2], grouped(even, fmt.n_even)[:, at // 2 + 1]
    zs = z.reshape(-1, GROUP)
    share = np.where(zs >> np.uint64(63), np.uint64(0), wrap) - r
    if is_host:
        cut = fmt.square_cut
        share += (zs >> np.uint64(cut)) - np.uint64(1 << (62 - cut))
    return (share >> np.uint64(fmt.f_v - fraction_bits(fmt))).ravel() & np.uint64(2**OPENED_BITS - 1)


def open_scores(fmt: Format, own: ElementVector, other: ElementVector) -> FloatVector:
    """Return the scores u that two shares add up to, shape (n_rows,)."""
    left = np.uint64(64 - OPENED_BITS)
    total: NDArray[np.int64] = ((own + other) << left).view(np.int64) >> np.int64(64 - OPENED_BITS)
    return np.ldexp(total.astype(np.float64), -fraction_bits(fmt)) * (fmt.series.period / 32)


def fraction_bits(fmt: Format) -> int:
    """Return how many fraction bits an opened score u' has."""
    return min(fmt.f_v, FRACTION_BITS)
