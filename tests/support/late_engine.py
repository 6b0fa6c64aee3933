"""An engine whose tasks run when they are waited for, and not when they are submitted."""

from collections.abc import Callable
from typing import TypeVar

from trilateral.common.compute.engine import Task
from trilateral.common.compute.local import LocalEngine

T = TypeVar("T")


class LateEngine(LocalEngine):
    """Counts what is submitted, run and cancelled.

    Args:
        n_slots: see Engine.
    """

    at_once = False

    def __init__(self, n_slots: int = 2) -> None:
        self.n_slots = n_slots
        self.n_submitted = 0
        self.n_run = 0
        self.n_cancelled = 0
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def submit(self, function: Callable[..., T], *args: object, urgent: bool = False) -> Task[T]:
        self.n_submitted += 1
        return LateTask(self, lambda: super(LateEngine, self).submit(function, *args, urgent=urgent))


class LateTask(Task[T]):
    def __init__(self, engine: LateEngine, run: Callable[[], Task[T]]) -> None:
        self._engine = engine
        self._run = run
        self._task: Task[T] | None = None

    def done(self) -> bool:
        return self._task is not None

    def wait(self, seconds: float) -> bool:
        self.result()
        return True

    def result(self) -> T:
        if self._task is None:
            self._task = self._run()
            self._engine.n_run += 1
        return self._task.result()

    def cancel(self) -> None:
        if self._task is None:
            self._engine.n_cancelled += 1
