"""Record what the threads of one server do, for `benchmarks/round.py --profile` and `benchmarks/credit.py --profile`.

python benchmarks/recorder.py FILE serve ROLE --config CONFIG

The product has no code for this. Before the server starts, this program replaces functions of the product and of its
libraries by functions that also note when they ran. At the end of the server it writes the notes to FILE as JSON.
`benchmarks/critical_path.py` reads them.

A span is a call of one of these functions. A crossing is a moment in the life of a message between two processes:

    made        the sender's state machine has yielded it
    queued      the sender's link has it
    sending     the sender's link begins to send it
    arrived     the receiver's event loop has read and checked it
    taken       the receiver's state machine begins to work on it

`time.monotonic_ns` reads the same clock in all processes of a machine.
"""

import json
import os
import sys
import threading
import types
from asyncio import Handle, Task
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

# `python benchmarks/recorder.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import timeline
from benchmarks.timeline import Span, now, processor_time

_spans: dict[str, list[Span]] = {}
_crossings: list[tuple[int, str, str, str]] = []
"""Time, moment, the other role and the message."""
_exchanges: list[tuple[int, int, str, str]] = []
"""Start and end of the work on a message, the sender and the message."""


class _Local(threading.local):
    """The spans of the current thread."""

    def __init__(self) -> None:
        self.spans = _spans.setdefault(f"{threading.current_thread().name} {threading.get_ident()}", [])


_local = _Local()


