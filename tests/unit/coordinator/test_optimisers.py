import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.plain import Array, dense_inverse_hessian
from trilateral.common.config.job import Sgd as SgdSettings
from trilateral.common.config.job import Sqn as SqnSettings
from trilateral.coordinator.optimisers.inverse_hessian import CurvaturePairs, two_loop
from trilateral.coordinator.optimisers.sgd import LearningRate, MinibatchOptimiser, Sgd
from trilateral.coordinator.optimisers.sqn import Sqn, WindowMeans


def random_pairs(seed: int, count: int, n_columns: int) -> tuple[Array, list[tuple[Array, Array]]]:
    random = np.random.default_rng(seed)
    root = random.standard_normal((n_columns, n_columns))
    hessian = root.T @ root / n_columns + 0.1 * np.eye(n_columns)
    directions = random.standard_normal((count, n_columns))
    return random.standard_normal(n_columns), [(s, hessian @ s) for s in directions]


class TestTwoLoop:
    @given(seed=st.integers(0, 2**32), count=st.integers(1, 9), memory=st.integers(1, 6), n_columns=st.integers(1, 8))
    def test_equals_the_dense_matrix_of_the_last_pairs(
        self, seed: int, count: int, memory: int, n_columns: int
    ) -> None:
        gradient, made = random_pairs(seed, count, n_columns)
        pairs = CurvaturePairs(memory)
        for s, v in made:
            assert pairs.add(s, v)
        expected = dense_inverse_hessian(made[-memory:]) @ gradient
        assert two_loop(gradient, pairs) == pytest.approx(expected, rel=1e-8, abs=1e-8 * np.abs(expected).max())

    def test_is_the_gradient_itself_without_a_pair(self) -> None:
        gradient = np.array([1.0, -2.0])
        product = two_loop(gradient, CurvaturePairs(3))
        assert product.tolist() == [1.0, -2.0]
        assert product is not gradient

    def test_gives_back_s_for_the_newest_v(self) -> None:
        _, made = random_pairs(3, 4, 6)
        pairs = CurvaturePairs(10)
        for s, v in made:
            pairs.add(s, v)
        s, v = made[-1]
        assert two_loop(v, pairs) == pytest.approx(s, abs=1e-12)


class TestCurvaturePairs:
    @pytest.mark.parametrize("v", [[0.0, 5.0], [-1.0, 0.0], [1e-12, 0.0], [np.nan, 0.0]])
    def test_drops_a_pair_without_positive_curvature(self, v: list[float]) -> None:
        pairs = CurvaturePairs(2)
        assert not pairs.add(np.array([1.0, 0.0]), np.array(v))
        assert not pairs

    def test_keeps_the_last_ones_oldest_first(self) -> None:
        pairs = CurvaturePairs(2)
        for scale in (1.0, 2.0, 3.0):
            pairs.add(np.array([scale]), np.array([scale]))
        assert [s[0] for s, _ in pairs] == [2.0, 3.0]


class TestWindowMeans:
    def test_returns_the_change_of_the_mean_at_the_end_of_each_window_from_the_second_on(self) -> None:
        means = WindowMeans(3)
        points = [np.array([float(k * k)]) for k in range(1, 13)]
        changes = [means.add(point) for point in points]
        due = {k: change[0] for k, change in enumerate(changes, start=1) if change is not None}
        window = {t: np.mean([k * k for k in range(3 * t - 2, 3 * t + 1)]) for t in range(1, 5)}
        assert due == pytest.approx({3 * t: window[t] - window[t - 1] for t in (2, 3, 4)})

    def test_returns_nothing_for_windows_with_the_same_mean(self) -> None:
        means = WindowMeans(1)
        assert means.add(np.ones(2)) is None
        assert means.add(np.ones(2)) is None
        assert means.add(2 * np.ones(2)) is not None

    def test_begins_anew_when_cleared(self) -> None:
        means = WindowMeans(2)
        for value in (1.0, 2.0, 3.0):
            means.add(np.array([value]))
        means.clear()
        changes = [means.add(np.array([value])) for value in (10.0, 10.0, 20.0, 40.0)]
        assert [change if change is None else change[0] for change in changes] == [None, None, None, 20.0]


class TestLearningRate:
    def test_decays_with_the_root_of_the_round(self) -> None:
        assert LearningRate(0.3, 0.5).at(6) == pytest.approx(0.15)

    def test_is_constant_without_decay_and_halves(self) -> None:
        rate = LearningRate(0.3, 0.0)
        rate.halve()
        assert rate.at(1) == rate.at(1000) == 0.15


class TestSgd:
    def test_steps_along_the_gradient_and_asks_for_no_curvature(self) -> None:
        sgd: MinibatchOptimiser = Sgd(SgdSettings(learning_rate=0.5, decay=3.0))
        assert sgd.direction(np.zeros(1)) is None
        assert sgd.step(1, np.array([2.0]), None).tolist() == [0.5]
        sgd.restart()
        assert sgd.step(1, np.array([2.0]), None).tolist() == [0.25]


class TestSqn:
    SETTINGS = SqnSettings(learning_rate=0.5, first_learning_rate=2.0, decay=0.0, interval=1)
    GRADIENT = np.array([1.0, 1.0])

    def learn_a_pair(self, sqn: Sqn) -> None:
        sqn.direction(np.zeros(2))
        sqn.step(1, self.GRADIENT, None)
        s = sqn.direction(np.array([1.0, 1.0]))
        assert s is not None
        sqn.step(2, self.GRADIENT, 4 * s)

    def test_uses_a_pair_and_the_other_rate_from_the_round_after(self) -> None:
        sqn = Sqn(self.SETTINGS)
        sqn.direction(np.zeros(2))
        assert sqn.step(1, self.GRADIENT, None).tolist() == [2.0, 2.0]
        s = sqn.direction(np.array([1.0, 1.0]))
        assert s is not None
        assert s.tolist() == [1.0, 1.0]
        assert sqn.step(2, self.GRADIENT, 4 * s).tolist() == [2.0, 2.0]
        sqn.direction(np.array([1.0, 2.0]))
        assert sqn.step(3, self.GRADIENT, None) == pytest.approx([0.125, 0.125])

    def test_drops_a_pair_of_no_curvature(self) -> None:
        sqn = Sqn(self.SETTINGS)
        sqn.direction(np.zeros(2))
        sqn.direction(np.array([1.0, 0.0]))
        sqn.step(2, self.GRADIENT, np.zeros(2))
        assert sqn.step(3, self.GRADIENT, None).tolist() == [2.0, 2.0]

    def test_restarts_with_half_the_rates_and_neither_pairs_nor_windows(self) -> None:
        sqn = Sqn(self.SETTINGS)
        self.learn_a_pair(sqn)
        sqn.restart()
        assert sqn.direction(np.array([9.0, 9.0])) is None
        assert sqn.step(3, self.GRADIENT, None).tolist() == [1.0, 1.0]
