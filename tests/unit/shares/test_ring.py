"""Elements, the layout, and what leaves the parties."""

import numpy as np
import pytest

from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.shares.layout import pad, tile, untile
from trilateral.common.shares.ring import cut_share, decode, encode, join_shares


def uniform(n: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def test_numbers_come_back() -> None:
    values = np.array([0.0, -1.0, 0.75, 1e6, -(2.0**22)])
    np.testing.assert_array_equal(decode(encode(values, 40), 40), values)
    np.testing.assert_allclose(decode(encode(values, 10.5), 10.5), values, atol=1e-3)


@pytest.mark.parametrize("value", [2.0**23, -(2.0**23), np.inf, np.nan])
def test_a_number_that_does_not_fit_is_refused(value: float) -> None:
    with pytest.raises(OutOfRangeError, match="does not fit 64 bits with 40 fraction bits"):
        encode(np.array([0.0, value]), 40)


@pytest.mark.parametrize("bits", [0, 1, 20, 50])
def test_cut_shares_add_up_to_less_than_a_unit(bits: int) -> None:
    n = 20_000
    masks, own, guest = uniform(n, 0), uniform(n, 1), uniform(n, 2)
    true = np.random.default_rng(3).integers(-(2**60), 2**60, n)
    host = true.view(np.uint64) - own - guest
    joined = join_shares(
        cut_share(host, masks, bits, subtract=False), cut_share(guest, masks, bits, subtract=True), own, bits
    )
    error = (joined.view(np.int64) - true) / 2.0**bits
    assert np.abs(error).max() <= (1 if bits else 0)
    assert abs(error.mean()) < (0.55 if bits == 1 else 0.02)
    if bits > 1:
        assert error.std() == pytest.approx(6**-0.5, rel=0.05)


def test_what_a_party_sends_of_a_sum_is_uniform_whatever_the_sum_is() -> None:
    for share in (np.zeros(2**16, np.uint64), np.full(2**16, 2**63, np.uint64)):
        sent = cut_share(share, uniform(2**16, 5), 40, subtract=False)
        counts = np.bincount((sent >> np.uint64(16)).astype(np.int64), minlength=256)
        assert ((counts - 256) ** 2 / 256).sum() < 400  # Chi-squared with 255 degrees of freedom.


def test_a_table_comes_back_with_rows_of_zeros() -> None:
    matrix = np.arange(21 * 3, dtype=np.uint64).reshape(21, 3)
    table = tile(matrix, pad(21))
    assert pad(21) == 32
    np.testing.assert_array_equal(untile(table, 3)[:21], matrix)
    assert not untile(table, 3)[21:].any()
    # Element (row, column) stands where the streams have it.
    assert table[(9 // 8 * 3 + 2) * 8 + 9 % 8] == matrix[9, 2]


@pytest.mark.parametrize("n_padded", [16, 30])
def test_a_table_of_other_sizes_is_refused(n_padded: int) -> None:
    with pytest.raises(ValueError, match="expected a multiple of 16, and at least 21"):
        tile(np.zeros((21, 2), np.int32), n_padded)
