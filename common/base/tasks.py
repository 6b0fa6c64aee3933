"""Tasks that end together, and tasks that outlive whoever asked for them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Begin work in a task of its own, since whoever calls may hang up and call again."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # Nobody need be waiting.
    return task


async def for_each(count: int, at_a_time: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Do `work` for each number below `count`, so many at a time.

    After a failure the others are cancelled; it is raised when none goes on any more.
    """
    numbers = iter(range(count))

    async def work_on() -> None:
        for number in numbers:
            await work(number)

    workers = [asyncio.create_task(work_on()) for _ in range(min(at_a_time, count))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
