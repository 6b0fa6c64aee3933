"""What the C library and the system do with this process's memory.

This is a separate module because it must run before the import of any module that starts threads.
"""

import ctypes
import logging
import os
import resource
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

M_ARENA_MAX = -8
"""As in glibc's malloc.h."""
ARENAS = 2
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 * 1024 * 1024
"""Freed bytes at the end of a heap that the process keeps: what the links of a job and its inbox hold at most."""
SEPARATE_BYTES = 8 * 1024 * 1024
"""Size from which an allocation gets pages of its own, which the system takes back: larger than any message."""
PR_SET_DUMPABLE = 4
"""As in Linux's prctl.h."""
SWAPS = Path("/proc/swaps")
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
"""As in Linux's mman.h."""


def share_heaps() -> None:
    """Let all threads share a few heaps. Call it before the process has threads.

    By default glibc gives each new thread its own heap, up to eight heaps for each processor, and memory that is freed
    in one heap cannot be used in another. Every job has a thread, so each heap of a long-lived process would end up
    holding a job's peak memory. Other C libraries do not have this setting, and nothing happens there.

    Arrow, which reads tables, uses these heaps too. It would keep several megabytes in a heap of its own.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


def reuse_freed_memory() -> None:
    """Keep the memory of messages that were sent or used for the next ones.

    Ring elements come and go in messages of a mebibyte. By default glibc gives such memory back to the system at once,
    and takes it anew, page by page, for the next message. That costs as much processor time as sending the message.
    """
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, SEPARATE_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def refuse_core_dumps() -> None:
    """Keep this process's memory out of core dumps, and out of the reach of its user's other processes.

    `RLIMIT_CORE` alone is not enough: it does not count if the system passes core dumps to a program. A process that is
    not dumpable makes no core dump at all, and only root may attach a debugger to it or read its memory.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def lock_memory() -> None:
    """Keep this process's memory out of swap space, if the system puts no limit on locked memory.

    Under a limit, an allocation beyond it would fail in the middle of a job. Each page is locked when it is first used,
    so address space that is only reserved, such as the stacks of threads, costs nothing.
    """
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    reason = "the limit on locked memory is too low"
    if most == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (most, most))
        library = ctypes.CDLL(None, use_errno=True)
        if library.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0:
            return
        reason = os.strerror(ctypes.get_errno())
    if not has_swap():
        return
    log.warning(
        "memory is not locked, so parts of private keys may reach swap space (%s): set LimitMEMLOCK=infinity in the "
        "systemd unit, or memlock: -1 under ulimits of the container",
        reason,
    )


def has_swap() -> bool:
    """Return whether the machine has swap space, as far as the system tells."""
    try:
        return len(SWAPS.read_text().splitlines()) > 1  # The first line is a heading.
    except OSError:
        return False
