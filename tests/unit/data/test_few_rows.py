"""How much a single row can make up of a combination of terms."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from trilateral.common.data.preprocessing.few_rows import MIN_ROWS, Leverage, leverage


def of(terms: NDArray[np.float64], n_block_rows: int = 64) -> Leverage:
    def blocks() -> Iterator[NDArray[np.float64]]:
        for start in range(0, len(terms), n_block_rows):
            yield terms[start : start + n_block_rows].copy()

    return leverage(blocks)


def test_it_is_the_diagonal_of_the_hat_matrix_of_centred_terms() -> None:
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((300, 4)) ** 3 * [1e-6, 1, 1e6, 5] + [1, 2, 3, 1e3]
    centred = terms - terms.mean(axis=0)
    hat = np.diag(centred @ np.linalg.pinv(centred))
    found = of(terms)
    assert (found.row, found.rank) == (int(hat.argmax()), 4)
    assert found.largest == pytest.approx(hat.max(), rel=1e-6)


@pytest.mark.parametrize(("n_ones", "shows"), [(MIN_ROWS - 1, True), (MIN_ROWS, False)])
def test_for_a_term_of_0_and_1_it_is_the_rule_of_the_least_rows(n_ones: int, shows: bool) -> None:
    term = (np.arange(1000) < n_ones).astype(float)[:, np.newaxis]
    found = of(term)
    assert found.largest == pytest.approx((1 - n_ones / 1000) / n_ones)
    assert found.shows_rows is shows


def test_terms_that_differ_in_one_row_show_it() -> None:
    half = (np.arange(1000) % 2).astype(float)
    other = half.copy()
    other[17] = 1 - other[17]
    assert not of(half[:, np.newaxis]).shows_rows
    assert not of(other[:, np.newaxis]).shows_rows
    both = of(np.column_stack([half, other]))
    assert (both.row, both.shows_rows) == (17, True)


def test_dependent_and_constant_terms_have_no_leverage_of_their_own() -> None:
    term = np.random.default_rng(0).random(500)
    found = of(np.column_stack([term, 1 - 2 * term, np.full(500, 3.0)]))
    assert found.rank == 1
    assert found.largest == pytest.approx(of(term[:, np.newaxis]).largest)
