"""Where the parties can compute, and how a point reaches them."""

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.protocol.shares.session import StreamKeys
from trilateral.common.shares.format import MAX_MEAN_SCORE, MODEL_FRACTION_BITS, SCORE_LIMIT, Format
from trilateral.common.shares.ring import decode
from trilateral.coordinator.plan import Observation, RoundPlan
from trilateral.coordinator.shares.points import Range, ScoreMasks, share_point, share_result
from trilateral.coordinator.training import Training

FORMAT = Format.of(5000, 12)
PERIOD = FORMAT.series.period
COLUMNS = {Role.HOST: 2, Role.GUEST: 3}


def range_of(norm_bits: int, spread_bits: int = 0) -> Range:
    return Range(dict.fromkeys(PARTIES, norm_bits), dict.fromkeys(PARTIES, spread_bits), PERIOD, COLUMNS)


def test_the_shares_of_a_point_add_up_at_both_scales() -> None:
    point = np.array([0.5, -1.25, 2.0, 0.0, -3.5])
    masks, _ = ScoreMasks.draw(StreamKeys.alone().session, COLUMNS)
    shares = share_point(FORMAT, point, masks, COLUMNS)

    score = shares[Role.HOST].score + shares[Role.GUEST].score
    assert decode(score, FORMAT.f_w) * PERIOD / 32 == pytest.approx(point, abs=1e-9)
    loss = shares[Role.HOST].loss + shares[Role.GUEST].loss
    assert decode(loss, FORMAT.f_wl) * PERIOD / 1024 == pytest.approx(point, abs=1e-6)
    assert np.array_equal(shares[Role.HOST].opened + masks.host, shares[Role.GUEST].score[:2])
    assert np.array_equal(shares[Role.GUEST].opened + masks.guest, shares[Role.HOST].score[2:])


def test_no_two_shares_and_no_two_masks_are_alike() -> None:
    """Under equal masks, two messages would show a party the difference of two points."""
    keys = StreamKeys.alone()
    point = np.zeros(5)
    seen: list[int] = []
    for key in (keys.session, StreamKeys.alone().session):
        for masks in ScoreMasks.draw(key, COLUMNS):
            for shares in share_point(FORMAT, point, masks, COLUMNS).values():
                seen += np.concatenate([shares.score, shares.opened, shares.loss]).tolist()
    assert len(set(seen)) == len(seen)


def test_the_same_attempt_has_the_same_masks() -> None:
    """What is dealt again for it must be the same bytes."""
    key = StreamKeys.alone().session
    for one, other in zip(ScoreMasks.draw(key, COLUMNS), ScoreMasks.draw(key, COLUMNS), strict=True):
        assert np.array_equal(one.host, other.host)
        assert np.array_equal(one.guest, other.guest)


def test_the_shares_of_the_result_add_up() -> None:
    point = np.array([0.5, -1.25, 2.0, 1e-9, -3.5])
    shares = share_result(point)
    total = decode(shares[Role.HOST] + shares[Role.GUEST], MODEL_FRACTION_BITS)
    assert total == pytest.approx(point, abs=2.0**-MODEL_FRACTION_BITS)


def test_a_point_is_in_range_as_long_as_no_row_can_have_a_score_beyond_the_limit() -> None:
    point = np.array([3.0, 4.0, 0.0, 0.0, 12.0])  # norms 5 and 12
    most = SCORE_LIMIT * PERIOD / 32 / 17
    bits = int(np.floor(np.log2(most)))

    assert range_of(bits).contains(point)
    assert not range_of(bits + 1).contains(point)


def test_a_point_with_large_scores_on_average_is_out_of_range_even_if_no_score_is() -> None:
    point = np.array([3.0, 4.0, 0.0, 0.0, 12.0])  # norms 5 and 12
    inside = point * (MAX_MEAN_SCORE * PERIOD / 17 * 0.999)
    assert range_of(0).contains(inside)
    assert not range_of(0).contains(inside * 1.002)
    assert range_of(0, 2).contains(inside / 4)
    assert not range_of(0, 2).contains(inside / 4 * 1.002)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0**40])
def test_what_no_ring_element_can_hold_is_out_of_range(wrong: float) -> None:
    point = np.zeros(5)
    point[3] = wrong
    assert not range_of(-60).contains(point)


def test_a_point_out_of_range_becomes_no_round() -> None:
    """The search goes back at once, as from a void round, and replay leaves out the same points."""
    job = JobConfig(name="job", dataset="data", protocol="shares", intercept=False)
    asked: list[FloatVector] = []

    def is_in_range(point: FloatVector) -> bool:
        asked.append(point)
        return bool(np.linalg.norm(point) < 0.5)

    def run(observations: list[Observation]) -> list[FloatVector]:
        training = Training(job, 2, 1, is_in_range)
        plans = [training.begin(), *map(training.observe, observations)]
        return [plan.point for plan in plans if isinstance(plan, RoundPlan)]

    observations = [Observation(0.69, np.array([9.0, -12.0]))]
    points = run(observations)
    assert len(points) == 2
    assert len(asked) > 1  # the first step was too long
    assert np.linalg.norm(points[-1]) < 0.5
    assert np.array_equal(points, run(observations))
