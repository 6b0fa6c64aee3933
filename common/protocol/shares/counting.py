"""Counts of labels in the host's bins, opened to the guest alone: h = X'q modulo 2^k, once in a session.

X has a column of 0 and 1 for each fine bin of the host, and q = 1 - 2y is -1 for a positive row and 1 for a negative
one. So h_b is the number of negative rows of bin b minus that of positive ones. As in a training, each party holds its
own table and what the other one has masked: the guest D_A = X - U_A, and the host D_q = q - U_q. The coordinator can
make U_A and U_q again. Then

    h = D_A' q  [guest]  +  U_A' D_q  [host]  +  U_A' U_q  [coordinator]

The host and the coordinator send their parts to the guest, and two rules protect them:

- **A mask m** of their own stream, which the host adds and the coordinator subtracts. Without it, the guest, which
  knows D_q, would get one linear equation about U_A, and so about X, with known random coefficients of 64 bits for each
  bin: enough to determine the members of a bin of 60 rows.
- **Only the lowest k bits**, k = `count_bits`: both shift their part to the upper end of the ring. These are the bits
  of an honest h, so a bin gives the guest k bits whatever it sends for q. With all 64 bits, a guest with q_i = 4^i
  would read 30 memberships from one bin. The host cannot see q, but it enforces the cut by itself.

The columns are exact: their scale is 1. The coordinator learns the numbers of rows and of fine bins, and nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from trilateral.common.base.arrays import ElementVector
from trilateral.common.protocol.binning import MAX_FINE_BINS, Counts, FineBins
from trilateral.common.protocol.shares.rows import RowRange
from trilateral.common.shares import kernels
from trilateral.common.shares.keys import Purpose
from trilateral.common.shares.layout import BLOCK_ROWS, ROWS, pad, tile

MAX_FINE = 8_192
"""The most fine bins of all columns together, so that their counts travel in one message."""
WINDOW_BYTES = 16 * 2**20
"""Bytes of masked columns that the host sends ahead of the guest's answers."""
_PIECE_ELEMENTS = 7 * 2**16
"""Masked columns that travel together: 3.5 MiB, in one message."""


def count_bits(n_rows: int) -> int:
    """Return k: 2^k is at least the number of values of h over `n_rows` rows, which are -n_rows to n_rows."""
    return (2 * n_rows).bit_length()


def piece_rows(n_fine: int) -> int:
    """Return how many rows of masked columns travel together."""
    return min(BLOCK_ROWS, max(ROWS, _PIECE_ELEMENTS // max(n_fine, 1) // ROWS * ROWS))


def pieces(n_rows: int, n_fine: int) -> list[RowRange]:
    """Return the pieces of the rows of the tables, in order."""
    total, size = pad(n_rows), piece_rows(n_fine)
    return [RowRange(first, min(size, total - first)) for first in range(0, total, size)]


def one_hot(codes: NDArray[np.uint8], bins: list[FineBins], rows: RowRange) -> NDArray[np.int32]:
    """Return the columns of 0 and 1 of some rows, in the layout.

    Args:
        codes: the fine bin of each column, shape (n_rows, n_columns).
        bins: of each column.
        rows: which rows. Those beyond the table are zeros.

    Returns:
        Shape (rows.n_rows * n_fine,).
    """
    part = codes[rows.first : rows.end]
    starts = first_bins(bins)
    table = np.zeros((len(part), starts[-1]), np.int32)
    for column, start in enumerate(starts[:-1]):
        # A column's own bins fit into a byte, but the place among the bins of all columns does not.
        table[np.arange(len(part)), start + part[:, column].astype(np.intp)] = 1
    return tile(table, rows.n_rows)


def first_bins(bins: list[FineBins]) -> list[int]:
    """Return the place of the first fine bin of each column among all, and at the end the number of all."""
    return [0, *np.cumsum([len(each.n_rows) for each in bins]).tolist()]


def add_coordinator_share(host: bytes, guest: bytes, rows: RowRange, sums: ElementVector) -> None:
    """Add the coordinator's part of h of some rows.

    Args:
        host: key of the session's stream with the host.
        guest: key of the session's stream with the guest.
        rows: the rows.
        sums: shape (n_fine,).
    """
    labels = kernels.stream(guest, Purpose.LABELS, rows.first, rows.n_rows, 1)
    kernels.add_mask_products(host, Purpose.COLUMNS, rows.first, len(sums), labels, sums)


def add_host_share(host: bytes, rows: RowRange, masked_labels: ElementVector, sums: ElementVector) -> None:
    """Add the host's part of h of some rows.

    Args:
        host: key of the session's stream of host and coordinator.
        rows: the rows.
        masked_labels: D_q of these rows, shape (n_rows,).
        sums: shape (n_fine,).
    """
    kernels.add_mask_products(host, Purpose.COLUMNS, rows.first, len(sums), masked_labels, sums)


def sent_share(host: bytes, sums: ElementVector, bits: int, *, subtract: bool) -> ElementVector:
    """Return what the host or the coordinator sends the guest: its part of h under m, and only k bits of it.

    Args:
        host: key of the session's stream of host and coordinator.
        sums: its part of h, shape (n_fine,).
        bits: k.
        subtract: whether to subtract m. The coordinator does.
    """
    mask = kernels.stream(host, Purpose.COUNTS, 0, pad(len(sums)), 1)[: len(sums)]
    return (sums - mask if subtract else sums + mask) << np.uint64(64 - bits)


def open_counts(own: ElementVector, host: ElementVector, coordinator: ElementVector, bits: int) -> Counts:
    """Return h at the guest, shape (n_fine,).

    Args:
        own: the guest's part, whole.
        host: what the host has sent.
        coordinator: what the coordinator has sent.
        bits: k.
    """
    total = (own << np.uint64(64 - bits)) + host + coordinator
    return total.view(np.int64) >> np.int64(64 - bits)


def are_valid(bins: list[FineBins], n_rows: int, min_rows: int) -> bool:
    """Return whether the host's fine bins are those of a table of `n_rows` rows, with enough rows in each."""
    return bool(bins) and all(
        2 <= each.n_present + each.has_missing <= MAX_FINE_BINS + 1
        and each.n_present >= 1
        and min(each.n_rows) >= min_rows
        and sum(each.n_rows) == n_rows
        for each in bins
    )


def positive_counts(bins: list[FineBins], h: Counts, labels: tuple[int, int]) -> list[Counts] | None:
    """Return the positive rows of each fine bin of each column; None if h contradicts the sizes of the bins.

    This finds mistakes. A host that wants to deceive can send columns that are not 0 and 1 and pass it.

    Args:
        bins: of each column.
        h: of all fine bins.
        labels: the guest's numbers of positive and of negative rows.
    """
    n_positive, n_negative = labels
    found, starts = [], first_bins(bins)
    for each, start, end in zip(bins, starts, starts[1:], strict=False):
        n_rows, difference = np.array(each.n_rows), h[start:end]
        is_possible = (np.abs(difference) <= n_rows) & ((n_rows - difference) % 2 == 0)
        if not is_possible.all() or int(difference.sum()) != n_negative - n_positive:
            return None
        found.append((n_rows - difference) // 2)
    return found
