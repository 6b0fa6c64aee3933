"""Work reports how far it has come to whoever listens, also from other threads, and to nobody otherwise."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from trilateral.common.base.progress import Remaining, Stage, report_progress, reporting


def test_work_reports_to_the_listener_of_its_context_only() -> None:
    heard: list[tuple[Stage, float]] = []
    report_progress(Stage.READING, 1, 2)
    with reporting(lambda stage, done: heard.append((stage, done))), ThreadPoolExecutor(1) as pool:
        report_progress(Stage.READING, 1, 4)
        pool.submit(copy_context().run, report_progress, Stage.SORTING, 3, 4).result()
    report_progress(Stage.PREPARING, 1, 2)
    assert heard == [(Stage.READING, 0.25), (Stage.SORTING, 0.75)]


def test_what_is_reported_lies_between_nothing_and_all() -> None:
    heard: list[float] = []
    with reporting(lambda stage, done: heard.append(done)):
        for done, total in ((0, 0), (5, 0), (-1, 2), (3, 2)):
            report_progress(Stage.READING, done, total)
    assert heard == [0.0, 0.0, 0.0, 1.0]


def test_the_rest_of_the_work_takes_as_long_as_the_pace_so_far_says() -> None:
    moments = iter((100.0, 100.5, 110.0, 110.0))
    remaining = Remaining(lambda: next(moments), 0.2)
    assert remaining.seconds_left(0.3) is None  # too early to say
    assert remaining.seconds_left(0.6) == 10
    assert remaining.seconds_left(0.2) is None  # nothing is done
