import math
from itertools import product

import numpy as np
import pytest

from trilateral.common.shares.format import (
    COVER_BITS,
    MAX_MEAN_SCORE,
    MAX_RESIDUAL_BITS,
    SCORE_BITS,
    WAVE_BITS,
    WEIGHT_ROOM,
    Format,
)
from trilateral.common.shares.layout import pad
from trilateral.common.shares.ring import decode

CASES = [
    (n_rows, max_score, bits)
    for n_rows, max_score, bits in product((16, 100, 5000, 19_200, 96_000, 10**6, 10**8), (8, 12, 24), (None, 0, 4))
]


@pytest.mark.parametrize(("n_rows", "max_score", "bits"), CASES)
def test_no_sum_within_its_bounds_leaves_the_ring(n_rows: int, max_score: int, bits: int | None) -> None:
    fmt = Format.of(n_rows, max_score, bits)
    room = WEIGHT_ROOM if fmt.weighted else 0
    # A gradient of n rows with a root mean square of 1 and a mean loss of 1.
    assert n_rows * fmt.column_scale * 2 ** (fmt.f_d + fmt.f_c + room) <= 2**63
    # A loss at the largest root mean square of the scores: the squares, and the linear rest of wrong labels.
    u = MAX_MEAN_SCORE * fmt.series.period
    loss = u**2 / (2 * fmt.series.period) + fmt.series.loss_at_zero * 2 + math.log(2) + u / 2
    assert loss / fmt.loss_unit * n_rows * 2 ** (fmt.loss_bits + room) < 2**63


@pytest.mark.parametrize(("n_rows", "max_score", "bits"), CASES)
def test_the_numbers_fit_the_kernel(n_rows: int, max_score: int, bits: int | None) -> None:
    fmt = Format.of(n_rows, max_score, bits)
    assert 1 <= fmt.residual_cut <= fmt.square_cut <= 62
    assert fmt.f_d <= MAX_RESIDUAL_BITS
    assert all(0 <= wave <= WAVE_BITS for wave in fmt.wave_bits)
    assert fmt.f_wl >= 1
    assert fmt.f_x + fmt.f_w == pytest.approx(SCORE_BITS)


@pytest.mark.parametrize(("n_rows", "max_score", "bits"), CASES)
def test_what_is_dropped_covers_the_noise_by_eight_bits(n_rows: int, max_score: int, bits: int | None) -> None:
    fmt = Format.of(n_rows, max_score, bits)
    for rows in (16, pad(n_rows)):
        cover = 4 ** fmt.gradient_drop(rows) / fmt.gradient_variance(rows)
        assert 4**COVER_BITS <= cover < 4 ** (COVER_BITS + 1)


def test_a_gradient_of_a_usual_job_has_a_noise_below_a_millionth() -> None:
    for n_rows in (19_200, 96_000, 10**6, 10**7):
        assert Format.of(n_rows, 12).gradient_noise(pad(n_rows)) / n_rows < 5e-7


def test_all_three_processes_have_the_same_numbers() -> None:
    assert Format.of(19_200, 12) == Format.of(19_200, 12)
    assert Format.of(19_200, 12) != Format.of(19_200, 12, 0)


def test_hold_out_rows_have_no_sample_weights() -> None:
    fmt = Format.of(5000, 12, 6)
    assert fmt.n_values == fmt.holdout.n_values + 1
    assert (fmt.holdout.f_c, fmt.holdout.weighted, fmt.holdout.n_opened) == (0, False, 1)
    assert fmt.holdout.loss_bits == 2 * fmt.f_v


def test_a_table_that_leaves_no_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="1000000000 rows with 20 bits of sample weights do not fit 64 bits"):
        Format.of(10**9, 12, 20)
    with pytest.raises(ValueError, match="max_score 10: expected one of 8, 12, 24"):
        Format.of(1000, 10)


def test_weights_are_encoded_at_both_scales() -> None:
    fmt, w = Format.of(5000, 24), np.array([0.5, -1.25, 3.0])
    np.testing.assert_allclose(decode(fmt.encode_score_weights(w), fmt.f_w), w * 32 / fmt.series.period, atol=1e-8)
    np.testing.assert_allclose(decode(fmt.encode_loss_weights(w), fmt.f_wl), w * 1024 / fmt.series.period, atol=1e-5)
