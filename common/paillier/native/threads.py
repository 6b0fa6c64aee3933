"""The threads that share the work of a call. The kernel releases the interpreter's lock for them."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class _Threads:
    """One thread, until the process sets the number of threads."""

    def __init__(self) -> None:
        self.set(1)

    def set(self, count: int) -> None:
        self.count = count
        workers: list[threading.Thread] = []
        self._workers = workers
        # The caller's thread works too.
        self._pool = ThreadPoolExecutor(
            max(1, count - 1),
            thread_name_prefix="kernel",
            initializer=lambda: workers.append(threading.current_thread()),
        )

    def run(self, work: Callable[[int, int], None], count: int, unit: int, least: int) -> None:
        parts = deque(self._parts(count, unit, least))

        def work_off() -> None:
            while parts:
                try:
                    part = parts.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    work(*part)
                except BaseException:
                    parts.clear()
                    raise

        n_others = min(self.count, len(parts)) - 1
        if n_others > 0 and not all(worker.is_alive() for worker in self._workers):
            # A forked child does not have the pool's threads, and would wait for them for ever.
            self.set(self.count)
        others: list[Future[None]] = []
        try:
            for _ in range(n_others):
                others.append(self._pool.submit(work_off))
            work_off()
        finally:
            parts.clear()
            # A thread that has begun writes to the caller's arrays, so the caller waits for it. A thread that has not
            # begun has nothing left to do.
            errors = [error for other in others if not other.cancel() and (error := other.exception()) is not None]
        if errors:
            raise errors[0]

    def _parts(self, count: int, unit: int, least: int) -> list[tuple[int, int]]:
        """Cut a range into parts that become smaller, so that threads of unequal speed end at about the same time."""
        parts: list[tuple[int, int]] = []
        start = 0
        while start < count:
            units = -(-(count - start) // unit)
            size = units if self.count == 1 or units < 2 * least else max(least, -(-units // (2 * self.count)))
            stop = min(count, start + size * unit)
            parts.append((start, stop))
            start = stop
        return parts


_threads = _Threads()


def set_threads(count: int) -> None:
    """Use `count` threads from now on, at least one, for all jobs of this process together."""
    _threads.set(count)


def thread_count() -> int:
    """Return how many threads share a list."""
    return _threads.count


def in_parallel(work: Callable[[int, int], None], count: int, unit: int, least: int = 1) -> None:
    """Call `work(start, stop)` for parts of `range(count)`, in parallel. Each thread takes a part until none is left.

    Args:
        work: called once for each part; after an error in a part, no other part begins. The error is raised here once
            all parts that have begun have ended.
        count: length of the range.
        unit: every part but the last is a multiple of this long.
        least: the minimum number of units in a part, unless the range is shorter. To hand over work takes some time.
    """
    _threads.run(work, count, unit, least)
