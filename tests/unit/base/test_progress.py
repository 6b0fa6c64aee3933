"""Work reports how far it has come to whoever listens, also from other threads, and to nobody otherwise."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from trilateral.common.base.progress import Stage, report_progress, reporting


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
