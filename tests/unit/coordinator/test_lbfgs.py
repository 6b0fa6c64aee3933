"""One optimiser object on a quadratic f(w) = 3 + w'Qw / 2 - b'w."""

import math

import numpy as np
import pytest

from tests.oracles.plain import Array
from trilateral.coordinator.optimisers.lbfgs import CUT, SHORTEST_TRIAL, Lbfgs

Q = np.diag([1.0, 2.0, 4.0, 8.0])
B = np.array([1.0, -2.0, 3.0, 4.0])


def f(w: Array) -> float:
    return float(3 + w @ Q @ w / 2 - B @ w)


def learn(lbfgs: Lbfgs) -> None:
    lbfgs.learn(f(lbfgs.trial), Q @ lbfgs.trial - B)


def test_knows_nothing_at_first_and_wants_the_origin() -> None:
    lbfgs = Lbfgs(4, 10)
    assert lbfgs.trial.tolist() == [0.0] * 4
    assert lbfgs.gap == math.inf
    learn(lbfgs)
    assert lbfgs.loss == 3.0
    assert lbfgs.trial == pytest.approx(4 * B)
    assert lbfgs.gap == math.inf


@pytest.mark.parametrize("memory", [1, 2, 10])
def test_reaches_the_minimum_in_as_many_steps_as_there_are_eigenvalues(memory: int) -> None:
    lbfgs = Lbfgs(4, memory)
    for _ in range(5):
        learn(lbfgs)
    assert lbfgs.base == pytest.approx(B / np.diag(Q), abs=1e-12)


def test_knows_the_loss_of_its_base_and_that_it_falls() -> None:
    lbfgs = Lbfgs(4, 10)
    losses = []
    for _ in range(5):
        learn(lbfgs)
        assert lbfgs.loss == pytest.approx(f(lbfgs.base), abs=1e-12)
        losses.append(lbfgs.loss)
    assert losses == sorted(losses, reverse=True)


def test_estimates_the_gap_to_the_minimum_within_the_spread_of_the_curvature() -> None:
    lbfgs = Lbfgs(4, 10)
    least = f(B / np.diag(Q))
    learn(lbfgs)
    for _ in range(3):
        learn(lbfgs)
        assert (lbfgs.loss - least) / 8 < lbfgs.gap < 8 * (lbfgs.loss - least)


def test_keeps_its_trial_points_apart_from_the_base_however_small_the_gradient() -> None:
    lbfgs = Lbfgs(2, 10)
    lbfgs.learn(0.5, np.array([3e-9, 4e-9]))
    assert lbfgs.trial == pytest.approx([-0.6 * SHORTEST_TRIAL, -0.8 * SHORTEST_TRIAL])


def test_takes_the_same_step_from_a_trial_point_cut_short() -> None:
    whole, cut = Lbfgs(4, 10), Lbfgs(4, 10)
    for lbfgs in (whole, cut):
        learn(lbfgs)
    cut.cut()
    assert cut.trial == pytest.approx(CUT * whole.trial)
    for lbfgs in (whole, cut):
        learn(lbfgs)
    assert cut.base == pytest.approx(whole.base, abs=1e-13)
