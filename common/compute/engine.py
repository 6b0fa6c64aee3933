"""The interface of an engine, which runs pure functions on the parts of a table.

A part is a partition: a fixed number of rows. A state machine hands the work on a partition to the engine of its
session as a task, goes on, and uses the result when it is there. It does not know where the task runs. Because a task
is a pure function of its arguments, and results are used in the order of the partitions, the result of a training does
not depend on the engine, on the number of workers, or on whether a worker dies.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Placed(Generic[T_co]):
    """Data of one partition that several tasks need; see `Engine.place`."""


class Task(ABC, Generic[T_co]):
    """A function call that an engine runs."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether `result` returns or raises at once."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Wait until the task is done, for at most `seconds`. Return `done()`."""

    @abstractmethod
    def result(self) -> T_co:
        """Wait for the result.

        Raises:
            SuspendedError: the engine was closed, or can no longer be reached.
            Exception: what the function has raised.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Forget the task, whose result has become useless. It may still run to its end."""


class Engine(ABC):
    """Runs the tasks of one session of a job, or of one alignment. Its methods may be called from any thread.

    Attributes:
        n_slots: how many tasks run at a time. To keep all slots busy, have up to `2 * n_slots + 1` tasks under way.
        at_once: whether a task has run, in the caller's thread, when `submit` returns. The caller can then keep between
            tasks what it would otherwise make anew for each.
    """

    n_slots: int
    at_once: bool = False

    @abstractmethod
    def place(self, number: int, load: Callable[[], T], *, keep: bool = True) -> Placed[T]:
        """Name data that several tasks of a partition need, so that it moves to a worker only once.

        A task gets the data in place of the `Placed` in its arguments. It must not change the data.

        Args:
            number: the number of the partition. Neighbours go to different workers.
            load: returns the data. It runs in this process, in any thread, when a task first needs the data, and again
                if the worker that held it has died. Each call must return the same data.
            keep: for an engine in this process, whether to keep the data between tasks rather than to load it again for
                each task. Workers always keep it.
        """

    @abstractmethod
    def submit(self, function: Callable[..., T], *args: object, urgent: bool = False) -> Task[T]:
        """Run a function.

        Args:
            function: a pure function of a module, which a worker can import. It may run more than once.
            args: its arguments. Each can be pickled, or is a `Placed` of this engine. They stay in this process until
                the result is there, because a worker may die.
            urgent: whether the task comes before others that wait.
        """

    @abstractmethod
    def release(self, placed: Placed[object]) -> None:
        """Forget placed data, here and on the workers. No task may use it from now on."""

    @abstractmethod
    def close(self) -> None:
        """Cancel all tasks, and release all placed data. Tasks that are waited for raise a SuspendedError."""


class Cluster(ABC):
    """The workers that a process uses, for all of its sessions."""

    @abstractmethod
    def open_engine(self) -> Engine:
        """Make the engine of one session."""

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Workers that can be used."""

    @property
    @abstractmethod
    def n_slots(self) -> int:
        """Tasks that run at a time on all workers."""

    @property
    @abstractmethod
    def n_tasks(self) -> int:
        """Tasks that have no result yet, over all engines."""

    @property
    @abstractmethod
    def n_losses(self) -> int:
        """How often a task had to be sent again because its worker was gone."""

    @abstractmethod
    def close(self) -> None:
        """Close all engines, and the connection."""


OpenEngine: TypeAlias = Callable[[], Engine]
"""Makes an engine for one session or alignment, which closes it at its end."""
