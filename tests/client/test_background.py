"""The thread behind the synchronous API: what a caller may do to it without hanging or leaking."""

import gc
import multiprocessing
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from trilateral.client.background import BackgroundLoop
from trilateral.client.session import _close


class Closable:
    """Stands in for an asynchronous session."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def __aexit__(self, *error: object) -> None:
        self.closed.set()


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop.acquire()
    yield loop
    loop.release()


async def answer() -> int:
    return 42


async def count() -> AsyncIterator[int]:
    for number in range(3):
        yield number


def ask_in_child(loop: BackgroundLoop, session: Any, results: Any) -> None:
    refusals = []
    for use in (lambda: loop.call(answer), BackgroundLoop.acquire):
        try:
            use()
        except RuntimeError as error:
            refusals.append(str(error))
    _close(loop, session)  # as the garbage collector does with an inherited session
    results.put(refusals)


def test_a_forked_process_is_told_why_it_cannot_use_an_inherited_session(loop: BackgroundLoop) -> None:
    assert loop.call(answer) == 42
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=ask_in_child, args=(loop, Closable(), results))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    refusals = results.get()
    assert len(refusals) == 2
    assert all("forked" in refusal for refusal in refusals)
    assert loop.call(answer) == 42


def test_a_lost_session_is_closed_even_if_the_collector_finds_it_on_the_loops_thread() -> None:
    class Lost:
        pass

    ended: Future[None] = Future()
    loop, session, lost = BackgroundLoop.acquire(), Closable(), Lost()
    unclosed: Any = session
    weakref.finalize(lost, _close, loop, unclosed)
    lost.cycle = lost  # type: ignore[attr-defined]
    threads = [thread for thread in threading.enumerate() if thread.name == "trilateral"]

    async def collect() -> None:
        gc.collect()
        ended.set_result(None)

    gc.disable()
    try:
        del lost
        loop.call(collect)
    finally:
        gc.enable()
    assert ended.done()
    assert session.closed.wait(30)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_an_iteration_that_is_dropped_after_the_last_session_ends_quietly() -> None:
    loop = BackgroundLoop.acquire()
    numbers = loop.iterate(count)
    assert next(numbers) == 0
    loop.release()
    del numbers  # An error here would fail the test as an unraisable exception.
    gc.collect()


def test_a_call_at_the_moment_at_which_the_loop_ends_does_not_wait_for_ever() -> None:
    refusals: list[str] = []

    def call_until_refused(loop: BackgroundLoop) -> None:
        try:
            while True:
                loop.call(answer)
        except RuntimeError as error:
            refusals.append(str(error))

    for _ in range(100):
        loop = BackgroundLoop.acquire()
        callers = [threading.Thread(target=call_until_refused, args=(loop,)) for _ in range(3)]
        for caller in callers:
            caller.start()
        loop.release()
        for caller in callers:
            caller.join(30)
            assert not caller.is_alive()
    assert len(refusals) == 300
    assert set(refusals) <= {"the session is closed", "the session was closed during the call"}
