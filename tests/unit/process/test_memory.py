"""Threads share a few heaps."""

import subprocess
import sys

from trilateral.common.process.memory import ARENAS

PROGRAM = """
import ctypes, sys, threading
from trilateral.common.process.memory import share_heaps
if sys.argv[1] == "shared":
    share_heaps()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
there, go = threading.Barrier(9), threading.Event()

def hold():
    libc.malloc(1000)
    there.wait()
    go.wait()

threads = [threading.Thread(target=hold) for _ in range(8)]
for thread in threads:
    thread.start()
there.wait()
libc.malloc_info(0, out := ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(out)
go.set()
"""


def heaps(how: str) -> int:
    result = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    return result.stdout.count("<heap nr=")


def test_many_threads_share_a_few_heaps() -> None:
    assert heaps("shared") <= ARENAS < heaps("each its own")
