"""Channels between the processes: the options and credentials of both ends."""

import asyncio
import math
import ssl
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import grpc
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from trilateral.common.base.roles import Role
from trilateral.common.config.process import Limits, PeerConfig, ProcessConfig
from trilateral.common.rpc.certificates import Certificates, Identity, channel_credentials
from trilateral.common.rpc.errors import UntrustedPeerError, is_of_certificate
from trilateral.common.rpc.pinning import flaw_of, shown_certificate

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The codec's chunks of 1 MiB stay far below this limit. A larger message is refused unread."""

_COMMON = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # The text of an error travels as a header: 2000 characters of at most nine bytes each.
    ("grpc.max_metadata_size", 32 * 1024),
    ("grpc.absolute_max_metadata_size", 32 * 1024),
)
MIN_PING_MS = 1_000
MIN_RESOLUTION_MS = 1_000
"""Minimum time between two questions to the name server, which are asked only after a failed connection."""


def client_options(peer_timeout: float) -> tuple[tuple[str, int | str], ...]:
    """Return the options of a client's channel.

    A connection may die without notice to either end, for example when a firewall forgets it. The options detect that,
    and an attempt to connect that hangs, within half of `peer_timeout`. The call has the other half for another try.

    Args:
        peer_timeout: seconds for which the client waits for a peer that is away.
    """
    quarter = max(MIN_PING_MS, int(250 * peer_timeout))
    return (
        *_COMMON,
        ("grpc.enable_http_proxy", 0),  # a proxy from the environment breaks peers on localhost
        ("grpc.enable_retries", 0),  # `calls.until_answered` repeats calls, and reports that it waits
        # Otherwise a channel starts in the back-off of an older one to that address, and fails without an attempt.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", quarter),
        # The first option limits how long the system waits for data to be acknowledged. The second limits how long
        # gRPC waits for a ping; its default is a minute, regardless of the first.
        ("grpc.keepalive_timeout_ms", quarter),
        ("grpc.http2.ping_timeout_ms", quarter),
        ("grpc.http2.max_pings_without_data", 0),  # no limit while the peer works on an answer
        # Between jobs, too: a job must not begin on a connection to a machine that has gone.
        ("grpc.keepalive_permit_without_calls", 1),
        # The default of half a minute is long for a peer that has moved to another address.
        ("grpc.dns_min_time_between_resolutions_ms", MIN_RESOLUTION_MS),
        ("grpc.min_reconnect_backoff_ms", quarter),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    )


SERVER_OPTIONS = (
    *_COMMON,
    ("grpc.so_reuseport", 0),  # by default a second server silently shares the port
    # A client that has vanished does not hold resources for long. The timeout leaves time for a ping's answer that
    # waits behind a vector on a slow line.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 60_000),
    # A caller has no identity before the handshake ends, so drop a caller that stalls there soon.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Every connection is replaced after an hour, so that it always rests on a certificate that is still valid. Calls in
    # progress get another hour and a minute: by then a watch has met its own deadline, and a vector that is cut off is
    # sent again.
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 3_660_000),
    # Must be below the interval of a client's pings, or the server ends the client's calls with "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", 64),  # for each connection; the client queues further calls
    ("grpc.max_connection_idle_ms", 600_000),  # a client connects again with its next call
)


RENEWAL_SECONDS = 5.0
"""Interval at which to look for a renewed certificate."""


@dataclass(eq=False)
class Peer:
    """Another process, and the channel to it that all jobs share.

    Attributes:
        role: the role of the process.
        address: where it listens.
        channel: the current channel. Ask `connected` for each call: a renewed certificate replaces it.
        retries: how many failed calls were repeated.
        unanswered: for each call that waits for an answer, when the wait began, by time.monotonic().
    """

    role: Role
    address: str
    channel: grpc.aio.Channel
    retries: int = 0
    unanswered: dict[object, float] = field(default_factory=dict)

    @property
    def silence(self) -> float:
        """Seconds for which the oldest unanswered call has waited; 0 without one."""
        return time.monotonic() - min(self.unanswered.values()) if self.unanswered else 0.0

    def __str__(self) -> str:
        return f"the {self.role} at {self.address}"

    async def connected(self) -> grpc.aio.Channel:
        """Return the channel for the next call.

        Raises:
            UntrustedPeerError: under TLS, the server shows a certificate that is not the peer's.
        """
        return self.channel

    async def connect_ahead(self) -> None:
        """Begin to connect before the first call, which says why there is no connection if this fails."""
        with suppress(UntrustedPeerError):
            (await self.connected()).get_state(try_to_connect=True)

    def doubt(self, error: grpc.aio.AioRpcError) -> bool:
        """Take note that a call has failed; return whether it may succeed at once on another channel."""
        del error
        return False

    def configure(self, settings: PeerConfig) -> None:
        """Take over changed settings of the peer that need no restart."""

    def renew(self) -> None:
        """Take note that the certificate of this process has changed."""

    async def close(self) -> None:
        """Close the channel, and those before it."""
        await self.channel.close()


