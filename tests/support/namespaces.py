"""Network namespaces of Linux. A thread that enters one never returns to other work."""

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000
TUN = Path("/dev/net/tun")
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000

T = TypeVar("T")


def enter(namespace: int | None) -> None:
    """Move this thread into a network namespace for good; see `in_namespace`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) if namespace is None else libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_namespace(namespace: int | None, function: Callable[[], T]) -> T:
    """Call `function` in a new thread inside a network namespace.

    Sockets and processes that it makes stay in the namespace.

    Args:
        namespace: Descriptor of a namespace. None makes a new one, which lasts while something uses it.
        function: Function to call.

    Raises:
        OSError: The machine does not permit it.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter(namespace)
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def open_tun(name: str) -> int:
    """Make a network device in the namespace of this thread; packets go through the returned descriptor."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def this_namespace() -> int:
    """Return a descriptor of the network namespace of this thread."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def kill_all_in(namespaces: Collection[int]) -> None:
    """Kill every process in these namespaces (descriptors), including processes that those start meanwhile."""
    inodes = {os.fstat(namespace).st_ino for namespace in namespaces}
    while pids := [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_in(entry, inodes)
    ]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_in(process: Path, inodes: Collection[int]) -> bool:
    """Return whether a process is in one of the namespaces; zombies are in none."""
    try:
        return (process / "ns/net").stat().st_ino in inodes
    except OSError:
        return False
