"""Windows have room for several tasks, grow with the job up to a bound, and are the same at all three roles."""

import pytest

from trilateral.common.protocol.shares.bounds import MAX_WINDOW_BYTES, MIN_WINDOW, WINDOW_BYTES, window_blocks
from trilateral.common.shares.format import Format
from trilateral.common.shares.layout import BLOCK_ROWS

SIZES = (1_000, 1_000_000, 4_000_000, 10_000_000, 100_000_000, 1_000_000_000)


def n_bytes(fmt: Format, n_rows: int) -> int:
    return window_blocks(fmt, n_rows) * 8 * BLOCK_ROWS * fmt.n_even


@pytest.mark.parametrize("max_score", [8, 12, 24])
def test_a_window_grows_with_the_rows_between_its_bounds(max_score: int) -> None:
    fmt = Format.of(1_000_000, max_score)
    block = 8 * BLOCK_ROWS * fmt.n_even
    found = [n_bytes(fmt, n_rows) for n_rows in SIZES]
    assert found == sorted(found)
    assert WINDOW_BYTES - block < found[0] <= WINDOW_BYTES
    assert MAX_WINDOW_BYTES - block < found[-1] <= MAX_WINDOW_BYTES
    assert window_blocks(fmt, 0) >= MIN_WINDOW


@pytest.mark.parametrize("n_rows", SIZES)
def test_a_party_that_does_not_know_the_weights_of_rows_expects_the_same_window(n_rows: int) -> None:
    plain, weighted = (Format.of(n_rows, 12, bits) for bits in (None, 6))
    assert window_blocks(plain, n_rows) == window_blocks(weighted, n_rows)
