"""A whole round of the three roles gives the coordinator the loss and the gradient of the logistic regression."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracles.logistic import gradient_sum, loss_sum
from tests.support.share_roles import ShareRoles
from trilateral.common.shares.format import COVER_BITS, Format

Array = NDArray[np.float64]


def table(n_rows: int, n_host: int, n_guest: int, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Standardised columns, labels of a logistic model, and weights near it."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_host + n_guest)) + 0.5 * rng.normal(size=(n_rows, 1))
    X -= X.mean(axis=0)
    X /= np.sqrt((X**2).mean(axis=0))
    w = rng.normal(size=n_host + n_guest) * 0.4
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-(X @ w)))).astype(np.float64)
    return X[:, :n_host], X[:, n_host:], y, 0.8 * w


def rounded(X: Array, fmt: Format) -> Array:
    return np.rint(X * fmt.column_scale) / fmt.column_scale


def gradient_bound(fmt: Format, n_rows: int) -> float:
    """Two cuts and their correction are off by less than 2^q; a row has the error of the series and of its rounding."""
    return 3 * fmt.gradient_noise(n_rows) + 2e-6 * n_rows


def loss_bound(fmt: Format, n_rows: int) -> float:
    return 3 * fmt.loss_noise(n_rows) + 2e-6 * n_rows


@pytest.mark.parametrize("max_score", [8, 12, 24])
@pytest.mark.parametrize("n_rows", [100, 3001])
def test_the_coordinator_decodes_gradient_and_loss(n_rows: int, max_score: int) -> None:
    host, guest, y, w = table(n_rows, 3, 4)
    fmt = Format.of(n_rows, max_score)
    roles = ShareRoles(fmt, host, guest, y, first_row=4096)
    X = rounded(np.hstack([host, guest]), fmt)
    seen = roles.round(w)
    np.testing.assert_allclose(seen.residual, 1 / (1 + np.exp(-(X @ w))) - y, atol=5e-6)
    np.testing.assert_allclose(seen.gradient, gradient_sum(X, y, w), atol=gradient_bound(fmt, n_rows))
    assert seen.loss == pytest.approx(loss_sum(X, y, w), abs=loss_bound(fmt, n_rows))


def test_without_dropped_bits_only_the_rounding_of_rows_remains() -> None:
    n_rows = 3000
    host, guest, y, w = table(n_rows, 3, 4)
    fmt = Format.of(n_rows, 12)
    X = rounded(np.hstack([host, guest]), fmt)
    seen = ShareRoles(fmt, host, guest, y, exact=True).round(w)
    np.testing.assert_allclose(seen.gradient / n_rows, gradient_sum(X, y, w) / n_rows, atol=3e-7)
    assert seen.loss / n_rows == pytest.approx(loss_sum(X, y, w) / n_rows, abs=1e-6)


@pytest.mark.parametrize("integers", [True, False])
def test_sample_weights_count_rows_more_or_less_often(integers: bool) -> None:
    n_rows = 2000
    host, guest, y, w = table(n_rows, 3, 4)
    rng = np.random.default_rng(1)
    bits = 0 if integers else 8
    drawn = rng.integers(0, 4, n_rows) if integers else rng.exponential(1, n_rows)
    c: Array = np.rint(drawn * 2.0**bits) / 2.0**bits
    fmt = Format.of(n_rows, 12, bits)
    X = rounded(np.hstack([host, guest]), fmt)
    seen = ShareRoles(fmt, host, guest, y, c).round(w)
    np.testing.assert_allclose(seen.gradient, gradient_sum(X, y, w, c), atol=gradient_bound(fmt, n_rows))
    assert seen.loss == pytest.approx(loss_sum(X, y, w, c), abs=loss_bound(fmt, n_rows))


@pytest.mark.parametrize("weight_bits", [None, 6])
def test_a_round_may_ask_for_the_loss_alone(weight_bits: int | None) -> None:
    n_rows = 1000
    host, guest, y, w = table(n_rows, 2, 3)
    c = None if weight_bits is None else np.full(n_rows, 0.5)
    fmt = Format.of(n_rows, 12, weight_bits)
    X = rounded(np.hstack([host, guest]), fmt)
    seen = ShareRoles(fmt, host, guest, y, c).round(w, gradient=False)
    assert seen.loss == pytest.approx(loss_sum(X, y, w, c), abs=loss_bound(fmt, n_rows))


def test_hold_out_rows_have_no_sample_weights_and_give_a_loss_alone() -> None:
    n_rows = 1000
    host, guest, y, w = table(n_rows, 3, 4)
    fmt = Format.of(4 * n_rows, 12, 6).holdout
    X = rounded(np.hstack([host, guest]), fmt)
    seen = ShareRoles(fmt, host, guest, y, first_row=4 * n_rows + 16).round(w, gradient=False, holdout=True)
    assert seen.loss == pytest.approx(loss_sum(X, y, w), abs=loss_bound(fmt, n_rows))


@pytest.mark.parametrize(("n_host", "n_guest"), [(5, 0), (0, 5), (1, 1)])
def test_a_party_may_have_few_columns_or_none(n_host: int, n_guest: int) -> None:
    host, guest, y, w = table(500, n_host, n_guest)
    fmt = Format.of(500, 12)
    X = rounded(np.hstack([host, guest]), fmt)
    roles = ShareRoles(fmt, host, guest, y)
    np.testing.assert_allclose(roles.at_zero(), gradient_sum(X, y, np.zeros(len(w))), atol=1e-6)
    np.testing.assert_allclose(roles.round(w).gradient, gradient_sum(X, y, w), atol=gradient_bound(fmt, 500))


def test_the_gradient_at_zero_is_exact_with_sample_weights_too() -> None:
    host, guest, y, w = table(500, 2, 3)
    c = np.random.default_rng(2).integers(0, 5, 500) / 4
    fmt = Format.of(500, 12, 2)
    X = rounded(np.hstack([host, guest]), fmt)
    np.testing.assert_allclose(
        ShareRoles(fmt, host, guest, y, c).at_zero(), gradient_sum(X, y, np.zeros(len(w)), c), atol=1e-9
    )


def test_the_same_bits_leave_whatever_the_blocks_are() -> None:
    """Rows are numbered, so a range gives the same when it is cut elsewhere."""
    host, guest, y, w = table(64, 2, 2)
    fmt = Format.of(64, 12)
    roles = ShareRoles(fmt, host, guest, y, exact=True)
    whole = roles.round(w)
    parts = [ShareRoles(fmt, host[i:j], guest[i:j], y[i:j], first_row=i, exact=True) for i, j in ((0, 16), (16, 64))]
    seen = [part.round(w) for part in parts]
    np.testing.assert_allclose(sum(part.gradient for part in seen), whole.gradient, atol=1e-3)
    assert sum(part.loss for part in seen) == pytest.approx(whole.loss, abs=1e-3)


@pytest.mark.parametrize("weight_bits", [None, 4])
@pytest.mark.parametrize("max_score", [8, 12, 24])
def test_the_noise_that_depends_on_r_lies_eight_bits_below_what_is_dropped(
    max_score: int, weight_bits: int | None
) -> None:
    """The coordinator knows r. Sums that are not cut differ between sessions by this noise alone."""
    n_rows, n_sessions = 480, 40
    host, guest, y, w = table(n_rows, 2, 3)
    c = None if weight_bits is None else np.full(n_rows, 3.5)
    fmt = Format.of(n_rows, max_score, weight_bits)
    seen = [ShareRoles(fmt, host, guest, y, c, exact=True).round(w) for _ in range(n_sessions)]
    gradient = np.array([each.gradient for each in seen]).std(axis=0)
    dropped = 2.0 ** (fmt.gradient_drop(n_rows) - fmt.gradient_bits)
    # The deviations of 5 columns from 40 sessions: their root mean square is off by a tenth.
    assert 0.2 * dropped < np.sqrt((gradient**2).mean()) * 2**COVER_BITS < 1.3 * dropped
    loss = float(np.std([each.loss for each in seen]))
    assert loss * 2**COVER_BITS < 1.3 * 2.0 ** (fmt.loss_drop(n_rows) - fmt.loss_bits) * fmt.loss_unit
