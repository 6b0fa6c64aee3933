"""The network for tests behaves as configured."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import eventually_in_thread
from tests.support.wan import ROOT, Line, Wan, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

PORT = 5000
SILENCE = 0.3
"""Seconds after which no more packets arrive on a line without delay."""
LAST = b"the last"


@contextmanager
def endpoints(wan: Wan, *hosts: str) -> Iterator[list[socket.socket]]:
    """Yield a datagram socket on each host."""
    with ExitStack() as stack:
        sockets = []
        for host in hosts:
            endpoint = stack.enter_context(wan.socket_at(host, socket.SOCK_DGRAM))
            endpoint.bind((wan.address(host), PORT))
            endpoint.settimeout(10)
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sockets.append(endpoint)
        yield sockets


def through(wan: Wan, line: Line, contents: list[bytes], a: socket.socket, b: socket.socket) -> list[bytes]:
    """Send packets at once from a over a line; return those that arrive at b, in order of arrival."""
    wan.shape("a", line)
    for content in contents:
        a.sendto(content, (wan.address("b"), PORT))
    time.sleep(SILENCE)
    wan.shape("a", Line())
    a.sendto(LAST, (wan.address("b"), PORT))
    return list(iter(lambda: b.recv(2000), LAST))


def hears_nothing(endpoint: socket.socket) -> bool:
    endpoint.settimeout(SILENCE)
    try:
        endpoint.recv(2000)
    except TimeoutError:
        endpoint.settimeout(10)
        return True
    return False


def test_a_round_trip_takes_the_delays_of_both_lines_twice() -> None:
    with Wan({"a": Line(delay=0.01), "b": Line(delay=0.03)}) as wan, endpoints(wan, "a", "b") as (a, b):
        begun = time.monotonic()
        a.sendto(b"there", (wan.address("b"), PORT))
        content, sender = b.recvfrom(100)
        b.sendto(b"and back", sender)

        assert (content, sender) == (b"there", (wan.address("a"), PORT))
        assert a.recv(100) == b"and back"
        assert time.monotonic() - begun >= 0.08


def test_a_slow_line_takes_time_and_loses_packets_when_its_queue_is_full() -> None:
    narrow, packet = Line(bandwidth=1e6, queue=20_000), bytes(1222)  # 1250 with the headers: 10 ms at 1 Mbit/s
    with Wan({"a": narrow, "b": Line()}) as wan, endpoints(wan, "a", "b") as (a, b):
        begun = time.monotonic()
        for _ in range(10):
            a.sendto(packet, (wan.address("b"), PORT))
        for _ in range(10):
            b.recv(2000)
        assert time.monotonic() - begun >= 0.1
        assert wan.bytes_between("a", "b") == 12_500
        assert wan.bytes_between("b", "a") == 0

        # Packets arrive if the queue has room for them, or others have left it in time.
        assert 16 <= len(through(wan, narrow, [packet] * 200, a, b)) < 200


def test_loss_and_reordering_are_as_configured_and_can_change() -> None:
    numbers = [b"%03d" % number for number in range(400)]
    with Wan({"a": Line(), "b": Line()}) as wan, endpoints(wan, "a", "b") as (a, b):
        assert through(wan, Line(jitter=0.01), numbers, a, b) == numbers

        kept = through(wan, Line(loss=0.5), numbers, a, b)
        assert 120 < len(kept) < 280
        assert kept == sorted(kept)

        mixed = through(wan, Line(reordering=0.2), numbers, a, b)
        assert sorted(mixed) == numbers
        assert mixed != numbers


def test_a_partition_cuts_a_pair_or_all_until_it_is_healed() -> None:
    with Wan(dict.fromkeys("abc", Line())) as wan, endpoints(wan, *"abc") as (a, b, c):

        def send() -> None:
            a.sendto(b"to b", (wan.address("b"), PORT))
            a.sendto(b"to c", (wan.address("c"), PORT))

        wan.cut("a", "b")
        send()
        assert c.recv(100) == b"to c"
        assert hears_nothing(b)

        wan.cut()
        send()
        assert hears_nothing(b)
        assert hears_nothing(c)

        wan.heal()
        send()
        assert (b.recv(100), c.recv(100)) == (b"to b", b"to c")


def test_programs_run_on_a_host_and_end_with_the_network() -> None:
    with Wan({"a": Line(), "b": Line()}) as wan:
        shown = wan.run_in("b", ["ip", "-brief", "address"], stdout=subprocess.PIPE, text=True)
        out, _ = shown.communicate()
        assert wan.address("b") in out
        assert wan.address("a") not in out
        forgotten = wan.run_in("a", ["sleep", "1000"])
        # Until then, the program that enters the namespace runs in its place.
        eventually_in_thread(lambda: Path(f"/proc/{forgotten.pid}/comm").read_text().strip() == "sleep")

    assert forgotten.wait() == -signal.SIGKILL


KILLED = """
import os, signal
from tests.support.wan import Line, Wan
with Wan({"a": Line()}) as wan:
    print(wan.run_in("a", ["sleep", "1000"], stdout=2).pid, wan._switch.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_remains_when_the_program_that_made_the_network_is_killed() -> None:
    result = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr

    eventually_in_thread(lambda: not any(_is_alive(int(pid)) for pid in result.stdout.split()))


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