class PinnedPeer(Peer):
    """A peer under TLS. Its channel accepts only the certificate that `pinning` has found to be the peer's.

    Args:
        role: the role of the process.
        settings: what the configuration says of it.
        certificates: of this process.
        limits: how long to wait.
    """

    def __init__(self, role: Role, settings: PeerConfig, certificates: Certificates, limits: Limits) -> None:
        self._settings = settings
        self._certificates = certificates
        self._limits = limits
        self._pinned = _without_trust(certificates.current())
        self._is_stale = True
        self._n_changes = 0
        """How often the settings or the certificate of this process have changed."""
        self._flaw = ""
        self._looked_at = -math.inf
        self._looking = asyncio.Lock()
        self._retired: set[asyncio.Task[None]] = set()
        super().__init__(role, settings.address, self._open())

    async def connected(self) -> grpc.aio.Channel:
        """See `Peer.connected`. Without a connection, gRPC's next call reports why there is none."""
        if not self._is_stale:
            return self.channel
        asked_at = time.monotonic()
        async with self._looking:
            # Calls that have waited for another call's look use its result.
            if self._is_stale and self._looked_at < asked_at:
                await self._look()
                self._looked_at = time.monotonic()
            if self._is_stale and self._flaw:
                raise UntrustedPeerError(f"cannot call {self}: {self._flaw}")
        return self.channel

    def doubt(self, error: grpc.aio.AioRpcError) -> bool:
        """See `Peer.doubt`. The server may have renewed its certificate."""
        self._is_stale |= is_of_certificate(error)
        return self._is_stale

    def configure(self, settings: PeerConfig) -> None:
        """See `Peer.configure`."""
        if settings != self._settings:
            self._settings = settings
            self._change()

    def renew(self) -> None:
        """See `Peer.renew`."""
        self._change()

    async def close(self) -> None:
        """See `Peer.close`."""
        for task in self._retired:
            task.cancel()
        await super().close()

    def _change(self) -> None:
        """Trust no server until the next look: a fingerprint or an authority may have been removed."""
        self._n_changes += 1
        self._is_stale = True
        self._pin(_without_trust(self._pinned))

    def _pin(self, pinned: Identity) -> None:
        """Let later calls use a channel that trusts `pinned.authorities` alone."""
        if pinned != self._pinned:
            # Calls in progress may finish on the old channel.
            task = asyncio.create_task(self.channel.close(self._limits.party_timeout))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
            self._pinned = pinned
            self.channel = self._open()

    async def _look(self) -> None:
        """Pin the certificate that the server shows, or note what is wrong with it."""
        n_changes = -1
        while n_changes != self._n_changes:  # A result counts only for the settings with which it was found.
            n_changes = self._n_changes
            pinned, self._flaw = await self._judge()
        if pinned is not None:
            self._is_stale = False
            self._pin(pinned)

    async def _judge(self) -> tuple[Identity | None, str]:
        """Return what to pin, or None, and what is wrong with the server's certificate, or ''."""
        identity = await asyncio.to_thread(self._certificates.current)
        try:
            certificate = await shown_certificate(self._settings, identity)
        except ssl.SSLCertVerificationError as error:
            flaw = (
                f"its certificate has expired, or `tls.authorities` did not issue it ({error.verify_message}): compare "
                "both processes' `tls`"
            )
            return None, flaw
        except (OSError, TimeoutError, ValueError):
            return None, ""
        flaw = flaw_of(certificate, self.role, self._settings, identity.authorities)
        pinned = replace(identity, authorities=certificate.public_bytes(Encoding.PEM))
        return (None, flaw) if flaw else (pinned, "")

    def _open(self) -> grpc.aio.Channel:
        name, seconds = self._settings.certificate_name, self._limits.peer_timeout
        return new_channel(self._settings.address, self._pinned, name, peer_timeout=seconds)


def _without_trust(identity: Identity) -> Identity:
    """Return an identity that trusts only its own certificate, which no peer has, and no issuer of its chain."""
    own = load_pem_x509_certificate(identity.certificate)
    return replace(identity, authorities=own.public_bytes(Encoding.PEM))


def new_channel(
    address: str, identity: Identity | None, name: str, *, peer_timeout: float = Limits().peer_timeout
) -> grpc.aio.Channel:
    """Return a channel to a server. It connects with the first call.

    Args:
        address: where the server listens.
        identity: the caller's certificate and the authorities that it trusts; None for plaintext.
        name: the name that the server's certificate must have.
        peer_timeout: `Limits.peer_timeout`; see `client_options`.
    """
    options = client_options(peer_timeout)
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options, compression=grpc.Compression.NoCompression)
    # gRPC checks the name that the configuration expects, whatever the address.
    options = (*options, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(
        address, channel_credentials(identity), options=options, compression=grpc.Compression.NoCompression
    )


@asynccontextmanager
async def open_channel(
    address: str, identity: Identity | None, name: str = "", *, peer_timeout: float = Limits().peer_timeout
) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel and close it afterwards; see `new_channel`."""
    async with new_channel(address, identity, name, peer_timeout=peer_timeout) as channel:
        yield channel


def new_peer(role: Role, settings: PeerConfig, config: ProcessConfig, certificates: Certificates | None) -> Peer:
    """Return a peer with a channel, which connects with the first call. Close it after use.

    Args:
        role: the role of the peer.
        settings: what the configuration says of the peer.
        config: of this process.
        certificates: of this process; None for plaintext.
    """
    if certificates is None:
        channel = new_channel(settings.address, None, "", peer_timeout=config.limits.peer_timeout)
        return Peer(role, settings.address, channel)
    return PinnedPeer(role, settings, certificates, config.limits)


@asynccontextmanager
async def open_peers(config: ProcessConfig, certificates: Certificates | None) -> AsyncIterator[dict[Role, Peer]]:
    """Yield both peers. A renewed certificate of this process replaces their channels."""
    peers = {role: new_peer(role, peer, config, certificates) for role, peer in config.peers.items()}
    watch = asyncio.create_task(_watch(certificates, peers.values())) if certificates else None
    try:
        yield peers
    finally:
        if watch:
            watch.cancel()
        for peer in peers.values():
            await peer.close()


async def _watch(certificates: Certificates, peers: Collection[Peer]) -> None:
    known = certificates.current()
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        identity = await asyncio.to_thread(certificates.current)
        certificates.warn_of_expiry()
        if identity != known:
            known = identity
            for peer in peers:
                peer.renew()
