"""A server's life: bind, serve, say that it is healthy, and stop without cutting calls off."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from trilateral.common.base.errors import ConfigError, TrilateralError
from trilateral.common.base.tracebacks import where
from trilateral.common.config.process import ProcessConfig
from trilateral.common.observe.audit import Audit
from trilateral.common.observe.metrics import Metrics
from trilateral.common.observe.scraping import scraped
from trilateral.common.pb.v1 import process_pb2_grpc
from trilateral.common.process.description import ProcessServicer
from trilateral.common.process.state_folder import held_state
from trilateral.common.rpc.access import Caller, Guard, identify
from trilateral.common.rpc.certificates import Certificates
from trilateral.common.rpc.channel import SERVER_OPTIONS
from trilateral.common.rpc.codec import PACKAGE, RUN_ID_BYTES
from trilateral.common.rpc.intake import MAX_CALLS_EACH, Intake

log = logging.getLogger(__name__)

GRACE = 3.0
"""Seconds for calls under way when the server stops."""
MAX_NAME = 64
"""Characters of a job's name, which a stranger may have written, that the audit log takes down."""
MAX_CALLS = 4 * MAX_CALLS_EACH + 64
"""Calls of all at a time, so that the most of each of four callers leave room; more are refused."""


def new_server(intake: Intake, guard: Guard) -> grpc.aio.Server:
    """Make a server whose every call is bounded by the intake, then passes the guard."""
    return grpc.aio.server(
        interceptors=[intake, guard],
        options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=MAX_CALLS,
        compression=grpc.Compression.NoCompression,
    )


def make_audit(config: ProcessConfig) -> Audit:
    """The audit log of a process, in its state folder."""
    return Audit(config.state / "audit.jsonl")


def _tell_refusal(audit: Audit, caller: Caller, method: str, error: TrilateralError, request: Any) -> None:
    what: dict[str, str] = {}
    if isinstance(job := getattr(request, "job", None), str):
        what["job"] = job[:MAX_NAME]
    if isinstance(run_id := getattr(request, "run_id", None), bytes):
        what["run"] = run_id[:RUN_ID_BYTES].hex()
    audit.refused(caller, method.rpartition("/")[2], str(error), **what)


def log_without_text(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a task or a callback left behind: the loop's own way quotes the error, and so perhaps a row."""
    error = context.get("exception")
    log.error("%s%s", context.get("message", "an error in the event loop"), f": {where(error)}" if error else "")


def bind(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> str:
    """Listen, in plaintext without certificates; return the address with the port that was chosen if it was 0."""
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.server_credentials())
    except RuntimeError:
        raise ConfigError(
            f"listen: {address} cannot be used: it is already in use, or is no address of this machine;"
            " choose another port in `listen`, or stop what listens there"
        ) from None
    return f"{address.rpartition(':')[0]}:{port}"


async def run_server(
    config: ProcessConfig,
    certificates: Certificates | None,
    services: Sequence[str],
    add_services: Callable[[grpc.aio.Server], None],
    close: Callable[[], Awaitable[None]],
    *,
    audit: Audit,
    metrics: Metrics,
    stop: asyncio.Event | None,
    on_ready: Callable[[str], None],
    begin: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; `begin` is called once calls are taken, `close` before the last of them.

    `add_services` is called when the process holds its state folder.

    Raises:
        ConfigError: the address or the state folder cannot be used.
    """
    with held_state(config.state, config.role):
        if certificates is None:
            log.warning("plaintext: nothing is encrypted, and anyone on this machine can read and pretend to be anyone")
        who = identify(config, certificates)

        def on_refusal(caller: Caller, method: str, error: TrilateralError, request: Any) -> None:
            metrics.refused(error)
            _tell_refusal(audit, caller, method, error, request)

        server = new_server(
            Intake(config.role, who, config.limits, on_refusal), Guard(config.role, who, config.operators, on_refusal)
        )
        health_servicer = health.aio.HealthServicer()
        names = ["", *(f"{PACKAGE}.{service}" for service in services)]
        for name in names:
            await health_servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        process_pb2_grpc.add_ProcessServiceServicer_to_server(ProcessServicer(config.role), server)
        add_services(server)
        address = bind(server, config.listen, certificates)
        stop = _until_signal() if stop is None else stop
        asyncio.get_running_loop().set_exception_handler(log_without_text)
        metrics.certificates = certificates
        async with scraped(config.metrics.listen, metrics):
            await server.start()
            try:
                for name in names:
                    await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
                log.info("%s listens on %s", config.role, address)
                on_ready(address)
                if begin is not None:
                    await begin()
                await stop.wait()
                log.info("%s stops", config.role)
                await health_servicer.enter_graceful_shutdown()
                await close()
            finally:
                await server.stop(GRACE)


def _until_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
