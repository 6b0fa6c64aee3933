"""The threads that share the work of a call. The kernel releases the interpreter's lock for them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise


class _Threads:
    """One thread, until the process sets the number of threads."""

    def __init__(self) -> None:
        self.set(1)

    def set(self, count: int) -> None:
        self.count = count
        workers: list[threading.Thread] = []
        self._workers = workers
        # The caller's thread does one share itself.
        self._pool = ThreadPoolExecutor(
            max(1, count - 1),
            thread_name_prefix="kernel",
            initializer=lambda: workers.append(threading.current_thread()),
        )

    def run(self, work: Callable[[int, int], None], count: int, unit: int) -> None:
        if not all(worker.is_alive() for worker in self._workers):
            # A forked child does not have the pool's threads, and would wait for them for ever.
            self.set(self.count)
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
            # The threads write to the caller's arrays, so the caller must not continue before all of them are done.
            errors = [error for other in others if (error := other.exception()) is not None]
        if errors:
            raise errors[0]


_threads = _Threads()


def set_threads(count: int) -> None:
    """Use `count` threads from now on, at least one, for all jobs of this process together."""
    _threads.set(count)


def thread_count() -> int:
    """Return how many threads share a list."""
    return _threads.count


def in_parallel(work: Callable[[int, int], None], count: int, unit: int) -> None:
    """Call `work(start, stop)` for parts of `range(count)`, in parallel.

    Args:
        work: called once for each part; an error in any part is raised here once all parts have ended.
        count: length of the range.
        unit: every part but the last is a multiple of this long.
    """
    _threads.run(work, count, unit)
