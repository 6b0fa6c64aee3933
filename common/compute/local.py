"""The engine of a single machine: each task runs in the caller's thread when it is submitted.

The kernels have threads of their own, so a single task at a time keeps all processors busy. Nothing is copied.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from trilateral.common.compute.engine import Engine, Placed, Task

T = TypeVar("T")


class _Local(Placed[T]):
    """Data in this process."""

    def __init__(self, load: Callable[[], T], *, keep: bool) -> None:
        self._load = load
        self._keep = keep
        self._kept: list[T] = []

    def get(self) -> T:
        if self._kept:
            return self._kept[0]
        data = self._load()
        if self._keep:
            self._kept.append(data)
        return data

    def release(self) -> None:
        self._kept.clear()


class _Done(Task[T]):
    """A task that has run."""

    def __init__(self, function: Callable[..., T], args: tuple[object, ...]) -> None:
        self._error: Exception | None = None
        try:
            self._result = function(*(arg.get() if isinstance(arg, _Local) else arg for arg in args))
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return True

    def wait(self, seconds: float) -> bool:
        del seconds
        return True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        pass


class LocalEngine(Engine):
    """See the module."""

    n_slots = 1
    at_once = True

    def place(self, number: int, load: Callable[[], T], *, keep: bool = True) -> Placed[T]:
        """See Engine."""
        del number
        return _Local(load, keep=keep)

    def submit(self, function: Callable[..., T], *args: object, urgent: bool = False) -> Task[T]:
        """See Engine."""
        del urgent
        return _Done(function, args)

    def release(self, placed: Placed[object]) -> None:
        """See Engine."""
        cast(_Local[object], placed).release()

    def close(self) -> None:
        """See Engine: there is nothing to close."""


LOCAL = LocalEngine()
"""The default engine. It keeps no state, so all sessions share it."""
