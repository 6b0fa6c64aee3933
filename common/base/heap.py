"""The memory that the C library keeps for later allocations."""

import ctypes
from contextlib import suppress


def trim_heap() -> None:
    """Give freed memory back to the system. Call it after work that needed much memory for a short time.

    The GNU C library keeps most freed memory, so that the peaks of successive steps would add up: one step leaves gaps
    that the larger arrays of the next do not fit into. Other C libraries have no such function, and nothing happens
    there.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
