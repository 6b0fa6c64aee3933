from typing import NoReturn

import pytest

from trilateral.common.base.errors import OutOfRangeError
from trilateral.common.compute.local import LOCAL


class Source:
    """Counts how often its data is loaded."""

    def __init__(self) -> None:
        self.n_loads = 0

    def load(self) -> list[int]:
        self.n_loads += 1
        return [1, 2, 3]


def total(numbers: list[int], factor: int) -> int:
    return factor * sum(numbers)


def refuse(numbers: list[int]) -> NoReturn:
    raise OutOfRangeError("too large")


def test_a_task_gets_placed_data_in_place_of_its_name() -> None:
    placed = LOCAL.place(0, Source().load)
    task = LOCAL.submit(total, placed, 2)
    assert task.done()
    assert task.wait(0)
    assert task.result() == 12


def test_an_error_of_the_function_is_raised_with_the_result_and_not_before() -> None:
    task = LOCAL.submit(refuse, [1], urgent=True)
    assert task.done()
    task.cancel()
    with pytest.raises(OutOfRangeError, match="too large"):
        task.result()


@pytest.mark.parametrize(("keep", "n_loads"), [(True, 1), (False, 3)])
def test_data_is_loaded_once_or_for_each_task_as_the_caller_asks(keep: bool, n_loads: int) -> None:
    source = Source()
    placed = LOCAL.place(0, source.load, keep=keep)
    for _ in range(3):
        assert LOCAL.submit(total, placed, 1).result() == 6
    assert source.n_loads == n_loads


def test_released_data_is_loaded_again_if_somebody_uses_it_all_the_same() -> None:
    source = Source()
    placed = LOCAL.place(0, source.load)
    LOCAL.submit(total, placed, 1)
    LOCAL.release(placed)
    LOCAL.submit(total, placed, 1)
    LOCAL.close()
    assert source.n_loads == 2
