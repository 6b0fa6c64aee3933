"""The engine of a cluster: Dask's scheduler hands the tasks to its workers.

Dask computes again what a dead worker had computed, but not what it had been sent. So this process keeps the arguments
of each task until the result has come, and sends them again. Placed data it loads again.

The data travels straight between this process and the workers. The scheduler sees names and sizes alone. What a worker
sends is a pickle, so this process trusts the workers as it trusts itself.
"""

import asyncio
import logging
import operator
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from pickle import PickleError
from typing import Any, TypeVar, cast

import distributed
from distributed.security import Security

from trilateral.common.base.errors import ConfigError, SuspendedError, TrilateralError
from trilateral.common.compute.calls import Call, Hole, Raised, Sealed
from trilateral.common.compute.engine import Cluster, Engine, Placed, Task
from trilateral.common.compute.worker import WorkerFacts, describe
from trilateral.common.config.engine import EngineConfig, stays_private

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 0.5
"""Interval at which to look which workers there are."""
PAUSE_SECONDS = 0.1
"""Pause before a task is sent again for the first time. It doubles each time, up to `MAX_PAUSE_SECONDS`."""
MAX_PAUSE_SECONDS = 3.0
CONNECT_SECONDS = 8.0
"""How long to try to connect to a worker, which may have died. After that, another worker is tried."""
MAX_LOSSES = 20
"""How often a task may lose its worker. More often than that, the task itself ends them."""
CLOSE_SECONDS = 5.0
"""The longest wait for the cluster when the process closes its connection."""
URGENT = 10
"""Priority of an urgent task."""


@dataclass(frozen=True)
class Worker:
    """A worker as the scheduler describes it.

    Attributes:
        address: where it listens, such as ``tls://10.0.0.5:40331``.
        n_threads: how many tasks it runs at a time.
    """

    address: str
    n_threads: int


_NOT_UNPACKED = ("Error during deserialization", "Importing ")
"""How the texts of Dask's `RuntimeError` begin if the scheduler or a worker cannot unpack what it has received. Other
texts, such as that a worker is shutting down, are those of a lost worker."""


class _LostError(Exception):
    """A worker, or the connection to it or to the scheduler, is gone. The task can be sent again."""


