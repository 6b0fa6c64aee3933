"""Work that is shared by several tasks is done once each, and ends altogether."""

import asyncio

import pytest

from trilateral.common.base.errors import DataError
from trilateral.common.base.tasks import for_each


async def test_each_number_is_worked_on_once_and_so_many_at_a_time() -> None:
    done: list[int] = []
    running = most = 0

    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(number)

    await for_each(10, 3, work)
    assert (sorted(done), most) == (list(range(10)), 3)
    await for_each(0, 3, work)
    assert len(done) == 10


async def test_after_a_failure_it_is_raised_when_no_work_goes_on() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        if number == 1:
            raise DataError("the second fails")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    with pytest.raises(DataError, match="the second fails"):
        await for_each(5, 3, work)
    assert sorted(ended) == [0, 2]
