"""Tasks whose results are used in the order in which the tasks were submitted."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from trilateral.common.compute.engine import Task

T = TypeVar("T")
E = TypeVar("E")

MOMENT = 0.05
"""Seconds that `wait_a_moment` waits. After that, a state machine looks for messages."""


class Ordered(Generic[E]):
    """A queue of tasks under way, and what is made of the result of each.

    What follows from the results does not depend on which task is done first.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Task[Any], Callable[[Any], Iterator[E]]]] = deque()
        self._beside: list[Ordered[E]] = []

    def __len__(self) -> int:
        """Return how many tasks are under way: submitted, with a result that has not been used."""
        return len(self._queue)

    def add(self, task: Task[T], use: Callable[[T], Iterator[E]]) -> None:
        """Add a task.

        Args:
            task: the task.
            use: called with its result; yields what follows from it.
        """
        self._queue.append((task, use))

    def beside(self) -> "Ordered[E]":
        """Return a further queue, for long tasks that must not hold up these; `forget` clears it too.

        `drain` and `wait_a_moment` do not look at it, so at its end `take_over` its tasks.
        """
        queue: Ordered[E] = Ordered()
        self._beside.append(queue)
        return queue

    def take_over(self, other: "Ordered[E]") -> None:
        """Move all tasks of another queue to the end of this one."""
        self._queue.extend(other._queue)
        other._queue.clear()

    def drain(self, most: int) -> Iterator[E]:
        """Use the results that are there, and wait for the oldest task while more than `most` are under way.

        Raises:
            Exception: what a task has raised. The tasks after it stay in the queue until `forget`.
        """
        while self._queue and (len(self._queue) > most or self._queue[0][0].done()):
            task, use = self._queue.popleft()
            yield from use(task.result())

    def wait_a_moment(self) -> Iterator[E]:
        """Wait up to `MOMENT` seconds for the oldest task, and use the results that are there; see `drain`."""
        if self._queue:
            self._queue[0][0].wait(MOMENT)
        yield from self.drain(len(self._queue))

    def forget(self) -> None:
        """Cancel all tasks, because a newer round has made them useless."""
        while self._queue:
            self._queue.popleft()[0].cancel()
        while self._beside:
            self._beside.pop().forget()
