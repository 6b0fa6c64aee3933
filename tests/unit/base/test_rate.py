"""A rate holds over any time, whatever is taken at once."""

from trilateral.common.base.rate import Rate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_two_seconds_may_come_at_once_and_then_the_rate_holds() -> None:
    clock = Clock()
    rate = Rate(5, clock)
    assert [rate.take(1) for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now += 0.25
    assert [rate.take(1) for _ in range(2)] == [True, False]
    clock.now += 1000
    assert sum(rate.take(1) for _ in range(50)) == 10


def test_a_request_for_more_than_the_bucket_holds_passes_and_is_paid_for_later() -> None:
    clock = Clock()
    rate = Rate(5, clock)
    assert rate.take(100)
    clock.now += 18.1
    assert not rate.take(1)
    clock.now += 0.2
    assert rate.take(1)
