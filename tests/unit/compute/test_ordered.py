from collections.abc import Iterator

import pytest

from tests.support.late_engine import LateEngine
from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.compute.engine import Task
from trilateral.common.compute.local import LOCAL
from trilateral.common.compute.ordered import Ordered


def double(number: int) -> int:
    if number < 0:
        raise OutOfRangeError("negative")
    return 2 * number


def both(number: int) -> Iterator[int]:
    yield number
    yield -number


def filled(engine: LateEngine, *numbers: int) -> tuple[Ordered[int], list[Task[int]]]:
    tasks: Ordered[int] = Ordered()
    submitted = [engine.submit(double, number) for number in numbers]
    for task in submitted:
        tasks.add(task, both)
    return tasks, submitted


def test_results_are_used_in_the_order_of_submission_whichever_is_done_first() -> None:
    tasks, (_, second, third) = filled(LateEngine(), 1, 2, 3)
    third.result()
    second.result()
    assert list(tasks.drain(3)) == []
    assert list(tasks.drain(0)) == [2, -2, 4, -4, 6, -6]
    assert len(tasks) == 0


def test_only_as_many_tasks_as_allowed_stay_under_way() -> None:
    engine = LateEngine()
    tasks, _ = filled(engine, 1, 2, 3)
    assert list(tasks.drain(1)) == [2, -2, 4, -4]
    assert engine.n_run == 2
    assert len(tasks) == 1


def test_a_moment_is_spent_on_the_oldest_task_alone() -> None:
    engine = LateEngine()
    tasks, _ = filled(engine, 1, 2)
    assert list(tasks.wait_a_moment()) == [2, -2]
    assert engine.n_run == 1
    assert list(tasks.wait_a_moment()) == [4, -4]
    assert list(tasks.wait_a_moment()) == []


def test_the_local_engine_never_leaves_anything_under_way() -> None:
    tasks: Ordered[int] = Ordered()
    tasks.add(LOCAL.submit(double, 1), both)
    assert list(tasks.drain(5)) == [2, -2]
    assert len(tasks) == 0


def test_a_forgotten_task_is_cancelled_and_never_used() -> None:
    engine = LateEngine()
    tasks, _ = filled(engine, 1, 2)
    tasks.forget()
    assert engine.n_cancelled == 2
    assert list(tasks.drain(0)) == []


def test_an_error_of_a_task_reaches_the_one_who_drains() -> None:
    tasks, _ = filled(LateEngine(), 1, -1, 2)
    drained = tasks.drain(0)
    assert [next(drained), next(drained)] == [2, -2]
    with pytest.raises(OutOfRangeError):
        next(drained)
    assert len(tasks) == 1
