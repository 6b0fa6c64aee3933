"""Measure what a byte and a message cost between two processes on this machine.

python benchmarks/wire.py [--json] [--ways WAY ...] [--gigabytes 0.5] [--repeats 3]

Each way moves ring elements from one process to another over localhost:

socket      a TCP socket
tls         a TCP socket under TLS
grpc        a streaming call of gRPC in plaintext, whose requests are bytes
grpc_tls    the same under TLS
protobuf    the same under TLS, with requests that protobuf serialises and parses
framed      the same under TLS, with requests that `rpc.elements` frames
job         the same requests between two servers that run a job: state machines, threads, links, access rules, history

ns_a_byte         processor nanoseconds a byte, of both processes, in pieces of 1.2 MB
ns_sending        the sender's part
ns_receiving      the receiver's part
seconds_a_gb      seconds a gigabyte
us_a_piece        processor microseconds a piece, of both processes, in pieces of 512 bytes
us_between        microseconds from one such piece to the next

Each figure is the median of the repetitions.
"""

import argparse
import asyncio
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np

# `python benchmarks/wire.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from trilateral.common.base.errors import TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig, TlsConfig
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.jobs.history import History
from trilateral.common.jobs.process_jobs import ProcessJobs
from trilateral.common.jobs.runner import MachineRunner
from trilateral.common.observe.audit import Audit
from trilateral.common.pb.v1 import rounds_pb2
from trilateral.common.process.memory import reuse_freed_memory, share_heaps
from trilateral.common.process.server import RoleParts, serve_role
from trilateral.common.protocol.messages import (
    ElementPiece,
    Envelope,
    Finished,
    JobEnded,
    Kind,
    Machine,
    Message,
    Result,
    RoundKey,
)
from trilateral.common.rpc.certificates import Certificates
from trilateral.common.rpc.channel import SERVER_OPTIONS, Peer, open_channel
from trilateral.common.rpc.codec import JobKey, encode_key
from trilateral.common.rpc.elements import ElementsRequest, decode_elements, encode_elements
from trilateral.common.trial.development import DevelopmentFiles, development_name, write_development_files
from trilateral.common.trial.localhost import free_addresses, process_settings

WAYS = ("socket", "tls", "grpc", "grpc_tls", "protobuf", "framed", "job")
N_ROWS = 8192
LARGE, SMALL = 18 * N_ROWS, 64
"""Elements of a piece: those that the coordinator deals to a party for a block with 16 waves, and few."""
N_SMALL = 3000
WARM_UP = 16
"""Pieces before the clocks start."""
SENDER, RECEIVER = Role.COORDINATOR, Role.GUEST
METHOD = "/trilateral.v1.PartyService/SendElements"
RUN = JobKey("wire", bytes(16))


class Clock:
    """Measures a process from the end of the warm-up to the last look at it."""

    def __init__(self, count: int) -> None:
        self._left = WARM_UP + count
        self._count = count
        self._since = (0.0, 0.0)
        self.seconds = (0.0, 0.0)
        """Of the processor and on the wall."""

    def tick(self) -> bool:
        """Count a piece; return whether it was the last."""
        self._left -= 1
        if self._left == self._count:
            self._since = time.process_time(), time.perf_counter()
        if not self._left:
            self.look()
        return not self._left

    def look(self) -> None:
        """Measure until now."""
        self.seconds = time.process_time() - self._since[0], time.perf_counter() - self._since[1]


def pieces(size: int, count: int) -> Iterator[ElementPiece]:
    """Yield the pieces, whose elements are the same array."""
    elements, n_rows = np.arange(size, dtype=np.uint64), min(N_ROWS, size)
    for number in range(WARM_UP + count):
        yield ElementPiece(RoundKey(1, 1), Kind.DEALT, number * n_rows, 2**31, n_rows, elements)


# --- sockets


def wrap(connection: socket.socket, files: DevelopmentFiles, role: Role) -> socket.socket:
    """Return one end of a connection under TLS, on which both ends show certificates."""
    is_server = role is RECEIVER
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(files.certificate(role), files.key(role))
    context.load_verify_locations(files.authorities(role))
    context.verify_mode = ssl.CERT_REQUIRED
    name = None if is_server else development_name(RECEIVER)
    return context.wrap_socket(connection, server_side=is_server, server_hostname=name)


def receive_by_socket(files: DevelopmentFiles, way: str, size: int, clock: Clock) -> None:
    """Receive pieces of a known size."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        announce(server.getsockname()[1])
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with wrap(connection, files, RECEIVER) if way == "tls" else connection as stream:
            buffer = memoryview(bytearray(8 * size))
            is_last = False
            while not is_last:
                n_received = 0
                while n_received < len(buffer):
                    n_received += stream.recv_into(buffer[n_received:])
                is_last = clock.tick()
            stream.sendall(b"!")


def send_by_socket(files: DevelopmentFiles, way: str, port: int, size: int, count: int, clock: Clock) -> None:
    """Send pieces, and wait for the receiver's answer."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with wrap(connection, files, SENDER) if way == "tls" else connection as stream:
        for piece in pieces(size, count):
            stream.sendall(piece.elements.data)
            clock.tick()
        stream.recv(1)
        clock.look()


