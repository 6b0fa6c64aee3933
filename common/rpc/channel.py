"""Channels to the other processes: options and credentials, in one place for both ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits, ProcessConfig
from trilateral.common.rpc.certificates import Certificates, Identity, channel_credentials

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The codec's chunks of 1 MiB stay far below it; a larger message is refused unread."""

_COMMON = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The text of an error travels as a header: 2000 characters, nine bytes each at the worst.
    ("grpc.max_metadata_size", 32 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
)
MIN_PING_MS = 1_000


def client_options(peer_timeout: float) -> tuple[tuple[str, int | str], ...]:
    """Return the options of a channel to a peer that is waited for so long, in seconds.

    A connection may go dead without a word to either end, as when a firewall forgets it. That is noticed within half
    of the time, as is an attempt to connect that gets nowhere, so that the call has as long for another try.
    """
    quarter = max(MIN_PING_MS, int(250 * peer_timeout))
    return (
        *_COMMON,
        ("grpc.enable_http_proxy", 0),  # a proxy of the environment knows no peer on localhost
        ("grpc.enable_retries", 0),  # links know which calls may be sent again, and report that they wait
        ("grpc.keepalive_time_ms", quarter),
        # The first is when the system gives up what it has sent, the second when gRPC gives up a ping: it has a
        # minute for that by default, whatever the first says.
        ("grpc.keepalive_timeout_ms", quarter),
        ("grpc.http2.ping_timeout_ms", quarter),
        ("grpc.http2.max_pings_without_data", 0),  # no fewer while the peer is long about an answer
        ("grpc.min_reconnect_backoff_ms", quarter),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    )


SERVER_OPTIONS = (
    *_COMMON,
    ("grpc.so_reuseport", 0),  # by default a second server would silently share the port
    # A client that has gone without a word keeps nothing here for long. It has time for its answer, which may have to
    # wait behind the vector that it sends on a narrow line.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 60_000),
    # Nobody has shown a certificate before the handshake ends: a caller that stalls there is let go soon.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Whoever stays connected shows a certificate that is still good, every hour. Calls under way have another hour
    # and a little: a watch has then ended by its own deadline and begun anew, a vector that is cut off is sent again.
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 3_660_000),
    # Less than lies between two of a client's, or the server would end its calls with "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MS // 2),
    ("grpc.max_concurrent_streams", 64),  # of one connection; its client lets more calls wait
    ("grpc.max_connection_idle_ms", 600_000),  # a client connects anew with its next call
)


RENEWAL_SECONDS = 5.0
"""How often to look for a renewed certificate."""


@dataclass(eq=False)
class Peer:
    """Another process, and the one channel to it that all jobs share."""

    role: Role
    address: str
    channel: grpc.aio.Channel
    """The newest: whoever begins a call asks for it, since a renewed certificate needs a new channel."""
    retries: int = 0
    """How many calls have failed and were made again."""
    unanswered: dict[object, float] = field(default_factory=dict)
    """Since when each call that waits for an answer has had none, by time.monotonic()."""

    @property
    def silence(self) -> float:
        """Seconds for which it has not answered the oldest of these."""
        return time.monotonic() - min(self.unanswered.values()) if self.unanswered else 0.0

    def __str__(self) -> str:
        return f"the {self.role} at {self.address}"


def new_channel(
    address: str, identity: Identity | None, name: str, *, peer_timeout: float = Limits().peer_timeout
) -> grpc.aio.Channel:
    """Make a channel to a server. Connecting happens with the first call.

    Args:
        address: where it listens.
        identity: by which to show who calls, and to know whom to trust; None for plaintext.
        name: that the server's certificate must have.
        peer_timeout: `Limits.peer_timeout`; see `client_options`.
    """
    options = client_options(peer_timeout)
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options, compression=grpc.Compression.NoCompression)
    # The name that is checked is what the configuration expects, whatever address leads there. gRPC takes a
    # wildcard for it, and a common name where there are no alternative names, which servers here do not: a trusted
    # authority must issue neither for a peer's name.
    options = (*options, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(
        address, channel_credentials(identity), options=options, compression=grpc.Compression.NoCompression
    )


@asynccontextmanager
async def open_channel(
    address: str, identity: Identity | None, name: str = "", *, peer_timeout: float = Limits().peer_timeout
) -> AsyncIterator[grpc.aio.Channel]:
    """Open a channel for a while; see `new_channel`."""
    async with new_channel(address, identity, name, peer_timeout=peer_timeout) as channel:
        yield channel


@asynccontextmanager
async def open_peers(config: ProcessConfig, certificates: Certificates | None) -> AsyncIterator[dict[Role, Peer]]:
    """Open a channel to each of the two other processes, anew when this process's certificate is renewed."""

    def connect(role: Role, identity: Identity | None) -> grpc.aio.Channel:
        peer = config.peers[role]
        return new_channel(peer.address, identity, peer.certificate_name, peer_timeout=config.limits.peer_timeout)

    identity = certificates.current() if certificates else None
    peers = {role: Peer(role, peer.address, connect(role, identity)) for role, peer in config.peers.items()}
    retired: set[asyncio.Task[None]] = set()

    def renew(identity: Identity) -> None:
        for role, peer in peers.items():
            # Calls that are under way on the old channel may end there.
            task = asyncio.create_task(peer.channel.close(config.limits.party_timeout))
            retired.add(task)
            task.add_done_callback(retired.discard)
            peer.channel = connect(role, identity)

    watch = asyncio.create_task(_watch(certificates, renew)) if certificates else None
    try:
        yield peers
    finally:
        if watch:
            watch.cancel()
        for task in retired:
            task.cancel()
        for peer in peers.values():
            await peer.channel.close()


async def _watch(certificates: Certificates, renew: Callable[[Identity], None]) -> None:
    known = certificates.current()
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        identity = await asyncio.to_thread(certificates.current)
        certificates.warn_of_expiry()
        if identity != known:
            renew(identity)
            known = identity
