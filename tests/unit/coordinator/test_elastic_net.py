"""The minimum of a quadratic model with an elastic net, and the choice of a penalty from losses on folds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.config.job import Penalty
from trilateral.coordinator.optimisers.elastic_net import ElasticNet, minimise
from trilateral.coordinator.searches.cross_validation import choose, mean_and_error


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 25),
    l1=st.sampled_from([0.0, 0.01, 0.3, 3.0, 100.0]),
    l2=st.sampled_from([0.0, 0.1]),
    condition=st.sampled_from([1.0, 1e3, 1e6]),
)
def test_the_minimum_has_no_slope_from_wherever_the_search_begins(
    seed: int, n: int, l1: float, l2: float, condition: float
) -> None:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    B = Q @ np.diag(np.geomspace(1.0, 1 / condition, n)) @ Q.T
    g, diagonal = rng.normal(size=n), np.append(np.ones(n - 1), 0.0)
    penalty = ElasticNet.of(Penalty(l1=l1, l2=l2), diagonal)
    base = rng.normal(size=n) * rng.integers(0, 2, n)

    w = minimise(B, g, base, penalty)

    slope = penalty.slope(w, g + B @ (w - base))
    assert np.abs(slope).max() <= 1e-8 * (1 + np.abs(B @ base).max() + np.abs(g).max())
    assert l1 > 0 or np.count_nonzero(w) == n
    if l1 == 100.0:
        assert not w[:-1].any()


def test_the_intercept_has_no_penalty() -> None:
    penalty = ElasticNet.of(Penalty(l1=2.0, l2=3.0), np.array([1.0, 0.0]))
    assert penalty.value(np.array([-1.0, 50.0])) == 2.0 + 1.5
    assert np.array_equal(penalty.slope(np.array([0.0, 50.0]), np.array([1.5, 0.25])), [0.0, 0.25])


def test_folds_weigh_by_their_rows() -> None:
    mean, error = mean_and_error(np.array([[1.0, 2.0]]), [300, 100])
    assert mean == pytest.approx([1.25])
    assert error == pytest.approx([np.sqrt(0.75 * 0.25**2 + 0.25 * 0.75**2)])


def test_a_penalty_without_a_loss_on_every_fold_is_not_chosen() -> None:
    mean, error = mean_and_error(np.array([[1.0, 2.0], [0.1, np.inf]]), [10, 10])
    assert not np.isfinite(mean[1])
    assert choose(mean, error, one_standard_error=False) == 0
    assert choose(mean, error, one_standard_error=True) == 0


def test_one_standard_error_takes_the_strongest_penalty_that_is_as_good() -> None:
    mean, error = np.array([0.9, 0.52, 0.51, 0.5, 0.6]), np.array([1.0, 1.0, 1.0, 0.02, 1.0])
    assert choose(mean, error, one_standard_error=False) == 3
    assert choose(mean, error, one_standard_error=True) == 1
