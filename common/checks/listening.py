"""Check of the addresses that this process listens on."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

from trilateral.common.base.errors import PeerError, TrilateralError
from trilateral.common.checks.finding import Finding, note, ok, problem, warning
from trilateral.common.config.process import ProcessConfig, is_loopback_address
from trilateral.common.process.health import check_health
from trilateral.common.process.listening import obstacle

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
    page = config.ui.listen
    if page is not None and not config.ui.clients:
        yield warning(
            "ui.listen",
            f"every user and every program of this machine can open {page} and read jobs, reports and the audit log: "
            "list in `ui.clients` whose certificates may open it, unless this machine is yours alone",
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
        why = obstacle(config.listen, taken)
        yield problem("listen", f"{config.listen} {why}") if why else ok("listen", f"{config.listen} is free")
        for setting, address in (
            ("metrics.listen", metrics),
            ("online.listen", config.online.listen),
            ("ui.listen", page),
        ):
            if address is None:
                continue
            why = obstacle(address, taken, config.listen)
            yield problem(setting, f"{address} {why}") if why else ok(setting, f"{address} is free")
