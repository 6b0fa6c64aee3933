"""How this process's memory is handed out."""

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8
"""As in glibc's malloc.h."""
ARENAS = 2


def share_heaps() -> None:
    """Let all threads share a few heaps; to be called before there are any.

    glibc gives each new thread one of its own, up to eight a processor, and what was freed in one serves no other.
    Every job has a thread, so a process that lives long would come to hold the most that a job needs in each of them.
    Other C libraries have nothing of the kind, and are left alone.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
