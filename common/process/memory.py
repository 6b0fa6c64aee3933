"""How the C library manages this process's memory.

A module of its own, since it must run before any module is imported that starts threads.
"""

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8
"""As in glibc's malloc.h."""
ARENAS = 2


def share_heaps() -> None:
    """Let all threads share a few heaps. Call it before the process has threads.

    By default glibc gives each new thread a heap of its own, up to eight for each processor, and memory that is freed
    in one heap does not serve another. Every job has a thread, so a long-lived process would come to hold a job's peak
    memory in each heap. Other C libraries do not have this setting, and are left alone.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
