"""Check of the addresses that this process listens on."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.checks.finding import Finding, note, ok, problem, warning
from trilateral.common.config.process import ProcessConfig, is_loopback_address
from trilateral.common.process.health import check_health

SECONDS = 3.0
"""How long to wait for the answer of a process that may already be running."""


def check_listening(config: ProcessConfig) -> Iterator[Finding]:
    """Check that the process is running, or that it could listen on its addresses.

    Args:
        config: the configuration of the process.
    """
    away = [peer.address for peer in config.peers.values() if not is_loopback_address(peer.address)]
    if away and is_loopback_address(config.listen):
        yield warning(
            "listen",
            f"only this machine can reach {config.listen}, but the peer {away[0]} is on another machine: listen on "
            "0.0.0.0 or on an address that the peers can reach",
        )
    metrics = config.metrics.listen
    if metrics is not None and not is_loopback_address(metrics):
        yield warning(
            "metrics.listen",
            f"anyone who can connect to {metrics} can read names, losses, sizes and times of jobs: listen on "
            "127.0.0.1, or let a firewall admit only Prometheus",
        )
    if config.listen.endswith(":0"):
        yield warning("listen", f"{config.listen} has no fixed port, but the peers need to know it: set one")
    else:
        try:
            asyncio.run(check_health(config, SECONDS))
        except TrilateralError as error:
            if not isinstance(error, PeerError):  # The check of the certificate reports it.
                return
        else:
            yield note("listen", f"the {config.role} of this configuration is running at {config.listen}")
            return
    with ExitStack() as taken:
        obstacle = _take(config.listen, taken)
        yield problem("listen", f"{config.listen} {obstacle}") if obstacle else ok("listen", f"{config.listen} is free")
        if metrics is None:
            return
        if obstacle := _take(metrics, taken, config.listen):
            yield problem("metrics.listen", f"{metrics} {obstacle}")
        else:
            yield ok("metrics.listen", f"{metrics} is free")


def _take(address: str, taken: ExitStack, other: str | None = None) -> str:
    """Bind an address until the stack closes, and return why that is not possible, or ''.

    `other` is an address that the stack already holds.
    """
    host, port = _split(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        return "has a host name that cannot be resolved: correct it, or use 0.0.0.0 for all addresses of this machine"
    trial = taken.enter_context(socket.socket(family, kind, protocol))
    # As a server does, which may start right after another one has ended.
    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        trial.bind(target)
        trial.listen(1)
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE if other is not None and _split(other)[1] == port:
                return f"has the same port as `listen`, {other}: choose another port"
            case errno.EADDRINUSE:
                return "is in use by another program, or by a process that does not answer: choose another port"
            case errno.EADDRNOTAVAIL:
                return "is not an address of this machine: correct it, or use 0.0.0.0 for all addresses of this machine"
            case errno.EACCES:
                return "is not permitted for this user: choose a port of 1024 or above"
            case _:
                return f"cannot be used: {error.strerror}"
    return ""


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
