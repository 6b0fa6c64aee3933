"""How far the roles run ahead of each other, and the sizes that they accept: bounds on what each keeps in memory."""

from trilateral.common.shares.format import Format
from trilateral.common.shares.layout import BLOCK_ROWS

WINDOW_BYTES, MAX_WINDOW_BYTES = 16 * 2**20, 64 * 2**20
"""Bytes of dealt values that are on their way to a party at a time, in a small and in a large job."""
WINDOW_SHARE = 10
"""Between the two, a window has this part of the rows."""
MAX_PRODUCTS = 2**27
"""Numbers of 8 bytes that a party keeps for the products of columns with labels: 1 GiB, as at the coordinator."""
MAX_RESULT = 2**17
"""Weights of both parties, of all models together, whose shares end a job in one message: 1 MiB."""
MIN_WINDOW = 2
"""Blocks. With fewer, sending would not overlap with computing."""
MAX_INFERENCE_COLUMNS = 512
"""The most training columns of a party with inference: the information has a number for each pair of columns."""
MAX_NORM_BITS = 64
"""A party whose largest row has a norm beyond 2^64 or below 2^-64 has not scaled its columns."""


def window_blocks(fmt: Format, n_rows: int) -> int:
    """Return how many blocks of a round are under way at a time.

    The coordinator deals for no more blocks than this beyond those that a party is done with. A party sends its scores
    of no more blocks than this beyond those for which it has the other's answer.

    Args:
        fmt: the job's format.
        n_rows: rows of the tables. A large job has larger windows, so that the tasks of an engine can be larger.
    """
    of_rows = 8 * fmt.n_even * n_rows // WINDOW_SHARE
    n_bytes = min(max(WINDOW_BYTES, of_rows), MAX_WINDOW_BYTES)
    return max(MIN_WINDOW, n_bytes // (8 * BLOCK_ROWS * fmt.n_even))


def window_rows(fmt: Format, n_rows: int) -> int:
    """Return the rows of `window_blocks`."""
    return window_blocks(fmt, n_rows) * BLOCK_ROWS