def recorded(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Return a function that does the same and adds a span to those of its thread."""
    return timeline.recorded(function, kind, lambda: _local.spans)


def record_calls(owner: Any, kind: str, *names: str) -> None:
    """Record the calls of functions of a module or methods of a class."""
    for name in names:
        setattr(owner, name, recorded(getattr(owner, name), kind))


def message_name(message: Any) -> str:
    """Return a text that identifies a message of a round; empty if it belongs to no round."""
    key: Any = getattr(message, "key", None)
    if not hasattr(key, "attempt"):
        return ""
    parts = [getattr(message, "kind", type(message).__name__), key.round, key.attempt, getattr(message, "offset", 0)]
    return " ".join(map(str, parts))


def cross(moment: str, peer: Any, message: Any) -> None:
    """Record a moment in the life of a message."""
    if name := message_name(message):
        _crossings.append((now(), moment, str(peer), name))


class RecordedPhase:
    """Records the block of a `Phase` of the product."""

    def __init__(self, inner: Any, kind: str) -> None:
        self._inner, self._kind = inner, kind

    def __enter__(self) -> None:
        self._start, self._used = now(), processor_time()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> Any:
        result = self._inner.__exit__(*error)
        _local.spans.append((self._start, now(), self._used, processor_time(), self._kind))
        return result


def _record_arithmetic() -> None:
    from trilateral.common.jobs.history import Stopwatch
    from trilateral.common.paillier.native.path import arithmetic_path

    try:
        from trilateral.common.paillier.native import _kernel
    except ImportError:
        kernel: Any = types.SimpleNamespace()
    else:
        kernel = _kernel
    functions = [name for name, value in vars(kernel).items() if isinstance(value, types.BuiltinFunctionType)]
    record_calls(kernel, "arithmetic", *functions)
    phase = Stopwatch.phase

    def recorded_phase(self: Stopwatch, name: str) -> Any:
        inner = phase(self, name)
        if name in ("check", "optimise", "prepare"):
            return RecordedPhase(inner, name)
        return RecordedPhase(inner, "arithmetic" if arithmetic_path() == "gmpy2" else "packing")

    Stopwatch.phase = recorded_phase  # type: ignore[method-assign]


def _record_machine(machine: type[Any]) -> None:
    handle = machine.handle

    def recorded_handle(self: Any, sender: Any, message: Any) -> Iterator[Any]:
        cross("taken", sender, message)
        start, name = now(), message_name(message)
        envelopes = handle(self, sender, message)
        step = recorded(lambda: next(envelopes, None), "state machine")
        while (envelope := step()) is not None:
            cross("made", envelope.to, envelope.message)
            yield envelope
        _exchanges.append((start, now(), str(sender), name))

    machine.handle = recorded_handle


def _record_messages() -> None:
    from trilateral.common.jobs import job_thread, links, process_jobs
    from trilateral.common.jobs.history import History
    from trilateral.common.jobs.journal import Journal
    from trilateral.common.jobs.runner import MachineRunner

    record_calls(links, "protobuf", "encode", "encode_elements")
    record_calls(process_jobs, "protobuf", "decode")
    record_calls(Journal, "journal", "write_round", "set_facts")
    record_calls(History, "history", "begin_round", "report")
    record_calls(job_thread, "job thread", "without_lock")
    link: Any = links.Link
    send, call, encode_piece, deliver = link.send, link.call, link._encode, MachineRunner.deliver

    def recorded_send(self: Any, message: Any) -> None:
        cross("queued", self._peer.role, message)
        send(self, message)

    async def recorded_call(self: Any, message: Any) -> None:
        cross("sending", self._peer.role, message)
        await call(self, message)

    def recorded_encode(self: Any, message: Any, route: Any) -> Any:
        cross("sending", self._peer.role, message)
        return recorded(encode_piece, "protobuf")(self, message, route)

    async def recorded_deliver(self: Any, sender: Any, message: Any, n_bytes: int = 0) -> None:
        cross("arrived", sender, message)
        await deliver(self, sender, message, n_bytes)

    link.send, link.call, link._encode = recorded_send, recorded_call, recorded_encode
    MachineRunner.deliver = recorded_deliver  # type: ignore[method-assign]


def _record_loop() -> None:
    """Record each callback of the event loop, as gRPC's own if gRPC's code runs first in it."""
    handle: Any = Handle
    run = handle._run
    of_loop, of_grpc = recorded(run, "event loop"), recorded(run, "gRPC")

    def recorded_run(self: Any) -> None:
        callback = self._callback
        owner = getattr(callback, "__self__", None)
        coroutine: Any = owner.get_coro() if isinstance(owner, Task) else callback
        code = getattr(coroutine, "cr_code", None)
        is_grpc = "/grpc/" in code.co_filename if code is not None else "cython" in type(coroutine).__name__
        (of_grpc if is_grpc else of_loop)(self)

    handle._run = recorded_run


def _record_grpc() -> None:
    import grpc
    from grpc.aio import _channel

    def with_codecs(make: Callable[..., Any], first: str, second: str, position: int) -> Callable[..., Any]:
        """Return `make` with its serialisers recorded, which are its arguments from `position` on."""

        @wraps(make)
        def making(*args: Any, **kwargs: Any) -> Any:
            plain, coders = list(args[:position]), dict(zip((first, second), args[position:], strict=False)) | kwargs
            for name in (first, second):
                if coders.get(name) is not None:
                    coders[name] = recorded(coders[name], "protobuf")
            return make(*plain, **coders)

        return making

    channel: Any = _channel.Channel
    for kind in ("unary_unary", "stream_unary", "unary_stream", "stream_stream"):
        handler = f"{kind}_rpc_method_handler"
        setattr(grpc, handler, with_codecs(getattr(grpc, handler), "request_deserializer", "response_serializer", 1))
        make = with_codecs(getattr(channel, kind), "request_serializer", "response_deserializer", 2)
        setattr(channel, kind, make)


def start() -> None:
    """Record from now on."""
    _record_grpc()
    _record_loop()
    from trilateral.coordinator.machine import CoordinatorMachine
    from trilateral.guest_party.machine import GuestMachine
    from trilateral.host_party.machine import HostMachine

    _record_arithmetic()
    for machine in (CoordinatorMachine, GuestMachine, HostMachine):
        _record_machine(machine)
    _record_messages()
    timeline.record_steps()


def write(path: Path) -> None:
    """Write everything that was recorded."""
    notes = {"spans": _spans, "crossings": _crossings, "exchanges": _exchanges, "steps": timeline.notes}
    path.write_text(json.dumps(notes))


def main() -> None:
    """Run a server and record it."""
    path = Path(sys.argv.pop(1))
    # As in `trilateral serve`, which comes after numpy here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    start()
    from trilateral.cli.main import main as run

    try:
        run()
    finally:
        write(path)


if __name__ == "__main__":
    main()
