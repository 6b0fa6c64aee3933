"""The threads in which a job computes: one step after another, and beside them what its start can do early."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

import gmpy2

P = ParamSpec("P")
T = TypeVar("T")


def without_lock(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` so that its large products release the interpreter's lock for other threads."""
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return function(*args, **kwargs)


class JobThread:
    """A thread for one job, and a second one for work that does not wait for the first.

    Args:
        name: prefix of the threads' names.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-beside")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in the thread, within the caller's log context, and wait for its result."""
        return await _call(self._executor, function, *args, **kwargs)

    async def call_beside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in the second thread, within the caller's log context, and wait for its result."""
        return await _call(self._beside, function, *args, **kwargs)

    def close_iterator(self, iterator: Iterator[Any]) -> None:
        """Close an iterator after the current step, without waiting for that step."""
        if isinstance(iterator, Generator):
            self._executor.submit(iterator.close)

    def close(self) -> Future[None]:
        """Begin no further step.

        Returns:
            A future that is done when the current step of each thread is done.
        """
        last_beside = self._beside.submit(_do_nothing)
        last_step = self._executor.submit(_wait_for, last_beside)
        for executor in (self._beside, self._executor):
            executor.shutdown(wait=False)
        return last_step


async def _call(executor: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    context = copy_context()
    work = partial(without_lock, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(executor, context.run, work)


def _do_nothing() -> None:
    """The last step of the second thread: when it is done, so are all others."""


def _wait_for(last_beside: Future[None]) -> None:
    """The last step of the first thread."""
    wait([last_beside])
