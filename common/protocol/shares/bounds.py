"""How far the roles run ahead of each other, and the sizes that they accept: bounds on what each keeps in memory."""

from trilateral.common.shares.format import Format
from trilateral.common.shares.layout import BLOCK_ROWS

WINDOW_BYTES = 16 * 2**20
"""Bytes of dealt values that are on their way to a party at a time."""
MAX_PRODUCTS = 2**27
"""Numbers of 8 bytes that a party keeps for the products of columns with labels: 1 GiB, as at the coordinator."""
MIN_WINDOW = 2
"""Blocks. With fewer, sending would not overlap with computing."""
MAX_NORM_BITS = 64
"""A party whose largest row has a norm beyond 2^64 or below 2^-64 has not scaled its columns."""


def window_blocks(fmt: Format) -> int:
    """Return how many blocks of a round are under way at a time.

    The coordinator deals for no more blocks than this beyond those that a party is done with. A party sends its scores
    of no more blocks than this beyond those for which it has the other's answer.
    """
    return max(MIN_WINDOW, WINDOW_BYTES // (8 * BLOCK_ROWS * fmt.n_even))


def window_rows(fmt: Format) -> int:
    """Return the rows of `window_blocks`."""
    return window_blocks(fmt) * BLOCK_ROWS
