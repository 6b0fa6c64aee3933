"""The life of a server: bind, serve, report its health, and stop without cutting calls off."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from trilateral.common.base.addresses import join_address, split_address
from trilateral.common.base.errors import ConfigError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LocalEngine
from trilateral.common.config.live import Difference
from trilateral.common.config.process import ProcessConfig
from trilateral.common.jobs.drift_file import newest_shifts
from trilateral.common.jobs.journal import Journal
from trilateral.common.observe.audit import LOG, Audit
from trilateral.common.observe.metrics import MAX_SHOWN, Metrics
from trilateral.common.observe.scraping import scraped
from trilateral.common.process.description import ProcessServicer
from trilateral.common.process.engine import cluster_of
from trilateral.common.process.listening import obstacle
from trilateral.common.process.live_settings import LiveSettings
from trilateral.common.process.state_folder import held_state
from trilateral.common.rpc.access import Caller, Guard, OnRefusal, identify
from trilateral.common.rpc.call_limits import MAX_CALLS_EACH, CallLimiter
from trilateral.common.rpc.certificates import Certificates, load_certificates
from trilateral.common.rpc.channel import SERVER_OPTIONS, Peer, open_peers
from trilateral.common.rpc.codec import PACKAGE, RUN_ID_BYTES
from trilateral.common.rpc.servicers import Servicer, add_services

log = logging.getLogger(__name__)

GRACE = 3.0
"""Seconds for calls in progress when the server stops."""
MAX_NAME = 64
"""Maximum characters of a job's name in the audit log. A stranger may have written the name."""
MAX_CALLS = 4 * MAX_CALLS_EACH + 64
"""Concurrent calls of all callers: room for four callers with their maximum, and 64 more. Further calls are refused."""


class Jobs(Protocol):
    """The jobs of a process, as `serve_role` uses them."""

    config: ProcessConfig
    metrics: Metrics
    journal: Journal

    def open(self) -> None:
        """Open the files in the state folder, which this process has locked."""
        ...

    async def go_on(self) -> None:
        """Continue the jobs that the previous process did not end. Called once this process accepts calls."""
        ...

    async def close(self) -> None:
        """End every session. Called while this process still accepts calls."""
        ...


class Configured(Protocol):
    """Something that reads the configuration anew for each decision."""

    config: ProcessConfig


class LivePage(Configured, Protocol):
    """The page of a process in the browser."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Serve the page within the block."""
        ...


async def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class RoleParts:
    """What one role adds to a server.

    Attributes:
        jobs: its jobs.
        servicers: the servicer of each service, by the name of the service.
        configured: everything else that reads the configuration as its attribute `config`, which changes while the
            process runs.
        running: entered once this process has locked its state folder, and left when it stops: what goes on besides
            the jobs.
        close: called after the jobs have ended.
    """

    jobs: Jobs
    servicers: Mapping[str, Servicer]
    configured: Sequence[Configured] = ()
    running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    close: Callable[[], Awaitable[None]] = _do_nothing


MakeParts: TypeAlias = Callable[[ProcessConfig, Audit, Mapping[Role, Peer], OpenEngine], RoleParts]
"""Makes the parts of a role from its configuration, its audit log, its peers and what makes its engines."""


@dataclass(frozen=True)
class PageParts:
    """What the page of a process is made of.

    Attributes:
        certificates: of this process; None for plaintext.
        audit: its audit log.
        jobs: its jobs.
        peers: the other two processes.
        source: the file of its configuration; None for one without a file.
    """

    certificates: Certificates | None
    audit: Audit
    jobs: Jobs
    peers: Mapping[Role, Peer]
    source: Path | None


MakePage: TypeAlias = Callable[[PageParts], LivePage | None]
"""Makes the page of a process; None if the configuration has none."""


def no_page(parts: PageParts) -> None:
    """Make no page."""


def ignore_address(address: str) -> None:
    """Do nothing: the default for `on_ready`."""


async def serve_role(
    config: ProcessConfig,
    make_parts: MakeParts,
    make_page: MakePage = no_page,
    *,
    source: Path | None,
    stop: asyncio.Event | None,
    on_ready: Callable[[str], None],
) -> None:
    """Serve one role until SIGTERM, SIGINT or `stop`.

    Args:
        config: the configuration of the process.
        make_parts: makes what the role adds.
        make_page: makes the page in the browser.
        source: the file of the configuration, which is read again when it changes; None for one without a file.
        stop: stops the server when it is set; None to stop on a signal.
        on_ready: called with the address once the server accepts calls.

    Raises:
        ConfigError: the address, the certificate, the engine or the state folder cannot be used.
    """
    certificates, audit = load_certificates(config), Audit(config.state / LOG)
    async with open_peers(config, certificates) as peers:
        with cluster_of(config) as cluster, held_state(config.state, config.role):
            parts = make_parts(config, audit, peers, LocalEngine if cluster is None else cluster.open_engine)
            parts.jobs.metrics.cluster = cluster
            page = make_page(PageParts(certificates, audit, parts.jobs, peers, source))
            await _serve(
                config, certificates, audit, parts, page, peers=peers, source=source, stop=stop, on_ready=on_ready
            )


