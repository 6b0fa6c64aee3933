"""How the C library manages this process's memory.

This is a separate module because it must run before the import of any module that starts threads.
"""

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8
"""As in glibc's malloc.h."""
ARENAS = 2


def share_heaps() -> None:
    """Let all threads share a few heaps. Call it before the process has threads.

    By default glibc gives each new thread its own heap, up to eight heaps for each processor, and memory that is freed
    in one heap cannot be used in another. Every job has a thread, so each heap of a long-lived process would end up
    holding a job's peak memory. Other C libraries do not have this setting, and nothing happens there.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
