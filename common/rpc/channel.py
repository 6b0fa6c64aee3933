"""Channels to the other processes: options and credentials, in one place for both ends."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc

from common.config.process import ProcessConfig
from common.roles import Role

MOST_MESSAGE_BYTES = 4 * 1024 * 1024
"""The codec's chunks of 1 MiB stay far below it; a larger message is refused unread."""

_COMMON = (
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
    # The text of an error travels as a header: 2000 characters, nine bytes each at the worst.
    ("grpc.max_metadata_size", 32 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
)
CLIENT_OPTIONS = (
    *_COMMON,
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment knows no peer on localhost
    ("grpc.enable_retries", 0),  # links know which calls may be sent again, and report that they wait
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
SERVER_OPTIONS = (
    *_COMMON,
    ("grpc.so_reuseport", 0),  # by default a second server would silently share the port
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Less than the clients' keepalive, or the server would end their calls with "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


@dataclass(frozen=True)
class Peer:
    """Another process, and the one channel to it that all jobs share."""

    role: Role
    address: str
    channel: grpc.aio.Channel

    def __str__(self) -> str:
        return f"the {self.role} at {self.address}"


@asynccontextmanager
async def open_channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel to a server. Connecting happens with the first call."""
    async with grpc.aio.insecure_channel(
        address, options=CLIENT_OPTIONS, compression=grpc.Compression.NoCompression
    ) as channel:
        yield channel


@asynccontextmanager
async def open_peers(config: ProcessConfig) -> AsyncIterator[dict[Role, Peer]]:
    """Open a channel to each of the two other processes."""
    async with AsyncExitStack() as stack:
        yield {
            role: Peer(role, address, await stack.enter_async_context(open_channel(address)))
            for role, address in config.peers.items()
        }
