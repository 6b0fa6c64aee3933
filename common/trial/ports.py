"""Ports on this machine that stay free until the process that chose them ends."""

import fcntl
import itertools
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from trilateral.common.base.addresses import split_address
from trilateral.common.base.errors import ConfigError

PORTS = range(20_000, 32_768)
"""Below the ports that Linux hands out by default (`net.ipv4.ip_local_port_range`)."""


def free_address() -> str:
    """Return an address on this machine that no other process gets while this one lives.

    A port that the kernel chose for `bind` to port 0 is free only until the kernel chooses it again, for another
    server or for an outgoing connection. The ports here are below those that the kernel chooses from, and a lock
    keeps each from other processes that call this function.

    Raises:
        ConfigError: the lock file cannot be used, or no port is free.
    """
    for port in itertools.islice(_candidates(), len(PORTS)):
        address = f"127.0.0.1:{port}"
        if lock_address(address) and _can_listen(port):
            return address
    raise ConfigError(f"all ports from {PORTS.start} to {PORTS.stop - 1} are in use on this machine")


def lock_address(address: str) -> bool:
    """Keep other processes from choosing an address while this process lives; False if another process has it.

    Raises:
        ConfigError: the lock file cannot be used.
    """
    # A record lock on one byte for each port: the kernel drops it when the process ends, and it needs no open file of
    # its own.
    try:
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, split_address(address)[1])
    except OSError:
        return False
    return True


@cache
def _candidates() -> Iterator[int]:
    """Return the ports in turn, from one chosen at random, so that a port just used rests for a while."""
    start = secrets.randbelow(len(PORTS))
    return itertools.cycle([*PORTS[start:], *PORTS[:start]])


@cache
def _lock_file() -> int:
    """Open the file whose bytes stand for ports; it stays open, since closing it would drop the locks."""
    name = f"trilateral-ports-{os.getuid()}"
    try:
        path = Path(tempfile.gettempdir()) / name
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot reserve ports with the temporary file {name}: {error.strerror}") from error


def _can_listen(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
