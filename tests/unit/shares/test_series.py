import numpy as np
import pytest
from numpy.typing import NDArray

from trilateral.common.shares.reference import wave_table
from trilateral.common.shares.series import COEF_BITS, LOSS_COEF_BITS, MAX_TERMS, SERIES, Series


def angles(series: Series, u: NDArray[np.float64]) -> NDArray[np.float64]:
    terms: NDArray[np.float64] = 2 * np.pi * np.outer(u, np.arange(1, len(series.coef) + 1)) / series.period
    return terms


@pytest.mark.parametrize("max_score", SERIES)
def test_a_series_is_the_sigmoid_up_to_max_score(max_score: int) -> None:
    series, u = SERIES[max_score], np.linspace(-max_score, max_score, 4001)
    b = np.array(series.coef) / 2**COEF_BITS
    value = 0.5 + u / series.period + np.sin(angles(series, u)) @ b
    assert np.abs(value - 1 / (1 + np.exp(-u))).max() < 8e-7


@pytest.mark.parametrize("max_score", SERIES)
def test_the_loss_of_a_series_is_the_logistic_loss_up_to_max_score(max_score: int) -> None:
    series, u = SERIES[max_score], np.linspace(-max_score, max_score, 4001)
    waves = series.period / 2048 * np.array(series.loss_coef) / 2**LOSS_COEF_BITS
    value = u**2 / (2 * series.period) - np.cos(angles(series, u)) @ waves + np.log(2) + series.loss_at_zero
    assert np.abs(value - np.logaddexp(u / 2, -u / 2)).max() < 1e-6


@pytest.mark.parametrize("max_score", SERIES)
def test_a_series_rises_everywhere_so_that_its_loss_is_convex(max_score: int) -> None:
    series = SERIES[max_score]
    u = np.linspace(0, series.period / 2, 50001)
    b = np.array(series.coef) / 2**COEF_BITS
    slope = 1 / series.period + np.cos(angles(series, u)) @ (b * angles(series, np.ones(1))[0])
    # The largest slope is 1/4. Rounding the coefficients moves it by some 1e-9.
    assert slope.min() > -5e-9


@pytest.mark.parametrize("max_score", SERIES)
def test_the_numbers_of_a_series_fit_the_kernel(max_score: int) -> None:
    series = SERIES[max_score]
    assert len(series.coef) <= MAX_TERMS
    assert series.period * 16 == round(series.period * 16)
    assert all(series.coef)
    assert all(abs(b) < 2**31 for b in (*series.coef, *series.loss_coef))


def test_the_table_of_waves_is_cosine_and_sine() -> None:
    table, turn = wave_table(), 2 * np.pi * np.arange(2**16) / 2**16
    assert np.abs(table[:, 0] - np.cos(turn) * 2**30).max() < 0.5001
    assert np.abs(table[:, 1] - np.sin(turn) * 2**30).max() < 0.5001
    assert table[[0, 2**14, 2**15, 3 * 2**14]].tolist() == [[2**30, 0], [0, 2**30], [-(2**30), 0], [0, -(2**30)]]