async def _serve(
    config: ProcessConfig,
    certificates: Certificates | None,
    audit: Audit,
    parts: RoleParts,
    page: LivePage | None,
    *,
    peers: Mapping[Role, Peer],
    source: Path | None,
    stop: asyncio.Event | None,
    on_ready: Callable[[str], None],
) -> None:
    if certificates is None:
        log.warning("plaintext: calls are not encrypted; anyone on this machine can read them and pose as any role")
    who = identify(lambda: live.config, certificates)
    on_refusal = _record_refusals(audit, parts.jobs.metrics)
    guard = Guard(config.role, who, config.operators, on_refusal)
    server = new_server(CallLimiter(config.role, who, config.limits, on_refusal), guard)

    def on_change(changed: ProcessConfig, found: Sequence[Difference]) -> None:
        for each in found:
            audit.changed(each.setting, each.before, each.after)
        guard.operators = changed.operators
        for part in (parts.jobs, *parts.configured, *([] if page is None else [page])):
            part.config = changed
        for role, peer in peers.items():
            peer.configure(changed.peers[role])

    live = LiveSettings(config, source, on_change)
    health_servicer = health.aio.HealthServicer()
    names = ["", *(f"{PACKAGE}.{service}" for service in parts.servicers)]
    for name in names:
        await health_servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    audit.open()
    parts.jobs.open()
    add_services(server, {"ProcessService": ProcessServicer(config.role), **parts.servicers})
    address = bind(server, config.listen, certificates)
    if stop is None:
        stop = _until_signal()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, live.ask)
    asyncio.get_running_loop().set_exception_handler(log_without_text)
    parts.jobs.metrics.certificates = certificates
    parts.jobs.metrics.read_shifts = partial(newest_shifts, config.state, MAX_SHOWN)
    async with scraped(config.metrics.listen, parts.jobs.metrics), parts.running():
        await server.start()
        watch = asyncio.create_task(live.watch())
        try:
            async with nullcontext() if page is None else page.running():
                for name in names:
                    await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
                log.info("%s listens on %s", config.role, address)
                on_ready(address)
                await parts.jobs.go_on()
                await stop.wait()
                log.info("%s stops", config.role)
            await health_servicer.enter_graceful_shutdown()
            await parts.jobs.close()
            await parts.close()
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await server.stop(GRACE)


def new_server(limiter: CallLimiter, guard: Guard) -> grpc.aio.Server:
    """Return a server on which every call passes the limiter, then the guard."""
    return grpc.aio.server(
        interceptors=[limiter, guard],
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=MAX_CALLS,
        compression=grpc.Compression.NoCompression,
    )


def bind(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> str:
    """Listen on an address, in plaintext if there are no certificates.

    Returns:
        The address, with the port that was chosen if the port was 0.

    Raises:
        ConfigError: the address or the certificate cannot be used.
    """
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.server_credentials())
    except RuntimeError:
        with ExitStack() as taken:
            why = obstacle(address, taken)
        if not why and certificates is not None:
            raise ConfigError(
                "tls: gRPC can use the address, but not the certificate, its key or the authorities: run `trilateral "
                "check`, which names the file"
            ) from None
        raise ConfigError(f"listen: {address} {why or 'cannot be used, and gRPC does not say why'}") from None
    return join_address(split_address(address)[0], port)


def log_without_text(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task or callback handled, without its text, which may quote a row."""
    error = context.get("exception")
    log.error("%s%s", context.get("message", "an error in the event loop"), f": {where(error)}" if error else "")


def _record_refusals(audit: Audit, metrics: Metrics) -> OnRefusal:
    def on_refusal(caller: Caller, method: str, error: TrilateralError, request: Any) -> None:
        metrics.refused(error)
        details: dict[str, str] = {}
        if isinstance(job := getattr(request, "job", None), str):
            details["job"] = job[:MAX_NAME]
        if isinstance(run_id := getattr(request, "run_id", None), bytes):
            details["run"] = run_id[:RUN_ID_BYTES].hex()
        audit.refused(caller, method.rpartition("/")[2], str(error), **details)

    return on_refusal


def _until_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
