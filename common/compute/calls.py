"""What travels between a party and the workers of a cluster: calls, data and results.

Dask writes the arguments of a task that failed into its log, and parts of objects that it cannot send into error texts.
So a task never fails in Dask's eyes, and everything that may hold a value of a row is wrapped in a `Sealed`, whose text
shows nothing.
"""

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.tracebacks import where

T = TypeVar("T")


class TaskError(Exception):
    """A task failed by a bug. The text names classes and code locations alone; see `tracebacks.where`."""


class Sealed(Generic[T]):
    """A value that no text shows.

    Args:
        value: the value.
    """

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __sizeof__(self) -> int:
        """Return the size of the value, by which Dask decides what to move to which worker."""
        return _size(self.value)


class Call(Sealed[tuple[Callable[..., Any], tuple[Any, ...]]]):
    """A function and its arguments. A worker calls it with the placed data, one for each `Hole` and in their order."""

    def __call__(self, *placed: Sealed[Any]) -> "Sealed[Any]":
        """Call the function.

        Returns:
            What the function returned, or a `Raised` with what it raised.
        """
        function, args = self.value
        data = iter(placed)
        try:
            return Sealed(function(*(next(data).value if isinstance(arg, Hole) else arg for arg in args)))
        except TrilateralError as error:
            return Raised(error.with_traceback(None))
        except Exception as error:
            return Raised(TaskError(where(error)))


class Hole:
    """Stands for an argument that has been placed on the worker."""


class Raised(Sealed[Exception]):
    """What a function raised in place of a result."""


def _size(value: object) -> int:
    """Return about how many bytes a value takes."""
    match value:
        case np.ndarray() | memoryview():
            return value.nbytes
        case bytes() | bytearray() | str():
            return len(value)
        case Mapping():
            return sum(_size(key) + _size(each) for key, each in value.items())
        case Sequence() | Set():
            return sum(map(_size, value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return sum(_size(getattr(value, each.name)) for each in fields(value))
        case _:
            return sys.getsizeof(value)
