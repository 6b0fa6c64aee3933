"""The threads that work on the lists of a call. The kernel leaves the interpreter's lock to them."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

LANES = 4
"""Numbers that the kernel works on at a time."""


class _Threads:
    """As many as there are processors for this process, unless told otherwise."""

    def __init__(self) -> None:
        self.set(0)

    def set(self, count: int) -> None:
        self.count = count or processors()
        # The caller's thread does a share itself.
        self._pool = ThreadPoolExecutor(max(1, self.count - 1), thread_name_prefix="kernel")

    def run(self, work: Callable[[int, int], None], count: int, unit: int) -> None:
        units = -(-count // unit)
        shares = min(self.count, units)
        bounds = [min(count, unit * (units * i // max(1, shares))) for i in range(shares + 1)]
        parts = [(start, stop) for start, stop in pairwise(bounds) if start < stop]
        others: list[Future[None]] = []
        try:
            for part in parts[1:]:
                others.append(self._pool.submit(work, *part))
            if parts:
                work(*parts[0])
        finally:
            # The work is on arrays of the caller's, who must not go on while somebody writes to them.
            errors = [error for other in others if (error := other.exception()) is not None]
        if errors:
            raise errors[0]


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    # The threads of the pool stay behind in the parent, and a list given to them would never be done.
    os.register_at_fork(after_in_child=lambda: _threads.set(_threads.count))


def set_threads(count: int) -> None:
    """Use so many threads from now on, for all jobs of this process together; 0 for one a processor."""
    _threads.set(count)


def thread_count() -> int:
    """How many threads share a list."""
    return _threads.count


def in_parallel(work: Callable[[int, int], None], count: int, unit: int = LANES) -> None:
    """Call work(start, stop) for parts of range(count) at a time, a multiple of `unit` in each but the last."""
    _threads.run(work, count, unit)
