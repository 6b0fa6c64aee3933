"""Waiting for a condition, for as long as only a failure takes, and starting programs that take Ctrl-C."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable

SECONDS = 100.0
"""Far longer than any condition takes, so that a busy machine does not fail a test; less than the limit of a test."""
PAUSE = 0.01


async def eventually(condition: Callable[[], bool | Awaitable[bool]], seconds: float = SECONDS) -> None:
    """Wait until `condition` returns or resolves to True.

    Raises:
        TimeoutError: it did not within `seconds`.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(PAUSE)


def eventually_in_thread(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Do the same where no event loop runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(PAUSE)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let programs started in the block take SIGINT, even where this process has inherited that it is ignored.

    A shell without job control starts background jobs that way.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
