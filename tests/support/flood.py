"""Flood three servers on this machine until the input closes; see tests/integration/test_flood.py.

    python -m tests.support.flood JOB ADDRESS ADDRESS ADDRESS

The addresses are those of the host, the guest, and the coordinator. The program prints a line when all connections
are open.
"""

import asyncio
import itertools
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc

from trilateral.common.base.roles import Role
from trilateral.common.pb.v1.rounds_pb2 import VECTOR_KIND_GRADIENT, VECTOR_KIND_RESIDUAL, VECTOR_KIND_SCORES, RoundKey
from trilateral.common.pb.v1.rounds_pb2 import SendVectorRequest as Chunk
from trilateral.common.rpc.access import call_metadata

CONNECTIONS = 1000
SILENT, LATE, ZEROS = 10, 10, 2
"""Numbers of streams to each server: silent ones, ones with late garbage, and endless ones of zeros."""
LATE_SECONDS = 1.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PAUSE = 0.25
"""Seconds between two writes of a sender: half a mebibyte in a stream, or a few KiB in a connection."""
VECTORS = {
    Role.HOST: ("HostService", Role.GUEST, VECTOR_KIND_RESIDUAL),
    Role.GUEST: ("GuestService", Role.HOST, VECTOR_KIND_SCORES),
    Role.COORDINATOR: ("CoordinatorService", Role.HOST, VECTOR_KIND_GRADIENT),
}


async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the preface of HTTP/2, and then noise."""
    writer.write(PREFACE)
    for _ in range(50):
        writer.write(os.urandom(1024))
        await writer.drain()
        await asyncio.sleep(PAUSE)


async def zeros(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send endless frames: in HTTP/2, nine zeros are an empty DATA frame."""
    writer.write(PREFACE)
    while True:
        writer.write(bytes(4 * 1024))
        await writer.drain()
        await asyncio.sleep(PAUSE)


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], "asyncio.Future[None]"]


async def connection(address: str, behave: Behaviour, opened: list[None]) -> None:
    """Open a connection again and again, whenever the server closes it."""
    host, _, port = address.rpartition(":")
    is_first = True
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            if is_first:
                opened.append(None)
                is_first = False
            try:
                await behave(reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(1)


Chunks = Callable[[Chunk], AsyncIterator[Chunk]]


async def silence(header: Chunk) -> AsyncIterator[Chunk]:
    await asyncio.sleep(3600)
    yield header


async def late_garbage(header: Chunk) -> AsyncIterator[Chunk]:
    await asyncio.sleep(LATE_SECONDS)
    yield Chunk(width=1)
    await asyncio.sleep(3600)


async def zero_chunks(header: Chunk) -> AsyncIterator[Chunk]:
    """Yield invalid ciphertexts of an unknown run."""
    for offset in itertools.count(step=4096):
        chunk = Chunk(offset=offset, ciphertexts=bytes(header.width * 4096))
        chunk.MergeFrom(header)
        yield chunk
        await asyncio.sleep(PAUSE)


async def stream(address: str, role: Role, job: str, chunks: Chunks) -> None:
    """Call SendVector again and again, whenever a call ends."""
    service, sender, kind = VECTORS[role]
    key = RoundKey(round=1, attempt=1)
    header = Chunk(job=job, run_id=bytes(16), key=key, kind=kind, total=2**31, width=128)
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        path = f"/trilateral.v1.{service}/SendVector"
        send: Any = channel.stream_unary(path, request_serializer=Chunk.SerializeToString)
        while True:
            with suppress(grpc.aio.AioRpcError):
                await send(chunks(header), metadata=call_metadata(sender))
            await asyncio.sleep(PAUSE)


async def main(job: str, addresses: dict[Role, str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * CONNECTIONS), hard))
    opened: list[None] = []
    behaviours = itertools.cycle([garbage, zeros, *[idle] * 6])
    cycled = itertools.cycle(addresses.values())
    tasks = [
        asyncio.create_task(connection(next(cycled), next(behaviours), opened))  # type: ignore[arg-type]
        for _ in range(CONNECTIONS)
    ]
    for role, address in addresses.items():
        for chunks in [silence] * SILENT + [late_garbage] * LATE + [zero_chunks] * ZEROS:
            tasks.append(asyncio.create_task(stream(address, role, job, chunks)))
    while len(opened) < CONNECTIONS:
        await asyncio.sleep(0.1)
    print(f"{len(opened)} connections", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], dict(zip((Role.HOST, Role.GUEST, Role.COORDINATOR), sys.argv[2:], strict=True))))
