"""An event loop in a thread of its own, for callers that are not asynchronous.

All sessions of a process share one loop, because gRPC's asynchronous channels do not work well on several loops at
once. The thread starts with the first session and ends with the last.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

CANCEL_SECONDS = 30.0
"""How long an interrupted call may take to clean up."""


class BackgroundLoop:
    """The shared loop. Each `acquire` needs one `release`."""

    # Reentrant, because the garbage collector may close a lost session while its thread holds the lock.
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _shared: ClassVar["BackgroundLoop | None"] = None

    def __init__(self) -> None:
        self._n_users = 0
        self._process = os.getpid()
        self._ending = threading.RLock()
        """Held to start a call, and to accept no more of them."""
        self._has_ended = False
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a session that is never closed does not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="trilateral", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> "BackgroundLoop":
        """Return the shared loop, and start it if there is none.

        Raises:
            RuntimeError: this process was forked from one with an open session.
        """
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            cls._shared._check_process()
            cls._shared._n_users += 1
            return cls._shared

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that runs the loop. A fork copies no threads."""
        return self._process != os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop's own thread."""
        return threading.current_thread() is self._thread

    def release(self) -> None:
        """Give the loop back. The last user ends its thread."""
        with BackgroundLoop._lock:
            self._n_users -= 1
            if self._n_users:
                return
            BackgroundLoop._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join()

    def close_soon(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a coroutine function without waiting for it, and then give the loop back. Call it on the loop itself."""
        closing = self._loop.create_task(function(*args))
        closing.add_done_callback(lambda _: self.release())

    def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine function on the loop and return its result.

        An interrupt, such as Ctrl-C, cancels the coroutine and waits until it has cleaned up.

        Raises:
            RuntimeError: the caller is on the loop itself, for example in a callback, and would wait for itself; or
                this process was forked from the one that runs the loop; or another thread closed the session meanwhile.
        """
        self._check_process()
        if self.is_current:
            raise RuntimeError("a session cannot be used inside its own callbacks: call it from another thread")
        result: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(function(*args))
            tasks.append(task)
            task.add_done_callback(finish)

        def finish(task: "asyncio.Task[T]") -> None:
            if task.cancelled():
                # Not as CancelledError: in a program with an event loop, that would cancel a task of the caller.
                result.set_exception(RuntimeError("the session was closed during the call"))
            elif error := task.exception():
                result.set_exception(error)
            else:
                result.set_result(task.result())

        with self._ending:
            if self._has_ended:
                raise RuntimeError("the session is closed")
            self._loop.call_soon_threadsafe(begin)
        try:
            return result.result()
        except BaseException:
            with self._ending:
                if not self._has_ended and not result.done():
                    # `begin` may still have to run, so there may be no task yet.
                    self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108
            wait([result], CANCEL_SECONDS)
            raise

    def iterate(self, items: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Yield what an asynchronous iterator yields. When the caller stops early, the iterator is closed."""
        iterator = items()
        ended = object()

        async def following() -> T | object:
            return await anext(iterator, ended)

        try:
            while (item := self.call(following)) is not ended:
                yield item  # type: ignore[misc]
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None and not self.is_inherited:
                try:
                    self.call(close)
                except RuntimeError:
                    if not self._has_ended:  # a loop that ends closes its iterators
                        raise

    def _check_process(self) -> None:
        if self.is_inherited:
            raise RuntimeError(
                "this process was forked from one with an open session: fork before you open a session, or start the "
                'process with the method "spawn"'
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self._ending:  # From here on no call starts, so that each that has started is cancelled below.
                self._has_ended = True
            self._loop.run_until_complete(self._cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _cancel_all(self) -> None:
        """End what other threads still wait for, so that they do not wait for ever."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
