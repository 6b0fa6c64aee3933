"""The thread in which a job computes, one step after another."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
    """A thread for one job.

    Args:
        name: prefix of the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in the thread, within the caller's log context, and wait for its result."""
        context = copy_context()
        work = partial(without_lock, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, context.run, work)

    def close_iterator(self, iterator: Iterator[Any]) -> None:
        """Close an iterator after the current step, without waiting for that step."""
        if isinstance(iterator, Generator):
            self._executor.submit(iterator.close)

    def close(self) -> Future[None]:
        """Begin no further step.

        Returns:
            A future that is done when the current step is done.
        """
        last_step = self._executor.submit(_do_nothing)
        self._executor.shutdown(wait=False)
        return last_step


def _do_nothing() -> None:
    """The last step of a thread: when it is done, so are all others."""