class DaskCluster(Cluster):
    """The connection of a process to a scheduler. It is made when something needs it, and again after it has broken.

    Args:
        config: how to reach the scheduler. A worker that is reached without TLS at another machine gets nothing.
        patience: seconds to wait for the scheduler, and for a worker, before tasks fail.
    """

    def __init__(self, config: EngineConfig, patience: float) -> None:
        _silence()
        self._scheduler = config.scheduler or ""
        self._security = _security(config)
        self._patience = patience
        self._workers: tuple[Worker, ...] = ()
        """The workers that may be used, by address, as last seen."""
        self._known: dict[str, WorkerFacts | str] = {}
        """What each worker has said about itself, or why it may not be used, by its address."""
        self._meetings: dict[str, asyncio.Task[None]] = {}
        """The questions to new workers that have not been answered, by address."""
        self._attempts: dict[asyncio.Task[Any], Worker] = {}
        """The attempts to compute a task, each with its worker. They end when the worker is gone."""
        self._problem: str | None = None
        """Why the scheduler cannot be asked for its workers at present."""
        self._n_losses = 0
        self._engines: set[DaskEngine] = set()
        self._client: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_note)
        self._connecting, self._changed = asyncio.Lock(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    # --- for the process

    def open_engine(self) -> "DaskEngine":
        """See Cluster."""
        engine = DaskEngine(self)
        self._engines.add(engine)
        self.start(self._prepare())
        return engine

    @property
    def n_workers(self) -> int:
        """See Cluster."""
        return len(self._workers)

    @property
    def n_slots(self) -> int:
        """See Cluster."""
        return sum(worker.n_threads for worker in self._workers)

    @property
    def n_tasks(self) -> int:
        """See Cluster."""
        return sum(engine.n_tasks for engine in self._engines.copy())

    @property
    def n_losses(self) -> int:
        """See Cluster."""
        return self._n_losses

    def inspect(self) -> Mapping[str, WorkerFacts | str]:
        """Connect, and ask each worker about itself.

        Returns:
            For each worker by its address, its facts, or why it may not be used.

        Raises:
            ConfigError: the scheduler cannot be reached.
        """

        async def ask() -> Mapping[str, WorkerFacts | str]:
            await self._connected()
            if self._meetings:
                await asyncio.wait(self._meetings.values(), timeout=self._patience)
            return self._known.copy()

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()

    def close(self) -> None:
        """See Cluster."""
        if self._is_closed:
            return
        self._is_closed = True
        for engine in self._engines.copy():
            engine.close()

        async def close() -> None:
            if self._watch is not None:
                self._watch.cancel()
            if self._client is not None:
                await _close(self._client)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=CLOSE_SECONDS)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- for the engines

    def start(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        """Run a coroutine in the thread of the connection."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the thread of the connection; not at all if the connection is closed."""
        with suppress(RuntimeError):  # The loop is closed, and with it all that Dask has kept.
            self._loop.call_soon_threadsafe(function)

    def forget(self, engine: "DaskEngine") -> None:
        """Forget a closed engine."""
        self._engines.discard(engine)

    async def attempt(self, worker: Worker, work: Coroutine[Any, Any, T]) -> T:
        """Await work at a worker. Cancel it when the scheduler no longer has the worker, or has paused it.

        Dask itself tries to connect to a dead worker for `CONNECT_SECONDS`, and waits without end for one that the
        operating system has stopped. The scheduler drops such a worker once it has sent no sign of life for a while.
        """
        attempt = asyncio.create_task(work)
        self._attempts[attempt] = worker
        try:
            return await attempt
        finally:
            del self._attempts[attempt]

    def lost(self, worker: Worker) -> None:
        """Count a task that has to be sent again. Do not use its worker until the scheduler names it once more."""
        self._n_losses += 1
        self._workers = tuple(each for each in self._workers if each != worker)

    def not_understood(self) -> str:
        """Return why a task fails that the scheduler or a worker cannot unpack."""
        return (
            f"engine.scheduler: {self._scheduler} or a worker cannot unpack a task: install the same releases of"
            " Python, dask and trilateral there and at this process"
        )

    async def ready(self) -> tuple[Any, tuple[Worker, ...]]:
        """Wait for the scheduler and at least one worker; return Dask's client, and the workers.

        Raises:
            ConfigError: there are none within the patience.
        """
        client = await self._connected()
        try:
            async with asyncio.timeout(self._patience):
                while not self._workers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ConfigError(self._why_no_worker()) from None
        return client, self._workers

    # --- the connection

    async def _prepare(self) -> None:
        """Find the workers before the first task, whose size depends on how many there are."""
        with suppress(ConfigError):  # The first task will find this, too, and say so.
            await self.ready()

    async def _connected(self) -> Any:
        """Return the client once it is connected.

        Raises:
            ConfigError: the scheduler cannot be reached within the patience.
        """
        deadline = time.monotonic() + self._patience
        reason = "it does not answer"
        async with self._connecting:
            while self._client is None or self._client.status != "running":
                if time.monotonic() > deadline:
                    raise ConfigError(self._unreachable(reason))
                if self._client is not None and self._client.status == "connecting":
                    await asyncio.sleep(PAUSE_SECONDS)  # It tries again by itself, for a while.
                else:
                    reason = await self._connect() or reason
            return self._client

    async def _connect(self) -> str | None:
        """Make a client. Return why that failed."""
        client = distributed.Client(  # type: ignore[no-untyped-call]
            self._scheduler,
            security=self._security,
            asynchronous=True,
            set_as_default=False,
            direct_to_workers=True,
            timeout=CONNECT_SECONDS,
            name="trilateral",
        )
        try:
            # Dask's own limit ends once something accepts the connection, even if it never says a word.
            async with asyncio.timeout(CONNECT_SECONDS):
                await client
                await self._look(client)
        except asyncio.CancelledError:
            await _close(client)
            raise
        except (OSError, ValueError, RuntimeError) as error:
            await _close(client)
            await asyncio.sleep(PAUSE_SECONDS)
            # A cause such as a TimeoutError may have no text. Before a reason, Dask writes the text of its connection.
            reasons = (str(error.__cause__ or ""), str(error))
            reason = next((text.splitlines()[0] for text in reasons if text), None)
            return None if reason is None else re.sub(r"^in <.*?>: ", "", reason)
        self._client = client
        if self._watch is None:
            # Its lines in the log belong to no job, not even to the one for which the client was made.
            self._watch = asyncio.create_task(self._keep_looking(), context=Context())
        return None

    def _unreachable(self, reason: str) -> str:
        return (
            f"engine.scheduler: {self._scheduler} cannot be used: {reason}: check that the scheduler runs there, and"
            " that this process and the scheduler have certificates of the same authority"
        )

    def _why_no_worker(self) -> str:
        if self._problem is not None:
            return self._unreachable(self._problem)
        refused = [why for why in self._known.values() if isinstance(why, str)]
        if refused:
            return f"engine.scheduler: no worker of {self._scheduler} can be used: {refused[-1]}"
        return f"engine.scheduler: {self._scheduler} has no worker: start one with `dask worker`"

    async def _keep_looking(self) -> None:
        """Keep the list of workers. Fail all tasks if there has been no worker for longer than the patience."""
        seen = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            client = self._client
            try:
                if client.status != "running":
                    raise ConnectionError
                async with asyncio.timeout(self._patience):
                    await self._look(client)
                self._problem = None
            except Exception as error:
                # Dask would wait without end for a scheduler that the operating system has stopped.
                is_silent = isinstance(error, TimeoutError)
                self._problem = "it does not answer" if is_silent else "the connection was lost"
                self._workers = ()
            if self._workers or not self.n_tasks:
                seen = time.monotonic()
            elif time.monotonic() - seen > self._patience:
                for engine in self._engines.copy():
                    engine.fail(SuspendedError(self._why_no_worker()))

    async def _look(self, client: Any) -> None:
        """Ask the scheduler for its workers, and begin to ask each new one for its facts."""
        identity = await client.scheduler.identity()
        found = {
            address: Worker(address, int(each["nthreads"]))
            for address, each in sorted(identity["workers"].items())
            if each["status"] == "running"
        }
        for gone in self._known.keys() - found.keys():
            del self._known[gone]
        for attempt, at in self._attempts.items():
            if at.address not in found:
                attempt.cancel()
        for worker in found.values():
            if worker.address not in self._known and worker.address not in self._meetings:
                self._meetings[worker.address] = asyncio.create_task(self._meet(client, worker))
        self._workers = tuple(
            worker for worker in found.values() if isinstance(self._known.get(worker.address), WorkerFacts)
        )
        if self._workers:
            self._changed.set()

    async def _meet(self, client: Any, worker: Worker) -> None:
        """Ask a worker about itself. If it does not answer, it is asked again at the next look."""
        if not stays_private(worker.address):
            self._refuse(worker, f"the worker at {worker.address} is reached without TLS: give it certificates")
            return
        try:
            async with asyncio.timeout(self._patience):
                answers = await client.run(describe, workers=[worker.address], on_error="return")
            self._judge(worker, answers.get(worker.address))
        except Exception as error:
            log.debug("engine: the worker at %s does not answer: %s", worker.address, type(error).__name__)
        finally:
            del self._meetings[worker.address]

    def _judge(self, worker: Worker, answer: object) -> None:
        own = describe().version
        match answer:
            case WorkerFacts(version=version) if version == own:
                self._known[worker.address] = answer
                self._workers = (*self._workers, worker)
                self._changed.set()
                log.info("engine: the worker at %s runs %d tasks at a time", worker.address, worker.n_threads)
            case WorkerFacts(version=version):
                self._refuse(
                    worker,
                    f"the worker at {worker.address} has trilateral {version}, and this process {own}: install the"
                    " same release",
                )
            case ImportError():
                self._refuse(
                    worker, f"the worker at {worker.address} cannot import trilateral: install the same release there"
                )
            case OSError() | None:
                pass
            case error:
                self._refuse(worker, f"the worker at {worker.address} failed with a {type(error).__name__}")

    def _refuse(self, worker: Worker, why: str) -> None:
        self._known[worker.address] = why
        log.warning("engine: %s", why)


class DaskEngine(Engine):
    """The engine of one session on a cluster.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: DaskCluster) -> None:
        self._cluster = cluster
        self._tasks: set[_RemoteTask[Any]] = set()
        self._placed: set[_Remote[Any]] = set()
        self._n_submitted = Counter[Callable[..., Any]]()
        """By function. The tasks of one function take equally long, so each deals its own round the workers."""
        self._is_closed = False
        self.has_worked = False
        """Whether a task has had a result."""

    @property
    def n_slots(self) -> int:  # type: ignore[override]
        """See Engine. It is 1 while no worker is known."""
        return max(1, self._cluster.n_slots)

    @property
    def n_tasks(self) -> int:
        """How many tasks have no result yet."""
        return len(self._tasks)

    def place(self, number: int, load: Callable[[], T], *, keep: bool = True) -> Placed[T]:
        """See Engine."""
        del keep
        placed = _Remote(number, load)
        self._placed.add(placed)
        return placed

    def submit(self, function: Callable[..., T], *args: object, urgent: bool = False) -> Task[T]:
        """See Engine."""
        placed = [arg for arg in args if isinstance(arg, _Remote)]
        call = Call((function, tuple(Hole() if isinstance(arg, _Remote) else arg for arg in args)))
        number = placed[0].number if placed else self._n_submitted[function]
        self._n_submitted[function] += 1
        task: _RemoteTask[T] = _RemoteTask(
            self, self._cluster, call, placed, number=number, priority=URGENT if urgent else 0
        )
        self._tasks.add(task)
        task.outcome.add_done_callback(lambda _: self._tasks.discard(task))
        if self._is_closed:
            task.fail(SuspendedError("the engine was closed"))
        else:
            task.start()
        return task

    def release(self, placed: Placed[object]) -> None:
        """See Engine."""
        remote = cast(_Remote[object], placed)
        self._placed.discard(remote)
        self._cluster.call_soon(remote.forget)

    def fail(self, error: TrilateralError) -> None:
        """End all tasks with an error."""
        for task in self._tasks.copy():
            task.fail(error)

    def judge(self, error: Exception) -> Exception:
        """Return what ends a task: without a cluster, a session that had one is suspended, and any other fails."""
        return SuspendedError(str(error)) if self.has_worked and isinstance(error, ConfigError) else error

    def close(self) -> None:
        """See Engine."""
        if self._is_closed:
            return
        self._is_closed = True
        self.fail(SuspendedError("the engine was closed"))
        for placed in self._placed.copy():
            self.release(placed)
        self._cluster.forget(self)


class _Remote(Placed[T]):
    """Data of one partition on a worker. Only the thread of the connection uses it."""

    def __init__(self, number: int, load: Callable[[], T]) -> None:
        self.number = number
        self._load = load
        self._worker: Worker | None = None
        self._sent: asyncio.Task[Any] | None = None

    def worker(self, workers: tuple[Worker, ...]) -> Worker:
        """Return where the data is, or has to go."""
        if self._worker is None or self._worker not in workers:
            self.forget()
            self._worker = _choose(workers, self.number)
        return self._worker

    async def future(self, client: Any, worker: Worker) -> Any:
        """Send the data to the worker if it is not there.

        Returns:
            Dask's name for it, or a `Raised` if it could not be loaded.
        """
        if self._sent is not None and self._sent.done() and not self._is_there(self._sent):
            self._sent = None
        if self._sent is None:
            self._sent = asyncio.create_task(self._send(client, worker))
        return await asyncio.shield(self._sent)

    def forget(self) -> None:
        """Release the data. The next task that needs it sends it again."""
        sent, self._sent, self._worker = self._sent, None, None
        if sent is not None:
            sent.add_done_callback(_release)

    async def _send(self, client: Any, worker: Worker) -> Any:
        try:
            data = await asyncio.to_thread(self._load)
        except Exception as error:
            return Raised(error)
        return await _scatter(client, Sealed(data), worker)

    @staticmethod
    def _is_there(sent: asyncio.Task[Any]) -> bool:
        if sent.cancelled() or sent.exception() is not None or isinstance(sent.result(), Raised):
            return False
        return bool(sent.result().status == "finished")


class _RemoteTask(Task[T]):
    """A call, and what has become of it."""

    def __init__(
        self,
        engine: DaskEngine,
        cluster: DaskCluster,
        call: Call,
        placed: list[_Remote[Any]],
        *,
        number: int,
        priority: int,
    ) -> None:
        self.outcome: Future[T] = Future()
        self._engine = engine
        self._cluster = cluster
        self._call = call
        self._placed = placed
        self._number = number
        self._priority = priority
        self._work: Future[None] | None = None

    def start(self) -> None:
        """Begin to compute."""
        self._work = self._cluster.start(self._run())

    def done(self) -> bool:
        """See Task."""
        return self.outcome.done()

    def wait(self, seconds: float) -> bool:
        """See Task."""
        with suppress(TimeoutError):
            self.outcome.exception(seconds)
        return self.outcome.done()

    def result(self) -> T:
        """See Task."""
        return self.outcome.result()

    def cancel(self) -> None:
        """See Task."""
        self.fail(SuspendedError("the task was cancelled"))

    def fail(self, error: TrilateralError) -> None:
        """End the task with an error, unless it is done."""
        with suppress(Exception):  # It is done.
            self.outcome.set_exception(error)
        if self._work is not None:
            self._work.cancel()

    async def _run(self) -> None:
        if self.outcome.done():  # It was cancelled before it began. Its data may have been released, and stays so.
            return
        try:
            sealed = await self._compute()
            error = sealed.value if isinstance(sealed, Raised) else None
        except Exception as problem:
            error = self._engine.judge(problem)
        with suppress(Exception):  # It was cancelled in the meantime.
            if error is not None:
                self.outcome.set_exception(error)
            else:
                self._engine.has_worked = True
                self.outcome.set_result(sealed.value)

    async def _compute(self) -> Sealed[Any]:
        """Send the call to one worker after another, until one has done it."""
        pause, lost = PAUSE_SECONDS, _LostError()
        for _ in range(MAX_LOSSES):
            try:
                return await self._try()
            except _LostError as error:
                lost = error
                log.info("engine: a task is sent again: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
        raise SuspendedError(
            f"engine: a task has lost its worker {MAX_LOSSES} times, the last time with a {lost}: see the logs of the"
            " workers, which may need more memory"
        )

    async def _try(self) -> Sealed[Any]:
        client, workers = await self._cluster.ready()
        at = [placed.worker(workers) for placed in self._placed]
        worker = at[0] if at else _choose(workers, self._number)
        try:
            return await self._cluster.attempt(worker, self._compute_at(client, worker, workers, at))
        except (Exception, asyncio.CancelledError) as error:
            # Several tasks wait for the same data, and one of them may have found it lost and cancelled its way. When
            # a worker dies, Dask raises many kinds of errors, but none of these.
            if self.outcome.done() or isinstance(error, TypeError | AttributeError | ImportError | PickleError):
                raise
            if _is_not_understood(error):
                raise ConfigError(self._cluster.not_understood()) from None
            self._cluster.lost(worker)
            raise _LostError(type(error).__name__) from None

    async def _compute_at(
        self, client: Any, worker: Worker, workers: tuple[Worker, ...], at: list[Worker]
    ) -> Sealed[Any]:
        sent: asyncio.Task[Any] | None = None
        result: Any = None
        try:
            inputs = [await placed.future(client, each) for placed, each in zip(self._placed, at, strict=True)]
            for each in inputs:
                if isinstance(each, Raised):
                    return each
            sent = asyncio.create_task(_scatter(client, self._call, worker))
            call, key = await asyncio.shield(sent), f"task-{uuid.uuid4().hex}"
            # The scheduler may give the task to an idle worker in place of this one, but to none that was refused.
            usable = [each.address for each in workers]
            result = client.submit(
                operator.call, call, *inputs, key=key, pure=False, priority=self._priority, workers=usable
            )
            return cast(Sealed[Any], await result)
        finally:
            if result is not None:
                result.release()
            if sent is not None:
                sent.add_done_callback(_release)


def _is_not_understood(error: BaseException) -> bool:
    """Return whether Dask could not unpack a task, which another worker could not either."""
    return isinstance(error, RuntimeError) and str(error).strip().startswith(_NOT_UNPACKED)


def _choose(workers: tuple[Worker, ...], number: int) -> Worker:
    """Return the worker of a partition or task. Neighbours go to different workers, and more to one that runs more."""
    slots = [(turn, worker) for worker in workers for turn in range(worker.n_threads)]
    slots.sort(key=operator.itemgetter(0))
    return slots[number % len(slots)][1]


async def _close(client: Any) -> None:
    """Close a client of Dask, whatever has become of its scheduler."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    # If that took too long, Dask would try again when the object is freed, and by then the loop may be closed.
    client.status = "closed"


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note an error that nothing waits for. Dask leaves many behind when a connection breaks."""
    del loop
    log.debug("engine: %s: %s", context["message"], type(context.get("exception")).__name__)


def _release(sent: asyncio.Task[Any]) -> None:
    """Release data once it has been sent. To cancel the sending would leave the data on the cluster."""
    if not sent.cancelled() and sent.exception() is None and not isinstance(sent.result(), Raised):
        with suppress(Exception):  # The connection has been closed, and the scheduler has forgotten the data.
            sent.result().release()


async def _scatter(client: Any, data: Sealed[Any], worker: Worker) -> Any:
    """Send data to a worker; return Dask's name for it."""
    # The time is for a worker that the scheduler does not know. This process chooses another then, and does not wait.
    return await client.scatter(data, workers=[worker.address], direct=True, hash=False, timeout=PAUSE_SECONDS)


def _security(config: EngineConfig) -> Security | None:
    if config.certificate is None:
        return None
    return Security(  # type: ignore[no-untyped-call]
        tls_ca_file=str(config.authorities),
        tls_client_cert=str(config.certificate),
        tls_client_key=str(config.key),
        require_encryption=True,
    )


def _silence() -> None:
    """Keep Dask's own lines, which may quote what an error quotes, out of the log of this process."""
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.handlers.clear()
