"""Who computes the shards of one alignment: the threads of this process, or an engine that other threads wait for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from trilateral.common.compute.engine import Engine, OpenEngine
from trilateral.common.compute.local import LOCAL
from trilateral.common.jobs.arithmetic import processors

T = TypeVar("T")

MOST_AT_A_TIME = 64
"""Shards of one alignment in progress at most, for memory: about 3 MB each. An engine always gets so many, because its
workers come and go."""


@dataclass(frozen=True)
class Crew:
    """The engine and the threads of one alignment.

    Attributes:
        engine: runs the work on the points.
        n_at_a_time: how many shards to have in progress at a time, so that no processor of either party waits for a
            message.
    """

    engine: Engine
    n_at_a_time: int
    _threads: ThreadPoolExecutor
    _own_threads: bool

    def submit(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Call a function in a thread."""
        return self._threads.submit(function, *args)

    def close(self) -> None:
        """Close the engine. Calls that have begun end by themselves."""
        self.engine.close()
        if self._own_threads:
            self._threads.shutdown(wait=False, cancel_futures=True)


class Crews:
    """The crews of a process. In those of the local engine, the same threads work, one for each processor.

    Args:
        open_engine: makes the engine of an alignment.
    """

    def __init__(self, open_engine: OpenEngine = lambda: LOCAL) -> None:
        self._open_engine = open_engine
        n_threads = processors()
        local = ThreadPoolExecutor(n_threads, thread_name_prefix="alignment")
        self.local = Crew(LOCAL, min(2 * n_threads + 2, MOST_AT_A_TIME), local, _own_threads=False)
        """The threads of this process, for work outside alignments too."""

    def open(self) -> Crew:
        """Return the crew of one alignment, which the caller closes."""
        engine = self._open_engine()
        if engine.at_once:
            return self.local
        threads = ThreadPoolExecutor(MOST_AT_A_TIME, thread_name_prefix="alignment")
        return Crew(engine, MOST_AT_A_TIME, threads, _own_threads=True)