# --- gRPC


def as_message(piece: ElementPiece) -> rounds_pb2.SendElementsRequest:
    """Return a request of protobuf that carries a piece."""
    return rounds_pb2.SendElementsRequest(
        job=RUN.name,
        run_id=RUN.run_id,
        key=encode_key(piece.key),
        kind=rounds_pb2.VECTOR_KIND_DEALT,
        offset=piece.offset,
        total=piece.total,
        n_rows=piece.n_rows,
        elements=piece.elements.tobytes(),
    )


SERIALISE: Mapping[str, Callable[[ElementPiece], bytes]] = {
    "protobuf": lambda piece: as_message(piece).SerializeToString(),
    "framed": lambda piece: next(encode_elements(RUN, piece)).SerializeToString(),
}
PARSE: Mapping[str, Callable[[bytes], object]] = {
    "protobuf": lambda data: decode_elements(rounds_pb2.SendElementsRequest.FromString(data)),
    "framed": lambda data: decode_elements(ElementsRequest.FromString(data)),
}


async def receive_by_grpc(files: DevelopmentFiles, way: str, clock: Clock) -> None:
    """Receive pieces in one call."""
    over = asyncio.Event()

    async def take(requests: AsyncIterator[Any], context: Any) -> bytes:
        async for _ in requests:
            clock.tick()
        over.set()
        return b""

    server = grpc.aio.server(options=SERVER_OPTIONS)
    service, _, method = METHOD[1:].partition("/")
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(take, PARSE.get(way))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    if way == "grpc":
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        certificates = Certificates(TlsConfig(**files.settings(RECEIVER)))
        port = server.add_secure_port("127.0.0.1:0", certificates.server_credentials())
    await server.start()
    announce(port)
    await over.wait()
    await server.stop(1)


async def send_by_grpc(files: DevelopmentFiles, way: str, port: int, size: int, count: int, clock: Clock) -> None:
    """Send pieces in one call, and wait for the answer."""
    identity = None if way == "grpc" else Certificates(TlsConfig(**files.settings(SENDER))).current()
    serialise = SERIALISE.get(way, lambda piece: piece.elements.tobytes())
    async with open_channel(f"127.0.0.1:{port}", identity, development_name(RECEIVER)) as channel:
        call: Any = channel.stream_unary(METHOD, request_serializer=serialise)()
        for piece in pieces(size, count):
            await call.write(piece)
            clock.tick()
        await call.done_writing()
        await call
        clock.look()


# --- a job


class Alone:
    """What both state machines leave out."""

    prepared = 0
    under_way = False

    def settle(self) -> Iterator[Envelope]:
        """Yield nothing: no task is under way."""
        yield from ()

    def prepare(self) -> bool:
        """Prepare nothing."""
        return False


class Deals(Alone):
    """The sender's state machine: it deals all pieces at once, and the job ends when the receiver has them."""

    def __init__(self, size: int, count: int, clock: Clock) -> None:
        self._pieces = pieces(size, count)
        self._clock = clock

    def start(self) -> Iterator[Envelope]:
        """Yield the pieces."""
        for piece in self._pieces:
            yield Envelope(RECEIVER, piece)
            self._clock.tick()

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """End the job."""
        if isinstance(message, Finished):
            self._clock.look()
            yield Envelope(SENDER, JobEnded("all have arrived", 0.5))


