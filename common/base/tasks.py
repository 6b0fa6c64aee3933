"""Tasks that end together, and tasks that outlive their caller."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def start(work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
    """Start a task that continues when its caller is cancelled, for example because a client hangs up.

    Args:
        work: the coroutine to run.

    Returns:
        The task. Its error, if any, counts as retrieved even if nothing awaits the task.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # silences "never retrieved"
    return task


async def for_each(count: int, at_a_time: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Run `work` once for each number from 0 to `count` - 1, with bounded concurrency.

    Args:
        count: how many times to run `work`.
        at_a_time: how many calls may run at the same time.
        work: the coroutine function; receives the number.

    Raises:
        Exception: the first error of a call. The other calls are cancelled and have ended by then.
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
