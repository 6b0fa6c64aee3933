"""Where this process listens, or will."""

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


def check_listening(config: ProcessConfig) -> Iterator[Finding]:
    """Check that the process serves, or that it could listen where it is told to."""
    away = [peer.address for peer in config.peers.values() if not is_loopback_address(peer.address)]
    if away and is_loopback_address(config.listen):
        yield warning(
            "listen",
            f"{config.listen} is reached from this machine alone, and {away[0]} is another: listen on 0.0.0.0 or on an "
            "address that the peers reach",
        )
    metrics = config.metrics.listen
    if metrics is not None and not is_loopback_address(metrics):
        yield warning(
            "metrics.listen",
            f"whoever can connect to {metrics} reads names, losses, sizes and times of jobs, and nothing asks who it "
            "is: listen on 127.0.0.1, or let a firewall pass Prometheus alone",
        )
    if config.listen.endswith(":0"):
        yield warning("listen", f"{config.listen} leaves the port open, and the peers need to know it: give one")
    else:
        try:
            asyncio.run(check_health(config, SECONDS))
        except TrilateralError as error:
            if not isinstance(error, PeerError):  # The certificate's own check says what.
                return
        else:
            yield note("listen", f"the {config.role} of this configuration serves at {config.listen}")
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
    """Take an address beside the `other` that is taken, until the stack closes; return why that is not possible."""
    host, port = _split(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        return "has a name that cannot be resolved to an address: correct it, or write 0.0.0.0 for all of this machine"
    trial = taken.enter_context(socket.socket(family, kind, protocol))
    # As a server does, which may follow at once on one that has ended.
    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        trial.bind(target)
        trial.listen(1)
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE if other is not None and _split(other)[1] == port:
                return f"has the port of `listen`, {other}: choose another one"
            case errno.EADDRINUSE:
                return "is in use by another program, or by a process that does not serve: choose another port"
            case errno.EADDRNOTAVAIL:
                return "is no address of this machine: correct it, or write 0.0.0.0 for all of this machine"
            case errno.EACCES:
                return "may not be used by this user: choose a port from 1024 up"
            case _:
                return f"cannot be used: {error.strerror}"
    return ""


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