class Takes(Alone):
    """The receiver's state machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self) -> Iterator[Envelope]:
        """Send nothing."""
        yield from ()

    def handle(self, sender: Role, message: Message) -> Iterator[Envelope]:
        """Count a piece; end the job after the last."""
        if self._clock.tick():
            yield Envelope(RECEIVER, Result(np.zeros(1), 0.5, 1, 1, "all have arrived"))
            yield Envelope(SENDER, Finished())


class OneJob(ProcessJobs):
    """The jobs of a process that has one, from its start; `stop` is set when it has ended."""

    def __init__(
        self, config: ProcessConfig, audit: Audit, machine: Machine, peers: Mapping[Role, Peer], stop: asyncio.Event
    ) -> None:
        super().__init__(config, audit)
        self._machine, self._peers, self._stop = machine, peers, stop

    async def go_on(self) -> None:
        """Begin the job."""
        job = JobConfig(name=RUN.name, dataset="made", protocol="shares")
        history = History(JobFolder(self.config.state, job.name), self.role, on_event=self._observer_of(RUN))

        async def make() -> Machine:
            return self._machine

        def on_message(message: Message) -> None:
            pass

        async def on_end(error: TrilateralError | None) -> None:
            if error is not None:
                print(f"the {self.role}: {error}", file=sys.stderr)
            self._stop.set()

        limits = self.config.limits
        runner = MachineRunner(self.role, job, RUN, self._peers, limits=limits, history=history, on_message=on_message)
        self._launch(runner, make, on_end)


async def run_job(folder: Path, role: Role, addresses: Mapping[Role, str], machine: Machine) -> None:
    """Serve one role until its job has ended."""
    settings = process_settings(role, addresses, folder / "states", certificates=folder)
    config, stop = ProcessConfig.model_validate(settings), asyncio.Event()

    def make_parts(
        config: ProcessConfig, audit: Audit, peers: Mapping[Role, Peer], open_engine: OpenEngine
    ) -> RoleParts:
        del open_engine
        jobs = OneJob(config, audit, machine, peers, stop)
        return RoleParts(jobs, {"CoordinatorService" if role is Role.COORDINATOR else "PartyService": jobs})

    def on_ready(address: str) -> None:
        if role is RECEIVER:
            announce(int(address.rpartition(":")[2]))

    await serve_role(config, make_parts, source=None, stop=stop, on_ready=on_ready)


# --- two processes


def announce(port: int) -> None:
    """Tell the process that measures that this one accepts connections."""
    print(port, flush=True)


def receive(folder: Path, way: str, size: int, count: int, addresses: Mapping[Role, str]) -> None:
    """Receive pieces, and print the processor seconds and the seconds that it took."""
    files, clock = DevelopmentFiles(folder), Clock(count)
    if way in ("socket", "tls"):
        receive_by_socket(files, way, size, clock)
    elif way == "job":
        asyncio.run(run_job(folder, RECEIVER, addresses, Takes(clock)))
    else:
        asyncio.run(receive_by_grpc(files, way, clock))
    print(json.dumps(clock.seconds))


def measure(folder: Path, way: str, size: int, count: int) -> tuple[float, float, float]:
    """Return the processor seconds of the sender and of the receiver, and the seconds of the receiver."""
    addresses = {str(role): address for role, address in free_addresses().items()}
    arguments = json.dumps([str(folder), way, size, count, addresses])
    command = [sys.executable, __file__, "--receive", arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port, files, clock = int(receiver.stdout.readline()), DevelopmentFiles(folder), Clock(count)
        if way in ("socket", "tls"):
            send_by_socket(files, way, port, size, count, clock)
        elif way == "job":
            by_role = {Role(role): address for role, address in addresses.items()}
            with suppress(asyncio.CancelledError):
                asyncio.run(run_job(folder, SENDER, by_role, Deals(size, count, clock)))
        else:
            asyncio.run(send_by_grpc(files, way, port, size, count, clock))
        processor, seconds = json.loads(receiver.stdout.read())
    return clock.seconds[0], processor, seconds


def figures(folder: Path, way: str, gigabytes: float, repeats: int) -> dict[str, float]:
    """Measure one way."""
    n_large = max(1, round(gigabytes * 1e9 / (8 * LARGE)))
    large = [measure(folder, way, LARGE, n_large) for _ in range(repeats)]
    small = [measure(folder, way, SMALL, N_SMALL) for _ in range(repeats)]

    def median(values: Iterator[float], unit: float) -> float:
        return round(statistics.median(values) / unit, 3)

    n_bytes = n_large * 8 * LARGE
    return {
        "ns_a_byte": median((sent + received for sent, received, _ in large), n_bytes * 1e-9),
        "ns_sending": median((sent for sent, _, _ in large), n_bytes * 1e-9),
        "ns_receiving": median((received for _, received, _ in large), n_bytes * 1e-9),
        "seconds_a_gb": median((seconds for _, _, seconds in large), n_bytes * 1e-9),
        "us_a_piece": median((sent + received for sent, received, _ in small), N_SMALL * 1e-6),
        "us_between": median((seconds for _, _, seconds in small), N_SMALL * 1e-6),
    }


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="on one line")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="bytes of each measurement (default: 0.5)")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each way (default: 3)")
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # As every server does.
    share_heaps()
    reuse_freed_memory()
    if arguments.receive:
        folder, way, size, count, addresses = json.loads(arguments.receive)
        receive(Path(folder), way, size, count, {Role(role): address for role, address in addresses.items()})
        return
    with tempfile.TemporaryDirectory() as scratch:
        write_development_files(Path(scratch))
        found = {way: figures(Path(scratch), way, arguments.gigabytes, arguments.repeats) for way in arguments.ways}
    print(json.dumps(found, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
