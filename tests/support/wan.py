"""A wide-area network of hosts on this machine, in user space, with delay, loss, limited bandwidth, and partitions.

Each host is a network namespace of Linux with its own address. `tests.support.wan_switch` carries the packets. The
namespaces belong to the switch. When the program that made the network ends, for whatever reason, the switch kills
everything in the namespaces and ends too.

    with Wan({"host": Line(delay=0.01), "guest": Line(delay=0.01, bandwidth=20e6)}) as wan:
        process = wan.run_in("host", ["trilateral", "serve", ...])
        wan.cut("host", "guest")
"""

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.namespaces import TUN, in_namespace, kill_all_in, open_tun
from tests.support.wan_switch import Line

__all__ = ["Line", "Wan", "why_not"]

ROOT = Path(__file__).parents[2]
NETWORK = "10.90.0"
STOP_SECONDS = 10.0


@functools.cache
def why_not() -> str | None:
    """Return why this machine cannot run such a network; None if it can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    for program in ("ip", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    try:
        os.close(in_namespace(None, lambda: open_tun("trial0")))
    except OSError as error:
        return f"no network namespace with a device of {TUN} can be made ({error.strerror}): this needs root"
    return None


class Wan:
    """A network of the hosts in `lines`, until the block ends.

    Args:
        lines: The line of each host.
        seed: Seed of random events; the same packets suffer the same losses.
    """

    def __init__(self, lines: Mapping[str, Line], seed: int = 0) -> None:
        self._lines = dict(lines)
        self._seed = seed
        self._addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(lines, 1)}
        self._lock = threading.Lock()
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        settings = {
            "lines": {name: asdict(line) for name, line in self._lines.items()},
            "addresses": self._addresses,
            "seed": self._seed,
        }
        # In a new session, so that Ctrl-C does not end the network before the programs that use it.
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "tests.support.wan_switch", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        with contextlib.ExitStack() as resources:
            resources.callback(self._end_switch)
            held = self._answer()
            self._namespaces: dict[str, int] = {}
            for name, descriptor in held.items():
                path = f"/proc/{self._switch.pid}/fd/{descriptor}"
                self._namespaces[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                resources.callback(os.close, self._namespaces[name])
            resources.callback(lambda: kill_all_in(self._namespaces.values()))
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    # --- hosts

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host."""
        return self._addresses[host]

    def run_in(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on a host, as `subprocess.Popen` does. The end of the network kills it."""
        return subprocess.Popen(["nsenter", f"--net={self.namespace(host)}", "--", *command], **options)

    def namespace(self, host: str) -> str:
        """Return a file with which to enter the network namespace of a host, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._namespaces[host]}"

    def socket_at(self, host: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        """Return an IPv4 socket on a host; any thread may use it."""
        return in_namespace(self._namespaces[host], lambda: socket.socket(socket.AF_INET, kind))

    # --- what the network is like

    def shape(self, host: str, line: Line) -> None:
        """Change the line of a host for packets that enter it from now on."""
        self._order({"shape": host, "line": asdict(line)})

    def cut(self, *hosts: str) -> None:
        """Silently drop all packets between these hosts, or between all hosts if no host is named."""
        self._order({"cut": self._pairs(hosts)})

    def heal(self, *hosts: str) -> None:
        """Undo `cut`."""
        self._order({"heal": self._pairs(hosts)})

    def bytes_between(self, sender: str, receiver: str) -> int:
        """Return how many bytes of whole packets have arrived in this direction, including repetitions."""
        return int(self._order({"carried": [sender, receiver]}))

    def _pairs(self, hosts: Sequence[str]) -> list[tuple[str, str]]:
        return list(combinations(hosts or self._addresses, 2))

    # --- the switch

    def _order(self, command: dict[str, Any]) -> Any:
        with self._lock:
            assert self._switch.stdin is not None
            self._switch.stdin.write(json.dumps(command).encode() + b"\n")
            self._switch.stdin.flush()
            return self._answer()

    def _answer(self) -> Any:
        assert self._switch.stdout is not None
        line = self._switch.stdout.readline()
        if not line:
            raise RuntimeError(f"the network ended with exit code {self._switch.wait()}")
        return json.loads(line)

    def _end_switch(self) -> None:
        with self._switch as switch:
            assert switch.stdin is not None
            switch.stdin.close()
            try:
                switch.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                switch.kill()
