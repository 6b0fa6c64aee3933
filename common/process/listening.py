"""Why a process cannot listen on an address: gRPC does not say."""

import errno
import socket
from contextlib import ExitStack

from trilateral.common.base.addresses import split_address


def obstacle(address: str, taken: ExitStack, other: str | None = None) -> str:
    """Bind an address until the stack closes.

    Args:
        address: host:port.
        taken: closes the sockets.
        other: an address that the stack holds already.

    Returns:
        Why the address cannot be bound and what to do, to follow the address in a sentence; "" if it can.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        return "has a host name that cannot be resolved: correct it, or use 0.0.0.0 for all addresses of this machine"
    errors = [error for each in found if (error := _bind(each, taken)) is not None]
    # A name such as localhost may have an address of a family that this machine does not use.
    elsewhere = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    serious = [error for error in errors if error.errno not in elsewhere]
    if not serious and len(errors) < len(found):
        return ""
    error = (serious or errors)[0]
    match error.errno:
        case errno.EADDRINUSE if other is not None and split_address(other)[1] == port:
            return f"has the same port as `listen`, {other}: choose another port"
        case errno.EADDRINUSE:
            return "is in use by another program, or by a process that does not answer: choose another port"
        case errno.EADDRNOTAVAIL:
            return "is not an address of this machine: correct it, or use 0.0.0.0 for all addresses of this machine"
        case errno.EACCES | errno.EPERM:
            return (
                "is not permitted for this user: choose a port of 1024 or above, or permit this one with "
                "CAP_NET_BIND_SERVICE or with `sysctl net.ipv4.ip_unprivileged_port_start` (see docs/deployment.md)"
            )
        case _:
            return f"cannot be used: {error.strerror}"


def _bind(found: tuple[int, int, int, str, object], taken: ExitStack) -> OSError | None:
    family, kind, protocol, _, target = found
    try:
        trial = taken.enter_context(socket.socket(family, kind, protocol))
        # As a server does, which may start right after another one has ended.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(target)  # type: ignore[arg-type]
        trial.listen(1)
    except OSError as error:
        return error
    return None
